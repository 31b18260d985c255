"""Labels of any type, some missing: to the numbers that a model trains on, and back; and folds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import (
    KFold,
    RepeatedStratifiedKFold,
    StratifiedKFold,
    StratifiedShuffleSplit,
)
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight  # pyright: ignore[reportPrivateUsage]
from torch import Tensor

from difformer.data.dataset import Dataset
from difformer.data.split import Split
from difformer.data.table.cells import as_number, is_missing

Array = NDArray[Any]
TYPES: dict[str, Any] = {"text": object, "bool": np.bool_, "float": np.float64, "int": np.int64}
KINDS = ("multiclass", "multilabel", "multioutput")
# Up to this many labelled rows there are several folds; above, one held-out part is enough.
FEW_LABELS = 2000
FOLDS, REPEATS, HELD_OUT = 5, 2, 0.2


@dataclass(frozen=True)
class Classes:
    """The classes of each output.

    `kind` is "multiclass" (y of n labels), "multilabel" (n × t of 0 and 1) or "multioutput"
    (n × t, each column with its own classes).
    """

    kind: str
    each: tuple[Array, ...]

    def __post_init__(self) -> None:
        if self.kind not in KINDS or not self.each or any(c.ndim != 1 for c in self.each):
            raise ValueError(f"classes must be lists of one of {', '.join(KINDS)}")
        for j, found in enumerate(self.each):
            if len(found) < 2:
                where = "y" if self.kind == "multiclass" else f"column {j} of y"
                raise ValueError(
                    f"{where} must have at least two classes, got one class: {found.tolist()[0]!r}"
                )

    @property
    def widths(self) -> tuple[int, ...]:
        """How many numbers the model predicts for each output."""
        if self.kind == "multilabel":
            return (len(self.each),)
        return tuple(len(classes) for classes in self.each)

    @property
    def public(self) -> Any:
        """`classes_` as in scikit-learn: an array, or a list with one per column."""
        return self.each[0] if self.kind == "multiclass" else list(self.each)

    def decode(self, codes: Array) -> Array:
        """Class numbers (n, t) as labels, (n,) or (n, t)."""
        columns = [classes[codes[:, j]] for j, classes in enumerate(self.each)]
        return columns[0] if self.kind == "multiclass" else np.stack(columns, axis=1)

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` reads them back."""
        names = {"O": "text", "U": "text", "T": "text", "b": "bool", "f": "float"}
        kinds = [names.get(classes.dtype.kind, "int") for classes in self.each]
        each = zip(kinds, self.each, strict=True)
        return {"kind": self.kind, "each": [{"dtype": k, "values": c.tolist()} for k, c in each]}

    @classmethod
    def from_json(cls, record: Any) -> Classes:
        """The classes that `to_json` wrote."""
        each = (np.asarray(one["values"], TYPES[one["dtype"]]) for one in record["each"])
        return cls(record["kind"], tuple(each))


def read_classes(y: Any, unlabelled: Any = -1) -> tuple[Classes, Array]:
    """Find the classes of y and number them: codes (n, t) int64, -1 where unlabelled. O(n log n).

    Unlabelled entries are `unlabelled` (-1), also as text, and None, NaN, pandas' NA and the texts
    that NumPy makes of them, "" and "nan".
    """
    table = _as_array(y)
    if table.ndim == 1 or table.shape[1] == 1:
        found, codes = _codes(column_or_1d(table, warn=True), unlabelled, "y")
        return Classes("multiclass", (found,)), codes[:, None]
    columns = [_codes(column, unlabelled, f"column {j} of y") for j, column in enumerate(table.T)]
    classes, codes = tuple(c for c, _ in columns), np.stack([k for _, k in columns], axis=1)
    if not all(c.dtype.kind in "biuf" and set(c.tolist()) <= {0, 1} for c in classes):
        return Classes("multioutput", classes), codes
    # A label that no row has is still a label: its column is all zeros.
    whole = tuple(np.array([0, 1], c.dtype) for c in classes)
    for j, found in enumerate(classes):
        if found.tolist() == [1]:
            codes[codes[:, j] == 0, j] = 1
    return Classes("multilabel", whole), codes


def known_labels(y: Any, unlabelled: Any = -1) -> tuple[Array, Array]:
    """y as a table (n, t), and where it has a label, see `read_classes`; unchecked. O(n t)."""
    table = _as_array(y)
    table = table.reshape(len(table), -1)
    missing = _missing(table)
    if table.dtype.kind != "b":
        marked = (_is_marked(v, unlabelled) for v in table.ravel())
        missing = missing | np.fromiter(marked, bool, table.size).reshape(table.shape)
    return table, ~missing


def dataset_classes(data: Dataset) -> tuple[Classes, Array]:
    """The classes of a dataset, by name if they have names, and its codes (n, t)."""
    if data.task == "regression":
        raise ValueError(f"X must have classes, {data.name} is regression: use the regressor")
    y = data.y.numpy()
    if data.task == "multilabel":
        return read_classes(y)
    names = np.array(data.class_names, object) if data.class_names else np.arange(data.num_outputs)
    return Classes("multiclass", (names,)), y[:, None].astype(np.int64)


def dataset_targets(data: Dataset) -> Array:
    """The targets of a dataset, (n,) or (n, t) float64."""
    if data.task != "regression":
        raise ValueError(f"X must be of regression, {data.name} has classes: use the classifier")
    y = data.y.double().numpy()
    return y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y


def read_targets(y: Any) -> Array:
    """Numbers (n,) or (n, t) with NaN (or None) where unlabelled, as float64."""
    table = _as_array(y)
    if table.dtype.kind == "c":
        raise ValueError("Complex data not supported: y must hold real numbers")
    try:
        numbers = np.where(_missing(table), np.nan, table).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"y must hold numbers, with NaN or None for unlabelled ({error})"
        ) from error
    infinite = np.argwhere(np.isinf(numbers))
    if len(infinite):
        raise ValueError(f"y must be finite, got infinity in row {infinite[0][0]}")
    if numbers.ndim == 2 and numbers.shape[1] == 1:
        numbers = column_or_1d(numbers, warn=True)
    if not np.isfinite(numbers).any():
        raise ValueError("y must have at least one labelled row, all are NaN or None")
    return numbers


def _codes(column: Array, unlabelled: Any, name: str) -> tuple[Array, Array]:
    """The classes of a column, sorted, and the number of each row's, -1 where unlabelled."""
    labelled = known_labels(column, unlabelled)[1][:, 0]
    known = column[labelled]
    if not len(known):
        raise ValueError(f"{name} must have at least one labelled row, all are unlabelled")
    if known.dtype == object:
        known = _plain(known, name)
    if known.dtype.kind == "f" and np.isinf(known).any():
        row = int(np.argmax(np.isinf(known)))
        raise ValueError(f"{name} must be finite, got infinity in row {row}")
    floating = known.dtype.kind == "f" and column.dtype.kind != "f"
    if floating and not labelled.all() and (known == known.round()).all():
        known = known.astype(np.int64)  # 0.0, 1.0, NaN: whole numbers that the NaN made floating
    check_classification_targets(known)
    codes = np.full(len(column), -1, np.int64)
    classes, codes[labelled] = np.unique(known, return_inverse=True)
    return classes, codes


def _as_array(y: Any) -> Array:
    if y is None:
        raise ValueError("y must be given: requires y to be passed, but the target y is None")
    if hasattr(y, "toarray"):
        y = y.toarray()
    if isinstance(y, np.ma.MaskedArray):
        y = np.where(np.ma.getmaskarray(y), np.array(None), y.data)
    table = np.asarray(y)
    if table.ndim not in (1, 2):
        raise ValueError(f"y must have one or two dimensions, got shape {table.shape}")
    return table


def _missing(values: Array) -> Array:
    """True where a value is None, NaN or pandas' NA, whatever the dtype."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind not in "OT":
        return np.zeros(values.shape, bool)
    flat = [not isinstance(v, str) and is_missing(v) for v in values.ravel()]
    return np.array(flat, bool).reshape(values.shape)


def _is_marked(value: Any, unlabelled: Any) -> bool:
    """Whether a label is the number that marks unlabelled rows, or a text that stands for none.

    NumPy turns numbers into texts where an array holds both: -1 into "-1", NaN into "nan".
    """
    if isinstance(value, str):
        text = value.strip()
        return text in ("", "nan") or (unlabelled is not None and as_number(text) == unlabelled)
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return number and bool(value == unlabelled)


def _plain(known: Array, name: str) -> Array:
    """An object array of labels of one type as an array of that type."""
    kinds = {type(v) for v in known}
    texts = all(isinstance(v, str) for v in known)
    if not texts and any(isinstance(v, str) for v in known):
        names = sorted(kind.__name__ for kind in kinds)
        raise ValueError(f"{name} must hold labels of one kind, got {' and '.join(names)}")
    plain = np.asarray(known.tolist())
    if plain.ndim != 1 or plain.dtype == object:
        raise ValueError(f"Unknown label type: {name} must hold texts, numbers or booleans")
    return known if texts else plain


# --- which rows train, and which judge ----------------------------------------------------------


def strata_of(data: Dataset) -> Array:
    """(n,) one class per row to keep held-out parts balanced, -1 where a row has no label."""
    y = data.y.numpy()
    if data.task == "multiclass":
        return y
    return np.where((~np.isnan(y)).any(1), 0, -1)


def hold_out(strata: Array, fraction: float, seed: int) -> Array:
    """Draw a share of the labelled rows of each class, leaving at least one to train on."""
    generator = np.random.default_rng(seed)
    drawn: list[Array] = []
    for label in np.unique(strata[strata >= 0]):
        rows = generator.permutation(np.flatnonzero(strata == label))
        drawn.append(rows[: min(len(rows) - 1, max(1, round(len(rows) * fraction)))])
    return np.sort(np.concatenate(drawn))


def parts_of(train: Tensor, strata: Array, seed: int) -> list[Split]:
    """Of the labelled rows, those to train on and those to judge by, several times.

    With one label in every class nothing can be held out: no parts.
    """
    own, none = strata[train.numpy()], train[:0]
    folds = int(min(FOLDS, np.bincount(own).min(), len(train)))
    if folds < 2:  # a class with one label, which stays in training
        held = torch.from_numpy(hold_out(strata, HELD_OUT, seed))
        return [Split("part", train[~torch.isin(train, held)], held, none)] if len(held) else []
    if len(train) > FEW_LABELS:
        size = max(HELD_OUT, len(np.unique(own)) / len(train))
        drawn = StratifiedShuffleSplit(1, test_size=size, random_state=seed)
    else:
        drawn = RepeatedStratifiedKFold(n_splits=folds, n_repeats=REPEATS, random_state=seed)
    return [
        Split("part", train[a].sort().values, train[b].sort().values, none)
        for a, b in drawn.split(own, own)
    ]


def read_validation(validation: Any, strata: Array) -> Array:
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


def row_weight(
    features: Any, class_weight: Array | None, sample_weight: Any, split: Split
) -> Tensor | None:
    """The weight of each row in the loss: that of its class times its own."""
    if sample_weight is None and class_weight is None:
        return None
    weight: Any = 1.0 if class_weight is None else class_weight
    if sample_weight is not None:
        weight = weight * _check_sample_weight(sample_weight, features)
    found = torch.from_numpy(weight).float()
    if bool((found < 0).any()) or not bool(found[split.train].sum() > 0):
        raise ValueError("sample_weight must be 0 or more, and above 0 for a labelled row")
    return found


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
