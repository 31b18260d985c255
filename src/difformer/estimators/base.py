"""What the classifier and the regressor share: rows in, a trained and a frozen model out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    _check_sample_weight,  # pyright: ignore[reportPrivateUsage]
    check_is_fitted,
)
from torch import Tensor

from difformer.core.graph import Graph
from difformer.data.dataset import Dataset
from difformer.data.encoder import TableEncoder
from difformer.data.neighbours import nearest_known, nearest_neighbours
from difformer.data.split import Split
from difformer.estimators.choice import Candidate, Form, Member, Training, pick_kernels
from difformer.estimators.graphs import read_graph
from difformer.estimators.members import FittedMember, freeze_member
from difformer.estimators.problem import Outcome, Problem
from difformer.estimators.rows import FitRows, Rows, learn_rows, read_rows, to_tensor
from difformer.estimators.search import search
from difformer.estimators.settings import FitSettings
from difformer.estimators.views import View
from difformer.nn.config import DIFFormerConfig
from difformer.nn.recipes import ALONE_RECIPE, DEFAULT_RECIPE, RECIPES
from difformer.train.settings import TrainSettings

__all__ = ["BaseDIFFormer", "Problem", "dataset_graph"]

Array = NDArray[Any]

# New rows taken at a time, so that a long sparse table never becomes one dense one.
CHUNK = 4096
# Deviations from the mean beyond which a column does not move neighbours further apart.
USUAL = 2.0
# Rows whose weights of all rows of fit are held at a time.
PAIRS = 512


@dataclass(kw_only=True, eq=False, repr=False)
class BaseDIFFormer(FitSettings, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Fitting and answering that do not depend on what is predicted.

    `fit` reads the rows (`rows.py`), makes the graphs and the forms of the model to choose from,
    trains them (`choice.py`) and freezes the best one, which answers for new rows.
    """

    # --- fitting ---------------------------------------------------------------------------

    def _learn(self, X: Any, ids: Any) -> Rows:
        """The rows of fit, encoded, once the parameters are checked."""
        self.check_settings()
        self.encoder_: TableEncoder | None
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

    def _near(self, features: Any) -> Any:
        """Features as distances are taken of: scaled columns within `USUAL` deviations.

        A column that is nearly constant has huge values in a few rows, which would decide who
        their neighbours are.
        """
        if self.encoder_ is None or not self.scale:
            return features
        if not sparse.issparse(features):
            return features.clip(-USUAL, USUAL)
        near = features.copy()
        near.data = near.data.clip(-USUAL, USUAL)
        return near

    def _metric(self) -> str:
        """Sparse rows, such as counts of words, are compared by their angle."""
        if self.metric != "auto":
            return self.metric
        return "cosine" if self.encoder_ is None else "euclidean"

    def _freeze(self, members: Sequence[Member], features: Any) -> Tensor:
        """Keep what new rows need of every member; the output of all of them together."""
        self.members_: list[FittedMember] = []
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

    def _combined(self, outputs: Sequence[Tensor]) -> Tensor:
        if len(outputs) == 1 and self.members_[0].temperature == 1:
            return outputs[0]
        weights = [member.weight for member in self.members_]
        return self._outcome.combine(outputs, weights, [m.temperature for m in self.members_])

    @property
    def _outcome(self) -> Outcome:
        """What the outputs mean."""
        raise NotImplementedError

    @property
    def shown_member(self) -> FittedMember:
        """The member that is looked into: the heaviest in which rows meet."""
        return next((m for m in self.members_ if m.meets), self.members_[0])

    # --- new rows --------------------------------------------------------------------------

    def _answers(
        self, X: Any, graph: Any, ids: Any, known: Array, *, encode: bool = False
    ) -> Array:
        """Frozen outputs (or states) of new rows; `known`, the answers of fit, for its rows."""
        check_is_fitted(self, "frozen_")
        rows = read_rows(self, X, ids)
        edge_index, weight = self._new_edges(rows, graph)
        where = self._positions(rows, edge_index if _is_given(graph) else None)
        answers = np.empty((len(rows), known.shape[1]))
        answers[where >= 0] = known[where[where >= 0]]
        for part in self._parts(np.flatnonzero(where < 0), edge_index, CHUNK):
            edges, own = _edges_to(part, edge_index, weight, len(self.embedding_))
            if encode:
                found = self.members_[0].run(rows.features[part], edges, own, encode=True)
            else:
                found = self._combined(
                    [member.run(rows.features[part], edges, own) for member in self.members_]
                )
            answers[part] = found.numpy()
        return answers

    def _parts(self, rows: Array, edge_index: Tensor | None, size: int) -> Iterator[Array]:
        """Rows so many at a time, but those that edges join to other new ones all in one part."""
        joined = np.empty(0, np.int64)
        if edge_index is not None:
            source, target = edge_index.numpy()
            among = source >= len(self.embedding_)
            joined = np.union1d(source[among] - len(self.embedding_), target[among])
            joined = np.intersect1d(joined, rows)
        if len(joined):
            yield joined
        alone = np.setdiff1d(rows, joined)
        for start in range(0, len(alone), size):
            yield alone[start : start + size]

    def _positions(self, rows: Rows, edge_index: Tensor | None) -> Array:
        """Each row's position in fit, or -1 for a new row, as is one that brings its own edges."""
        where = self._fit_rows.find(rows)
        if edge_index is not None:
            where[edge_index[1].numpy()] = -1
        return where

    def _new_edges(self, rows: Rows, graph: Any) -> tuple[Tensor | None, Tensor | None]:
        known = len(self.embedding_)
        if self.graph_ is None:
            if graph is not None:
                raise ValueError("graph must be None: the model was fitted without one")
            return None, None
        if graph is not None and not isinstance(graph, str):
            named = None if self.ids_ is None or rows.ids is None else (*self.ids_, *rows.ids)
            edges, weight = read_graph(graph, known, num_new=len(rows), ids=named)
            # As in fit an edge counts once, whichever way and however often it is given.
            found = Graph.from_edges(
                edges, known + len(rows), weight, undirected=not self.directed, self_loops=False
            )
            mine = found.edge_index[1] >= known
            source, target = found.edge_index[:, mine]
            weight = None if found.edge_weight is None else found.edge_weight[mine]
            return torch.stack([source, target - known]), weight
        if self._neighbours is None:
            return None, None
        count = min(int(self.n_neighbors), known)
        near = self._near(rows.features)
        found = nearest_known(self._neighbours, near, count, metric=self._metric())
        target = torch.arange(len(rows)).repeat_interleave(count)
        return torch.stack([torch.from_numpy(found).flatten(), target]), None

    @property
    def scaling_(self) -> tuple[Array, Array]:
        """Without missing values the model is given (X − mean) / scale: these two, one per feature.

        Zeros and ones where nothing is scaled: sparse rows, categories and texts.
        """
        check_is_fitted(self, "frozen_")
        width = self.frozen_.model.in_channels
        mean, scale = np.zeros(width), np.ones(width)
        place = 0
        for column in () if self.encoder_ is None else self.encoder_.columns:
            if column.kind in ("number", "date"):
                mean[place], scale[place] = column.learned["mean"], column.learned["scale"]
            place += column.width
        return mean, scale

    def transform(self, X: Any, graph: Any = None, *, ids: Any = None) -> Array:
        """Embeddings (m, hidden_channels): the last states of rows; see `predict`."""
        check_is_fitted(self, "frozen_")
        return self._answers(X, graph, ids, self.embedding_, encode=True)

    def influence(
        self, X: Any, graph: Any = None, *, ids: Any = None, top_k: int = 5
    ) -> tuple[Array, Array]:
        """The fit rows that weigh most in each row's last step: (weights, rows), both (m, top_k).

        The weight of row j of fit is (1 − w) Ŝ_ij + w Ã_ij, what the last layer multiplies its
        value by; all of them together weigh at most one. A row of fit keeps its own edges, and is
        not named for itself. O(m n) time, in blocks of rows.
        """
        check_is_fitted(self, "frozen_")
        rows = read_rows(self, X, ids)
        edge_index, weight = self._new_edges(rows, graph)
        where = self._positions(rows, edge_index if _is_given(graph) else None)
        return self._strongest(rows.features, where, edge_index, weight, top_k)

    def influence_in_fit(self, rows: Any, *, top_k: int = 5) -> tuple[Array, Array]:
        """`influence` of rows of fit, by their positions."""
        check_is_fitted(self, "frozen_")
        return self._strongest(None, np.asarray(rows, np.int64), None, None, top_k)

    def _strongest(
        self,
        features: Any,
        where: Array,
        edge_index: Tensor | None,
        weight: Tensor | None,
        top_k: int,
    ) -> tuple[Array, Array]:
        before = self._before_last.double()
        top_k = min(top_k, before.shape[0])
        weights, found = np.empty((len(where), top_k)), np.empty((len(where), top_k), np.int64)
        for new in (False, True):
            for part in self._parts(np.flatnonzero((where < 0) == new), edge_index, PAIRS):
                if new:
                    edges, own = _edges_to(part, edge_index, weight, before.shape[0])
                    x = self.shown_member.seen(features[part])
                    if self.shown_member.frozen.num_known is None:
                        edges = own = None
                    pairs = self.shown_member.frozen.weights(x, before, edges, own)
                else:
                    pairs = self._weights_in_fit(torch.from_numpy(where[part]), before)
                best = pairs.topk(top_k, dim=1)
                weights[part], found[part] = best.values.numpy(), best.indices.numpy()
        return weights, found

    def _weights_in_fit(self, rows: Tensor, before: Tensor) -> Tensor:
        """What the last layer multiplies every other row's value by, for some rows of fit."""
        frozen = self.shown_member.frozen
        pairs = frozen.weights_in_fit(rows, before)
        if self.graph_ is not None and frozen.num_known is not None:
            graph = frozen.model.normalised(self.graph_)
            target, source, value = graph.adjacency.rows(rows).coo
            near = torch.zeros_like(pairs).index_put_((target, source), value.to(pairs))
            w = frozen.model.config.graph_weight
            pairs = pairs + near if w is None else torch.lerp(pairs, near, w)
        return pairs.scatter_(1, rows[:, None], 0.0)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        tags.target_tags.required = True
        tags.target_tags.single_output = True
        tags.target_tags.multi_output = True
        return tags


def dataset_graph(data: Dataset) -> Any:
    """A dataset's own edges as `fit` takes them; None where it has none."""
    return None if data.edge_index is None else (data.edge_index, data.edge_weight)


def _is_given(graph: Any) -> bool:
    """Whether edges are given, not just asked for by a name."""
    return graph is not None and not isinstance(graph, str)


def _edges_to(
    part: Array, edge_index: Tensor | None, weight: Tensor | None, known: int
) -> tuple[Tensor | None, Tensor | None]:
    """The edges into some of the new rows, in order, which are numbered from 0 on. O(e)."""
    if edge_index is None:
        return None, None
    source, target = edge_index.numpy()
    place = np.searchsorted(part, target).clip(max=len(part) - 1)
    mine = torch.from_numpy(part[place] == target)
    source = np.where(source < known, source, known + np.searchsorted(part, source - known))
    edges = torch.from_numpy(np.stack([source, place]))[:, mine]
    return edges, None if weight is None else weight[mine]


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
