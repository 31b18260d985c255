"""recipe="auto": compare forms of the model by held-out labels, and average the best ones.

`portfolio` lists the forms. Each is trained on parts of the labels and judged on the rest; those
with a weight are then trained on all labels. A form's weight in the average falls with the evidence
that it is worse than the best,

    w ∝ exp(−z²/2),   z = mean(ℓ_form − ℓ_best) / standard error,   ℓ the loss of a held-out row,

so forms that cannot be told apart get equal weights, and a clearly worse form gets none. Folds
share most of the rows that they are trained on, so the losses of cross-validation vary more from
one set of labels to another than they do within one: their standard error is multiplied by √2.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import RepeatedStratifiedKFold, StratifiedShuffleSplit
from torch import Tensor

from difformer.core.graph import Graph
from difformer.data.dataset import Dataset, csr_tensor, scipy_csr
from difformer.data.split import Split
from difformer.estimators.choice import Candidate, Choice, Form, Member, Training, portfolio
from difformer.estimators.problem import Outcome, Problem
from difformer.estimators.rows import to_tensor
from difformer.estimators.views import View, learn_view
from difformer.metrics import METRICS, TEMPERED
from difformer.nn.model import DIFFormer
from difformer.train.folder import FitResult
from difformer.train.objective import CrossEntropy
from difformer.train.replicas import averages, fit_replicas, is_linear

# Up to this many labelled rows there are several folds; above, one held-out part is enough.
FEW_LABELS = 2000
FOLDS, REPEATS, HELD_OUT = 5, 2, 0.2
# Up to this many rows, comparing all pairs, as the sharp form does, takes half a minute at most.
SHARP_ROWS = 16_000
# The most numbers (labelled rows × rows) of the linear map that averaging forms keep in training.
MAP_NUMBERS = 2**23
# With more copies of a row than this on average, its nearest neighbours are its own copies.
MOST_EQUAL = 4
# A form whose weight is below this share of the largest is left out.
LEAST_WEIGHT = 0.1
# The factor of the standard error of a cross-validated loss: see above.
SHARED_ROWS = math.sqrt(2)
# Log-temperatures that are tried. A normal prior on them limits the influence of few labels.
LOG_TEMPERATURES = tuple(step / 10 for step in range(-15, 26))


def tell(line: str) -> None:
    """Show a line on stderr in place of the previous one; nothing if stderr is not a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{line}", end="", file=sys.stderr, flush=True)


def search(
    training: Training,
    features: Any,
    encoder: Any,
    graph: Graph | None,
    split: Split,
    *,
    neighbours: bool,
    given: bool,
    budget: float | None = None,
) -> Choice:
    """Try the forms that suit the data, and train those with a weight on all labels.

    Args:
        neighbours: the graph was made from the features.
        split: the labelled rows: all of them in `train`, or, if `given`, those to judge by in
            `val`, which no model is trained on.
        budget: seconds after which no further form is started; the first is always tried.
    """
    began = time.monotonic()
    run = Search(training, features, encoder, split, given)
    for form in portfolio(run, graph, neighbours=neighbours):
        if budget is not None and run.judged and time.monotonic() - began > budget:
            break
        run.judge(form)
        if training.verbose:
            last = run.judged[-1]
            spent = f"loss {last.loss:.3f} in {last.seconds:.1f} s"
            tell(f"tried {len(run.judged)} forms of DIFFormer; {form.key}: {spent}")
    if training.verbose:
        tell("")
    judged = run.weighed()
    members = (run.member(one) for one in judged if one.weight > 0)
    members = sorted(members, key=lambda member: -member.weight)
    rows, outputs = run.held_out(judged)
    problem, metrics = training.problem, dict[str, dict[str, float]]()
    if len(rows):
        every = torch.arange(len(rows))
        metrics["val"] = problem.objective.metrics(outputs, problem.y[rows], every)
    epochs = int(members[0].form.train["epochs"])
    result = FitResult(metrics, epochs, epochs, "epochs", [], time.monotonic() - began)
    return Choice(
        members,
        result,
        split,
        {one.form.key: one.loss for one in judged},
        metrics.get("val", {}),
        summarise(judged),
        (rows, outputs),
    )


class Search:
    """Forms tried on one problem, all judged by the same held-out parts."""

    def __init__(
        self, training: Training, features: Any, encoder: Any, split: Split, given: bool
    ) -> None:
        self.training, self.problem = training, training.problem
        self.features, self.encoder, self.split, self.given = features, encoder, split, given
        self.seed, self.num_rows = training.settings.seed, training.data.num_rows
        self.judged: list[Judged] = []
        self._views: dict[str, tuple[View, Dataset] | None] = {}
        self._states: dict[str, Any] = {}
        self._alike: dict[tuple[Any, ...], DIFFormer] = {}
        self.parts = self._parts()
        self.rows = torch.unique(torch.cat([split.val[:0], *(part.val for part in self.parts)]))

    @cached_property
    def sharp(self) -> bool:
        """Whether comparing all rows is useful and affordable: few rows, most of them different."""
        if self.num_rows > SHARP_ROWS:
            return False
        if not isinstance(self.features, np.ndarray):
            return True
        return len({row.tobytes() for row in self.features}) * MOST_EQUAL >= self.num_rows

    def improving(self, form: Form) -> bool:
        """Whether the form was still improving in its last epochs."""
        fitted = self._states[form.key]
        return fitted.result.best_epoch > 0.75 * fitted.result.epochs

    @property
    def best(self) -> Judged:
        """The form with the least loss."""
        return min(self.judged, key=lambda one: math.inf if math.isnan(one.loss) else one.loss)

    def in_the_running(self, form: Form) -> bool:
        """Whether the form would get a weight in the average of the forms judged so far."""
        return any(one.weight > 0 for one in self.weighed() if one.form.key == form.key)

    def weighed(self) -> list[Judged]:
        """The forms judged so far, with their weights in the average."""
        return weighed(self.judged, 1.0 if self.given else SHARED_ROWS)

    def view(self, kind: str) -> tuple[View, Dataset] | None:
        """A view of the features and the data seen through it, made once; see `learn_view`."""
        if kind not in self._views:
            found = learn_view(kind, self.features, self.encoder)
            self._views[kind] = None
            if found is not None:
                x = to_tensor(found.apply(self.features), torch.float32)
                self._views[kind] = found, replace(self.training.data, x=x)
        return self._views[kind]

    def _seen(self, form: Form) -> tuple[View, Dataset]:
        found = self.view(form.view)
        assert found is not None  # forms are only made for views that there are
        return found

    def _parts(self) -> list[Split]:
        """Rows to train on and rows to judge by, several times."""
        train, none = self.split.train, self.split.train[:0]
        if self.given:
            return [replace(self.split, test=none)]
        strata, seed = self.problem.strata[train.numpy()], self.seed
        folds = int(min(FOLDS, np.bincount(strata).min(), len(train)))
        if folds < 2:  # a class with one label, which stays in training
            held = torch.from_numpy(self.problem.hold_out(HELD_OUT, seed))
            rest = train[~torch.isin(train, held)]
            # With one label in every class nothing can be held out: all forms get equal weights.
            return [Split("part", rest, held, none)] if len(held) else []
        if len(train) > FEW_LABELS:
            size = max(HELD_OUT, len(np.unique(strata)) / len(train))
            drawn = StratifiedShuffleSplit(1, test_size=size, random_state=seed)
        else:
            drawn = RepeatedStratifiedKFold(n_splits=folds, n_repeats=REPEATS, random_state=seed)
        return [
            Split("part", train[a].sort().values, train[b].sort().values, none)
            for a, b in drawn.split(strata, strata)
        ]

    def judge(self, form: Form) -> None:
        """Train the form on each part and judge it by the rest of the labels."""
        began = time.monotonic()
        parts = self._judge_copies(form) if self.in_copies(form) else self._judge_alone(form)
        judged = judge(form, self.problem, parts, self.rows)
        self.judged = [one for one in self.judged if one.form.key != form.key]
        self.judged.append(replace(judged, seconds=time.monotonic() - began))

    def in_copies(self, form: Form) -> bool:
        """Whether the form can be trained in copies, one per part, all at once."""
        if not averages(form.config):
            return False
        return is_linear(form.config) or self.split.train.numel() * self.num_rows <= MAP_NUMBERS

    def _model(self, form: Form) -> DIFFormer:
        width = self.training.width
        if is_linear(form.config):
            # A multiple of eight, so that the output of a new row has the same bits in any batch.
            width = -(-self.problem.outputs // 8) * 8
        model = replace(self.training, data=self._seen(form)[1], width=width).build(form)
        # The weights between rows are made once for all forms that compare them in the same way.
        alike = (form.view, str(model.config.kernel), model.config.sharpness, model.config.reach)
        model.share_fixed(self._alike.setdefault(alike, model))
        return model

    def _judge_copies(self, form: Form) -> list[tuple[Tensor, Tensor]]:
        parts = self.parts if is_linear(form.config) else self.parts[:FOLDS]
        trained = [part.train for part in parts]
        if not self.given:
            trained.append(self.split.train)
        train = {**form.train, "epochs": min(form.train["epochs"], self.training.settings.epochs)}
        copies = fit_replicas(
            self._model(form),
            self._seen(form)[1].x,
            form.graph,
            self.problem.outcome.row_losses,
            self.problem.y,
            trained,
            also=self.rows,
            weight=self.training.weight,
            seed=self.seed,
            **train,
        )
        self._states[form.key] = copies.states[-1]
        return [
            (part.val, output[torch.searchsorted(copies.rows, part.val)])
            for part, output in zip(parts, copies.outputs, strict=False)
        ]

    def _judge_alone(self, form: Form) -> list[tuple[Tensor, Tensor]]:
        """Train by the loop on one part, whose held-out rows also pick the epoch."""
        part = self.parts[0] if self.parts else self.split
        fitted = self._trained(form, part, epochs=int(form.train["epochs"]))
        self._states[form.key] = fitted
        model = fitted.model.cpu().eval()
        with torch.no_grad():
            output = model(self._seen(form)[1].x, form.graph)
        return [(part.val, output[part.val])] if self.parts else []

    def _trained(self, form: Form, part: Split, *, epochs: int) -> Candidate:
        settings = replace(
            self.training.settings,
            epochs=min(epochs, self.training.settings.epochs),
            lr=form.train["lr"],
            weight_decay=form.train["weight_decay"],
            patience=50,
            pick_by=None,
        )
        problem = self.problem
        if isinstance(problem.objective, CrossEntropy):
            # The epoch is picked by the loss after calibration.
            calibrated = replace(problem.objective, monitor=METRICS[TEMPERED])
            problem = replace(problem, objective=calibrated)
        data = self._seen(form)[1]
        training = replace(self.training, data=data, problem=problem, settings=settings)
        # Whether a row's output depends only on rows within `num_layers` edges.
        local = form.config.kernel == "identity" and form.config.norm != "all"
        near = form.graph is not None and local and not form.config.center
        fitted = _fit_near(training, form, part) if near else training.fit(form, part)
        if fitted.result.interrupted:  # a form that is half trained must not count as tried
            raise KeyboardInterrupt
        return fitted

    def member(self, judged: Judged) -> Member:
        """The form trained on all labels."""
        form, kept = judged.form, self._states.pop(judged.form.key)
        if isinstance(kept, dict):
            model = self._model(form)
            model.load_state_dict(kept)
        elif self.given or not self.parts:
            model = kept.model
        else:
            model = self._trained(form, self.split, epochs=max(1, kept.result.best_epoch)).model
        return Member(form, model, self._seen(form)[0], judged.weight, judged.temperature)

    def held_out(self, judged: Sequence[Judged]) -> tuple[Tensor, Tensor]:
        """The rows that all members were judged by, and the outputs of the average for them."""
        members = [one for one in judged if one.weight > 0]
        outputs = self.problem.outcome.combine(
            [one.outputs for one in members], [one.weight for one in members], [1.0] * len(members)
        )
        known = ~outputs.isnan().any(1)
        return self.rows[known], outputs[known]


def _fit_near(training: Training, form: Form, part: Split) -> Candidate:
    """Train on the rows that the outputs of the part depend on: equal losses in less time."""
    assert form.graph is not None
    used = torch.cat([part.train, part.val])
    near, graph = form.graph.around(used, int(form.options["num_layers"]))
    data = training.data
    dense = data.x.layout == torch.strided
    x = data.x[near] if dense else csr_tensor(scipy_csr(data.x)[near.numpy()])
    rows = Dataset(data.name, x, data.y[near], data.task, class_names=data.class_names)
    train, val = (torch.searchsorted(near, rows) for rows in (part.train, part.val))
    weight = None if training.weight is None else training.weight[near]
    return replace(training, data=rows, weight=weight).fit(
        replace(form, graph=graph), Split(part.name, train, val, used[:0])
    )


@dataclass(frozen=True)
class Judged:
    """A form and how it did on the held-out rows."""

    form: Form
    outputs: Tensor  # (held-out rows, outputs) at its temperature; nan where it was not judged
    losses: Tensor  # (held-out rows,)
    temperature: float
    weight: float = 0.0
    seconds: float = 0.0

    @property
    def loss(self) -> float:
        """The mean over the rows it was judged by; nan without any."""
        return float(self.losses.nanmean())


def judge(
    form: Form, problem: Problem, parts: Sequence[tuple[Tensor, Tensor]], rows: Tensor
) -> Judged:
    """Outputs and losses of held-out rows, divided by the temperature that calibrates them best.

    Args:
        parts: (row numbers, their outputs); several parts may contain the same row.
        rows: all held-out rows, sorted; those in no part get nan.
    """
    outcome = problem.outcome
    where = torch.cat([rows[:0], *(own for own, _ in parts)])
    output = torch.cat([torch.empty(0, problem.outputs), *(out for _, out in parts)])
    y, place = problem.y[where], torch.searchsorted(rows, where)
    count = torch.zeros(len(rows)).index_add_(0, place, torch.ones(len(where)))
    temperature = 1.0
    if problem.task != "regression" and len(where):
        temperature = _temperature(outcome, output, y, int((count > 0).sum()))
    output = output / temperature
    mean = torch.zeros(len(rows), output.shape[1]).index_add_(0, place, outcome.averaged(output))
    losses = torch.zeros(len(rows)).index_add_(0, place, outcome.row_losses(output, y))
    missing = torch.where(count > 0, 0.0, float("nan"))
    count = count.clamp_min(1)
    outputs = outcome.output(mean / count.unsqueeze(1)) + missing.unsqueeze(1)
    return Judged(form, outputs, losses / count + missing, temperature)


def _temperature(outcome: Outcome, output: Tensor, y: Tensor, labels: int) -> float:
    """The temperature of the least loss, with the prior."""

    def score(log: float) -> float:
        divided = outcome.row_losses(output / torch.tensor(log).exp(), y)
        return float(divided.mean()) + log**2 / 2 / labels

    return float(torch.tensor(min(LOG_TEMPERATURES, key=score)).exp())


def weighed(judged: Sequence[Judged], doubt: float = 1.0) -> list[Judged]:
    """The forms with their weights, which sum to one: the surer a form is worse, the less.

    `doubt` multiplies the standard errors of the differences.
    """
    best = min(judged, key=lambda one: one.loss if one.loss == one.loss else 0.0)
    weights: list[float] = []
    for one in judged:
        gap = one.losses - best.losses
        gap = gap[~gap.isnan()]
        error = doubt * float(gap.std()) / math.sqrt(gap.numel()) if gap.numel() > 1 else 0.0
        z = max(0.0, float(gap.mean()) / (error + 1e-3)) if gap.numel() else 0.0
        weights.append(math.exp(-(z**2) / 2))
    largest = max(weights)
    kept = [w if w >= LEAST_WEIGHT * largest else 0.0 for w in weights]
    return [replace(one, weight=w / sum(kept)) for one, w in zip(judged, kept, strict=True)]


def summarise(judged: Sequence[Judged]) -> str:
    """How many forms were tried, which were taken, and by what margin, in one line."""
    best, *others = sorted(judged, key=lambda one: one.loss)
    if best.loss != best.loss:
        return f"tried {len(judged)} forms, no label could be held out: all have equal weight"
    taken = sorted((one for one in judged if one.weight > 0), key=lambda one: -one.weight)
    named = ", ".join(f"{one.form.key} ({one.weight:.0%})" for one in taken[:3])
    named += f" and {len(taken) - 3} more" if len(taken) > 3 else ""
    text = f"tried {len(judged)} forms; took {named}; best {best.form.key}, loss {best.loss:.3f}"
    if others:
        gap = others[0].loss - best.loss
        text += f", ahead of {others[0].form.key} by {gap:.3f} per held-out row"
    return text
