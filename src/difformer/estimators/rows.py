"""Rows of features: read, checked with row and column named, scaled, and recognised again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.validation import validate_data
from torch import Tensor

from difformer.data.convert import csr_tensor

__all__ = ["FitRows", "Scaler", "read_rows", "row_ids", "to_tensor"]

Array = NDArray[Any]


def read_rows(estimator: Any, X: Any, *, reset: bool) -> Any:
    """X as a float64 array or CSR matrix; ValueError naming row and column of a bad value."""
    _check_numeric(X)
    checked = validate_data(
        estimator,
        X,
        reset=reset,
        accept_sparse="csr",
        dtype=np.float64,
        ensure_all_finite=False,
        ensure_min_samples=2 if reset else 1,
    )
    _check_finite(checked, getattr(X, "columns", None))
    return checked


def to_tensor(rows: Any, dtype: torch.dtype) -> Tensor:
    """Rows as a tensor, dense or sparse CSR."""
    if sparse.issparse(rows):
        return csr_tensor(rows).to(dtype)
    return torch.from_numpy(np.ascontiguousarray(rows)).to(dtype)


@dataclass(frozen=True)
class Scaler:
    """Columns to mean zero and deviation one; a constant column only loses its mean.

    Sparse rows pass unchanged: shifting would fill them.
    """

    mean: Array | None
    scale: Array | None

    @classmethod
    def of(cls, rows: Any, *, on: bool) -> Scaler:
        if not on or sparse.issparse(rows):
            return cls(None, None)
        # Divided first: a column of huge numbers must not overflow in its square.
        largest = np.maximum(np.abs(rows).max(axis=0), np.finfo(np.float64).tiny)
        mean, deviation = (rows / largest).mean(axis=0) * largest, (rows / largest).std(axis=0)
        scale = deviation * largest
        scale[deviation < 1e-12] = 1.0
        return cls(mean, scale)

    def apply(self, rows: Any) -> Any:
        if self.mean is None or self.scale is None:
            return rows
        return (rows - self.mean) / self.scale


@dataclass(frozen=True)
class FitRows:
    """Which rows a model was fitted on: recognised by position or by id, never by values alone.

    Kept are eight bytes per row, which tell whether a row has changed since, and the ids.
    """

    digests: Array  # (n,) uint64
    ids: tuple[str, ...] | None = None

    @classmethod
    def of(cls, rows: Any, ids: tuple[str, ...] | None) -> FitRows:
        for name, count in Counter(ids or ()).most_common(1):
            if count > 1:
                raise ValueError(f"ids (or the index of X) must be different, got {name!r} twice")
        return cls(_hash(rows), ids)

    def find(self, rows: Any, ids: tuple[str, ...] | None) -> Array:
        """The position in fit of each row, or -1 for a new row.

        A row with an id is the row of fit of that id, as long as its values are the same. Without
        ids, rows are those of fit where all of them are the same, in the same order.
        """
        digests = _hash(rows)
        if ids is None or self.ids is None:
            same = np.array_equal(digests, self.digests)
            return np.arange(len(digests)) if same else np.full(len(digests), -1)
        position = {name: row for row, name in enumerate(self.ids)}
        found = np.array([position.get(name, -1) for name in ids], np.int64)
        return np.where(self.digests[found] == digests, found, -1)


def row_ids(X: Any, ids: Any, num_rows: int) -> tuple[str, ...] | None:
    """The ids of rows as texts: those given, or a data frame's index; None where there are none.

    A plain numbered index (a RangeIndex) does not identify rows.
    """
    if ids is None:
        ids = getattr(X, "index", None) if hasattr(X, "columns") else None
        if ids is None or type(ids).__name__ == "RangeIndex":
            return None
    names = tuple(str(name) for name in ids)
    if len(names) != num_rows:
        raise ValueError(f"ids must have one id for each of the {num_rows} rows, got {len(names)}")
    return names


def _hash(rows: Any) -> Array:
    if sparse.issparse(rows):
        parts = (
            rows.indices[a:b].astype(np.int64).tobytes() + (rows.data[a:b] + 0.0).tobytes()
            for a, b in zip(rows.indptr[:-1], rows.indptr[1:], strict=True)
        )
    else:
        parts = (row.tobytes() for row in np.ascontiguousarray(rows + 0.0))
    digests = b"".join(blake2b(part, digest_size=8).digest() for part in parts)
    return np.frombuffer(digests, np.uint64)


def _check_numeric(X: Any) -> None:
    columns = getattr(X, "columns", None)
    if columns is None or not hasattr(X, "dtypes"):
        return
    for name, dtype in zip(columns, X.dtypes, strict=True):
        if str(dtype) in ("object", "str", "string", "category") or "datetime" in str(dtype):
            values = list(X[name])
            text = next((i for i, v in enumerate(values) if not _is_number(v)), None)
            if text is not None:
                raise ValueError(
                    f"X must hold numbers, got {values[text]!r} in row {text}, column {name!r}: "
                    "encode it first, or read the table with difformer.read_table"
                )


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _check_finite(rows: Any, columns: Any) -> None:
    values = rows.data if sparse.issparse(rows) else rows
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum()) or np.isfinite(values).all():
            return
    if sparse.issparse(rows):
        at = int(np.argmin(np.isfinite(values)))
        row, column = int(np.searchsorted(rows.indptr, at, side="right")) - 1, int(rows.indices[at])
    else:
        row, column = (int(i) for i in np.argwhere(~np.isfinite(rows))[0])
    what = "NaN" if np.isnan(rows[row, column]) else "infinity"
    name = column if columns is None else repr(columns[column])
    raise ValueError(f"Input X contains {what}: it must be finite; row {row}, column {name}")
