"""What a fitted classifier or regressor answers: for the rows of fit, and for new ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from difformer.core.graph import Graph
from difformer.data.encoder import TableEncoder
from difformer.data.neighbours import nearest_known
from difformer.estimators.graphs import read_graph
from difformer.estimators.members import FittedMember
from difformer.estimators.problem import Outcome
from difformer.estimators.rows import FitRows, Rows, read_rows
from difformer.estimators.settings import FitSettings
from difformer.nn.frozen import FrozenDIFFormer

__all__ = ["AnsweringDIFFormer"]

Array = NDArray[Any]

# New rows taken at a time, so that a long sparse table never becomes one dense one.
CHUNK = 4096
# Deviations from the mean beyond which a column does not move neighbours further apart.
USUAL = 2.0
# Rows whose weights of all rows of fit are held at a time.
PAIRS = 512


class AnsweringDIFFormer(
    FitSettings, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """Answers from frozen members; new rows may have edges from rows of fit and to one another.

    What `fit` leaves for it is named here; `DIFFormerClassifier` says what the public names mean.
    """

    members_: list[FittedMember]
    frozen_: FrozenDIFFormer
    embedding_: Array
    graph_: Graph | None
    encoder_: TableEncoder | None
    ids_: Sequence[Any] | None
    _fit_rows: FitRows
    _neighbours: Any  # the rows of fit as distances are taken of, if new rows need neighbours
    _before_last: Tensor  # (n, hidden_channels), the states before the shown member's last layer

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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        tags.target_tags.required = True
        tags.target_tags.single_output = True
        tags.target_tags.multi_output = True
        return tags


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
