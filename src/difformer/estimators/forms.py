"""Forms of the model: its options, and how it sees the features.

`portfolio` lists those that recipe="auto" tries, cheap ones first. No form suits all data: rows may
be similar or not, a graph may join rows of the same class or of different ones, labels may be few
or many. The held-out loss of the first forms decides which others are tried.

A view changes the distances between rows: columns in one unit (pixels) should keep it, others be
standardised, skewed ones be replaced by their ranks, and for classes that lie in separate regions,
the distances to some centres are better. It is learned from all rows, and used for new ones too.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sklearn.cluster import kmeans_plusplus
from sklearn.preprocessing import normalize
from torch import Tensor

from difformer.core.graph import Graph
from difformer.data.dataset import csr_tensor, scipy_csr
from difformer.data.table.encoder import TableEncoder
from difformer.estimators.rows import feature_scales
from difformer.estimators.settings import FitSettings
from difformer.nn.config import ALONE_RECIPE, DEFAULT_RECIPE, RECIPES, DIFFormerConfig
from difformer.train.memory import available_memory
from difformer.train.replicas import averages

if TYPE_CHECKING:
    from difformer.estimators.search import Search

Array = NDArray[Any]


@dataclass(frozen=True)
class Form:
    """One form of the model.

    Args:
        name: its name in reports and folders.
        options: options of the model.
        graph: the graph between the rows that this form uses, or None.
        view: how the features are scaled, see `View`.
        train: its own training settings: epochs, lr, weight_decay.
    """

    name: str
    options: Mapping[str, Any]
    graph: Graph | None = None
    view: str = "plain"
    train: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def key(self) -> str:
        """Its name and its view, by which a search distinguishes forms."""
        return self.name if self.view == "plain" else f"{self.name}, {self.view}"

    @property
    def config(self) -> DIFFormerConfig:
        """The options of its model."""
        return DIFFormerConfig(**self.options)


SLOW_ROWS = 4096  # above, an epoch of -a costs seconds on a CPU


def named_forms(
    asked: FitSettings, graphs: Mapping[str, Graph | None], num_rows: int
) -> list[Form]:
    """The forms of a named recipe to choose from: each graph with each kernel."""
    forms: list[Form] = []
    for name, graph in graphs.items():
        usual = ALONE_RECIPE if graph is None else DEFAULT_RECIPE
        options = {**RECIPES[usual if asked.recipe == "auto" else asked.recipe]}
        options |= asked.options or {}
        config = DIFFormerConfig(**options)
        width = config.num_layers * asked.hidden_channels
        kernels = pick_kernels(asked.kernel or config.kernel, num_rows, width)
        for kernel in kernels:
            varying = [name] if len(graphs) > 1 else []
            varying += [str(kernel)] if len(kernels) > 1 or not varying else []
            forms.append(Form("-".join(varying), {**options, "kernel": kernel}, graph))
    return forms


def pick_kernels(kernel: Any, num_rows: int, width: int) -> list[Any]:
    """The kernels to train: the one asked for; for "auto", -s, and -a if it fits in memory.

    -a stores keys, values, states and their gradients for every layer, and a tile of scores: about
    4 bytes · rows · (10 width + 2 · 512) in training, `width` being that of all layers together,
    which may take up to half of the free memory. Its time is quadratic in the rows.
    """
    if kernel != "auto":
        return [kernel]
    free, needed = available_memory(), 4 * num_rows * (10 * width + 1024)
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


# --- views -------------------------------------------------------------------------------------

VIEWS = ("standard", "common", "steps", "near")
KEPT = {  # arrays of a view
    "common": ["factors"],
    "steps": ["knots", "scale", "shift"],
    "near": ["centres", "scale", "shift", "width"],
}
# The length that sparse rows are scaled to, so that weight decay acts as on standardised columns.
SPARSE_LENGTH = 10.0
# Standardised values are clipped to ± this: one odd cell must not decide a row's neighbours.
FARTHEST = 4.0
# Steps per column, and the most features of the "steps" view.
STEPS = 8
MOST_FEATURES = 4096
# For "near": centres, rows per centre that k-means uses, its steps, and the number of nearest
# centres whose mean distance is the width.
CENTRES = 128
ROWS_PER_CENTRE = 20
LLOYD_STEPS = 10
NEAREST = 5


@dataclass(frozen=True)
class View:
    """How encoded features become a model's input.

        plain     x
        standard  x clipped to ±4; sparse rows scaled to length 10
        common    x_j · factor_j: centred, one scale for all columns
        steps     for each column, how far x_j lies between each two of its quantiles: piecewise
                  linear in the rank, centred, unit variance per column in total
        near      exp(−‖x − c_l‖² / 2b) for each centre c_l, centred, with the same total variance
                  as the columns: classes may then have any shape, such as a ring

    Args:
        kind: "plain" or one of `VIEWS`; sparse rows have "plain" and "standard" only.
        arrays: by name, see `KEPT`: factors (p,); knots (p, STEPS + 1), not decreasing along a row;
            centres (m, p), by k-means; width (1,), the b above: the mean squared distance of a row
            to its nearest centres; shift and scale (features,), applied last.
    """

    kind: str
    arrays: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])

    def __post_init__(self) -> None:
        if self.kind not in ("plain", *VIEWS):
            raise ValueError(f"unknown view {self.kind!r}")
        if sorted(self.arrays) != KEPT.get(self.kind, []):
            raise ValueError(f"view {self.kind!r} with the arrays {sorted(self.arrays)}")

    def apply(self, x: Tensor) -> Tensor:
        """Features (m, p) through this view, float32; sparse rows stay sparse."""
        own = self.arrays
        if self.kind == "plain":
            return x
        if x.layout != torch.strided:
            unit: Any = normalize(scipy_csr(x))
            return csr_tensor(unit * SPARSE_LENGTH)
        if self.kind == "standard":
            return x.clamp(-FARTHEST, FARTHEST)
        if self.kind == "common":
            return (x.double() * own["factors"]).float()
        found = _steps(x, own["knots"]) if self.kind == "steps" else _nearness(x, **own)
        return ((found - own["shift"]) * own["scale"]).float()


def learn_view(kind: str, x: Tensor, encoder: TableEncoder | None) -> View | None:
    """The view of encoded features (n, p); None if it does not differ from "standard"."""
    if kind == "standard":
        return View("standard")
    if x.layout != torch.strided or encoder is None:
        return None
    learn = {"common": _learn_common, "steps": _learn_steps, "near": _learn_near}[kind]
    arrays = learn(x.numpy(), encoder)
    return (
        None if arrays is None else View(kind, {k: torch.as_tensor(v) for k, v in arrays.items()})
    )


def _learn_common(features: Array, encoder: TableEncoder) -> dict[str, Array] | None:
    _, factors, numbers = feature_scales(encoder)
    own = factors[numbers]
    if len(own) < 2 or own.max() <= 1.01 * own.min():
        return None
    own = own / own.max()  # otherwise squares of huge scales overflow
    factors[numbers] = own / np.sqrt(np.mean(own**2))
    return {"factors": factors}


def _learn_steps(features: Array, encoder: TableEncoder) -> dict[str, Array] | None:
    p = features.shape[1]
    if p * STEPS > MOST_FEATURES:
        return None
    knots = np.quantile(features, np.linspace(0, 1, STEPS + 1), axis=0).T
    if not (np.diff(knots, axis=1) > 0).any():
        return None
    steps = _steps(torch.from_numpy(features), torch.from_numpy(knots)).numpy()
    shift, variance = steps.mean(0), steps.var(0)
    whole = variance.reshape(p, STEPS).sum(1, keepdims=True)
    scale = np.where(whole > 0, 1 / np.sqrt(np.maximum(whole, 1e-12)), 0.0)
    return {"knots": knots, "shift": shift, "scale": np.repeat(scale, STEPS, axis=1).ravel()}


def _steps(x: Tensor, knots: Tensor) -> Tensor:
    """The position of each value between each knot and the next, in [0, 1]: (m, p · STEPS)."""
    low, gap = knots[:, :-1], knots.diff(dim=1)
    rise = x.double()[:, :, None] - low
    jump = (rise > 0).double()  # a step without width
    inside = torch.where(gap > 0, rise / torch.where(gap > 0, gap, 1.0), jump)
    return inside.clamp(0, 1).flatten(1)


def _learn_near(features: Array, encoder: TableEncoder) -> dict[str, Array] | None:
    if features.shape[1] > MOST_FEATURES:
        return None
    sample = np.clip(np.asarray(features, np.float64), -FARTHEST, FARTHEST)
    if len(sample) > ROWS_PER_CENTRE * CENTRES:
        drawn = np.random.default_rng(0).permutation(len(sample))[: ROWS_PER_CENTRE * CENTRES]
        sample = sample[np.sort(drawn)]
    distinct = np.unique(sample, axis=0)
    count = min(CENTRES, len(distinct) // 2)
    if count <= NEAREST:
        return None
    centres = _centres(sample, kmeans_plusplus(distinct, count, random_state=0)[0])
    square = np.sort(cdist(sample, centres, "sqeuclidean"), axis=1)
    width = square[:, :NEAREST].mean(keepdims=True)[0]
    found = _nearness(*map(torch.from_numpy, (sample, centres, width))).numpy()
    varied = found.var(0).sum() / sample.var(0).sum()
    scale = np.full(count, 1 / np.sqrt(max(varied, 1e-12)))
    return {"shift": found.mean(0), "scale": scale, "centres": centres, "width": width}


def _centres(rows: Array, centres: Array) -> Array:
    """Centres (m, p) after some of Lloyd's steps; one without rows does not move."""
    for _ in range(LLOYD_STEPS):
        nearest = cdist(rows, centres, "sqeuclidean").argmin(1)
        total, size = np.zeros_like(centres), np.bincount(nearest, minlength=len(centres))[:, None]
        np.add.at(total, nearest, rows)
        centres = np.where(size > 0, total / np.maximum(size, 1), centres)
    return centres


def _nearness(x: Tensor, centres: Tensor, width: Tensor, **_: Tensor) -> Tensor:
    """exp(−‖x − c‖² / 2b) (m, centres) for features (m, p), clipped as in the standard view."""
    rows = x.double().clamp(-FARTHEST, FARTHEST)
    if torch.compiler.is_compiling():  # ONNX has no operation for all pairs
        square = (rows[:, None, :] - centres).square().sum(-1)
    else:  # the bits of a pair do not depend on the others
        square = torch.cdist(rows, centres, compute_mode="donot_use_mm_for_euclid_dist").square()
    return (square / (-2 * width)).exp()


# --- recipe="auto" -----------------------------------------------------------------------------

MANY_LABELS = 200  # from here on, a hidden layer is also trained longer, with less dropout
SHARP_VIEWS_ROWS = 4_000  # up to here, the sharp form compares all pairs in every view

_AVERAGING = {"use_weight": False, "learn_qk": False, "dropout_at": "ends"}
_LINEAR = {**_AVERAGING, "norm": "none", "input_activation": None}
_SHARP = {"kernel": "sharp", "compare": "input", "sharpness": 40.0, "reach": 10.0}
_STRONG = {"num_layers": 10, "tau": 0.9, "source": 0.05}
_WEAK = {"num_layers": 2, "tau": 0.5, "source": 0.33}
_ALONE = {"kernel": "identity", "num_layers": 1}
# A row's own state and the mean of its neighbours have separate weights, and a layer adds to the
# state: this suits graphs that join rows of different classes.
_GIVEN = {"kernel": "identity", "graph_weight": 1.0}
_OWN = {"self_weight": True, "use_weight": True, "residual": True, "activation": "relu"}
_TRANSFORMING = {
    **_GIVEN,
    **_OWN,
    "graph_norm": "row",
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


def portfolio(run: Search, graph: Graph | None, *, neighbours: bool) -> Iterator[Form]:
    """Every form to try on such data.

    `neighbours`: the graph was made from the features, so forms for other graphs are left out.
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
        many = run.split.train.numel() >= MANY_LABELS
        yield (_hidden_long if many else _hidden)("standard")
    yield from _transforming(run, graph)


def _linear(view: str) -> Form:
    train = {**_FAST, "weight_decay": 0.03}
    return Form("linear", {**_LINEAR, **_ALONE}, view=view, train=train)


def _hidden(view: str) -> Form:
    options = {**_HIDDEN, **_ALONE, "input_dropout": 0.2}
    return Form("hidden layer", options, view=view, train=_CAREFUL)


def _hidden_long(view: str) -> Form:
    """A hidden layer for many labels; the many columns of "steps" need more dropout."""
    rate, decay = (0.5, 1e-4) if view == "steps" else (0.2, 1e-3)
    options, train = {**_HIDDEN, **_ALONE, "dropout": rate}, {**_LONG, "weight_decay": decay}
    return Form("hidden layer, long", options, view=view, train=train)


def _forms_of_rows(run: Search) -> Iterator[Form]:
    """Forms without a graph: each row by itself, and rows compared by their features."""
    many = run.split.train.numel() >= MANY_LABELS
    views = [view for view in VIEWS if run.view(view) is not None]
    yield from (_linear(view) for view in views if view != "common")
    yield _hidden("standard")
    if many:
        yield from (_hidden_long(view) for view in views if view not in ("common", "near"))
    if not run.sharp:
        return
    if run.data.num_rows > SHARP_VIEWS_ROWS:  # one view: "near" if it is the best so far
        other = "common" if "common" in views else "standard"
        views = ["near" if run.best.form == _linear("near") else other]
    apart = [view for view in views if view != "common"] or views
    sharp: list[Form] = []
    for name, more, decay, seen in (
        ("sharp", _STRONG, 0.01, views),
        ("sharp, weak", _WEAK, 0.02, apart),
    ):
        options, train = {**_LINEAR, **_SHARP, **more}, {**_FAST, "weight_decay": decay}
        sharp += [Form(name, options, view=view, train=train) for view in seen]
    yield from sharp
    # A hidden layer in the view, and with the number of steps, of the best sharp form.
    best = min((one for one in run.judged if one.form in sharp), key=lambda one: one.loss).form
    if many and not run.in_the_running(best):
        return
    options = {**best.options, **_HIDDEN, "input_activation": "relu"}
    yield replace(best, name="sharp, hidden layer", options=options, train=_CAREFUL)


def _averages_on_a_graph(run: Search, graph: Graph) -> Iterator[Form]:
    """Averages over few or many steps, linear ones first; the best also with a hidden layer."""
    far = {"num_layers": 10, "tau": 0.9, "source": 0.1}
    given = {**_LINEAR, **_GIVEN, "tau": 1.0}
    for name, options, train in (
        ("graph, 1 layer", {"num_layers": 1}, {"weight_decay": 0.03}),
        ("graph, 2 layers", {"num_layers": 2}, {"weight_decay": 0.01}),
        ("graph, 10 layers", far, {"weight_decay": 0.03}),
        ("graph, 1 layer, scaled", {"num_layers": 1}, _SCALED),
        ("graph, 2 layers, scaled", {"num_layers": 2}, _SCALED),
    ):
        yield Form(name, {**given, **options}, graph, "standard", {**_FAST, **train})
    if run.sharp:
        both = {**_LINEAR, **_SHARP, **far, "graph_weight": 0.7}
        train = {**_FAST, "weight_decay": 0.03}
        yield Form("graph and sharp", both, graph, "standard", train)
    best = run.best.form
    if best.graph is not None and averages(best.config):
        options = {**best.options, **_HIDDEN, "input_activation": "relu"}
        deeper = replace(best, name="graph, hidden layer", options=options, train=_CAREFUL)
        if run.in_copies(deeper):
            yield deeper


def _transforming(run: Search, graph: Graph) -> Iterator[Form]:
    """Weights for a row and its neighbours, trained fully if a short training does well."""
    for layers, rate, inner in ((2, 0.5, 0.2), (1, 0.7, 0.5)):
        options = {**_TRANSFORMING, "num_layers": layers, "dropout": rate, "input_dropout": inner}
        name = f"transforming, {layers} layer{'s' if layers > 1 else ''}"
        form = Form(name, options, graph, "standard", _SLOW)
        yield replace(form, train={**_SLOW, "epochs": _PROBE})
        if run.in_the_running(form) and run.improving(form):
            yield form
