"""DIFFormerClassifier: a few labels, many rows, perhaps a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from difformer.data.dataset import Dataset
from difformer.estimators.base import BaseDIFFormer, dataset_graph
from difformer.estimators.conformal import SetMixin
from difformer.estimators.files import SaveMixin
from difformer.estimators.labels import Classes, dataset_classes, read_classes
from difformer.estimators.outputs import MultiCrossEntropy
from difformer.estimators.problem import Outcome, Problem
from difformer.train.objective import Objective, objective_for

__all__ = ["DIFFormerClassifier"]

Array = NDArray[Any]


@dataclass(kw_only=True, eq=False, repr=False)
class DIFFormerClassifier(SaveMixin, SetMixin, ClassifierMixin, BaseDIFFormer):
    """Classify rows from few labels: every row is moved by all others, and by a graph if given.

    An epoch costs O(n d²) per layer for ``kernel="simple"``, O(e d) more with a graph; memory O(n).

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> few = y.copy()
    >>> few[10:50] = few[60:100] = few[110:] = -1
    >>> model = DIFFormerClassifier(epochs=50, random_state=0).fit(X, few)
    >>> bool((model.transduction_ == y).mean() > 0.9)
    True

    Args:
        graph: None; "knn" to join each row to its nearest by the encoded columns; or "auto", the
            one of the two that validates better. A graph of your own goes to `fit`.
        n_neighbors, metric: of that graph; metric is "euclidean", "cosine" or "auto": "cosine" for
            sparse rows, such as counts of words, and "euclidean" for others.
        directed: keep the direction of a graph's edges; otherwise they go both ways.
        hidden_channels: width of the states.
        kernel: "simple" (DIFFormer-s, linear cost), "sigmoid" (DIFFormer-a, quadratic), another
            diffusivity, or "auto": -a where it fits in memory and validates better, -s otherwise.
            None leaves it to the recipe.
        recipe: form of the model, see `difformer.nn.recipes`. "auto" tries several and averages
            those that held-out labels favour; with a kernel or options it is "stable" with a graph
            and "alone" without one.
        options: model options that replace the recipe's, see `DIFFormerConfig`.
        time_budget: seconds after which "auto" begins no further form.
        scale: standardise the columns of a dense array; those of a data frame always are.
        epochs: the most epochs of any form.
        lr, weight_decay: of training with Adam, for a named recipe.
        consistency: weight of the agreement between two dropout passes on all rows (one class per
            row only); twice the time, and better where labels are few.
        early_stopping: hold out `validation_fraction` of the labelled rows of each class, keep
            the best epoch, stop after `patience` epochs without a better one. Rows given to `fit`
            as validation are used either way.
        pick_by: the validation metric that the best epoch has: "loss", "accuracy", "macro_f1", or
            "roc_auc" for two classes.
        checkpoint: a folder to keep the fit in as it goes: a fit that was killed, begun again with
            the same data and parameters, goes on from there and ends with the same bits.
        class_weight: None, "balanced", or weights by class (a list of them for many outputs).
        unlabelled: the number in y that marks an unlabelled row; None, NaN and NA always do.
        random_state: an int makes fits repeatable, to the bit on one machine.
        device: where to train; "auto" is a GPU where there is one. Predictions run on the CPU.
        verbose: 1 shows a progress bar in a terminal.

    Attributes:
        classes_: the classes, sorted; a list of arrays for a y of many columns.
        transduction_: the label of every row of fit.
        label_distributions_: its probabilities, as `predict_proba` gives them.
        embedding_: (n, hidden_channels), the last states of the rows of fit.
        members_: the models that answer, heaviest first, each with its weight and temperature.
        frozen_: the `FrozenDIFFormer` of the first of them.
        held_out_rows_, held_out_outputs_: labelled rows, and what models that had not seen their
            labels say of them; only with recipe="auto".
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

    def fit(
        self,
        X: Any,
        y: Any = None,
        graph: Any = None,
        *,
        sample_weight: Any = None,
        validation: Any = None,
        ids: Any = None,
    ) -> DIFFormerClassifier:
        """Train on the labelled rows of y, with all rows of X in sight.

        Args:
            X: (n, p) array of numbers (NaN where missing), SciPy sparse matrix, data frame of
                numbers, dates, categories and texts, or a `Dataset`, with its labels and graph.
            y: (n,) labels of any kind; (n, t) of 0 and 1 for many labels per row, or of classes
                for many outputs. None for a `Dataset`.
            graph: edges (2, e), pairs, a SciPy or networkx graph, a data frame of edges, or "knn".
            sample_weight: (n,) weight of each labelled row in the loss.
            validation: labelled rows (a mask, or numbers) to pick the epoch by, not to train on.
            ids: (n,) names of the rows, by which `predict` knows them again; by default the index
                of a data frame, unless that only numbers the rows.
        """
        rows = self._learn(X, ids)
        if isinstance(X, Dataset):
            graph = dataset_graph(X) if graph is None else graph
        if isinstance(X, Dataset) and y is None:
            classes, codes = dataset_classes(X)
        else:
            classes, codes = read_classes(y, self.unlabelled)
        if len(codes) != len(rows):
            raise ValueError(
                f"y must have a label for each of the {len(rows)} rows of X, got {len(codes)}"
            )
        for j, found in enumerate(classes.each):
            if len(found) < 2:
                where = "y" if classes.kind == "multiclass" else f"column {j} of y"
                raise ValueError(
                    f"{where} must have at least two classes, got one class: {found.tolist()[0]!r}"
                )
        self._classes, self.classes_ = classes, classes.public
        weight = self._weights(codes, sample_weight)
        output = self._fit(rows, self._problem(codes), graph, weight, validation)
        self._keep(output.numpy())
        return self

    def predict(self, X: Any, graph: Any = None, *, ids: Any = None) -> Array:
        """Labels of rows through the frozen context: none depends on the others in X.

        With a graph, rows of fit answer as in `transduction_`: all of X where it is the X of fit,
        row by row, and rows whose id (`ids`, or the index of a data frame that is not just
        numbered) is one of fit and whose values are the same. Other rows are new. A new row may
        bring edges from rows of fit (first line, or column) to rows of X (second line, or row);
        with "knn" it finds them itself.
        """
        return self._decide(self._logits(X, graph, ids))

    def predict_proba(self, X: Any, graph: Any = None, *, ids: Any = None) -> Any:
        """Probabilities (m, classes); for many labels (m, t), for many outputs a list."""
        return self._probabilities(self._logits(X, graph, ids))

    def _logits(self, X: Any, graph: Any, ids: Any) -> Array:
        check_is_fitted(self, "frozen_")
        return self._answers(X, graph, ids, self._outputs)

    def _keep(self, output: Array) -> None:
        self._outputs = output
        self.transduction_ = self._decide(output)
        self.label_distributions_ = self._probabilities(output)

    def _decide(self, logits: Array) -> Array:
        classes = self._classes
        if classes.kind == "multilabel":
            return classes.decode((logits > 0).astype(np.int64))
        blocks = np.split(logits, np.cumsum(classes.widths)[:-1], axis=1)
        return classes.decode(np.stack([block.argmax(1) for block in blocks], axis=1))

    def _probabilities(self, logits: Array) -> Any:
        classes = self._classes
        if classes.kind == "multilabel":
            return 1 / (1 + np.exp(-np.clip(logits, -700, 700)))
        blocks = np.split(logits, np.cumsum(classes.widths)[:-1], axis=1)
        each = [_softmax(block) for block in blocks]
        return each[0] if classes.kind == "multiclass" else each

    @property
    def _outcome(self) -> Outcome:
        classes = self._classes
        task = "multiclass" if classes.kind == "multiclass" else "multilabel"
        return Outcome(task, () if classes.kind == "multilabel" else tuple(classes.widths))

    def _problem(self, codes: Array) -> Problem:
        classes = self._classes
        strata = codes[:, 0] if classes.kind == "multiclass" else np.where(codes.max(1) >= 0, 0, -1)
        objective: Objective
        if classes.kind == "multiclass":
            y = torch.from_numpy(codes[:, 0])
            objective = objective_for("multiclass")
        else:
            y = torch.from_numpy(codes).float()
            y[y < 0] = float("nan")
            objective = (
                objective_for("multilabel")
                if classes.kind == "multilabel"
                else MultiCrossEntropy(classes.widths)
            )
        return Problem(y, self._outcome, objective, sum(classes.widths), strata)

    def _weights(self, codes: Array, sample_weight: Any) -> Any:
        """The row weights, times those of the classes."""
        if self.class_weight is None:
            return sample_weight
        known = (codes >= 0).all(1)
        labels = self._classes.decode(codes[known])
        own = np.ones(len(codes))
        own[known] = compute_sample_weight(self.class_weight, labels)
        return own if sample_weight is None else own * np.asarray(sample_weight, np.float64)

    def _packed(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {"outputs": torch.from_numpy(self._outputs)}, {"classes": self._classes.to_json()}

    def _unpacked(self, tensors: dict[str, Tensor], rest: dict[str, Any], where: str) -> None:
        self._classes = Classes.from_json(rest.get("classes"), where)
        self.classes_ = self._classes.public
        if sum(self._classes.widths) != tensors["outputs"].shape[1]:
            raise ValueError(f"classes for {sum(self._classes.widths)} outputs")
        self._keep(tensors["outputs"].numpy())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


def _softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
