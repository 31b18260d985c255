"""Labels of any type, some missing: to the numbers that a model trains on, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from difformer.data.dataset import Dataset
from difformer.data.table.cells import as_number, is_missing
from difformer.errors import ModelFileError

Array = NDArray[Any]
TYPES: dict[str, Any] = {"text": object, "bool": np.bool_, "float": np.float64, "int": np.int64}


@dataclass(frozen=True)
class Classes:
    """The classes of each output.

    `kind` is "multiclass" (y of n labels), "multilabel" (n × t of 0 and 1) or "multioutput"
    (n × t, each column with its own classes).
    """

    kind: str
    each: tuple[Array, ...]

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
        if self.kind == "multiclass":
            return self.each[0][codes[:, 0]]
        columns = [classes[codes[:, j]] for j, classes in enumerate(self.each)]
        return np.stack(columns, axis=1)

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` reads them back."""
        return {
            "kind": self.kind,
            "each": [{"dtype": _name(c), "values": c.tolist()} for c in self.each],
        }

    @classmethod
    def from_json(cls, record: Any, where: str) -> Classes:
        """The classes that `to_json` wrote; a ModelFileError for anything else."""
        try:
            kind = record["kind"]
            if kind not in ("multiclass", "multilabel", "multioutput"):
                raise ValueError(f"unknown kind {kind!r}")
            each = tuple(np.asarray(c["values"], TYPES[c["dtype"]]) for c in record["each"])
            if not each or any(c.ndim != 1 or len(c) < 1 for c in each):
                raise ValueError("a class list is empty")
            return cls(kind, each)
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(f"{where}: its classes cannot be read ({error})") from error


def read_classes(y: Any, unlabelled: Any = -1) -> tuple[Classes, Array]:
    """Find the classes of y and number them: codes (n, t) int64, -1 where unlabelled. O(n log n).

    Unlabelled entries are `unlabelled` (-1), also as text, and None, NaN, pandas' NA and the texts
    that NumPy makes of them, "" and "nan".
    """
    table = _as_array(y)
    if table.ndim == 2 and table.shape[1] > 1:
        columns = [
            _codes(table[:, j], unlabelled, f"column {j} of y") for j in range(table.shape[1])
        ]
        classes, codes = tuple(c for c, _ in columns), np.stack([k for _, k in columns], axis=1)
        binary = all(c.dtype.kind in "biuf" and set(c.tolist()) <= {0, 1} for c in classes)
        if binary:
            # A label that no row has is still a label: its column is all zeros.
            whole = tuple(np.array([0, 1], c.dtype) for c in classes)
            for j, found in enumerate(classes):
                if found.tolist() == [1]:
                    codes[codes[:, j] == 0, j] = 1
            return Classes("multilabel", whole), codes
        return Classes("multioutput", classes), codes
    found, codes = _codes(column_or_1d(table, warn=True), unlabelled, "y")
    return Classes("multiclass", (found,)), codes[:, None]


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
    missing = _missing(table)
    try:
        numbers = np.where(missing, np.nan, table).astype(np.float64)
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
    missing = ~known_labels(column, unlabelled)[1][:, 0]
    known = column[~missing]
    if not len(known):
        raise ValueError(f"{name} must have at least one labelled row, all are unlabelled")
    if known.dtype == object:
        known = _plain(known, name)
    if known.dtype.kind == "f" and np.isinf(known).any():
        raise ValueError(
            f"{name} must be finite, got infinity in row {int(np.argmax(np.isinf(known)))}"
        )
    floating = known.dtype.kind == "f" and column.dtype.kind != "f"
    if floating and missing.any() and (known == known.round()).all():
        known = known.astype(np.int64)  # 0.0, 1.0, NaN: whole numbers that the NaN made floating
    check_classification_targets(known)
    classes, numbers = np.unique(known, return_inverse=True)
    codes = np.full(len(column), -1, np.int64)
    codes[~missing] = numbers
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


def _name(classes: Array) -> str:
    """The name in `TYPES` of the type of these classes."""
    return {"O": "text", "U": "text", "T": "text", "b": "bool", "f": "float"}.get(
        classes.dtype.kind, "int"
    )
