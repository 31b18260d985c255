"""What goes on inside a trained model: which rows influence which, and their states in a plane."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.blocks import COLOURS, Explorer, Note, Section, Table, number, plain, rounded
from difformer.data.dataset import Dataset
from difformer.data.registry import load_raw, raw_datasets
from difformer.errors import DifformerError
from difformer.nn.exchange import Passage
from difformer.nn.model import DIFFormer
from difformer.runs.open import LoadedRun

CHUNK = 2**23  # diffusivities held together
MOST_PAIRS = 2**29  # diffusivities computed per layer of a page: a few seconds
ROWS_SPREAD = 500  # rows whose effective number of neighbours is computed
MOST_EDGES = 1500  # drawn at the lowest setting of the slider
MOST_INFLUENCED = 2000  # rows whose strongest influences are on the page
NEIGHBOURS = 8  # of each of them
MOST_IMAGES = 2000
PROJECTIONS = ("auto", "pca", "tsne")
MOST_TSNE = 2000  # rows up to which "auto" takes t-SNE, which is slower

Folder = Path | str | None


class LayerWeights:
    """Ŝ of one layer of a model on given rows, kept as queries and keys. O(n d h) memory.

    Ŝ is averaged over heads, as the layer does; each row sums to one.
    """

    def __init__(self, passage: Passage) -> None:
        self.q, self.k, _ = passage.project()
        self.kernel, self.n = passage.layer.diffusivity, passage.before.shape[0]
        self.affordable = MOST_PAIRS // (self.n * self.q.shape[0])  # rows whose Ŝ a page computes

    def rows(self, rows: Tensor) -> Tensor:
        """Ŝ[rows] (r, n)."""
        with torch.no_grad():
            return self.kernel.weights_of(rows, self.q, self.k).mean(-3)

    def chunks(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs of (some of the rows, their Ŝ), until all rows are covered."""
        size = max(1, CHUNK // (self.n * self.q.shape[0]))
        for part in rows.split(size):
            yield part, self.rows(part)

    def average(self, value: Tensor) -> Tensor:
        """Σ_j Ŝ_ij value_j (n, e) at the layer's own cost: O(n d e) where Ŝ separates."""
        heads = self.q.shape[0]
        with torch.no_grad():
            return self.kernel(self.q, self.k, value.expand(heads, -1, -1)).mean(-3)


def layer_weights(model: DIFFormer, x: Tensor, graph: Any = None) -> list[LayerWeights]:
    """The weights of every layer of a model on given rows, at the cost of a forward pass."""
    with torch.no_grad():
        return [LayerWeights(passage) for passage in model.passages(x, graph)]


def strongest(
    weights: LayerWeights, *, k: int, rows: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The k largest Ŝ_ij with i ≠ j of a layer, exactly: targets i, sources j, and Ŝ_ij.

    `rows` restricts both ends to some rows (Ŝ is still that of all rows). O(n² d) time, O(k +
    chunk) memory.
    """
    within = torch.arange(weights.n) if rows is None else rows.sort().values
    best = torch.empty(0)
    ends = torch.empty(2, 0, dtype=torch.int64)
    for part, block in weights.chunks(within):
        columns = block[:, within].float()
        columns[part.unsqueeze(1) == within] = -1.0  # a row is not paired with itself
        flat = columns.flatten()
        found = flat.topk(min(k, flat.numel()))
        i, j = found.indices // within.numel(), found.indices % within.numel()
        best = torch.cat([best, found.values])
        ends = torch.cat([ends, torch.stack([part[i], within[j]])], dim=1)
        keep = best.argsort(descending=True, stable=True)[:k]
        best, ends = best[keep], ends[:, keep]
    real = best > 0
    return ends[0, real], ends[1, real], best[real]


def flow_between(weights: LayerWeights, y: Tensor) -> tuple[Tensor, float, float]:
    """How much of its diffusivity each class gives to each class: (c, c), and two shares.

    Entry [a, b] is the mean over rows of class a of Σ_{j in b} Ŝ_ij: rows sum to one, less what
    goes to rows without a class; a class without rows is nan. The shares are the mean over all
    rows of what goes to their own class, and that of a uniform Ŝ. Ŝ times the one-hot labels is
    one more average, so pairs are never enumerated: the cost is that of the layer.

    Args:
        y: (n,) int64 classes, -1 where unknown; one at least is known.
    """
    known = y >= 0
    one_hot = torch.zeros(weights.n, int(y.max()) + 1, dtype=weights.q.dtype)
    one_hot[known] = F.one_hot(y[known], one_hot.shape[1]).to(one_hot.dtype)
    shares = weights.average(one_hot)  # (n, c)
    counts = one_hot.sum(0)
    flow = (one_hot.T @ shares) / counts.unsqueeze(1)  # 0/0 is nan: a class without rows
    own = shares[known].gather(1, y[known].unsqueeze(1))
    expected = float((counts / counts.sum() * counts / weights.n).sum())
    return flow, float(own.mean()), expected


def spread(weights: LayerWeights, rows: Tensor) -> Tensor:
    """(r,) the effective number of rows that influence each of `rows`: O(r n d) time.

    1 / Σ_j Ŝ_ij² is n where all weights are alike, and 1 where one row takes all.
    """
    return torch.cat([1.0 / block.double().square().sum(1) for _, block in weights.chunks(rows)])


def sample_rows(n: int, most: int, *, seed: int = 0) -> Tensor:
    """At most `most` of n rows, sorted, drawn at random: O(n)."""
    if n <= most:
        return torch.arange(n)
    draw = torch.Generator().manual_seed(seed)
    return torch.randperm(n, generator=draw)[:most].sort().values


def diffusivity_section(run: LoadedRun, weights: list[LayerWeights]) -> Section:
    """How far diffusivity spreads, and how much of it stays within a class, layer by layer."""
    none: list[Any] = [Note("The model is not a DIFFormer: it has no diffusivity.")]
    return Section("diffusivity", "Diffusivity", _spreads(run, weights) if weights else none)


def _spreads(run: LoadedRun, weights: list[LayerWeights]) -> list[Any]:
    n, y = run.dataset.num_rows, run.dataset.y
    rows = sample_rows(n, min(ROWS_SPREAD, max(1, weights[0].affordable // len(weights))))
    medians = [float(spread(w, rows).median()) for w in weights]
    classes = run.dataset.task == "multiclass" and bool((y >= 0).any())
    flows = [flow_between(w, y) for w in weights] if classes else []
    header = ["layer", "effective neighbours (median)", "share of all rows"]
    header += ["within own class", "if all pairs were alike", "times more"] if flows else []
    cells = [[str(i), number(m), f"{100 * m / n:.3g} %"] for i, m in enumerate(medians, 1)]
    for row, (_, own, alike) in zip(cells, flows, strict=False):
        row += [f"{100 * own:.3g} %", f"{100 * alike:.3g} %", number(own / alike, 3)]
    looked = "" if rows.numel() == n else f" The neighbours: median of {rows.numel():,} rows."
    blocks: list[Any] = [Table("How diffusivity spreads, layer by layer." + looked, header, cells)]
    ends = sorted({0, len(weights) - 1})
    for i in ends:
        text = f"Layer {i + 1}: a row is influenced by {number(medians[i])} of {n:,} rows in effect"
        if medians[i] / n > 0.9:
            text += ", nearly all alike: its all-pair term is close to the mean of all rows"
        elif medians[i] < 2:
            text += ": by hardly more than one"
        if flows:
            lift = cells[i][-1]
            text += f"; its own class gets {lift} times what uniform weights would give it"
        blocks.append(Note(f"{text}."))
    if flows and 2 <= flows[0][0].shape[0] <= 30:
        blocks += [_flow_table(flows[i][0], i + 1, run.class_names) for i in ends]
    return blocks


def _flow_table(flow: Tensor, layer: int, names: list[str]) -> Table:
    # Shaded from the smallest to the largest share.
    low, high = float(flow.nan_to_num(1.0).min()), float(flow.nan_to_num(0.0).max())
    shades = ((flow - low) / ((high - low) or 1.0)).nan_to_num(0.0).tolist()
    rows = [
        [name, *("–" if v != v else f"{100 * v:.1f}" for v in shares)]
        for name, shares in zip(names, flow.tolist(), strict=False)
    ]
    return Table(
        f"Layer {layer}: of the diffusivity of a row of this class, per cent that comes from each "
        "class (– : a class without rows).",
        ["class", *names[: flow.shape[1]]],
        rows,
        shades,
    )


def states_section(
    run: LoadedRun, weights: list[LayerWeights], projection: str, most: int, data_dir: Folder
) -> Section:
    """The states after the first and the last layer, and which rows moved which.

    Args:
        projection: see `write_report`.
        most: rows drawn.
        data_dir: where the images of the rows are looked for.
    """
    total = run.dataset.num_rows
    rows = sample_rows(total, most)
    blocks: list[Any] = [
        Note(_how_to_read(run, weights)),
        Explorer(_explorer(run, rows, weights, projection, data_dir)),
    ]
    if rows.numel() < total:
        text = (
            f"{rows.numel():,} of {total:,} rows are drawn, sampled at random (seed 0). Edges are "
            "drawn between sampled rows only, with the diffusivities the model has for all rows."
        )
        blocks.insert(0, Note(text))
    return Section("states", "States and strongest diffusivities", blocks)


def _how_to_read(run: LoadedRun, weights: list[LayerWeights]) -> str:
    if not weights:
        return "The model keeps no layer states: its outputs are drawn."
    state = "Each point is a row: its state after the layer, in two dimensions."
    if all(layer.kernel.local for layer in weights):
        if run.graph is None:
            return f"{state} Rows do not meet: the model has no graph."
        return f"{state} Rows meet only along the edges of the graph."
    return (
        f"{state} A line joins a row to one that moved it; its strength is the diffusivity, in "
        "multiples of what a pair would have if all pairs were alike. Point at a row to see it, "
        "click it (or give its number) to see which rows influenced it most."
    )


def _explorer(
    run: LoadedRun, rows: Tensor, weights: list[LayerWeights], projection: str, data_dir: Folder
) -> dict[str, Any]:
    dataset, shown = run.dataset, rows.tolist()
    part = torch.zeros(dataset.num_rows, dtype=torch.int64)
    for code, name in enumerate(("train", "val", "test"), start=1):
        part[getattr(run.split, name)] = code
    data: dict[str, Any] = {
        "total": dataset.num_rows,
        "rows": shown,
        "part": part[rows].tolist(),
        "colours": list(COLOURS),
    }
    if dataset.task == "multiclass":
        data |= {
            "classes": run.class_names,
            "y": dataset.y[rows].tolist(),
            "guess": run.output[rows].argmax(1).tolist(),
            "all_y": dataset.y.tolist() if dataset.num_rows <= 50_000 else None,
        }
    else:
        y = dataset.y.reshape(dataset.num_rows, -1)
        guess = run.output if dataset.task == "regression" else run.output.sigmoid()
        data |= {"value": rounded(y[rows].mean(1), 7), "guess": rounded(guess[rows].mean(1), 7)}
    chosen = _chosen_states(run, weights)
    wanted = wanted_projections(projection, rows.numel())
    if all(_thin(_pca(state[rows].double().nan_to_num())) for _, state, _ in chosen):
        wanted = ["line"]
    data["projections"], data["panels"] = wanted, list[Any]()
    for title, state, layer in chosen:
        drawn = {how: project(state[rows], how).T for how in wanted}
        points = {how: [rounded(across), rounded(up)] for how, (across, up) in drawn.items()}
        data["panels"].append({"title": plain(title), "points": points})
        if layer is not None and rows.numel() > 1 and not layer.kernel.local:
            data["panels"][-1] |= _edges(layer, rows)
    # Rows whose influences are shown also get their image.
    known = {int(i) for panel in data["panels"] for i in panel.get("influences", ())}
    data["images"] = row_images(dataset, shown, data_dir, first=known)
    return data


def _chosen_states(
    run: LoadedRun, weights: list[LayerWeights]
) -> list[tuple[str, Tensor, LayerWeights | None]]:
    if not isinstance(run.model, DIFFormer):
        return [("Outputs", run.output, None)]
    with torch.no_grad():
        states, last = run.model.states(run.dataset.x, run.graph), len(weights)
    end = (f"After layer {last}, the last", states[last], weights[-1])
    if last == 1:
        return [("Before the layer", states[0], None), end]
    return [("After layer 1", states[1], weights[0]), end]


def _edges(weights: LayerWeights, rows: Tensor) -> dict[str, Any]:
    """The strongest pairs among the drawn rows, and the rows that influenced each of some most."""
    within = rows[sample_rows(rows.numel(), max(2, weights.affordable), seed=1)]
    target, source, weight = strongest(weights, k=MOST_EDGES, rows=within)
    place = {row: i for i, row in enumerate(rows.tolist())}
    edges = {
        "target": [place[r] for r in target.tolist()],
        "source": [place[r] for r in source.tolist()],
        "strength": rounded(weight * weights.n),
    }
    places = sample_rows(rows.numel(), min(MOST_INFLUENCED, max(1, weights.affordable)), seed=2)
    influences: dict[str, Any] = {}
    at = iter(places.tolist())
    for part, block in weights.chunks(rows[places]):
        block[torch.arange(part.numel()), part] = -1.0  # a row does not influence itself
        top = block.topk(min(NEIGHBOURS, weights.n - 1), dim=1)
        for sources, strength in zip(top.indices, top.values * weights.n, strict=True):
            influences[str(next(at))] = [sources.tolist(), rounded(strength)]
    return {"edges": edges, "searched": within.numel(), "influences": influences}


def row_images(
    dataset: Dataset, rows: list[int], data_dir: Folder = None, *, first: Collection[int] = ()
) -> list[str | None] | None:
    """A data URI for each of the rows, or None where they are not images.

    With more than 2,000 rows, those at the positions `first` have an image, and an even sample of
    the others. Images are read again from the dataset's files.
    """
    if dataset.name not in raw_datasets("images"):
        return None
    try:
        pixels: Any = load_raw(dataset.name, data_dir)
    except (DifformerError, OSError, ValueError):
        return None  # the features are available, the images are not
    pixels = pixels.pixels.permute(0, 2, 3, 1).numpy()  # (n, height, width, 3)
    if len(pixels) != dataset.num_rows:
        return None
    wanted = set(range(len(rows)))
    if len(rows) > MOST_IMAGES:
        wanted = set(sorted(first)[:MOST_IMAGES])
        others = [i for i in range(len(rows)) if i not in wanted]
        room = MOST_IMAGES - len(wanted)
        wanted |= set(others[:: -(-len(others) // room)]) if room else set()
    return [_uri(pixels[row]) if i in wanted else None for i, row in enumerate(rows)]


def _uri(pixels: Any) -> str:
    from PIL import Image

    file = io.BytesIO()
    if (pixels == pixels[..., :1]).all():
        pixels = pixels[..., 0]  # grey takes a third of the bytes
    kind = "png" if pixels.size <= 1024 else "jpeg"
    Image.fromarray(pixels).save(file, kind, optimize=True)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


def wanted_projections(projection: str, rows: int) -> list[str]:
    """The projections to draw; the first one is shown first."""
    if projection not in PROJECTIONS:
        raise ValueError(f"projection must be one of {', '.join(PROJECTIONS)}, got {projection!r}")
    if projection == "pca" or rows < 5 or (projection == "auto" and rows > MOST_TSNE):
        return ["pca"]
    return ["tsne", "pca"]


def project(state: Tensor, how: str) -> Tensor:
    """(n, d) -> (n, 2): principal components in O(n d²), or t-SNE in O(n log n) slow steps.

    Rows on a line are piled up on it in either case: both would draw nothing but the line, t-SNE
    because it starts from the principal components, and points on a line push none off it.
    """
    values = state.detach().double().nan_to_num()
    start = _pca(values)
    if _thin(start):
        return _piled(start[:, 0])
    if how == "pca":
        return start
    from sklearn.manifold import TSNE

    n = values.shape[0]
    begin: Any = (start / start[:, 0].std().clamp_min(1e-12) * 1e-4).numpy()
    perplexity = min(30.0, (n - 1) / 3)
    tsne = TSNE(init=begin, max_iter=300, perplexity=perplexity, random_state=0)
    return torch.from_numpy(tsne.fit_transform(values.numpy()))


def _thin(drawn: Tensor) -> bool:
    """Whether the second of two principal components is no more than the rounding of floats."""
    across, up = drawn.std(0, correction=0)
    return bool(up <= 1e-5 * across)


def _piled(across: Tensor) -> Tensor:
    """Rows at their places on a line, those of one of its steps above each other."""
    n, low = across.shape[0], across.min()
    step = (across.max() - low) / math.ceil(4 * n**0.5)
    piles = ((across - low) / step.clamp_min(1e-300)).floor().long()
    order = (across - low).argsort(stable=True)
    order = order[piles[order].argsort(stable=True)]
    piles = piles[order]
    first, end = (torch.searchsorted(piles, piles, right=right) for right in (False, True))
    up = torch.empty_like(across)
    up[order] = torch.arange(n, dtype=up.dtype) - (first + end - 1) / 2
    return torch.stack([across, step * up], 1)


def _pca(values: Tensor) -> Tensor:
    n, d = values.shape
    out = torch.zeros(n, 2, dtype=torch.float64)
    centred: Any = values - values.mean(0)
    if float(centred.abs().max()) > 0:
        from sklearn.decomposition import PCA

        width = min(2, n, d)
        fitted: Any = PCA(width, random_state=0, svd_solver="randomized" if d > 50 else "auto")
        out[:, :width] = torch.from_numpy(fitted.fit_transform(centred.numpy()))
    return out
