"""DIFFormerClassifier: classes for all rows from the labels of a few."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.base import ClassifierMixin
from sklearn.utils import check_consistent_length
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from difformer.data.dataset import Dataset
from difformer.estimators.base import BaseDIFFormer
from difformer.estimators.labels import Classes, dataset_classes, known_labels, read_classes
from difformer.estimators.outcome import Outcome

Array = NDArray[Any]


@dataclass(kw_only=True, eq=False, repr=False)
class DIFFormerClassifier(ClassifierMixin, BaseDIFFormer):
    """Classify rows from few labels, with the help of all other rows, and of a graph if given.

    An epoch costs O(n d²) per layer for ``kernel="simple"``, O(e d) more with a graph; memory O(n).

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> few = y.copy()
    >>> few[10:50] = few[60:100] = few[110:] = -1
    >>> model = DIFFormerClassifier(epochs=50, random_state=0).fit(X, few)
    >>> bool((model.transduction_ == y).mean() > 0.9)
    True

    Args:
        graph: None; "knn" to join each row to its nearest ones by the encoded columns; or "auto",
            the one of the two that validates better. Your own graph goes to `fit`.
        n_neighbors, metric: for the "knn" graph; metric is "euclidean", "cosine" or "auto":
            "cosine" for sparse rows, such as counts of words, and "euclidean" for others.
        directed: keep the direction of a graph's edges; otherwise they go both ways.
        hidden_channels: width of the states.
        kernel: "simple" (DIFFormer-s, linear cost), "sigmoid" (DIFFormer-a, quadratic), another
            diffusivity, or "auto": -a if it fits in memory and validates better, else -s. None
            leaves it to the recipe.
        recipe: form of the model, see `difformer.nn.config`. "auto" tries several and averages
            those that do best on held-out labels; with a kernel or options it is "stable" with a
            graph and "alone" without one.
        options: model options that replace the recipe's, see `DIFFormerConfig`.
        time_budget: seconds after which "auto" starts no further form.
        scale: standardise the columns of a dense array; those of a data frame always are.
        epochs: the most epochs of any form.
        lr, weight_decay: for training with Adam. These and the parameters up to `pick_by` are of a
            single form: recipe="auto" sets them itself.
        consistency: weight of the agreement between two dropout passes on all rows (one class per
            row only); twice the time, and better with few labels.
        early_stopping: hold out `validation_fraction` of the labelled rows of each class, keep
            the best epoch, stop after `patience` epochs without a better one. Rows given to `fit`
            as validation are used either way.
        pick_by: the validation metric that picks the epoch: "loss", "accuracy", "macro_f1", or
            "roc_auc" for two classes.
        checkpoint: a folder that saves the fit as it goes: a fit that was killed is resumed from
            there if data and parameters are the same, and ends with the same bits.
        class_weight: None, "balanced", or weights by class (a list of them for many outputs). Rare
            classes are found more often, but their probabilities are then too high, see
            docs/estimators.md; for probabilities and rankings leave it None.
        unlabelled: the number in y that marks an unlabelled row, also as text ("-1"); None, NaN,
            NA and the texts "" and "nan" always do.
        random_state: an int makes fits repeatable, to the bit on one machine.
        device: where to train; "auto" is a GPU if there is one. Predictions run on the CPU.
        verbose: 1 shows a progress bar in a terminal.

    Attributes:
        classes_: the classes, sorted; a list of arrays for a y of many columns.
        transduction_: the label of every row of fit.
        label_distributions_: its probabilities, as `predict_proba` gives them.
        embedding_: (n, hidden_channels), the last states of the rows of fit.
        members_: the models that predict, heaviest first, each with its weight and temperature.
        frozen_: the `FrozenDIFFormer` of the first of them.
        held_out_rows_, held_out_outputs_: labelled rows, and their outputs by models that had not
            seen these labels; only with recipe="auto".
        graph_: the `Graph` between the rows of fit, or None.
        encoder_: how columns become features, a `TableEncoder`; None for sparse rows.
        ids_: the ids of the rows of fit, or None.
        split_: the rows of fit that trained and validated.
        kernel_, candidates_, validation_, best_epoch_, n_iter_, history_: how training went.
        choice_: what recipe="auto" tried, took and by what margin, in one line.
        result_: the same and more, a `difformer.train.FitResult`; not kept by `save`.
    """

    class_weight: Any = None
    unlabelled: Any = -1

    def predict(self, X: Any, graph: Any = None, *, ids: Any = None) -> Array:
        """Labels of rows; the label of a row does not depend on the other rows of X.

        With a graph, rows of fit get their label in `transduction_`: all of X if it equals the X of
        fit row by row, and rows whose id (`ids`, or the index of a data frame unless it only
        numbers the rows) is one of fit and whose values are the same. Other rows are new. A new row
        may have edges from rows of fit (first line, or column) to rows of X (second line, or row);
        with "knn" its neighbours are found.
        """
        return self._decide(self._logits(X, graph, ids))

    def predict_proba(self, X: Any, graph: Any = None, *, ids: Any = None) -> Any:
        """Probabilities (m, classes); for many labels (m, t), for many outputs a list."""
        return self._probabilities(self._logits(X, graph, ids))

    def predict_set(
        self, X: Any, graph: Any = None, *, ids: Any = None, level: float = 0.9
    ) -> Array:
        """Sets of classes, (m, classes) bool, that contain the true class for a share `level`.

        A class of `classes_` is in the set if one minus its probability is at most the conformal
        quantile of held-out rows; the most probable one always is. With too few held-out rows, the
        set has all classes.
        """
        self._quantiles(level)  # fails before the work
        return self.sets_around(self.predict_proba(X, graph, ids=ids), level)

    def sets_around(self, probability: Array, level: float = 0.9) -> Array:
        """The sets of `predict_set` for known probabilities (m, classes)."""
        quantiles, kind = self._quantiles(level), self._classes.kind
        if kind != "multiclass":
            raise ValueError(f"prediction sets need one class per row, y was {kind}")
        found = 1 - probability <= quantiles[0]
        found[np.arange(len(found)), probability.argmax(1)] = True
        return found

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of the labelled rows of y whose known labels are all predicted right."""
        table, known = known_labels(y, self.unlabelled)
        rows = known.any(1)
        if not rows.any():
            raise ValueError("y must have at least one labelled row, all are unlabelled")
        predicted = self.predict(X)
        check_consistent_length(predicted, table, sample_weight)
        predicted = predicted.reshape(table.shape).astype(object)
        right = ~known | (predicted == table.astype(object))
        weight = None if sample_weight is None else np.asarray(sample_weight)[rows]
        return float(np.average(right[rows].all(1), weights=weight))

    def _logits(self, X: Any, graph: Any, ids: Any) -> Array:
        check_is_fitted(self, "frozen_")
        return self._answers(X, graph, ids, self._outputs)

    def _scores(self, outputs: Array, y: Array) -> Array:
        if self._classes.kind != "multiclass":
            return np.empty((0, 1))
        return 1 - self._probabilities(outputs)[np.arange(len(y)), y][:, None]

    def _keep(self, output: Array) -> None:
        self.transduction_ = self._decide(output)
        self.label_distributions_ = self._probabilities(output)

    def _decide(self, logits: Array) -> Array:
        classes = self._classes
        if classes.kind == "multilabel":
            return classes.decode((logits > 0).astype(np.int64))
        return classes.decode(np.stack([block.argmax(1) for block in self._blocks(logits)], axis=1))

    def _probabilities(self, logits: Array) -> Any:
        classes = self._classes
        if classes.kind == "multilabel":
            return 1 / (1 + np.exp(-np.clip(logits, -700, 700)))
        each = [softmax(block, axis=1) for block in self._blocks(logits)]
        return each[0] if classes.kind == "multiclass" else each

    def _blocks(self, logits: Array) -> list[Array]:
        """The logits of each output."""
        return np.split(logits, np.cumsum(self._classes.widths)[:-1], axis=1)

    @property
    def _outcome(self) -> Outcome:
        classes = self._classes
        task = "multiclass" if classes.kind == "multiclass" else "multilabel"
        return Outcome(task, () if classes.kind == "multilabel" else tuple(classes.widths))

    def _read(self, X: Any, y: Any) -> tuple[Tensor, Array | None]:
        own = isinstance(X, Dataset) and y is None
        classes, codes = dataset_classes(X) if own else read_classes(y, self.unlabelled)
        self._classes, self.classes_ = classes, classes.public
        known, weight = codes >= 0, None
        if self.class_weight is not None:
            rows = known.all(1)
            weight = np.ones(len(codes))
            weight[rows] = compute_sample_weight(self.class_weight, classes.decode(codes[rows]))
        if classes.kind == "multiclass":
            return torch.from_numpy(codes[:, 0]), weight
        return torch.from_numpy(np.where(known, codes, np.nan)).float(), weight

    def _described(self) -> dict[str, Any]:
        return {"classes": self._classes.to_json()}

    def _restore(self, described: dict[str, Any]) -> None:
        self._classes = Classes.from_json(described["classes"])
        self.classes_ = self._classes.public
        if sum(self._classes.widths) != self._outputs.shape[1]:
            raise ValueError(f"classes for {sum(self._classes.widths)} outputs")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
