"""Forms of the model: train one, or several to keep the one that validates best."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from difformer.core.diffusivity import Diffusivity
from difformer.core.graph import Graph
from difformer.data.dataset import Dataset, fingerprint
from difformer.data.split import Split
from difformer.estimators.problem import Problem
from difformer.estimators.views import View
from difformer.metrics import Metric
from difformer.nn.config import DIFFormerConfig
from difformer.nn.model import DIFFormer
from difformer.train.batches import FullBatch
from difformer.train.callbacks import Progress
from difformer.train.folder import FitResult
from difformer.train.loop import fit
from difformer.train.memory import available_memory
from difformer.train.seeding import seeded
from difformer.train.settings import TrainSettings

Kernel = str | Diffusivity

# Above this many rows an epoch of -a, quadratic in them, costs seconds on a CPU.
SLOW_ROWS = 4096


@dataclass(frozen=True)
class Form:
    """One form of the model, of which validation chooses.

    Args:
        name: its name in reports and folders.
        graph: the graph between the rows that this form uses, or None.
        options: options of the model, without its kernel.
        cost: a form that costs more must validate better to be chosen, not only equally well.
        view: how the features are scaled, see `views`.
        train: its own training settings: epochs, lr, weight_decay.
    """

    name: str
    kernel: Kernel
    graph: Graph | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    cost: int = 0
    view: str = "plain"
    train: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def key(self) -> str:
        """Its name and its view, by which a search distinguishes forms."""
        return self.name if self.view == "plain" else f"{self.name}, {self.view}"

    @property
    def config(self) -> DIFFormerConfig:
        """The options of its model."""
        return DIFFormerConfig(kernel=self.kernel, **self.options)


@dataclass(frozen=True)
class Member:
    """A trained model of the average that an estimator predicts with; it may be the only one."""

    form: Form
    view: View
    model: DIFFormer
    weight: float = 1.0
    temperature: float = 1.0


@dataclass(frozen=True)
class Choice:
    """What fit decided on.

    Args:
        members: the models that predict, heaviest first.
        result: how training went.
        split: the rows that trained and validated.
        tried: a score of each form that was tried: its validation metric, or its held-out loss.
        validation: validation metrics of the choice.
        summary: the choice in one line; empty for a named recipe.
        held_out: rows whose labels were held out in turn, and their outputs (rows, outputs) by
            models that had not seen these labels; None for a named recipe.
    """

    members: Sequence[Member]
    result: FitResult
    split: Split
    tried: Mapping[str, float]
    validation: Mapping[str, float] = field(default_factory=dict[str, float])
    summary: str = ""
    held_out: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True)
class Candidate:
    """A form, its trained model, and how training went."""

    form: Form
    model: DIFFormer
    result: FitResult

    def score(self, monitor: Metric) -> float:
        """The validation metric; nan without validation rows."""
        return self.result.metrics.get("val", {}).get(monitor.name, float("nan"))

    def beats(self, other: Candidate, monitor: Metric) -> bool:
        """Whether its validation metric is better, or equal with a lower loss at no more cost."""
        sign = monitor.better
        mine, theirs = self.score(monitor), other.score(monitor)
        if mine != theirs:
            return sign * mine > sign * theirs
        loss, least = (one.result.metrics["val"]["loss"] for one in (self, other))
        return self.form.cost <= other.form.cost and loss < least


@dataclass(frozen=True)
class Training:
    """A problem and its training settings; the form of the model and the split are given to `fit`.

    Args:
        data: the rows; their targets are those of the problem.
        weight: weight of each row in the loss, or None.
        settings: `patience` is used if the split has validation rows.
        folder: where fits are saved as they go, to be resumed; one subfolder per form and split.
    """

    data: Dataset
    problem: Problem
    weight: Tensor | None
    width: int
    settings: TrainSettings
    folder: Path | None = None
    verbose: bool = False

    def build(self, form: Form) -> DIFFormer:
        """The model of a form, before training."""
        with seeded(self.settings.seed, own=True):
            return DIFFormer(
                self.data.num_features,
                self.width,
                self.problem.outputs,
                kernel=form.kernel,
                **form.options,
            )

    def fit(self, form: Form, split: Split) -> Candidate:
        """Train one form; without validation rows the last epoch is kept."""
        settings, validated = self.settings, split.val.numel() > 0
        if not validated:
            settings = replace(settings, patience=None, eval_every=settings.epochs)
        model = self.build(form)
        result = fit(
            model,
            FullBatch(self.data, split, form.graph, weight=self.weight),
            self.problem.objective,
            split,
            settings,
            folder=self._folder(form, validated),
            config=None if self.folder is None else self._config(form),
            callbacks=[Progress(f"DIFFormer ({form.name})")] if self.verbose else [],
        )
        return Candidate(form, model, result)

    def _folder(self, form: Form, validated: bool) -> Path | None:
        if self.folder is None:
            return None
        # A form may be trained for a few epochs first, and then for more if it does well.
        name = f"{form.name}, {self.settings.epochs} epochs"
        return self.folder / f"{name}-{'validated' if validated else 'whole'}"

    def _config(self, form: Form) -> dict[str, Any]:
        """What must be equal for a fit to be resumed."""
        model = {"kernel": str(form.kernel), "width": self.width, "outputs": self.problem.outputs}
        graph = form.graph
        edges = (None, None) if graph is None else (graph.edge_index, graph.edge_weight)
        mark = fingerprint(self.data.x, self.data.y, self.weight, *edges)
        return {"model": {**model, **form.options}, "data": {"fingerprint": mark}}


def choose(training: Training, forms: Sequence[Form], split: Split, *, refit: bool) -> Choice:
    """Train each form and keep the first that no other beats by validation.

    With `refit`, the validation rows are only there to choose a form: the one chosen is trained
    again on these rows too. A single form is then trained once, on all labels.
    """
    if split.val.numel() == 0:
        forms = forms[:1]
    monitor, tried = training.problem.objective.monitor, dict[str, float]()
    validation: Mapping[str, float] = {}
    if len(forms) > 1 or not refit:
        best: Candidate | None = None
        for form in forms:
            found = training.fit(form, split)
            tried[form.name] = found.score(monitor)
            if best is None or found.result.interrupted or found.beats(best, monitor):
                best = found
            if best.result.interrupted:
                break
        assert best is not None
        validation = best.result.metrics.get("val", {})
        if not refit or best.result.interrupted:
            return Choice([_alone(best)], best.result, split, tried, validation)
        forms = [best.form]
    train = torch.cat([split.train, split.val]).sort().values
    split = replace(split, train=train, val=split.val[:0])
    found = training.fit(forms[0], split)
    tried = tried or {found.form.name: found.score(monitor)}
    return Choice([_alone(found)], found.result, split, tried, validation)


def _alone(found: Candidate) -> Member:
    return Member(found.form, View("plain"), found.model)


def pick_kernels(kernel: Kernel, num_rows: int, width: int, num_layers: int) -> list[Kernel]:
    """The kernels to train: the one asked for; for "auto", -s, and -a if it fits in memory.

    -a stores keys, values, states and their gradients for every layer, and a tile of scores: about
    4 bytes · rows · (10 width · layers + 2 · 512) in training, which may take up to half of the
    free memory. Its time is quadratic in the rows; above `SLOW_ROWS` rows, a warning says so.
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
