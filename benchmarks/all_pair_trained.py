"""Parts of `benchmarks.all_pair` with a hidden layer, trained by the training loop.

maps     what is compared (input, first state, each state), through which maps (none, learned,
         learned from the identity), with calibrated or learned sharpness and offset. It uses
         development seeds, which no other figure of the page uses.
hidden   the sharp form among near rows, with a hidden layer, on CIFAR-10 features and 20News: the
         ten splits of the part `labels`, with settings chosen on development seeds.
joined   the graph and the sharp form with a hidden layer while edges are removed: model and
         settings of the variant `sharp` of Table 2, on the ten splits of the part `edges`; and the
         same model without the sharp form.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.all_pair import (
    FORMS,
    LABELS,
    NETWORKS,
    REMOVED,
    SHARP,
    STRENGTHS,
    Cell,
    Rows,
    Run,
    looped,
    thinned,
    told,
)
from difformer import DIFFormer, load_dataset
from difformer.data.dataset import Dataset
from difformer.data.split import Split, random_split
from difformer.train.batches import FullBatch
from difformer.train.loop import fit
from difformer.train.objective import objective_for
from difformer.train.settings import TrainSettings
from difformer_paper.specs import Cell as SpecCell
from difformer_paper.specs import Spec, load_spec

HIDDEN: dict[str, Any] = {
    "use_weight": False,
    "norm": "input",
    "norm_eps": 1e-12,
    "dropout_at": "ends",
    "dropout": 0.5,
    "input_dropout": 0.2,
}
# Of widths 64 and 128, two strengths, two decays and two sharpnesses, by the validation rows of
# 20News, 400 labels per class, seed 20.
CHOSEN: dict[str, Any] = {"width": 128, "strength": "middle"}
TRAINED: dict[str, Any] = {"epochs": 100, "lr": 0.01, "weight_decay": 0.001, "eval_every": 10}
HIDDEN_FORM = "near, hidden layer"
JOINED_FORM, GRAPH_FORM = "graph and sharp, hidden layer", "graph alone, hidden layer"
COMPARED = ("input", "first", "state")
MAPS: dict[str, dict[str, Any]] = {
    "none": {"learn_qk": False},
    "learned": {"learn_qk": True},
    "from identity": {"learn_qk": True, "qk_init": "identity"},
    "none, s and t learned": {"learn_qk": False, "learn_reach": "layer"},
    "from identity, s and t learned": {
        "learn_qk": True,
        "qk_init": "identity",
        "learn_reach": "layer",
    },
}
MAPPED = ("digits", "cora", "cifar10")
SAMPLE = 800  # rows: every epoch compares all pairs
DEVELOPED = (20, 21, 22)  # seeds


def fitted(
    rows: Rows, model: DIFFormer, split: Split, settings: Mapping[str, Any]
) -> tuple[float, float]:
    """Validation and test accuracy of one fit by the loop, the epoch by validation."""
    data = replace(rows.data, x=rows.x, edge_index=None, edge_weight=None)
    result = fit(
        model, FullBatch(data, split), objective_for("multiclass"), split, TrainSettings(**settings)
    )
    return result.metrics["val"]["accuracy"], result.metrics["test"]["accuracy"]


def trained(
    rows: Rows, options: Mapping[str, Any], splits: Sequence[Split], setting: str, **more: Any
) -> dict[str, Any]:
    """The cell of a hidden-layer model; models that compare alike share their weights."""
    begin = time.process_time()
    own = {**HIDDEN, **options}
    kernel, width = own.pop("kernel"), own.pop("width", 64)
    found: dict[str, list[float]] = {"val": [], "test": []}
    first: DIFFormer | None = None
    for seed, split in enumerate(splits):
        torch.manual_seed(seed)
        model = DIFFormer(rows.x.shape[1], width, rows.data.num_outputs, kernel=kernel, **own)
        if first is not None:
            model.share_fixed(first)
        first = first or model
        val, test = fitted(rows, model, split, {**TRAINED, **more})
        found["val"].append(val)
        found["test"].append(test)
    return told(found, setting, 1, begin)


def sampled(name: str) -> tuple[Rows, list[Split]]:
    """Few rows of a dataset, without its graph, and their development splits."""
    rows = Rows(name)
    chosen = torch.randperm(len(rows.x), generator=torch.Generator().manual_seed(0))[:SAMPLE]
    rows.x = rows.x[chosen]
    bare = {"edge_index": None, "edge_weight": None, "ids": None, "splits": {}}
    rows.data = replace(rows.data, x=rows.x, y=rows.data.y[chosen], **bare)
    splits = [
        random_split(rows.data.y, seed, per_class=10, num_val=200, num_test=None, name=str(seed))
        for seed in DEVELOPED
    ]
    return rows, splits


def maps_cells() -> Iterator[tuple[Cell, Run]]:
    for name in MAPPED:
        rows, splits = sampled(name)
        alone = {"kernel": "identity", "learn_qk": False, "num_layers": 1}
        run = partial(trained, rows, alone, splits, "alone", epochs=60)
        yield ("maps", name, "", "alone"), run
        for compared in COMPARED:
            for title, maps in MAPS.items():
                options = {**SHARP, **maps, "compare": compared, "num_layers": 2, "tau": 0.8}
                options["source"] = 0.1
                run = partial(trained, rows, options, splits, "two layers", epochs=60)
                yield ("maps", name, compared, title), run


def hidden_cells() -> Iterator[tuple[Cell, Run]]:
    options = {**FORMS["near"], "learn_qk": False, **STRENGTHS[CHOSEN["strength"]]}
    options["width"] = CHOSEN["width"]
    for name in ("20news", "cifar10"):
        rows = Rows(name)
        for labels in reversed(LABELS[name]):
            run = partial(trained, rows, options, rows.splits(labels), "hidden layer")
            yield ("labels", name, str(labels), HIDDEN_FORM), run


def sharp_cell(spec: Spec, network: str, system: str = "difformer-s") -> SpecCell:
    """The graph joined with the sharp form, as Table 2 has it: -s by near rows, -a by all."""
    chosen = {"variants": ["sharp"], "protocols": ["released"]}
    (cell,) = spec.cells(systems=[system], columns=[network], **chosen)
    return cell


def joined_cells() -> Iterator[tuple[Cell, Run]]:
    spec = load_spec("table2")
    for form, change in (
        (JOINED_FORM, {}),
        (GRAPH_FORM, {"kernel": "identity", "graph_weight": 1.0}),
    ):
        for name in NETWORKS:
            cell = sharp_cell(spec, name)
            data = load_dataset(name)
            for removed in REMOVED:
                less = Dataset(name, data.x, data.y, edge_index=thinned(data, removed).edge_index)
                settings = {"recipe": cell.recipe, "train": cell.train}
                settings |= {"model": {**cell.model, **change}}
                run = partial(looped, less, cell.system, "Table 2, sharp", **settings)
                yield ("edges", name, str(removed), form), run
