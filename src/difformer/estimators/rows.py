"""Rows of features: read, checked with row and column named, scaled, and recognised again."""

from __future__ import annotations

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

__all__ = ["KnownRows", "Scaler", "read_rows", "to_tensor"]

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


class KnownRows:
    """Finds rows seen in fit again by their values: eight bytes a row, O(log n) a lookup.

    A value that two rows of fit share names neither: with a graph their answers differ.
    """

    def __init__(self, keys: Array, rows: Array) -> None:
        self.keys, self.rows = keys, rows  # sorted uint64, and the row of each

    @classmethod
    def of(cls, rows: Any) -> KnownRows:
        keys, first, counts = np.unique(_hash(rows), return_index=True, return_counts=True)
        once = counts == 1
        return cls(keys[once], first[once].astype(np.int64))

    def find(self, rows: Any) -> Array:
        """The number of each row among those of fit, or -1."""
        wanted = _hash(rows)
        at = np.searchsorted(self.keys, wanted)
        at[at == len(self.keys)] = 0
        if not len(self.keys):
            return np.full(len(wanted), -1)
        return np.where(self.keys[at] == wanted, self.rows[at], -1)


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
