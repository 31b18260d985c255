"""The states of a model in two dimensions, with the strongest diffusivities between rows."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from difformer.blocks import COLOURS, Explorer, Note, Section, plain, rounded
from difformer.data.dataset import Dataset
from difformer.data.registry import load_raw, raw_datasets
from difformer.errors import DifformerError
from difformer.nn.model import DIFFormer
from difformer.report.inside import LayerWeights, sample_rows, strongest
from difformer.runs.open import LoadedRun

MOST_EDGES = 1500  # drawn at the lowest setting of the slider
MOST_INFLUENCED = 2000  # rows whose strongest influences are on the page
NEIGHBOURS = 8  # of each of them
MOST_IMAGES = 2000


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """How states are drawn, and where the images of their rows are looked for."""

    projection: str = "auto"  # pca, tsne or auto, which takes t-SNE for few rows
    max_points: int = 20_000  # rows drawn
    data_dir: Path | str | None = None


def states_section(run: LoadedRun, weights: list[LayerWeights], drawing: Drawing) -> Section:
    """The states after the first and the last layer, and which rows moved which."""
    total = run.dataset.num_rows
    rows = sample_rows(total, drawing.max_points)
    blocks: list[Any] = [
        Note(_how_to_read(run, weights)),
        Explorer(_explorer(run, rows, weights, drawing)),
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
    run: LoadedRun, rows: Tensor, weights: list[LayerWeights], drawing: Drawing
) -> dict[str, Any]:
    dataset, shown = run.dataset, rows.tolist()
    part = torch.zeros(dataset.num_rows, dtype=torch.int64)
    for code, name in enumerate(("train", "val", "test"), start=1):
        part[getattr(run.split, name)] = code
    projections = wanted_projections(drawing.projection, rows.numel())
    chosen = _chosen_states(run, weights)
    if all(on_a_line(state[rows]) for _, state, _ in chosen):
        projections = ["line"]
    data: dict[str, Any] = {
        "total": dataset.num_rows,
        "rows": shown,
        "part": part[rows].tolist(),
        "colours": list(COLOURS),
        "projections": projections,
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
    data["panels"] = [_panel(rows, *each, projections) for each in chosen]
    # Rows whose influences are shown also get their image.
    known = {int(i) for panel in data["panels"] for i in panel.get("influences", ())}
    data["images"] = row_images(dataset, shown, drawing.data_dir, first=known)
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


def _panel(
    rows: Tensor, title: str, state: Tensor, weights: LayerWeights | None, projections: list[str]
) -> dict[str, Any]:
    points: dict[str, Any] = {}
    for how in projections:
        xy = project(state[rows], how)
        points[how] = [rounded(xy[:, 0]), rounded(xy[:, 1])]
    panel: dict[str, Any] = {"title": plain(title), "points": points}
    if weights is not None and rows.numel() > 1 and not weights.kernel.local:
        panel |= _edges(weights, rows)
        panel |= _influences(weights, rows)
    return panel


def _edges(weights: LayerWeights, rows: Tensor) -> dict[str, Any]:
    """The strongest pairs among the drawn rows, as positions in the list of drawn rows."""
    most = max(2, weights.affordable)
    within = rows[sample_rows(rows.numel(), most, seed=1)]
    pairs = strongest(weights, k=MOST_EDGES, rows=within)
    place = {row: i for i, row in enumerate(rows.tolist())}
    return {
        "edges": {
            "target": [place[r] for r in pairs.target.tolist()],
            "source": [place[r] for r in pairs.source.tolist()],
            "strength": rounded(pairs.weight / pairs.uniform),
        },
        "searched": within.numel(),
    }


def _influences(weights: LayerWeights, rows: Tensor) -> dict[str, Any]:
    """For each drawn row, the rows that influenced it most; for a bounded number of rows."""
    most = min(MOST_INFLUENCED, max(1, weights.affordable))
    places = sample_rows(rows.numel(), most, seed=2)
    found: dict[str, Any] = {}
    place = iter(places.tolist())
    for part, block in weights.chunks(rows[places]):
        block[torch.arange(part.numel()), part] = -1.0  # a row does not influence itself
        top = block.topk(min(NEIGHBOURS, weights.n - 1), dim=1)
        for sources, strength in zip(top.indices, top.values * weights.n, strict=True):
            found[str(next(place))] = [sources.tolist(), rounded(strength)]
    return {"influences": found}


def row_images(
    dataset: Dataset,
    rows: list[int],
    data_dir: Path | str | None = None,
    *,
    first: Collection[int] = (),
) -> list[str | None] | None:
    """A data URI for each of the rows, or None where they are not images.

    With more than 2,000 rows, those at the positions `first` have an image, and an even sample of
    the others. Images are read again from the dataset's files.
    """
    images = _pixels(dataset, data_dir)
    if images is None or len(images) != dataset.num_rows:
        return None
    wanted = set(range(len(rows)))
    if len(rows) > MOST_IMAGES:
        wanted = set(sorted(first)[:MOST_IMAGES])
        others = [i for i in range(len(rows)) if i not in wanted]
        room = MOST_IMAGES - len(wanted)
        wanted |= set(others[:: -(-len(others) // room)]) if room else set()
    return [_uri(images[row]) if i in wanted else None for i, row in enumerate(rows)]


def _pixels(dataset: Dataset, data_dir: Path | str | None) -> Any:
    """(n, height, width, 3) uint8 of all rows, or None."""
    if dataset.name not in raw_datasets("images"):
        return None
    try:
        images: Any = load_raw(dataset.name, data_dir)
    except (DifformerError, OSError, ValueError):
        return None  # the features are available, the images are not
    return images.pixels.permute(0, 2, 3, 1).numpy()


def _uri(pixels: Any) -> str:
    from PIL import Image

    file = io.BytesIO()
    if (pixels == pixels[..., :1]).all():
        pixels = pixels[..., 0]  # grey takes a third of the bytes
    small = pixels.size <= 1024
    Image.fromarray(pixels).save(file, "PNG" if small else "JPEG", optimize=True)
    kind = "png" if small else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


PROJECTIONS = ("auto", "pca", "tsne")
MOST_TSNE = 2000  # rows up to which "auto" takes t-SNE, which is slower


def wanted_projections(projection: str, rows: int) -> list[str]:
    """The projections to draw; the first one is shown first."""
    if projection not in PROJECTIONS:
        raise ValueError(f"projection must be one of {', '.join(PROJECTIONS)}, got {projection!r}")
    if projection == "pca" or rows < 5 or (projection == "auto" and rows > MOST_TSNE):
        return ["pca"]
    return ["tsne", "pca"]


def on_a_line(state: Tensor) -> bool:
    """Whether the rows of a state differ in one direction only, to rounding: O(n d²)."""
    return _thin(_pca(state.double().nan_to_num()))


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
    n = across.shape[0]
    low, width = across.min(), across.max() - across.min()
    step = width / math.ceil(4 * n**0.5)
    piles = ((across - low) / step.clamp_min(1e-300)).floor().long()
    order = (across - low).argsort(stable=True)
    order = order[piles[order].argsort(stable=True)]
    _, sizes = piles[order].unique_consecutive(return_counts=True)
    first = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    up = torch.empty_like(across)
    up[order] = torch.arange(n, dtype=up.dtype) - first - (sizes.repeat_interleave(sizes) - 1) / 2
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
