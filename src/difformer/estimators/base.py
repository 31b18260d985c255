"""How the classifier and the regressor fit: read the rows, choose and train models, freeze them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight  # pyright: ignore[reportPrivateUsage]
from torch import Tensor

from difformer.core.graph import Graph
from difformer.data.dataset import Dataset
from difformer.data.graphs import read_graph
from difformer.data.neighbours import nearest_neighbours
from difformer.data.split import Split
from difformer.estimators.answering import AnsweringDIFFormer
from difformer.estimators.choice import Choice, Form, Member, Training, choose, pick_kernels
from difformer.estimators.files import SaveMixin
from difformer.estimators.problem import Problem
from difformer.estimators.rows import Rows, check_ids, digests_of, learn_rows, to_tensor
from difformer.estimators.search import search
from difformer.estimators.views import FittedMember
from difformer.nn.config import ALONE_RECIPE, DEFAULT_RECIPE, RECIPES, DIFFormerConfig
from difformer.nn.frozen import FrozenDIFFormer
from difformer.train.settings import TrainSettings

Array = NDArray[Any]
E = TypeVar("E", bound="BaseDIFFormer")


@dataclass(kw_only=True, eq=False, repr=False)
class BaseDIFFormer(SaveMixin, AnsweringDIFFormer):
    """`fit` of both estimators; they read the targets and turn outputs into predictions."""

    def fit(
        self: E,
        X: Any,
        y: Any = None,
        graph: Any = None,
        *,
        sample_weight: Any = None,
        validation: Any = None,
        ids: Any = None,
    ) -> E:
        """Train on the labelled rows of y; the unlabelled rows of X are used too.

        Args:
            X: (n, p) array of numbers (NaN where missing), SciPy sparse matrix, data frame of
                numbers, dates, categories and texts, or a `Dataset`, with its labels and graph.
            y: for the classifier (n,) labels of any kind, (n, t) of 0 and 1 for many labels per
                row, or (n, t) of classes for many outputs; for the regressor (n,) or (n, t)
                numbers. None for a `Dataset`.
            graph: edges (2, e), pairs, a SciPy or networkx graph, a data frame of edges, or "knn".
            sample_weight: (n,) weight of each labelled row in the loss.
            validation: labelled rows (a mask, or numbers) to pick the epoch by, not to train on.
            ids: (n,) names of the rows, by which `predict` recognises them; by default the index
                of a data frame, unless it only numbers the rows.
        """
        self.check_settings()
        self.encoder_, rows = learn_rows(self, X, ids)
        problem = self._problem(X, y)
        if len(problem.y) != len(rows):
            raise ValueError(
                f"y must have one entry for each of the {len(rows)} rows of X, got {len(problem.y)}"
            )
        if graph is None and isinstance(X, Dataset) and X.edge_index is not None:
            graph = X.edge_index, X.edge_weight
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        graphs = self._graphs(rows, graph)
        choice = self._choose(rows, problem, graphs, sample_weight, validation, seed)
        self._keep_choice(choice)
        if self.graph_ is not None:
            check_ids(rows.ids)
        # New rows find their own neighbours among these.
        near = self.graph_ is not None and self.graph_ is graphs.get("knn")
        self._neighbours = self._near(rows.features) if near else None
        self.ids_, self._digests = rows.ids, digests_of(rows)
        self._keep(self._freeze(choice.members, rows.features).numpy())
        self.held_out_scores_ = None
        if self.held_out is not None:
            held, outputs = self.held_out
            self.held_out_scores_ = self._scores(outputs, problem.y.numpy()[held])
        return self

    def _problem(self, X: Any, y: Any) -> Problem:
        """Read the targets: y, or those of a `Dataset`."""
        raise NotImplementedError

    def _keep(self, output: Array) -> None:
        """Set what depends on the outputs (n, outputs) of the rows of fit."""
        raise NotImplementedError

    def _scores(self, outputs: Array, y: Array) -> Array:
        """How far held-out outputs are from their labels, (m, targets) or (m, 1)."""
        raise NotImplementedError

    def _choose(
        self,
        rows: Rows,
        problem: Problem,
        graphs: Mapping[str, Graph | None],
        sample_weight: Any,
        validation: Any,
        seed: int,
    ) -> Choice:
        """Train the forms of the model, and choose."""
        split = self._split(problem, validation, seed, choosing=len(graphs) > 1)
        weight = self._row_weight(rows, problem, sample_weight, split)
        data = Dataset("X", to_tensor(rows.features, torch.float32), problem.y, problem.task)
        training = self._training(data, problem, weight, seed)
        given = validation is not None
        if self.searches:
            return search(
                training,
                rows.features,
                self.encoder_,
                next((g for g in graphs.values() if g is not None), None),
                split,
                neighbours="knn" in graphs,
                given=given,
                budget=self.time_budget,
            )
        forms = self._forms(graphs, len(rows))
        return choose(training, forms, split, refit=not given and not self.early_stopping)

    def _keep_choice(self, choice: Choice) -> None:
        members, result = choice.members, choice.result
        self.kernel_ = members[0].form.kernel
        self.graph_ = next((m.form.graph for m in members if m.form.graph is not None), None)
        self.split_, self.choice_ = choice.split, choice.summary
        self.candidates_, self.validation_ = dict(choice.tried), dict(choice.validation)
        self.result_, self.history_ = result, result.history
        self.best_epoch_, self.n_iter_ = result.best_epoch, result.epochs
        for name in ("held_out_rows_", "held_out_outputs_"):  # of an earlier fit
            self.__dict__.pop(name, None)
        if choice.held_out is not None:
            rows, outputs = choice.held_out
            self.held_out_rows_, self.held_out_outputs_ = rows.numpy(), outputs.double().numpy()

    def _row_weight(
        self, rows: Rows, problem: Problem, sample_weight: Any, split: Split
    ) -> Tensor | None:
        """The weight of each row in the loss: that of its class times its own."""
        if sample_weight is None and problem.weight is None:
            return None
        weight: Any = 1.0 if problem.weight is None else problem.weight
        if sample_weight is not None:
            weight = weight * _check_sample_weight(sample_weight, rows.features)
        found = torch.from_numpy(weight).float()
        if bool((found < 0).any()) or not bool(found[split.train].sum() > 0):
            raise ValueError("sample_weight must be 0 or more, and above 0 for a labelled row")
        return found

    def _training(
        self, data: Dataset, problem: Problem, weight: Tensor | None, seed: int
    ) -> Training:
        if problem.task != "multiclass":
            self.refuse({"consistency": "only one class per row uses it"})
        settings = TrainSettings(
            epochs=self.epochs,
            lr=self.lr,
            weight_decay=self.weight_decay,
            consistency=self.consistency,
            patience=self.patience if self.early_stopping else None,
            pick_by=self.pick_by,
            device=self.device,
            seed=seed,
        )
        return Training(
            data,
            problem,
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
            usual = ALONE_RECIPE if graph is None else DEFAULT_RECIPE
            recipe = RECIPES[usual if self.recipe == "auto" else self.recipe]
            options = {**recipe, **(self.options or {})}
            layers = int(options.get("num_layers", DIFFormerConfig().num_layers))
            kernels = pick_kernels(
                self.kernel or DIFFormerConfig().kernel, num_rows, self.hidden_channels, layers
            )
            for cost, kernel in enumerate(kernels):
                varying = [name] if len(graphs) > 1 else []
                varying += [str(kernel)] if len(kernels) > 1 or not varying else []
                forms.append(Form("-".join(varying), kernel, graph, options, cost))
        return forms

    def _split(self, problem: Problem, validation: Any, seed: int, *, choosing: bool) -> Split:
        """Training and validation rows among the labelled ones."""
        labelled = np.flatnonzero(problem.strata >= 0)
        val = nothing = np.empty(0, np.int64)
        if validation is not None:
            val = _read_validation(validation, problem.strata)
        elif not self.searches and (self.early_stopping or self.kernel == "auto" or choosing):
            val = problem.hold_out(self.validation_fraction, seed)
        elif not self.searches:
            reason = "no label is held out, set early_stopping=True"
            self.refuse(dict.fromkeys(("pick_by", "validation_fraction"), reason))
        train = np.setdiff1d(labelled, val)
        if not len(train):
            raise ValueError("validation must leave labelled rows to train on, it leaves none")
        parts = [torch.from_numpy(part) for part in (train, val, nothing)]
        return Split("fit", parts[0], parts[1], parts[2])

    def _graphs(self, rows: Rows, graph: Any) -> dict[str, Graph | None]:
        """The graphs between the rows of fit to choose from, by name."""
        given = self.graph if graph is None else graph
        if given is None:
            return {"none": None}
        if not isinstance(given, str):
            name, (edges, weight) = "edges", read_graph(given, len(rows), ids=rows.ids)
        elif given in ("knn", "auto"):
            count = min(int(self.n_neighbors), len(rows) - 1)
            x = to_tensor(self._near(rows.features), torch.float32)
            name, edges, weight = "knn", nearest_neighbours(x, count, metric=self._metric()), None
        else:
            raise ValueError(f'graph must be None, "knn", "auto" or edges, got {given!r}')
        graph = Graph.from_edges(
            edges, len(rows), weight, undirected=not self.directed, self_loops=True
        )
        among = isinstance(given, str) and given == "auto"
        return {"none": None, name: graph} if among else {name: graph}

    def _freeze(self, members: Sequence[Member], features: Any) -> Tensor:
        """Keep what predictions for new rows need; returns the averaged outputs (n, outputs).

        In float64, so that the bits of a row are the same in any batch.
        """
        self.members_ = []
        outputs: list[Tensor] = []
        seen: dict[str, Tensor] = {}  # the features through each view, made once
        for each in members:
            view, graph, model = each.view, each.form.graph, each.model.cpu().double().eval()
            if view.kind not in seen:
                seen[view.kind] = to_tensor(view.apply(features), torch.float64)
            graph = None if graph is None else graph.to(torch.zeros(0, dtype=torch.float64))
            with torch.no_grad():
                passages = model.passages(seen[view.kind], graph)
                outputs.append(model.output(passages[-1].after))
            frozen = FrozenDIFFormer.from_passages(model, passages)
            kept = FittedMember(each.form.key, view, frozen, each.weight, each.temperature)
            if not self.members_:
                self.frozen_, self.embedding_ = frozen, passages[-1].after.numpy()
                self._n_features_out = model.hidden_channels
            if not self.members_ or (kept.meets and not any(m.meets for m in self.members_)):
                self._before_last = passages[-1].before.float()  # of the member that is explained
            self.members_.append(kept)
        return self._combined(outputs)


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
