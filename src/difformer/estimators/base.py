"""How the classifier and the regressor fit: rows in, a trained and a frozen model out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight  # pyright: ignore[reportPrivateUsage]
from torch import Tensor

from difformer.core.graph import Graph
from difformer.data.dataset import Dataset
from difformer.data.neighbours import nearest_neighbours
from difformer.data.split import Split
from difformer.estimators.answering import AnsweringDIFFormer
from difformer.estimators.choice import Candidate, Form, Member, Training, pick_kernels
from difformer.estimators.graphs import read_graph
from difformer.estimators.members import freeze_member
from difformer.estimators.problem import Problem
from difformer.estimators.rows import FitRows, Rows, learn_rows, to_tensor
from difformer.estimators.search import search
from difformer.estimators.views import View
from difformer.nn.config import DIFFormerConfig
from difformer.nn.recipes import ALONE_RECIPE, DEFAULT_RECIPE, RECIPES
from difformer.train.settings import TrainSettings

__all__ = ["BaseDIFFormer", "Problem", "dataset_graph"]

Array = NDArray[Any]


@dataclass(kw_only=True, eq=False, repr=False)
class BaseDIFFormer(AnsweringDIFFormer):
    """Fitting that does not depend on what is predicted.

    `fit` reads the rows (`rows.py`), makes the graphs and the forms of the model to choose from,
    trains them (`choice.py`) and freezes the best one, which answers for new rows.
    """

    def _learn(self, X: Any, ids: Any) -> Rows:
        """The rows of fit, encoded, once the parameters are checked."""
        self.check_settings()
        self.encoder_, rows = learn_rows(self, X, ids)
        return rows

    def _fit(
        self, rows: Rows, problem: Problem, graph: Any, weight: Any, validation: Any
    ) -> Tensor:
        """Train, freeze and return the transductive output (n, outputs) in float64."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        graphs = self._graphs(rows, graph)
        data = Dataset("X", to_tensor(rows.features, torch.float32), problem.y, problem.task)
        split = self._split(problem, validation, seed, choosing=len(graphs) > 1)
        row_weight = None
        if weight is not None:
            row_weight = torch.from_numpy(_check_sample_weight(weight, rows.features)).float()
            if bool((row_weight < 0).any()) or not bool(row_weight[split.train].sum() > 0):
                raise ValueError("sample_weight must be 0 or more, and above 0 for a labelled row")
        training = self._training(data, problem, row_weight, seed)
        given = validation is not None
        if self._chooses:
            self.split_ = split
            chosen = next((g for g in graphs.values() if g is not None), None)
            found = search(
                training,
                problem,
                rows.features,
                self.encoder_,
                chosen,
                split,
                neighbours="knn" in graphs,
                given=given,
                budget=self.time_budget,
            )
            members, result, self.candidates_ = found.members, found.result, dict(found.tried)
            self.choice_ = found.told
            self.validation_ = dict(result.metrics.get("val", {}))
            self.held_out_rows_ = found.rows.numpy()
            self.held_out_outputs_ = found.outputs.double().numpy()
        else:
            best = self._best(training, self._forms(graphs, len(rows)), split, given=given)
            members = [Member(best.form, View("plain"), best.model)]
            result, self.candidates_ = best.result, dict(best.scores)
            self.choice_ = ""
        self.kernel_ = members[0].form.kernel
        self.graph_ = next((m.form.graph for m in members if m.form.graph is not None), None)
        self.result_, self.history_ = result, result.history
        self.best_epoch_, self.n_iter_ = result.best_epoch, result.epochs
        # Kept, because with neighbours a new row must find its own.
        self._neighbours = (
            self._near(rows.features) if self.graph_ is graphs.get("knn", rows) else None
        )
        self.ids_ = rows.ids
        self._fit_rows = FitRows.of(rows, by_id=self.graph_ is not None)
        return self._freeze(members, rows.features)

    @property
    def _chooses(self) -> bool:
        """Whether the form of the model is chosen by the labels, from the portfolio."""
        return self.recipe == "auto" and self.kernel is None and not self.options

    def _training(
        self, data: Dataset, problem: Problem, weight: Tensor | None, seed: int
    ) -> Training:
        settings = TrainSettings(
            epochs=self.epochs,
            lr=self.lr,
            weight_decay=self.weight_decay,
            consistency=self.consistency if problem.task == "multiclass" else 0.0,
            patience=self.patience if self.early_stopping else None,
            pick_by=self.pick_by,
            device=self.device,
            seed=seed,
        )
        return Training(
            data,
            problem.objective,
            problem.outputs,
            weight,
            self.hidden_channels,
            settings,
            None if self.checkpoint is None else Path(self.checkpoint),
            bool(self.verbose),
        )

    def _forms(self, graphs: Mapping[str, Graph | None], num_rows: int) -> list[Form]:
        """The forms of the model to choose from: each graph with each kernel."""
        forms: list[Form] = []
        for name, graph in graphs.items():
            options = self._options(graph is not None)
            layers = int(options.get("num_layers", DIFFormerConfig().num_layers))
            kernels = pick_kernels(
                self.kernel or DIFFormerConfig().kernel, num_rows, self.hidden_channels, layers
            )
            for cost, kernel in enumerate(kernels):
                varying = [name] if len(graphs) > 1 else []
                varying += [str(kernel)] if len(kernels) > 1 or not varying else []
                forms.append(Form("-".join(varying), kernel, graph, options, cost))
        return forms

    def _best(
        self, training: Training, forms: list[Form], split: Split, *, given: bool
    ) -> Candidate:
        """The fit of the only form, or of the one that validates best."""
        if split.val.numel() == 0:
            forms = forms[:1]
        # Rows held out to choose a form, and for nothing else, are labels like the others once
        # it is chosen.
        spare = not given and not self.early_stopping
        self.split_ = split
        self.validation_: dict[str, float] = {}
        scores: Mapping[str, float] = {}
        if len(forms) > 1 or not spare:
            best = training.choose(forms, split)
            self.validation_ = dict(best.result.metrics.get("val", {}))
            if not spare or best.result.interrupted:
                return best
            forms, scores = [best.form], best.scores
        train = torch.cat([split.train, split.val]).sort().values
        self.split_ = replace(split, train=train, val=split.val[:0])
        found = training.fit(forms[0], self.split_)
        return replace(found, scores=scores or found.scores)

    def _options(self, with_graph: bool) -> dict[str, Any]:
        """The model's options: the recipe's, then the caller's."""
        usual = DEFAULT_RECIPE if with_graph else ALONE_RECIPE
        name = usual if self.recipe == "auto" else self.recipe
        return {**RECIPES[name], **(self.options or {})}

    def _split(self, problem: Problem, validation: Any, seed: int, *, choosing: bool) -> Split:
        """Training and validation rows among the labelled ones."""
        labelled = np.flatnonzero(problem.strata >= 0)
        nothing = np.empty(0, np.int64)
        if validation is not None:
            val = _read_validation(validation, problem.strata)
            train = np.setdiff1d(labelled, val)
            if not len(train):
                raise ValueError("validation must leave labelled rows to train on, it leaves none")
        elif not self._chooses and (self.early_stopping or self.kernel == "auto" or choosing):
            val = _draw(problem.strata, self.validation_fraction, seed)
            train = np.setdiff1d(labelled, val)
        else:
            train, val = labelled, nothing
        return Split(
            "fit", torch.from_numpy(train), torch.from_numpy(val), torch.from_numpy(nothing)
        )

    def _graphs(self, rows: Rows, graph: Any) -> dict[str, Graph | None]:
        """The graphs between the rows of fit to choose from: as given, or as asked for."""
        given = self.graph if graph is None else graph
        if given is None:
            return {"none": None}
        if not isinstance(given, str):
            return {"edges": self._graph(*read_graph(given, len(rows), ids=rows.ids), len(rows))}
        if given not in ("knn", "auto"):
            raise ValueError(f'graph must be None, "knn", "auto" or edges, got {given!r}')
        count = min(int(self.n_neighbors), len(rows) - 1)
        x = to_tensor(self._near(rows.features), torch.float32)
        near = self._graph(nearest_neighbours(x, count, metric=self._metric()), None, len(rows))
        return {"knn": near} if given == "knn" else {"none": None, "knn": near}

    def _graph(self, edges: Tensor, weight: Tensor | None, num_rows: int) -> Graph:
        return Graph.from_edges(
            edges, num_rows, weight, undirected=not self.directed, self_loops=True
        )

    def _freeze(self, members: Sequence[Member], features: Any) -> Tensor:
        """Keep what new rows need of every member; the output of all of them together."""
        self.members_ = []
        outputs: list[Tensor] = []
        seen: dict[str, Tensor] = {}  # one tensor per view: what members make of it is made once
        for member in members:
            view = member.view
            if view.kind not in seen:
                seen[view.kind] = to_tensor(view.apply(features), torch.float64)
            fitted, output, states = freeze_member(member, seen[view.kind], member.form.graph)
            if not self.members_:
                self.frozen_, self.embedding_ = fitted.frozen, states[-1].numpy()
                self._before_last = states[0].float()
                self._n_features_out = member.model.hidden_channels
            elif fitted.meets and not any(m.meets for m in self.members_):
                self._before_last = states[0].float()  # of the member that `influence` looks at
            self.members_.append(fitted)
            outputs.append(output)
        return self._combined(outputs)


def dataset_graph(data: Dataset) -> Any:
    """A dataset's own edges as `fit` takes them; None where it has none."""
    return None if data.edge_index is None else (data.edge_index, data.edge_weight)


def _read_validation(validation: Any, strata: Array) -> Array:
    """Row numbers from a mask or from row numbers, all labelled."""
    rows = np.asarray(validation)
    if rows.dtype == bool:
        if rows.shape != strata.shape:
            raise ValueError(f"validation must be a mask of {len(strata)} rows, got {rows.shape}")
        rows = np.flatnonzero(rows)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise ValueError("validation must be a mask, or a list of row numbers")
    rows = np.unique(rows.astype(np.int64))
    if len(rows) and not 0 <= rows[0] <= rows[-1] < len(strata):
        bad = rows[0] if rows[0] < 0 else rows[-1]
        raise ValueError(f"validation must name rows 0 to {len(strata) - 1}, got {bad}")
    unlabelled = rows[strata[rows] < 0]
    if len(unlabelled):
        raise ValueError(f"validation must name labelled rows, row {unlabelled[0]} has no label")
    return rows


def _draw(strata: Array, fraction: float, seed: int) -> Array:
    """A share of the labelled rows of every class, always leaving one of each to train on."""
    generator = np.random.default_rng(seed)
    drawn: list[Array] = []
    for label in np.unique(strata[strata >= 0]):
        rows = generator.permutation(np.flatnonzero(strata == label))
        drawn.append(rows[: min(len(rows) - 1, max(1, round(len(rows) * fraction)))])
    return np.sort(np.concatenate(drawn))
