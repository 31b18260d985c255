"""Folds of partly labelled rows for scikit-learn's cross-validation and searches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import KFold, StratifiedKFold

from difformer.estimators.labels import known_labels

Array = NDArray[Any]


@dataclass(frozen=True)
class LabelledKFold:
    """K folds of the labelled rows; the unlabelled rows are always in the training part.

    For `cross_val_score`, `GridSearchCV` and the like with a y that marks unlabelled rows.

    >>> y = [0, 1, -1, 0, 1, -1]
    >>> [(train.tolist(), test.tolist()) for train, test in LabelledKFold(2).split(y, y)]
    [([2, 3, 4, 5], [0, 1]), ([0, 1, 2, 5], [3, 4])]

    Args:
        n_splits: the number of folds.
        shuffle, random_state: as in `sklearn.model_selection.StratifiedKFold`.
        unlabelled: the number in y that marks an unlabelled row, as in `DIFFormerClassifier`.
        numbers: y holds numbers, as for `DIFFormerRegressor`: only NaN and None mark an unlabelled
            row. Otherwise each fold has the classes in the shares of the whole.
    """

    n_splits: int = 5
    _: KW_ONLY
    shuffle: bool = False
    random_state: Any = None
    unlabelled: Any = -1
    numbers: bool = False

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """The number of folds."""
        return self.n_splits

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[Array, Array]]:
        """The rows to train on and the labelled rows to judge by, once per fold."""
        table, known = known_labels(y, None if self.numbers else self.unlabelled)
        rows = np.flatnonzero(known.any(1))
        if len(rows) < self.n_splits:
            raise ValueError(f"y must have at least {self.n_splits} labelled rows, got {len(rows)}")
        by_class = not self.numbers and table.shape[1] == 1
        make = StratifiedKFold if by_class else KFold
        folds = make(self.n_splits, shuffle=self.shuffle, random_state=self.random_state)
        strata = np.unique(table[rows, 0], return_inverse=True)[1] if by_class else None
        for _, test in folds.split(rows, strata):
            yield np.setdiff1d(np.arange(len(table)), rows[test]), rows[test]
