"""Training one form of the model, or several to keep the best by validation."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from difformer.core.diffusivity import Diffusivity
from difformer.core.graph import Graph
from difformer.data.dataset import Dataset, fingerprint
from difformer.data.split import Split
from difformer.estimators.views import View
from difformer.nn.model import DIFFormer
from difformer.train.batches import FullBatch
from difformer.train.callbacks import Progress
from difformer.train.loop import fit
from difformer.train.memory import available_memory
from difformer.train.objective import Monitor, Objective
from difformer.train.run import FitResult
from difformer.train.seeding import seeded
from difformer.train.settings import TrainSettings

__all__ = ["Candidate", "Form", "Member", "Training", "pick_kernels"]

Kernel = str | Diffusivity

# Above this many rows an epoch of -a, quadratic in them, costs seconds on a CPU.
SLOW_ROWS = 4096


@dataclass(frozen=True)
class Form:
    """One form of the model: what a choice by validation chooses between.

    Args:
        name: by which reports and folders call it.
        graph: the graph between the rows that this form uses, or None.
        options: of the model, but for its kernel.
        cost: of two forms that validate equally well, the one that costs more is not taken.
        view: how the features are scaled, see `views`.
        train: training settings of its own: epochs, lr, weight_decay.
    """

    name: str
    kernel: Kernel
    graph: Graph | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    cost: int = 0
    view: str = "standard"
    train: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def key(self) -> str:
        """Its name and that of its view, which tell the forms of a search apart."""
        return f"{self.name}, {self.view}"


@dataclass(frozen=True)
class Member:
    """A trained model of the average that an estimator answers by; alone, the whole of it."""

    form: Form
    view: View
    model: DIFFormer
    weight: float = 1.0
    temperature: float = 1.0

    @property
    def name(self) -> str:
        """Of its form and its view."""
        return (
            self.form.name if self.view.kind == "plain" else f"{self.form.name}, {self.view.kind}"
        )


@dataclass(frozen=True)
class Candidate:
    """A trained model, and the validation metric of every form that was tried."""

    form: Form
    model: DIFFormer
    result: FitResult
    scores: Mapping[str, float] = field(default_factory=dict[str, float])

    def beats(self, other: Candidate, monitor: Monitor) -> bool:
        """Whether its validation metric is better, or as good at no more cost and a lower loss."""
        sign = 1 if monitor.direction == "max" else -1
        mine, theirs = self.result.metrics["val"], other.result.metrics["val"]
        if mine[monitor.name] != theirs[monitor.name]:
            return sign * mine[monitor.name] > sign * theirs[monitor.name]
        return self.form.cost <= other.form.cost and mine["loss"] < theirs["loss"]


@dataclass(frozen=True)
class Training:
    """A problem and how to train on it; what is missing is the form of the model and the split.

    Args:
        weight: of each row in the loss, or None.
        settings: `patience` counts where the split has validation rows.
        folder: where fits are kept as they go, to be resumed; one subfolder per form and split.
    """

    data: Dataset
    objective: Objective
    outputs: int
    weight: Tensor | None
    width: int
    settings: TrainSettings
    folder: Path | None = None
    verbose: bool = False

    def fit(self, form: Form, split: Split) -> Candidate:
        """Train one form; without validation rows the last epoch is kept."""
        settings = self.settings
        judged = split.val.numel() > 0
        if not judged:
            settings = replace(settings, patience=None, eval_every=settings.epochs)
        with seeded(settings.seed, own=True):
            model = DIFFormer(
                self.data.num_features, self.width, self.outputs, kernel=form.kernel, **form.options
            )
        result = fit(
            model,
            FullBatch(self.data, split, form.graph, weight=self.weight),
            self.objective,
            split,
            settings,
            folder=self._folder(form, judged),
            config=None if self.folder is None else self._config(form),
            callbacks=[Progress(f"DIFFormer ({form.name})")] if self.verbose else [],
        )
        score = result.metrics.get("val", {}).get(self.objective.monitor.name, float("nan"))
        return Candidate(form, model, result, {form.name: score})

    def choose(self, forms: Sequence[Form], split: Split) -> Candidate:
        """Train each form and keep the first that no other beats by validation."""
        best = self.fit(forms[0], split)
        scores = dict(best.scores)
        for form in forms[1:]:
            if best.result.interrupted:
                break
            found = self.fit(form, split)
            scores |= found.scores
            if found.result.interrupted or found.beats(best, self.objective.monitor):
                best = found
        return replace(best, scores=scores)

    def _folder(self, form: Form, judged: bool) -> Path | None:
        if self.folder is None:
            return None
        # A form may be trained for a few epochs first, and for more where these promise something.
        name = f"{form.name}, {self.settings.epochs} epochs"
        return self.folder / f"{name}-{'validated' if judged else 'whole'}"

    def _config(self, form: Form) -> dict[str, Any]:
        """What a fit that is resumed must have in common with the one that was begun."""
        model = {"kernel": str(form.kernel), "width": self.width, "outputs": self.outputs}
        graph = form.graph
        edges = (None, None) if graph is None else (graph.edge_index, graph.edge_weight)
        mark = fingerprint(self.data.x, self.data.y, self.weight, *edges)
        return {"model": {**model, **form.options}, "data": {"fingerprint": mark}}


def pick_kernels(kernel: Kernel, num_rows: int, width: int, num_layers: int) -> list[Kernel]:
    """The kernels to train: the one asked for; for "auto" -s, and -a while it fits in memory.

    -a keeps keys, values, states and their gradients of every layer, and a tile of scores: about
    4 bytes · rows · (10 width · layers + 2 · 512) in training, of which half the free memory is
    taken at the most. Its time is quadratic in the rows; where that is felt, a warning says so.
    """
    if kernel != "auto":
        return [kernel]
    free, needed = available_memory(), 4 * num_rows * (10 * width * num_layers + 1024)
    if free is not None and needed > free / 2:
        return ["simple"]
    if num_rows > SLOW_ROWS:
        warnings.warn(
            f'kernel="auto" also trains DIFFormer-a, whose epochs cost {num_rows:,}² pairs: '
            'kernel="simple" does without it',
            UserWarning,
            stacklevel=2,
        )
    return ["simple", "sigmoid"]
