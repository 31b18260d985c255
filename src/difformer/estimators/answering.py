"""The answers of a fitted classifier or regressor, for the rows of fit and for new ones."""

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
from difformer.data.graphs import read_graph
from difformer.data.neighbours import nearest_known
from difformer.data.snapshots import Edges
from difformer.data.split import Split
from difformer.data.table.encoder import TableEncoder
from difformer.estimators.conformal import UNKNOWN, conformal_quantile
from difformer.estimators.problem import Outcome
from difformer.estimators.rows import Rows, feature_scales, find_rows, read_rows
from difformer.estimators.settings import FitSettings
from difformer.estimators.views import FittedMember
from difformer.nn.frozen import FrozenDIFFormer

Array = NDArray[Any]

# New rows taken at a time, so that a long sparse table is never dense as a whole.
CHUNK = 4096
# Scaled columns are clipped to ± this before distances are taken.
USUAL = 2.0
# Rows taken at a time where each needs the weights of all rows of fit.
PAIRS = 512


class AnsweringDIFFormer(
    FitSettings, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """Answers from frozen members; new rows may have edges from rows of fit and to one another.

    The attributes are set by `fit`; `DIFFormerClassifier` explains the public ones.
    """

    members_: list[FittedMember]
    frozen_: FrozenDIFFormer
    embedding_: Array
    graph_: Graph | None
    encoder_: TableEncoder | None
    ids_: Sequence[Any] | None
    split_: Split
    held_out_rows_: Array  # only with recipe="auto"
    held_out_outputs_: Array
    held_out_scores_: Array | None  # (m, targets) or (m, 1), for conformal prediction
    _outputs: Array  # (n, outputs) of the rows of fit
    _digests: Array  # of the rows of fit, by which they are known again
    _neighbours: Any  # features of the rows of fit for distances, if new rows need neighbours
    _before_last: Tensor  # (n, hidden_channels), states before the last layer of `shown_member`

    def _answers(
        self, X: Any, graph: Any, ids: Any, known: Array, *, encode: bool = False
    ) -> Array:
        """Frozen outputs (or states) of new rows; `known`, the answers of fit, for its rows."""
        rows, where, edges = self._located(X, graph, ids)
        answers = np.empty((len(rows), known.shape[1]))
        answers[where >= 0] = known[where[where >= 0]]
        for part in self._parts(np.flatnonzero(where < 0), edges, CHUNK):
            own = _edges_to(part, edges, len(self.embedding_))
            members = self.members_[:1] if encode else self.members_
            found = [one.run(rows.features[part], own, encode=encode) for one in members]
            answers[part] = (found[0] if encode else self._combined(found)).numpy()
        return answers

    def _located(self, X: Any, graph: Any, ids: Any) -> tuple[Rows, Array, Edges | None]:
        """Encoded rows, each with its position in fit, or -1 if it is new, and their edges.

        A row with its own edges is new.
        """
        check_is_fitted(self, "frozen_")
        rows = read_rows(self, X, ids)
        edges = self._new_edges(rows, graph)
        where = find_rows(rows, self._digests, None if self.graph_ is None else self.ids_)
        if edges is not None and graph is not None and not isinstance(graph, str):
            where[edges[0][1].numpy()] = -1
        return rows, where, edges

    def _parts(self, rows: Array, edges: Edges | None, size: int) -> Iterator[Array]:
        """Rows in parts of that size, but all rows with edges to other new rows in one part."""
        joined = np.empty(0, np.int64)
        if edges is not None:
            source, target = edges[0].numpy()
            among = source >= len(self.embedding_)
            joined = np.union1d(source[among] - len(self.embedding_), target[among])
            joined = np.intersect1d(joined, rows)
        if len(joined):
            yield joined
        alone = np.setdiff1d(rows, joined)
        for start in range(0, len(alone), size):
            yield alone[start : start + size]

    def _new_edges(self, rows: Rows, graph: Any) -> Edges | None:
        known = len(self.embedding_)
        if self.graph_ is None:
            if graph is not None:
                raise ValueError("graph must be None: the model was fitted without one")
            return None
        if graph is not None and not isinstance(graph, str):
            named = None if self.ids_ is None or rows.ids is None else (*self.ids_, *rows.ids)
            edges, weight = read_graph(graph, known, num_new=len(rows), ids=named)
            # As in fit, an edge counts once, in whichever direction and however often it is given.
            found = Graph.from_edges(
                edges, known + len(rows), weight, undirected=not self.directed, self_loops=False
            )
            mine = found.edge_index[1] >= known
            source, target = found.edge_index[:, mine]
            weight = None if found.edge_weight is None else found.edge_weight[mine]
            return torch.stack([source, target - known]), weight
        if self._neighbours is None:
            return None
        count = min(int(self.n_neighbors), known)
        near = self._near(rows.features)
        found = nearest_known(self._neighbours, near, count, metric=self._metric())
        target = torch.arange(len(rows)).repeat_interleave(count)
        return torch.stack([torch.from_numpy(found).flatten(), target]), None

    @property
    def scaling_(self) -> tuple[Array, Array]:
        """Mean and scale, one per feature: without missing values, features are (X − mean) / scale.

        Zeros and ones for features that are not scaled: sparse rows, categories and texts.
        """
        check_is_fitted(self, "frozen_")
        if self.encoder_ is None:
            width = self.frozen_.model.in_channels
            return np.zeros(width), np.ones(width)
        return feature_scales(self.encoder_)[:2]

    def transform(self, X: Any, graph: Any = None, *, ids: Any = None) -> Array:
        """Embeddings (m, hidden_channels), the last states of rows; see `predict`."""
        check_is_fitted(self, "frozen_")
        return self._answers(X, graph, ids, self.embedding_, encode=True)

    def influence(
        self, X: Any, graph: Any = None, *, ids: Any = None, top_k: int = 5
    ) -> tuple[Array, Array]:
        """The rows of fit with the largest weights in each row's last step: weights and rows.

        Both are (m, top_k). The weight of row j of fit is (1 − w) Ŝ_ij + w Ã_ij, which multiplies
        its value in the last layer; the weights of a row sum to at most one. A row of fit keeps its
        own edges, and its own weight is left out. O(m n) time, in blocks of rows.
        """
        rows, where, edges = self._located(X, graph, ids)
        return self._strongest(rows.features, where, edges, top_k)

    def influence_in_fit(self, rows: Any, *, top_k: int = 5) -> tuple[Array, Array]:
        """`influence` of rows of fit, by their positions."""
        check_is_fitted(self, "frozen_")
        return self._strongest(None, np.asarray(rows, np.int64), None, top_k)

    def _strongest(
        self, features: Any, where: Array, edges: Edges | None, top_k: int
    ) -> tuple[Array, Array]:
        before = self._before_last.double()
        top_k = min(top_k, before.shape[0])
        weights, found = np.empty((len(where), top_k)), np.empty((len(where), top_k), np.int64)
        for new in (False, True):
            for part in self._parts(np.flatnonzero((where < 0) == new), edges, PAIRS):
                if new:
                    own = _edges_to(part, edges, before.shape[0])
                    pairs = self.shown_member.weights(features[part], before, own)
                else:
                    pairs = self._weights_in_fit(torch.from_numpy(where[part]), before)
                best = pairs.topk(top_k, dim=1)
                weights[part], found[part] = best.values.numpy(), best.indices.numpy()
        return weights, found

    def _weights_in_fit(self, rows: Tensor, before: Tensor) -> Tensor:
        """The weights of all other rows of fit in the last layer, for some rows of fit."""
        frozen = self.shown_member.frozen
        pairs = frozen.weights_in_fit(rows, before)
        if self.graph_ is not None and frozen.num_known is not None:
            graph = frozen.model.normalised(self.graph_)
            target, source, value = graph.adjacency[rows].coo
            near = torch.zeros_like(pairs).index_put_((target, source), value.to(pairs))
            w = frozen.model.config.graph_weight
            pairs = pairs + near if w is None else torch.lerp(pairs, near, w)
        return pairs.scatter_(1, rows[:, None], 0.0)

    def _near(self, features: Any) -> Any:
        """Features for distances: scaled columns are clipped to ± `USUAL` deviations.

        A nearly constant column has huge values in a few rows; unclipped, it alone would decide
        their neighbours.
        """
        if self.encoder_ is None or not self.scale:
            return features
        if not sparse.issparse(features):
            return features.clip(-USUAL, USUAL)
        near = features.copy()
        near.data = near.data.clip(-USUAL, USUAL)
        return near

    def _metric(self) -> str:
        """The metric of neighbours; "auto" is cosine for sparse rows, such as counts of words."""
        if self.metric != "auto":
            return self.metric
        return "cosine" if self.encoder_ is None else "euclidean"

    def _combined(self, outputs: Sequence[Tensor]) -> Tensor:
        if len(outputs) == 1 and self.members_[0].temperature == 1:
            return outputs[0]
        weights = [member.weight for member in self.members_]
        return self._outcome.combine(outputs, weights, [m.temperature for m in self.members_])

    @property
    def held_out(self) -> tuple[Array, Array] | None:
        """Labelled rows and their outputs (m, c) by models that had not seen these labels, or None.

        These are the rows that chose the forms of the model, or the validation rows.
        """
        if hasattr(self, "held_out_rows_"):
            rows, outputs = self.held_out_rows_, self.held_out_outputs_
        else:
            rows = self.split_.val.numpy()
            outputs = self._outputs[rows]
        return (rows, outputs) if len(rows) else None

    def _quantiles(self, level: float) -> Array:
        """The conformal quantile of each column of `held_out_scores_`."""
        check_is_fitted(self, "frozen_")
        if self.held_out_scores_ is None:
            raise ValueError(
                "no labelled rows were held out in fit: set early_stopping=True, give validation "
                'rows, or use recipe="auto"'
            )
        each = (column[column != UNKNOWN] for column in self.held_out_scores_.T)
        return np.array([conformal_quantile(scores, level) for scores in each])

    @property
    def _outcome(self) -> Outcome:
        """What the outputs mean."""
        raise NotImplementedError

    @property
    def shown_member(self) -> FittedMember:
        """The member that is explained: the heaviest in which rows influence one another."""
        return next((m for m in self.members_ if m.meets), self.members_[0])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        tags.target_tags.required = True
        tags.target_tags.single_output = True
        tags.target_tags.multi_output = True
        return tags


def _edges_to(part: Array, edges: Edges | None, known: int) -> Edges | None:
    """The edges into some of the new rows (sorted), which are renumbered from 0. O(e)."""
    if edges is None:
        return None
    edge_index, weight = edges
    source, target = edge_index.numpy()
    place = np.searchsorted(part, target).clip(max=len(part) - 1)
    mine = torch.from_numpy(part[place] == target)
    source = np.where(source < known, source, known + np.searchsorted(part, source - known))
    edge_index = torch.from_numpy(np.stack([source, place]))[:, mine]
    return edge_index, None if weight is None else weight[mine]
