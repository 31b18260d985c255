"""What the classifier and the regressor share: `fit`, and answers for rows of fit and new ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from difformer.core.graph import Graph
from difformer.data.dataset import Dataset, Edges
from difformer.data.graphs import read_graph
from difformer.data.neighbours import nearest_known, nearest_neighbours
from difformer.data.split import Split
from difformer.data.table.cells import repeated
from difformer.estimators.forms import named_forms
from difformer.estimators.labels import hold_out, read_validation, row_weight, strata_of
from difformer.estimators.members import Member, SaveMixin
from difformer.estimators.outcome import UNKNOWN, Outcome, conformal_quantile
from difformer.estimators.rows import (
    Rows,
    digests_of,
    edges_to,
    feature_scales,
    find_rows,
    learn_rows,
    read_rows,
    to_tensor,
)
from difformer.estimators.search import Search
from difformer.estimators.settings import FitSettings
from difformer.nn.frozen import FrozenDIFFormer

Array = NDArray[Any]
E = TypeVar("E", bound="BaseDIFFormer")

# New rows taken at a time, so that a long sparse table is never dense as a whole.
CHUNK = 4096
# Scaled columns are clipped to ± this before distances are taken.
USUAL = 2.0
# Rows taken at a time where each needs the weights of all rows of fit.
PAIRS = 512


@dataclass(kw_only=True, eq=False, repr=False)
class BaseDIFFormer(
    SaveMixin, FitSettings, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """`fit` of both estimators, and their answers from frozen members."""

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
        targets, class_weight = self._read(X, y)
        if len(targets) != len(rows):
            raise ValueError(
                f"y must have one entry for each of the {len(rows)} rows of X, got {len(targets)}"
            )
        if graph is None and isinstance(X, Dataset) and X.edge_index is not None:
            graph = X.edge_index, X.edge_weight
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        graphs = self._graphs(rows, graph)
        data = Dataset("X", to_tensor(rows.features), targets, self._outcome.task)
        split = self._split(data, validation, seed, choosing=len(graphs) > 1)
        weight = row_weight(rows.features, class_weight, sample_weight, split)
        if data.task != "multiclass":
            self.refuse({"consistency": "only one class per row uses it"})
        given = validation is not None
        run = Search(self, self._outcome, data, self.encoder_, split, weight, seed, given=given)
        if self.searches:
            run.average(list(graphs.values())[-1], neighbours="knn" in graphs)
        else:
            forms = named_forms(self, graphs, len(rows))
            run.choose(forms, refit=not given and not self.early_stopping)
        self._take(run)
        if self.graph_ is not None and (name := repeated(rows.ids or ())) is not None:
            raise ValueError(f"ids (or the index of X) must be different, got {name!r} twice")
        # New rows find their own neighbours among these.
        joined = self.graph_ is not None and self.graph_ is graphs.get("knn")
        self._neighbours = self._near(rows.features) if joined else None
        self.ids_, self._digests = rows.ids, digests_of(rows)
        self._outputs = self._freeze(run).numpy()
        self._keep(self._outputs)
        self.held_out_scores_ = None
        if self.held_out is not None:
            held, outputs = self.held_out
            self.held_out_scores_ = self._scores(outputs, targets.numpy()[held])
        return self

    @property
    def _outcome(self) -> Outcome:
        """What the outputs mean."""
        raise NotImplementedError

    def _read(self, X: Any, y: Any) -> tuple[Tensor, Array | None]:
        """Read the targets, y or those of a `Dataset`, and the weight of each row by its class."""
        raise NotImplementedError

    def _keep(self, output: Array) -> None:
        """Set what depends on the outputs (n, outputs) of the rows of fit."""
        raise NotImplementedError

    def _scores(self, outputs: Array, y: Array) -> Array:
        """How far held-out outputs are from their labels, (m, targets) or (m, 1)."""
        raise NotImplementedError

    def _split(self, data: Dataset, validation: Any, seed: int, *, choosing: bool) -> Split:
        """Training and validation rows among the labelled ones."""
        strata = strata_of(data)
        val = np.empty(0, np.int64)
        if validation is not None:
            val = read_validation(validation, strata)
            self.refuse({"validation_fraction": "validation names the rows that are held out"})
        elif not self.searches and (self.early_stopping or self.kernel == "auto" or choosing):
            val = hold_out(strata, self.validation_fraction, seed)
        elif not self.searches:
            reason = "no label is held out, set early_stopping=True"
            self.refuse(dict.fromkeys(("pick_by", "validation_fraction"), reason))
        train = np.setdiff1d(np.flatnonzero(strata >= 0), val)
        if not len(train):
            raise ValueError("validation must leave labelled rows to train on, it leaves none")
        none = torch.empty(0).long()
        return Split("fit", torch.from_numpy(train), torch.from_numpy(val), none)

    def _graphs(self, rows: Rows, graph: Any) -> Mapping[str, Graph | None]:
        """The graphs between the rows of fit to choose from, by name."""
        given = self.graph if graph is None else graph
        named = isinstance(given, str)
        if named and given not in ("knn", "auto"):
            raise ValueError(f'graph must be None, "knn", "auto" or edges, got {given!r}')
        if not named and self.graph is None:
            reason = 'only graph="knn" or "auto" uses it'
            self.refuse(dict.fromkeys(("n_neighbors", "metric"), reason))
        if given is None:
            return {"none": None}
        if named:
            count = min(int(self.n_neighbors), len(rows) - 1)
            x = to_tensor(self._near(rows.features))
            name, edges, weight = "knn", nearest_neighbours(x, count, metric=self._metric()), None
        else:
            name, (edges, weight) = "edges", read_graph(given, len(rows), ids=rows.ids)
        made = Graph.from_edges(
            edges, len(rows), weight, undirected=not self.directed, self_loops=True
        )
        return {"none": None, name: made} if named and given == "auto" else {name: made}

    def _take(self, run: Search) -> None:
        """Keep what the search found."""
        result, forms = run.result, [form for form, *_ in run.taken]
        self.kernel_ = forms[0].options["kernel"]
        self.graph_ = next((form.graph for form in forms if form.graph is not None), None)
        self.split_, self.choice_ = run.split, run.summary
        self.candidates_, self.validation_ = dict(run.tried), dict(run.validation)
        self.result_, self.history_ = result, result.history
        self.best_epoch_, self.n_iter_ = result.best_epoch, result.epochs
        for name in ("held_out_rows_", "held_out_outputs_"):  # of an earlier fit
            self.__dict__.pop(name, None)
        if run.held_out is not None:
            rows, outputs = run.held_out
            self.held_out_rows_, self.held_out_outputs_ = rows.numpy(), outputs.double().numpy()

    def _freeze(self, run: Search) -> Tensor:
        """Keep what predictions for new rows need; returns the averaged outputs (n, outputs).

        In float64, so that the bits of a row are the same in any batch.
        """
        self.members_: list[Member] = []
        outputs: list[Tensor] = []
        seen: dict[str, Tensor] = {}  # the features through each view, made once
        for form, model, weight, temperature in run.taken:
            view, data = run.seen(form)
            if form.view not in seen:
                seen[form.view] = data.x.double()
            graph = None if form.graph is None else form.graph.to(torch.zeros(0).double())
            with torch.no_grad():
                passages = model.cpu().double().eval().passages(seen[form.view], graph)
                outputs.append(model.output(passages[-1].after))
            frozen = FrozenDIFFormer.from_passages(model, passages)
            kept = Member(form.key, view, frozen, weight, temperature)
            if not self.members_:
                self.frozen_, self.embedding_ = frozen, passages[-1].after.numpy()
                self._n_features_out = model.hidden_channels
            if not self.members_ or (kept.meets and not any(m.meets for m in self.members_)):
                self._before_last = passages[-1].before.float()  # of the member that is explained
            self.members_.append(kept)
        return self._combined(outputs)

    # --- answers -------------------------------------------------------------------------------

    def _answers(
        self, X: Any, graph: Any, ids: Any, known: Array, *, encode: bool = False
    ) -> Array:
        """Frozen outputs (or states) of new rows; `known`, the answers of fit, for its rows."""
        rows, where, edges = self._located(X, graph, ids)
        answers = np.empty((len(rows), known.shape[1]))
        answers[where >= 0] = known[where[where >= 0]]
        for part in self._parts(np.flatnonzero(where < 0), edges, CHUNK):
            own = edges_to(part, edges, len(self.embedding_))
            members = self.members_[:1] if encode else self.members_
            found = [one.run(rows.features[part], own, encode=encode) for one in members]
            answers[part] = (found[0] if encode else self._combined(found)).numpy()
        return answers

    def _combined(self, outputs: Sequence[Tensor]) -> Tensor:
        """The outputs of the members as one."""
        if len(outputs) == 1 and self.members_[0].temperature == 1:
            return outputs[0]
        how = [(member.weight, member.temperature) for member in self.members_]
        return self._outcome.combine([(o, *own) for o, own in zip(outputs, how, strict=True)])

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
        count, near = min(int(self.n_neighbors), known), self._near(rows.features)
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
        before, shown = self._before_last.double(), self.shown_member
        top_k = min(top_k, before.shape[0])
        weights, found = np.empty((len(where), top_k)), np.empty((len(where), top_k), np.int64)
        for new in (False, True):
            for part in self._parts(np.flatnonzero((where < 0) == new), edges, PAIRS):
                if new:
                    own = edges_to(part, edges, before.shape[0])
                    pairs = shown.weights(features[part], before, own)
                else:
                    pairs = shown.weights_in_fit(torch.from_numpy(where[part]), before, self.graph_)
                best = pairs.topk(top_k, dim=1)
                weights[part], found[part] = best.values.numpy(), best.indices.numpy()
        return weights, found

    def _near(self, features: Any) -> Any:
        """Features for distances: scaled columns are clipped to ± `USUAL` deviations.

        A nearly constant column has huge values in a few rows; unclipped, it alone would decide
        their neighbours.
        """
        if self.encoder_ is None or not self.scale:
            return features
        if not sparse.issparse(features):
            return features.clip(-USUAL, USUAL)
        return features.minimum(USUAL).maximum(-USUAL)

    def _metric(self) -> str:
        """The metric of neighbours; "auto" is cosine for sparse rows, such as counts of words."""
        if self.metric != "auto":
            return self.metric
        return "cosine" if self.encoder_ is None else "euclidean"

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
    def shown_member(self) -> Member:
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
