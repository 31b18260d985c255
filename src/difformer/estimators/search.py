"""recipe="auto": forms of the model compared by held-out labels, and averaged by how they do.

No form suits all data: rows may be alike or not, a graph may join like or unlike rows, labels may
be few. So a few forms of this one model are trained on parts of the labels and judged on the rest.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import RepeatedStratifiedKFold, StratifiedShuffleSplit
from torch import Tensor

from difformer.core.graph import Graph
from difformer.data.convert import csr_tensor, scipy_csr
from difformer.data.dataset import Dataset
from difformer.data.split import Split
from difformer.estimators.choice import Candidate, Form, Member, Training
from difformer.estimators.judged import SHARED_ROWS, Judged, told, weighed
from difformer.estimators.portfolio import forms
from difformer.estimators.problem import Problem
from difformer.estimators.rows import to_tensor
from difformer.estimators.views import View, learn_view
from difformer.nn.config import DIFFormerConfig
from difformer.nn.model import DIFFormer
from difformer.train.objective import TEMPERED, CrossEntropy, Monitor
from difformer.train.replicas import averages, fit_replicas, is_linear
from difformer.train.run import FitResult
from difformer.train.seeding import seeded

__all__ = ["Found", "Search", "search"]

# Up to this many labelled rows several folds are worth their time; above, one held-out part is
# enough.
FEW_LABELS = 2000
FOLDS, REPEATS, HELD_OUT = 5, 2, 0.2
# Up to this many rows comparing all pairs, as the sharp form does, takes at most half a minute.
SHARP_ROWS = 16_000
# Numbers (labelled rows × rows) of the linear map that averaging forms keep while they train.
MAP_NUMBERS = 2**23
# With more equal rows than this on average, a row's nearest partners are its own copies.
MOST_EQUAL = 4


@dataclass(frozen=True)
class Found:
    """The members, best first, and all that was tried."""

    members: list[Member]
    judged: list[Judged]
    result: FitResult
    rows: Tensor  # the held-out rows that all members were judged by
    outputs: Tensor  # (len(rows), outputs) of the average, each by models that had not seen it
    tried: Mapping[str, float] = field(default_factory=dict[str, float])
    told: str = ""  # the choice in one line


def tell(line: str) -> None:
    """Show a line on stderr in place of the previous one; nothing if stderr is not a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{line}", end="", file=sys.stderr, flush=True)


def search(
    training: Training,
    problem: Problem,
    features: Any,
    encoder: Any,
    graph: Graph | None,
    split: Split,
    *,
    neighbours: bool,
    given: bool,
    budget: float | None = None,
) -> Found:
    """Try the forms that suit the data, and train those that count on all labels.

    Args:
        neighbours: the graph was made from the features.
        split: the labelled rows: all of them in `train`, or, if `given`, those to judge by in
            `val`, which then nothing is trained on.
        budget: seconds after which no further form is begun; the first is always tried.
    """
    began = time.monotonic()
    run = Search(training, problem, features, encoder, split, given)
    for form in forms(run, graph, neighbours=neighbours):
        spent = time.monotonic() - began
        if budget is not None and run.judged and spent > budget:
            break
        run.judge(form)
        if training.verbose:
            tell(f"tried {len(run.judged)} forms of DIFFormer; {form.key}: {run.loss_of(form)}")
    if training.verbose:
        tell("")
    judged = run.weighed()
    members = [run.member(one) for one in judged if one.weight > 0]
    members.sort(key=lambda member: -member.weight)
    rows, outputs = run.held_out(judged)
    metrics: dict[str, dict[str, float]] = {}
    if len(rows):
        every = torch.arange(len(rows))
        metrics["val"] = problem.objective.metrics(outputs, problem.y[rows], every)
    epochs = int(members[0].form.train["epochs"])
    seconds = time.monotonic() - began
    result = FitResult(metrics, epochs, epochs, "epochs", [], seconds)
    tried = {one.form.key: one.loss for one in judged}
    return Found(members, judged, result, rows, outputs, tried, told(judged))


class Search:
    """Forms tried on one problem: the parts that judge them are drawn once."""

    def __init__(
        self,
        training: Training,
        problem: Problem,
        features: Any,
        encoder: Any,
        split: Split,
        given: bool,
    ) -> None:
        self.training, self.problem, self.split, self.given = training, problem, split, given
        self.features, self.encoder = features, encoder
        self.seed = training.settings.seed
        self.judged: list[Judged] = []
        self._views: dict[str, tuple[View, Dataset] | None] = {}
        self._states: dict[str, Any] = {}
        self._alike: dict[tuple[Any, ...], DIFFormer] = {}
        self.parts = self._parts()
        self.rows = torch.unique(torch.cat([split.val[:0], *(part.val for part in self.parts)]))

    @property
    def num_rows(self) -> int:
        return self.training.data.num_rows

    @cached_property
    def sharp(self) -> bool:
        """Whether comparing all rows says something at a fair cost: few enough, and not equal."""
        if self.num_rows > SHARP_ROWS:
            return False
        if not isinstance(self.features, np.ndarray):
            return True
        return len({row.tobytes() for row in self.features}) * MOST_EQUAL >= self.num_rows

    def improving(self, form: Form) -> bool:
        """Whether the form was still getting better when its last epochs came."""
        fitted = self._states[form.key]
        return fitted.result.best_epoch > 0.75 * fitted.result.epochs

    @property
    def best(self) -> Judged:
        """The form of the least loss."""
        return min(self.judged, key=lambda one: one.loss if one.loss == one.loss else math.inf)

    def loss_of(self, form: Form) -> str:
        """What a form's held-out rows say, for people."""
        found = next(one for one in self.judged if one.form.key == form.key)
        return f"loss {found.loss:.3f} in {found.seconds:.1f} s"

    def in_the_running(self, form: Form) -> bool:
        """Whether the form, as judged so far, would count in the average."""
        return any(one.weight > 0 for one in self.weighed() if one.form.key == form.key)

    def weighed(self) -> list[Judged]:
        """The forms judged so far with their weights in the average."""
        return weighed(self.judged, 1.0 if self.given else SHARED_ROWS)

    def view(self, kind: str) -> tuple[View, Dataset] | None:
        """A view of the features and the data seen through it, made once."""
        if kind not in self._views:
            found = learn_view(kind, self.features, self.encoder)
            self._views[kind] = None
            if found is not None:
                x = to_tensor(found.apply(self.features), torch.float32)
                self._views[kind] = found, replace(self.training.data, x=x)
        return self._views[kind]

    def _parts(self) -> list[Split]:
        """Rows to train on and rows to judge by, several times."""
        train, none = self.split.train, self.split.train[:0]
        if self.given:
            return [replace(self.split, test=none)]
        strata = self.problem.strata[train.numpy()]
        folds = int(min(FOLDS, np.bincount(strata).min(), len(train)))
        if folds < 2:  # a class with one label
            return _hold_out(train, strata, self.seed)
        if len(train) > FEW_LABELS:
            size = max(HELD_OUT, len(np.unique(strata)) / len(train))
            drawn = StratifiedShuffleSplit(1, test_size=size, random_state=self.seed)
        else:
            drawn = RepeatedStratifiedKFold(
                n_splits=folds, n_repeats=REPEATS, random_state=self.seed
            )
        return [
            Split("part", train[a].sort().values, train[b].sort().values, none)
            for a, b in drawn.split(strata, strata)
        ]

    def judge(self, form: Form) -> None:
        """Train the form on each part and keep what the rest of the labels say."""
        began = time.monotonic()
        totals = self._judge_copies(form) if self.in_copies(form) else self._judge_alone(form)
        judged = self.problem.temper(totals, self.rows)
        seconds = time.monotonic() - began
        self.judged = [one for one in self.judged if one.form.key != form.key]
        self.judged.append(Judged(form, *judged, seconds=seconds))

    def in_copies(self, form: Form) -> bool:
        config = self.config_of(form)
        if not averages(config):
            return False
        return is_linear(config) or self.split.train.numel() * self.num_rows <= MAP_NUMBERS

    def config_of(self, form: Form) -> DIFFormerConfig:
        return DIFFormerConfig(kernel=form.kernel, **form.options)

    def _model(self, form: Form) -> DIFFormer:
        found = self.view(form.view)
        assert found is not None
        width = self.training.width
        if is_linear(self.config_of(form)):
            # A multiple of eight: then a new row's answer has the same bits in any batch.
            width = -(-self.problem.outputs // 8) * 8
        with seeded(self.seed, own=True):
            model = DIFFormer(
                found[1].num_features,
                width,
                self.problem.outputs,
                kernel=form.kernel,
                **form.options,
            )
        # The weights between rows are made once for all forms that compare them alike.
        alike = (form.view, str(model.config.kernel), model.config.sharpness, model.config.reach)
        model.share_fixed(self._alike.setdefault(alike, model))
        return model

    def _judge_copies(self, form: Form) -> list[tuple[Tensor, Tensor]]:
        found = self.view(form.view)
        assert found is not None
        parts = self.parts if is_linear(self.config_of(form)) else self.parts[:FOLDS]
        trained = [part.train for part in parts]
        if not self.given:
            trained.append(self.split.train)
        train = {**form.train, "epochs": min(form.train["epochs"], self.training.settings.epochs)}
        copies = fit_replicas(
            self._model(form),
            found[1].x,
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
        found_rows: list[tuple[Tensor, Tensor]] = []
        for part, output in zip(parts, copies.outputs, strict=False):
            found_rows.append((part.val, output[torch.searchsorted(copies.rows, part.val)]))
        return found_rows

    def _judge_alone(self, form: Form) -> list[tuple[Tensor, Tensor]]:
        """By the loop, on one part: its own held-out rows pick the epoch."""
        part = self.parts[0] if self.parts else self.split
        fitted = self._trained(form, part, epochs=int(form.train["epochs"]))
        self._states[form.key] = fitted
        model, found = fitted.model.cpu().eval(), self.view(form.view)
        assert found is not None
        with torch.no_grad():
            output = model(found[1].x, form.graph)
        return [(part.val, output[part.val])] if self.parts else []

    def _trained(self, form: Form, part: Split, *, epochs: int) -> Any:
        found = self.view(form.view)
        assert found is not None
        # The loss of the probabilities once they are calibrated, as they will be.
        loss = self.training.settings.pick_by == "loss"
        settings = replace(
            self.training.settings,
            epochs=min(epochs, self.training.settings.epochs),
            lr=form.train["lr"],
            weight_decay=form.train["weight_decay"],
            patience=50,
            pick_by=None if loss else self.training.settings.pick_by,
        )
        objective = self.training.objective
        if loss and isinstance(objective, CrossEntropy):
            objective = replace(objective, monitor=Monitor(TEMPERED, "min"))
        training = replace(self.training, data=found[1], settings=settings, objective=objective)
        near = form.graph is not None and _stays_near(self.config_of(form))
        fitted = _fit_near(training, form, part) if near else training.fit(form, part)
        if fitted.result.interrupted:  # a form that is half trained must not count as tried
            raise KeyboardInterrupt
        return fitted

    def member(self, judged: Judged) -> Member:
        """The form trained on every label."""
        form, found = judged.form, self.view(judged.form.view)
        assert found is not None
        kept = self._states.pop(form.key)
        if isinstance(kept, dict):
            model = self._model(form)
            model.load_state_dict(kept)
        elif self.given or not self.parts:
            model = kept.model
        else:
            model = self._trained(form, self.split, epochs=max(1, kept.result.best_epoch)).model
        return Member(form, found[0], model, judged.weight, judged.temperature)

    def held_out(self, judged: Sequence[Judged]) -> tuple[Tensor, Tensor]:
        """The rows that all members were judged by, and what the average says of them."""
        members = [one for one in judged if one.weight > 0]
        outputs = self.problem.outcome.combine(
            [one.outputs for one in members], [one.weight for one in members], [1.0] * len(members)
        )
        known = ~outputs.isnan().any(1)
        return self.rows[known], outputs[known]


def _stays_near(config: DIFFormerConfig) -> bool:
    """Whether a row's output depends on rows within `num_layers` edges alone."""
    return config.kernel == "identity" and config.norm != "all" and not config.center


def _fit_near(training: Training, form: Form, part: Split) -> Candidate:
    """Train on the rows that those of the part depend on: the same losses in less time."""
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


def _hold_out(train: Tensor, strata: Any, seed: int) -> list[Split]:
    """One part where some class has a single label, which stays in training.

    None where all classes have: nothing can be held out, and every form counts alike.
    """
    generator = np.random.default_rng(seed)
    held: list[int] = []
    for label in np.unique(strata):
        rows = generator.permutation(np.flatnonzero(strata == label))
        held += rows[: min(len(rows) - 1, max(1, round(len(rows) * HELD_OUT)))].tolist()
    mask = torch.zeros(len(train), dtype=torch.bool)
    mask[held] = True
    return [Split("part", train[~mask], train[mask], train[:0])] if held else []
