"""The forms of the model that recipe="auto" tries, cheap ones first.

No form suits all data: rows may be similar or not, a graph may join rows of the same class or of
different ones, labels may be few or many. The held-out loss of the first forms decides which others
are tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from difformer.core.graph import Graph
from difformer.estimators.choice import Form
from difformer.estimators.views import VIEWS
from difformer.train.replicas import averages

if TYPE_CHECKING:
    from difformer.estimators.search import Search


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


def forms(run: Search, graph: Graph | None, *, neighbours: bool) -> Iterator[Form]:
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
    if run.num_rows > SHARP_VIEWS_ROWS:
        views = _view_of_many_rows(run, views)
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


def _view_of_many_rows(run: Search, views: list[str]) -> list[str]:
    """The one view in which many rows are compared: "near" if it is the best so far."""
    if run.best.form == _linear("near"):
        return ["near"]
    return ["common" if "common" in views else "standard"]


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
