"""Which models answer: the form that is named, the best of a few, or an average of many.

recipe="auto" tries the forms of `portfolio`. Each is trained on parts of the labels and judged on
the rest; those with a weight are then trained on all labels. A form's weight in the average falls
with the evidence that it is worse than the best,

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
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from difformer.core.graph import Graph
from difformer.data.dataset import Dataset, csr_tensor, fingerprint, scipy_csr, single
from difformer.data.split import Split
from difformer.estimators.forms import Form, View, learn_view, portfolio
from difformer.estimators.labels import FOLDS, parts_of, strata_of
from difformer.estimators.outcome import Judged, Outcome, judge, summarise, weighed
from difformer.estimators.settings import FitSettings
from difformer.metrics import METRICS, TEMPERED
from difformer.nn.model import DIFFormer
from difformer.train.batches import FullBatch
from difformer.train.callbacks import Progress
from difformer.train.folder import FitResult
from difformer.train.loop import fit
from difformer.train.objective import CrossEntropy, Objective
from difformer.train.replicas import averages, fit_replicas, is_linear
from difformer.train.seeding import seeded
from difformer.train.settings import TrainSettings

Trained = tuple[Form, DIFFormer, FitResult]

# Up to this many rows, comparing all pairs, as the sharp form does, takes half a minute at most.
SHARP_ROWS = 16_000
# The most numbers (labelled rows × rows) of the linear map that averaging forms keep in training.
MAP_NUMBERS = 2**23
# With more copies of a row than this on average, its nearest neighbours are its own copies.
MOST_EQUAL = 4
# The factor of the standard error of a cross-validated loss: see above.
SHARED_ROWS = math.sqrt(2)


class Search:
    """Forms of the model on one problem; `choose` or `average` says which of them answer.

    Args:
        asked: the parameters of the estimator.
        data: the rows, encoded, and what is learned of them.
        encoder: how they were encoded.
        split: the labelled rows: those to judge by in `val`, which `given` says are not to be
            trained on at all, and the others in `train`.
        weight: weight of each row in the loss, or None.

    Attributes:
        taken: the models that answer, heaviest first: form, model, weight and temperature.
        tried: a score of each form that was tried: its validation metric, or its held-out loss.
        result: how training went.
        validation: validation metrics of the choice.
        summary: the choice of `average` in one line.
        held_out: rows whose labels `average` held out in turn, and their outputs (rows, outputs) by
            models that had not seen these labels.
    """

    summary = ""
    held_out: tuple[Tensor, Tensor] | None = None
    result: FitResult

    def __init__(
        self,
        asked: FitSettings,
        outcome: Outcome,
        data: Dataset,
        encoder: Any,
        split: Split,
        weight: Tensor | None,
        seed: int,
        *,
        given: bool,
    ) -> None:
        self.asked, self.outcome, self.data, self.encoder = asked, outcome, data, encoder
        self.split, self.weight, self.seed, self.given = split, weight, seed, given
        self.outputs = outcome.outputs(data.y)
        patience = asked.patience if asked.early_stopping else None
        self.settings = asked.loop(patience=patience, seed=seed)
        self.taken: list[tuple[Form, DIFFormer, float, float]] = []
        self.tried: dict[str, float] = {}
        self.validation: dict[str, float] = {}
        self.judged: list[Judged] = []
        self._views: dict[str, tuple[View, Dataset] | None] = {"plain": (View("plain"), data)}
        self._states: dict[str, Any] = {}
        self._alike: dict[tuple[Any, ...], DIFFormer] = {}

    # --- training ------------------------------------------------------------------------------

    def build(self, form: Form, width: int) -> DIFFormer:
        """The model of a form, before training."""
        with seeded(self.seed, own=True):
            return DIFFormer(self.seen(form)[1].num_features, width, self.outputs, **form.options)

    def train(
        self,
        form: Form,
        split: Split,
        settings: TrainSettings | None = None,
        objective: Objective | None = None,
        rows: tuple[Dataset, Tensor | None] | None = None,
    ) -> tuple[DIFFormer, FitResult]:
        """Train one form on some rows and their weights; without validation rows to the end."""
        settings, validated = settings or self.settings, split.val.numel() > 0
        data, weight = rows or (self.seen(form)[1], self.weight)
        if not validated:
            settings = replace(settings, patience=None, eval_every=settings.epochs)
        model, folder, config = self.build(form, self.asked.hidden_channels), None, None
        if self.asked.checkpoint is not None:
            # A form may be trained for a few epochs first, and then for more if it does well.
            end = "validated" if validated else "whole"
            folder = Path(self.asked.checkpoint) / f"{form.name}, {settings.epochs} epochs-{end}"
            config = self._config(form, data, weight)
        result = fit(
            model,
            FullBatch(data, split, form.graph, weight=weight),
            objective or self.outcome.objective,
            split,
            settings,
            folder=folder,
            config=config,
            callbacks=[Progress(f"DIFFormer ({form.name})")] if self.asked.verbose else [],
        )
        return model, result

    def _config(self, form: Form, data: Dataset, weight: Tensor | None) -> dict[str, Any]:
        """What must be equal for a fit to be resumed."""
        graph = form.graph
        edges = (None, None) if graph is None else (graph.edge_index, single(graph.edge_weight))
        sizes = {"width": self.asked.hidden_channels, "outputs": self.outputs}
        model = {**form.options, "kernel": str(form.options["kernel"]), **sizes}
        mark = fingerprint(data.x, data.y, weight, *edges)
        return {"model": model, "data": {"fingerprint": mark}}

    # --- one form, or a few ----------------------------------------------------------------------

    def choose(self, forms: Sequence[Form], *, refit: bool) -> None:
        """Train each form and keep the first that no other beats by validation.

        With `refit`, the validation rows are only there to choose a form: the one chosen is trained
        again on these rows too. A single form is then trained once, on all labels.
        """
        split, monitor = self.split, self.outcome.objective.monitor
        if split.val.numel() == 0:
            forms = forms[:1]
        best: Trained | None = None
        if len(forms) > 1 or not refit:
            for form in forms:
                model, result = self.train(form, split)
                self.tried[form.name] = result.metrics.get("val", {}).get(monitor.name, math.nan)
                if best is None or result.interrupted or self._beats((form, model, result), best):
                    best = form, model, result
                if result.interrupted:
                    break
        if best is not None:
            self.validation = best[2].metrics.get("val", {})
        if best is None or (refit and not best[2].interrupted):
            form = forms[0] if best is None else best[0]
            train = torch.cat([split.train, split.val]).sort().values
            self.split = replace(split, train=train, val=split.val[:0])
            best = form, *self.train(form, self.split)
            self.tried = self.tried or {form.name: math.nan}
        form, model, self.result = best
        self.taken = [(form, model, 1.0, 1.0)]

    def _beats(self, one: Trained, best: Trained) -> bool:
        """Whether its validation metric is better, or equal with a lower loss at no more cost."""
        sign = self.outcome.objective.monitor.better
        mine, theirs = (self.tried[form.name] for form, _, _ in (one, best))
        if mine != theirs:
            return sign * mine > sign * theirs
        costs_more = one[0].options["kernel"] == "sigmoid" != best[0].options["kernel"]
        loss, least = (result.metrics["val"]["loss"] for _, _, result in (one, best))
        return not costs_more and loss < least

    # --- an average ------------------------------------------------------------------------------

    def average(self, graph: Graph | None, *, neighbours: bool) -> None:
        """Try the forms that suit the data, and train those with a weight on all labels.

        No further form is started after the time budget; the first is always tried.

        Args:
            neighbours: the graph was made from the features.
        """
        began, asked = time.monotonic(), self.asked
        for form in portfolio(self, graph, neighbours=neighbours):
            start = time.monotonic()
            if asked.time_budget and self.judged and start - began > asked.time_budget:
                break
            self.judge(form)
            if asked.verbose:
                spent = f"loss {self.judged[-1].loss:.3f} in {time.monotonic() - start:.1f} s"
                tell(f"tried {len(self.judged)} forms of DIFFormer; {form.key}: {spent}")
        if asked.verbose:
            tell("")
        judged = self.weighed()
        members = [one for one in judged if one.weight > 0]
        taken = [(one.form, self._fitted(one.form), one.weight, one.temperature) for one in members]
        self.taken = sorted(taken, key=lambda each: -each[2])
        outputs = self.outcome.combine([(one.outputs, one.weight, 1.0) for one in members])
        known = ~outputs.isnan().any(1)
        rows, outputs = self.held_out = self.rows[known], outputs[known]
        if len(rows):
            every = torch.arange(len(rows))
            self.validation = self.outcome.objective.metrics(outputs, self.data.y[rows], every)
        metrics = {"val": self.validation} if self.validation else {}
        epochs = int(self.taken[0][0].train["epochs"])
        spent = time.monotonic() - began
        self.result = FitResult(metrics, epochs, epochs, "epochs", [], spent)
        self.tried = {one.form.key: one.loss for one in judged}
        self.summary = summarise(judged)

    @cached_property
    def sharp(self) -> bool:
        """Whether comparing all rows is useful and affordable: few rows, most of them different."""
        if self.data.num_rows > SHARP_ROWS:
            return False
        if self.data.x.layout != torch.strided:
            return True
        different = {row.tobytes() for row in self.data.x.numpy()}
        return len(different) * MOST_EQUAL >= self.data.num_rows

    def improving(self, form: Form) -> bool:
        """Whether the form was still improving in its last epochs."""
        _, result = self._states[form.key]
        return result.best_epoch > 0.75 * result.epochs

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
            found = learn_view(kind, self.data.x, self.encoder)
            seen = None if found is None else replace(self.data, x=found.apply(self.data.x))
            self._views[kind] = None if found is None or seen is None else (found, seen)
        return self._views[kind]

    def seen(self, form: Form) -> tuple[View, Dataset]:
        """The view of a form and the data seen through it."""
        found = self.view(form.view)
        assert found is not None  # forms are only made for views that there are
        return found

    @cached_property
    def parts(self) -> list[Split]:
        """Rows to train on and rows to judge by, several times."""
        if self.given:
            return [replace(self.split, test=self.split.train[:0])]
        return parts_of(self.split.train, strata_of(self.data), self.seed)

    @cached_property
    def rows(self) -> Tensor:
        """All rows that forms are judged by, sorted."""
        return torch.unique(torch.cat([self.split.val[:0], *(part.val for part in self.parts)]))

    def judge(self, form: Form) -> None:
        """Train the form on each part and judge it by the rest of the labels."""
        parts = self._judge_copies(form) if self.in_copies(form) else self._judge_alone(form)
        self.judged = [one for one in self.judged if one.form.key != form.key]
        self.judged.append(judge(form, self.outcome, self.data.y, parts, self.rows))

    def in_copies(self, form: Form) -> bool:
        """Whether the form can be trained in copies, one per part, all at once."""
        if not averages(form.config):
            return False
        numbers = self.split.train.numel() * self.data.num_rows
        return is_linear(form.config) or numbers <= MAP_NUMBERS

    def _model(self, form: Form) -> DIFFormer:
        width = self.asked.hidden_channels
        if is_linear(form.config):
            # A multiple of eight, so that the output of a new row has the same bits in any batch.
            width = -(-self.outputs // 8) * 8
        model = self.build(form, width)
        # The weights between rows are made once for all forms that compare them in the same way.
        alike = (form.view, str(model.config.kernel), model.config.sharpness, model.config.reach)
        model.share_fixed(self._alike.setdefault(alike, model))
        return model

    def _judge_copies(self, form: Form) -> list[tuple[Tensor, Tensor]]:
        parts = self.parts if is_linear(form.config) else self.parts[:FOLDS]
        trained = [part.train for part in parts]
        if not self.given:
            trained.append(self.split.train)
        copies = fit_replicas(
            self._model(form),
            self.seen(form)[1].x,
            form.graph,
            self.outcome.row_losses,
            self.data.y,
            trained,
            also=self.rows,
            weight=self.weight,
            seed=self.seed,
            **{**form.train, "epochs": min(form.train["epochs"], self.asked.epochs)},
        )
        self._states[form.key] = copies.states[-1]
        return [
            (part.val, output[torch.searchsorted(copies.rows, part.val)])
            for part, output in zip(parts, copies.outputs, strict=False)
        ]

    def _judge_alone(self, form: Form) -> list[tuple[Tensor, Tensor]]:
        """Train by the loop on one part, whose held-out rows also pick the epoch."""
        part = self.parts[0] if self.parts else self.split
        model, _ = self._states[form.key] = self._alone(form, part, int(form.train["epochs"]))
        with torch.no_grad():
            output = model.cpu().eval()(self.seen(form)[1].x, form.graph)
        return [(part.val, output[part.val])] if self.parts else []

    def _alone(self, form: Form, part: Split, epochs: int) -> tuple[DIFFormer, FitResult]:
        settings = replace(
            self.settings,
            epochs=min(epochs, self.asked.epochs),
            lr=form.train["lr"],
            weight_decay=form.train["weight_decay"],
            patience=50,
            pick_by=None,
        )
        objective = self.outcome.objective
        if isinstance(objective, CrossEntropy):  # the epoch with the least loss after calibration
            objective = replace(objective, monitor=METRICS[TEMPERED])
        # Whether a row's output depends only on rows within `num_layers` edges.
        local = form.config.kernel == "identity" and form.config.norm != "all"
        rows = None
        if form.graph is not None and local and not form.config.center:
            form, part, rows = self._near(form, form.graph, part)
        model, result = self.train(form, part, settings, objective, rows)
        if result.interrupted:  # a form that is half trained must not count as tried
            raise KeyboardInterrupt
        return model, result

    def _near(
        self, form: Form, graph: Graph, part: Split
    ) -> tuple[Form, Split, tuple[Dataset, Tensor | None]]:
        """The rows that the outputs of the part depend on: equal losses in less time."""
        used, data = torch.cat([part.train, part.val]), self.seen(form)[1]
        near, graph = graph.around(used, int(form.options["num_layers"]))
        dense = data.x.layout == torch.strided
        x = data.x[near] if dense else csr_tensor(scipy_csr(data.x)[near.numpy()])
        weight = None if self.weight is None else self.weight[near]
        train, val = (torch.searchsorted(near, rows) for rows in (part.train, part.val))
        split = Split(part.name, train, val, used[:0])
        return replace(form, graph=graph), split, (replace(data, x=x, y=data.y[near]), weight)

    def _fitted(self, form: Form) -> DIFFormer:
        """The form trained on all labels."""
        kept = self._states.pop(form.key)
        if isinstance(kept, dict):
            model = self._model(form)
            model.load_state_dict(kept)
            return model
        model, result = kept
        if self.given or not self.parts:
            return model
        return self._alone(form, self.split, max(1, result.best_epoch))[0]


def tell(line: str) -> None:
    """Show a line on stderr in place of the previous one; nothing if stderr is not a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{line}", end="", file=sys.stderr, flush=True)
