"""Forms of the model: train one, or several to keep the one that validates best.

`portfolio` lists those that recipe="auto" tries, cheap ones first. No form suits all data: rows may
be similar or not, a graph may join rows of the same class or of different ones, labels may be few
or many. The held-out loss of the first forms decides which others are tried.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from difformer.core.diffusivity import Diffusivity
from difformer.core.graph import Graph
from difformer.data.dataset import Dataset, fingerprint, single
from difformer.data.split import Split
from difformer.estimators.problem import Problem
from difformer.estimators.views import VIEWS, View
from difformer.metrics import Metric
from difformer.nn.config import DIFFormerConfig
from difformer.nn.model import DIFFormer
from difformer.train.batches import FullBatch
from difformer.train.callbacks import Progress
from difformer.train.folder import FitResult
from difformer.train.loop import fit
from difformer.train.memory import available_memory
from difformer.train.replicas import averages
from difformer.train.seeding import seeded
from difformer.train.settings import TrainSettings

if TYPE_CHECKING:
    from difformer.estimators.search import Search

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
    model: DIFFormer
    view: View = View("plain")
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
        edges = (None, None) if graph is None else (graph.edge_index, single(graph.edge_weight))
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
            alone = Member(best.form, best.model)
            return Choice([alone], best.result, split, tried, validation)
        forms = [best.form]
    train = torch.cat([split.train, split.val]).sort().values
    split = replace(split, train=train, val=split.val[:0])
    found = training.fit(forms[0], split)
    tried = tried or {found.form.name: found.score(monitor)}
    return Choice([Member(found.form, found.model)], found.result, split, tried, validation)


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


# --- recipe="auto" ---------------------------------------------------------------------------

# From this many labelled rows on, a hidden layer is also trained longer, with less dropout.
MANY_LABELS = 200
# Up to this many rows, the sharp form compares all pairs in every view; above, in one.
SHARP_VIEWS_ROWS = 4_000

_AVERAGING = {"use_weight": False, "learn_qk": False, "dropout_at": "ends"}
_LINEAR = {**_AVERAGING, "norm": "none", "input_activation": None}
_SHARP = {"kernel": "sharp", "compare": "input", "sharpness": 40.0, "reach": 10.0}
_STRONG = {"num_layers": 10, "tau": 0.9, "source": 0.05}
_WEAK = {"num_layers": 2, "tau": 0.5, "source": 0.33}
_ALONE = {"kernel": "identity", "num_layers": 1}
# A row's own state and the mean of its neighbours have separate weights, and a layer adds to the
# state: this suits graphs that join rows of different classes.
_TRANSFORMING = {
    "kernel": "identity",
    "graph_weight": 1.0,
    "graph_norm": "row",
    "self_weight": True,
    "use_weight": True,
    "residual": True,
    "activation": "relu",
    "norm": "none",
    "tau": 0.5,
    "learn_qk": False,
}
_HIDDEN = {**_AVERAGING, "norm": "input", "dropout": 0.5}
_FAST: dict[str, Any] = {"epochs": 100, "lr": 0.05}
_SCALED: dict[str, Any] = {"weight_decay": 0.1, "scaled": True}
_CAREFUL: dict[str, Any] = {"epochs": 60, "lr": 0.015, "weight_decay": 0.01}
_LONG: dict[str, Any] = {"epochs": 200, "lr": 0.02}
_SLOW: dict[str, Any] = {"epochs": 300, "lr": 0.01, "weight_decay": 5e-4}
# A form that is trained by the loop is first trained for so many epochs, and fully if it does well.
_PROBE = 60


def _form(
    name: str, view: str, options: Mapping[str, Any], graph: Graph | None = None, **train: Any
) -> Form:
    own = dict(options)
    kernel = own.pop("kernel")
    return Form(name, kernel, graph, own, view=view, train=train)


def portfolio(run: Search, graph: Graph | None, *, neighbours: bool) -> Iterator[Form]:
    """Every form to try on such data.

    Args:
        neighbours: the graph was made from the features, so it joins similar rows, and forms for
            other graphs are left out.
    """
    if graph is None or neighbours:
        yield from _forms_of_rows(run)
    else:
        yield _linear("standard")
    if graph is None:
        return
    yield from _averages_on_a_graph(run, graph)
    if neighbours:
        return
    if run.in_the_running(_linear("standard")):
        yield (_hidden_long if _has_many_labels(run) else _hidden)("standard")
    yield from _transforming(run, graph)


def _has_many_labels(run: Search) -> bool:
    return run.split.train.numel() >= MANY_LABELS


def _linear(view: str) -> Form:
    return _form("linear", view, {**_LINEAR, **_ALONE}, weight_decay=0.03, **_FAST)


def _hidden(view: str) -> Form:
    return _form("hidden layer", view, {**_HIDDEN, **_ALONE, "input_dropout": 0.2}, **_CAREFUL)


def _hidden_long(view: str) -> Form:
    """A hidden layer for many labels; the many columns of "steps" need more dropout."""
    rate, decay = (0.5, 1e-4) if view == "steps" else (0.2, 1e-3)
    options = {**_HIDDEN, **_ALONE, "dropout": rate}
    return _form("hidden layer, long", view, options, weight_decay=decay, **_LONG)


def _forms_of_rows(run: Search) -> Iterator[Form]:
    """Forms without a graph: each row by itself, and rows compared by their features."""
    views = [view for view in VIEWS if run.view(view) is not None]
    yield from (_linear(view) for view in views if view != "common")
    yield _hidden("standard")
    if _has_many_labels(run):
        yield from (_hidden_long(view) for view in views if view not in ("common", "near"))
    if not run.sharp:
        return
    if run.num_rows > SHARP_VIEWS_ROWS:  # one view: "near" if it is the best so far
        other = "common" if "common" in views else "standard"
        views = ["near" if run.best.form == _linear("near") else other]
    sharp: list[Form] = []
    for view in views:
        options = {**_LINEAR, **_SHARP, **_STRONG}
        sharp.append(_form("sharp", view, options, weight_decay=0.01, **_FAST))
    for view in [view for view in views if view != "common"] or views:
        options = {**_LINEAR, **_SHARP, **_WEAK}
        sharp.append(_form("sharp, weak", view, options, weight_decay=0.02, **_FAST))
    yield from sharp
    # A hidden layer in the view, and with the number of steps, of the best sharp form.
    best = min((one for one in run.judged if one.form in sharp), key=lambda one: one.loss).form
    if _has_many_labels(run) and not run.in_the_running(best):
        return
    options = {**best.options, **_HIDDEN, "input_activation": "relu"}
    yield replace(best, name="sharp, hidden layer", options=options, train=_CAREFUL)


def _averages_on_a_graph(run: Search, graph: Graph) -> Iterator[Form]:
    """Averages over few or many steps, linear ones first; the best also with a hidden layer."""
    far = {"num_layers": 10, "tau": 0.9, "source": 0.1}
    given = {**_LINEAR, "kernel": "identity", "graph_weight": 1.0, "tau": 1.0}
    for name, options, train in (
        ("graph, 1 layer", {"num_layers": 1}, {"weight_decay": 0.03}),
        ("graph, 2 layers", {"num_layers": 2}, {"weight_decay": 0.01}),
        ("graph, 10 layers", far, {"weight_decay": 0.03}),
        ("graph, 1 layer, scaled", {"num_layers": 1}, _SCALED),
        ("graph, 2 layers, scaled", {"num_layers": 2}, _SCALED),
    ):
        yield _form(name, "standard", {**given, **options}, graph, **_FAST, **train)
    if run.sharp:
        both = {**_LINEAR, **_SHARP, **far, "graph_weight": 0.7}
        yield _form("graph and sharp", "standard", both, graph, weight_decay=0.03, **_FAST)
    if run.best.form.graph is not None and averages(run.best.form.config):
        options = {**run.best.form.options, **_HIDDEN, "input_activation": "relu"}
        deeper = replace(run.best.form, name="graph, hidden layer", options=options, train=_CAREFUL)
        if run.in_copies(deeper):
            yield deeper


def _transforming(run: Search, graph: Graph) -> Iterator[Form]:
    """Weights for a row and its neighbours, trained fully if a short training does well."""
    for layers, rate, inner in ((2, 0.5, 0.2), (1, 0.7, 0.5)):
        options = {**_TRANSFORMING, "num_layers": layers, "dropout": rate, "input_dropout": inner}
        name = f"transforming, {layers} layer{'s' if layers > 1 else ''}"
        form = _form(name, "standard", options, graph, **_SLOW)
        yield replace(form, train={**_SLOW, "epochs": _PROBE})
        if run.in_the_running(form) and run.improving(form):
            yield form
