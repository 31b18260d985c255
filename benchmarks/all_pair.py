"""When all-pair diffusion helps: accuracy against sharpness, labels and removed edges.

python -m benchmarks.all_pair [PART ...]       writes results/benchmarks/all_pair.json

Parts: sharpness, labels, edges, released, gcn, maps, hidden, joined. The last three are in
`benchmarks.all_pair_trained`. What is in the result file is not measured again.

All forms are the same linear model, Z⁽⁰⁾ = X W, layers that only average, a linear output. Only the
weights between rows differ: none ("alone"), equal ("mean"), -s and -a of the paper, the sharp form,
the sharp form with landmarks or among near rows, or a graph of ten neighbours. Every form chooses
among as many settings by the mean validation accuracy over all splits: three strengths of diffusion
and two weight decays (with a graph: two strengths and three weights of the graph). There are ten
splits, seeds 0 to 9, which are used for no other choice. Test rows are used once.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.measure import read_results, result_file, write_results
from difformer import DIFFormer, load_dataset
from difformer.core.graph import Graph
from difformer.data.dataset import Dataset
from difformer.data.neighbours import nearest_neighbours
from difformer.data.split import Split, parse_split
from difformer.jobs.job import Experiment
from difformer.jobs.rows import run_experiment
from difformer.train.replicas import fit_replicas

RESULTS = result_file("all_pair")
SPLITS = 10
LINEAR = {
    "use_weight": False,
    "learn_qk": False,
    "dropout_at": "ends",
    "norm": "none",
    "input_activation": None,
}
STRENGTHS = {
    "strong": {"num_layers": 10, "tau": 0.9, "source": 0.05},
    "middle": {"num_layers": 4, "tau": 0.8, "source": 0.2},
    "weak": {"num_layers": 2, "tau": 0.5, "source": 0.33},
}
DECAYS = (0.03, 0.01)
COMPARED = {"compare": "input"}
SHARP = {"kernel": "sharp", **COMPARED, "sharpness": 40.0, "reach": 10.0}
LANDMARKS = {**SHARP, "kernel": "landmarks", "num_landmarks": 512}
FORMS: dict[str, dict[str, Any]] = {
    "alone": {"kernel": "identity"},
    "mean": {"kernel": "constant"},
    "-s": {"kernel": "simple", **COMPARED},
    "-a": {"kernel": "sigmoid", **COMPARED},
    "sharp": SHARP,
    "landmarks": {**LANDMARKS, "reach": 3.0},
    "landmarks, 10 per row": LANDMARKS,
    "near": {**SHARP, "exact_rows": 0},
    "kNN graph": {"kernel": "identity", "graph_weight": 1.0},
}
# Flat weights of all pairs are a dense matrix: beyond so many rows they are left out.
DENSE_ROWS = 4_000
FLAT = 10.0  # a sharpness below this is flat
SHARPNESS = (1.0, 3.0, 10.0, 20.0, 40.0, 80.0, 160.0)
# Labels per class; CIFAR and 20News as in Table 4 of the paper.
LABELS = {
    "digits": (1, 2, 5, 10, 20, 50),
    "cifar10": (10, 50, 100),
    "20news": (100, 200, 400),
}
MIDDLE = {"digits": 10, "cora": 20, "20news": 200}
NETWORKS = ("cora", "citeseer", "pubmed")
REMOVED = (0, 25, 50, 75, 90, 100)
WEIGHTS = (0.3, 0.7, 0.9)  # of the graph, where it is joined with the sharp form


@dataclass(frozen=True)
class Setting:
    """One choice that validation makes."""

    options: Mapping[str, Any]
    decay: float

    @property
    def name(self) -> str:
        kept = ("num_layers", "graph_weight")
        told = [f"{key}={self.options[key]}" for key in kept if key in self.options]
        return ", ".join([*told, f"decay={self.decay}"])


class Rows:
    """A dataset's features in the view that rows are compared in, and what forms share."""

    def __init__(self, name: str) -> None:
        self.name, self.data = name, load_dataset(name)
        x = self.data.x
        if x.layout != torch.strided:  # words: direction counts
            self.x = F.normalize(x.to_dense()) * 10
        else:  # one unit for all columns
            x = x - x.mean(0)
            self.x = x / x.std(0).square().mean().sqrt()
        self._made: dict[str, DIFFormer] = {}
        self._near: Graph | None = None
        self._spread: dict[str, Any] = {}

    def split(self, per_class: int, seed: int) -> Split:
        if self.name in NETWORKS:
            return self.data.split(f"random:{seed}")
        return parse_split(f"per-class:{per_class}:{seed}", self.data.y)

    def splits(self, per_class: int) -> list[Split]:
        """The ten splits of a figure."""
        return [self.split(per_class, seed) for seed in range(SPLITS)]

    @property
    def near(self) -> Graph:
        """Ten neighbours by cosine, as the sharp form has ten partners."""
        if self._near is None:
            edges = nearest_neighbours(self.x, 10, metric="cosine")
            self._near = Graph.undirected_with_loops(edges, len(self.x))
        return self._near

    def model(self, options: Mapping[str, Any]) -> DIFFormer:
        """A linear model; rows that are compared alike share their weights."""
        own = {**LINEAR, **options}
        kernel = own.pop("kernel")
        width = -(-self.data.num_outputs // 8) * 8
        torch.manual_seed(0)
        model = DIFFormer(self.x.shape[1], width, self.data.num_outputs, kernel=kernel, **own)
        alike = json.dumps(
            [repr(kernel), *(own.get(k) for k in ("sharpness", "reach", "exact_rows"))]
        )
        first = self._made.setdefault(alike, model)
        if first is not model:
            model.share_fixed(first)
        return model

    def forget(self) -> None:
        """Drop the averages that no further form needs."""
        self._spread = {}

    @torch.no_grad()
    def spread(self, options: Mapping[str, Any], graph: Graph | None) -> Tensor:
        """D X, where the layers are linear in the features: labels and decays share it."""
        key = json.dumps({k: str(v) for k, v in options.items()}, sort_keys=True)
        if self._spread.get("graph") is not graph:
            self._spread = {"graph": graph}
        if key not in self._spread:
            model = self.model(options).eval()
            model.choose_landmarks(self.x)
            parts = self.x.split(256, dim=1)
            found = [model.diffuse(part.contiguous(), self.x, graph) for part in parts]
            self._spread[key] = torch.cat(found, dim=1)
        return self._spread[key]

    def accuracies(
        self, setting: Setting, graph: Graph | None, splits: Sequence[Split]
    ) -> dict[str, list[float]]:
        """Validation and test accuracy on each split, all splits trained at once."""
        y = self.data.y
        found = fit_replicas(
            self.model({"kernel": "identity", "num_layers": 1}),
            self.spread(setting.options, graph),
            None,
            lambda output, target: F.cross_entropy(output, target, reduction="none"),
            y,
            [split.train for split in splits],
            also=torch.arange(len(y)),
            epochs=100,
            lr=0.05,
            weight_decay=setting.decay,
            seed=0,
        )
        right = found.outputs.argmax(-1) == y
        return {
            part: [float(right[i, getattr(s, part)].float().mean()) for i, s in enumerate(splits)]
            for part in ("val", "test")
        }

    def chosen(
        self, settings: Sequence[Setting], graph: Graph | None, splits: Sequence[Split]
    ) -> dict[str, Any]:
        """The setting of the best mean validation, and its test accuracies."""
        begin = time.process_time()
        tried = [(setting, self.accuracies(setting, graph, splits)) for setting in settings]
        setting, found = max(tried, key=lambda pair: statistics.mean(pair[1]["val"]))
        return told(found, setting.name, len(tried), begin)


def settings_of(form: Mapping[str, Any]) -> list[Setting]:
    """Every strength and decay of a form; one strength where rows do not meet."""
    still = form["kernel"] == "identity" and "graph_weight" not in form
    strengths = [{"num_layers": 1}] if still else list(STRENGTHS.values())
    return [Setting({**form, **s}, decay) for s in strengths for decay in DECAYS]


def settings_joined() -> list[Setting]:
    """As many for the sharp form joined with a graph: three weights of the graph."""
    return [
        Setting({**SHARP, **STRENGTHS[strength], "graph_weight": weight}, DECAYS[-1])
        for strength in ("strong", "middle")
        for weight in WEIGHTS
    ]


def thinned(data: Dataset, removed: int) -> Graph:
    """The data's graph without a share of its undirected edges, drawn by seed 0."""
    assert data.edge_index is not None
    source, target = data.edge_index
    once = data.edge_index[:, source < target]
    order = torch.randperm(once.shape[1], generator=torch.Generator().manual_seed(0))
    kept = once[:, order[round(once.shape[1] * removed / 100) :]]
    return Graph.undirected_with_loops(kept, data.num_rows)


Cell = tuple[str, str, str, str]  # part, dataset, what varies, form
Run = Callable[[], dict[str, Any]]


def sharpness_cells() -> Iterator[tuple[Cell, Run]]:
    for name, labels in MIDDLE.items():
        rows = Rows(name)
        splits = rows.splits(labels)
        for form in ("alone", "mean", "kNN graph"):
            graph = rows.near if form == "kNN graph" else None
            run = partial(rows.chosen, settings_of(FORMS[form]), graph, splits)
            yield ("sharpness", name, "", form), run
        for s in SHARPNESS:
            if s < FLAT and len(rows.x) > DENSE_ROWS:
                continue
            run = partial(rows.chosen, settings_of({**SHARP, "sharpness": s}), None, splits)
            yield ("sharpness", name, f"{s:g}", "sharp"), run


def labels_cells() -> Iterator[tuple[Cell, Run]]:
    for name, counts in LABELS.items():
        rows = Rows(name)
        for form, options in FORMS.items():
            if form == "-a" and len(rows.x) > DENSE_ROWS:
                continue
            graph = rows.near if form == "kNN graph" else None
            for labels in counts:
                run = partial(rows.chosen, settings_of(options), graph, rows.splits(labels))
                yield ("labels", name, str(labels), form), run
            rows.forget()


def graph_forms() -> dict[str, list[Setting]]:
    """The forms with a graph, and the settings of each."""
    given = {"kernel": "identity", "graph_weight": 1.0}
    return {"graph alone": settings_of(given), "graph and sharp": settings_joined()}


def edges_cells() -> Iterator[tuple[Cell, Run]]:
    for name in NETWORKS:
        rows = Rows(name)
        splits = rows.splits(20)
        for removed in REMOVED:
            graph = thinned(rows.data, removed)
            for form, settings in graph_forms().items():
                run = partial(rows.chosen, settings, graph, splits)
                yield ("edges", name, str(removed), form), run


def gcn_cells() -> Iterator[tuple[Cell, Run]]:
    for name in NETWORKS:
        data = load_dataset(name)
        for removed in REMOVED:
            edges = thinned(data, removed).edge_index
            less = Dataset(name, data.x, data.y, edge_index=edges)
            run = partial(looped, less, "gcn", "as registered, 200 epochs", train={"epochs": 200})
            yield ("edges", name, str(removed), "GCN"), run


def looped(
    data: Dataset, system: str, setting: str, *, train: Mapping[str, Any], **options: Any
) -> dict[str, Any]:
    """The cell of a system trained by the loop on ten splits, the epoch by validation."""
    begin = time.process_time()
    found: dict[str, list[float]] = {"val": [], "test": []}
    for seed in range(SPLITS):
        own = {**train, "seed": seed}
        experiment = Experiment.make(data.name, system=system, train=own, **options)
        split = data.split(f"random:{seed}")
        result = run_experiment(experiment, dataset=data, split=split)
        for part, values in found.items():
            values.append(result.mean(part, "accuracy"))
    return told(found, setting, 1, begin)


def told(
    found: Mapping[str, Sequence[float]], setting: str, tried: int, begin: float
) -> dict[str, Any]:
    """A cell of the result file."""
    return {
        "setting": setting,
        "val_mean": statistics.mean(found["val"]),
        "mean": statistics.mean(found["test"]),
        "std": statistics.stdev(found["test"]) if len(found["test"]) > 1 else 0.0,
        "test": list(found["test"]),
        "tried": tried,
        "processor_seconds": round(time.process_time() - begin, 1),
    }


def released_cells() -> Iterator[tuple[Cell, Run]]:
    """The split of the released code: no agreement loss, nothing but this model."""
    for name in NETWORKS:
        rows = Rows(name)
        splits = [rows.data.split("released")]
        graph = thinned(rows.data, 0)
        for form, settings in graph_forms().items():
            yield ("released", name, "", form), partial(rows.chosen, settings, graph, splits)


def parts() -> dict[str, Callable[[], Iterator[tuple[Cell, Run]]]]:
    """The cells of each part, by its name."""
    from benchmarks.all_pair_trained import hidden_cells, joined_cells, maps_cells

    return {
        "sharpness": sharpness_cells,
        "labels": labels_cells,
        "edges": edges_cells,
        "released": released_cells,
        "gcn": gcn_cells,
        "maps": maps_cells,
        "hidden": hidden_cells,
        "joined": joined_cells,
    }


def main(names: Sequence[str] = ()) -> None:
    torch.set_num_threads(1)
    known = parts()
    for part in names or known:
        if part not in known:
            raise SystemExit(f"error: PART must be one of {', '.join(known)}, got {part!r}")
        for (group, name, varies, form), run in known[part]():
            kept = read_results(RESULTS).get(group, {}).get(name, {}).get(varies, {})
            if form in kept:
                continue
            cell = run()
            results = read_results(RESULTS)  # another process may measure another part
            place = results.setdefault(group, {}).setdefault(name, {}).setdefault(varies, {})
            place[form] = cell
            write_results("all_pair", results)
            figure = f"{100 * cell['mean']:.1f} ± {100 * cell['std']:.1f}"
            print(f"{group} {name} {varies} {form}: {figure} ({cell['setting']})", flush=True)
    from benchmarks.all_pair_tables import draw

    draw(read_results(RESULTS), Path("docs/images"))


if __name__ == "__main__":
    main(sys.argv[1:])
