"""What the trained model of a run computes on its data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from difformer.baselines.difformer import Auto
from difformer.data.batch import Prediction
from difformer.data.dataset import Dataset
from difformer.data.snapshots import TemporalDataset
from difformer.data.split import Split
from difformer.experiments.loaded import LoadedRun, look_into
from difformer.experiments.sources import last_snapshot
from difformer.nn.model import DIFFormer
from difformer.train.snapshots import Snapshots

__all__ = ["Inspection", "inspect_run"]


@dataclass(frozen=True)
class Inspection:
    """A run's model on its data: outputs and states of all rows."""

    dataset: Dataset
    split: Split
    graph: Any | None
    model: nn.Module
    output: Tensor  # (n, c) logits or targets
    states: list[Tensor]  # Z⁰ … Zᴷ; only the output if the model has no states
    within: Inspection | None = None  # for data over time: one snapshot, whose rows interact
    title: str = ""

    @property
    def difformer(self) -> DIFFormer | None:
        """The model if it is a DIFFormer, which alone has energies and diffusivities."""
        return self.model if isinstance(self.model, DIFFormer) else None

    @property
    def class_names(self) -> list[str]:
        """A name for each class."""
        given = list(self.dataset.class_names)
        count = max(self.output.shape[1], len(given))
        return [*given, *(f"class {i}" for i in range(len(given), count))]

    @property
    def probability(self) -> Tensor:
        """(n, c) class probabilities; logits through a softmax, yes-or-no through a sigmoid."""
        if self.dataset.task == "multiclass":
            return self.output.softmax(-1)
        return self.output.sigmoid()


def inspect_run(run: LoadedRun) -> Inspection:
    """Run the model once on all its rows."""
    model, data, split, graph = run.model, run.dataset, run.split, run.graph
    if isinstance(data, TemporalDataset):
        return _inspect_snapshots(model, data, split)
    with torch.no_grad():
        result: Tensor | Prediction = model(data.x, graph, None, None)
        output = result if isinstance(result, Tensor) else result.output
        states = model.states(data.x, graph) if isinstance(model, DIFFormer) else [output]
    if run.own is not None and data.task == "regression":
        output = torch.as_tensor(run.own.estimator.transduction_)  # in the units of the label
    if output.ndim == 1:
        output = output.unsqueeze(1)
    found = Inspection(data, split, graph, model, output, states)
    return _inspect_average(found, model) if isinstance(model, Auto) else found


def _inspect_average(found: Inspection, model: Auto) -> Inspection:
    """Outputs of the average; states of the member that is looked into."""
    fitted = model.fitted
    assert fitted is not None  # it has just answered
    shown, seen, graph = look_into(fitted, found.dataset)
    with torch.no_grad():
        states = shown.states(seen.x, graph)
    title = f"{model.choice}. What follows is of {fitted.shown_member.name}."
    inner = Inspection(seen, found.split, graph, shown, found.output, states)
    return replace(found, within=inner, title=title[:1].upper() + title[1:])


def _inspect_snapshots(model: nn.Module, data: TemporalDataset, split: Split) -> Inspection:
    """Outputs of all rows; states of the last snapshot, because snapshots do not interact."""
    with torch.no_grad():
        output = Snapshots(data, split).evaluate(model)
    n, last = data.num_nodes, data.num_snapshots - 1
    rows = slice(last * n, (last + 1) * n)
    one, graph = last_snapshot(data)
    with torch.no_grad():
        states = model.states(one.x, graph) if isinstance(model, DIFFormer) else [output[rows]]
    ends = {name: getattr(split, name) == last * n for name in ("train", "val", "test")}
    train, val, test = (torch.arange(n if bool(found.any()) else 0) for found in ends.values())
    inner = Inspection(one, Split("snapshot", train, val, test), graph, model, output[rows], states)
    title = f"Of the last of {data.num_snapshots:,} snapshots: snapshots do not interact."
    return Inspection(data, split, None, model, output, states, within=inner, title=title)
