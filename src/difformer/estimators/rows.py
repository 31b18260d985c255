"""Rows of features: read from arrays, data frames or a Dataset; recognised by position or id."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.validation import validate_data
from torch import Tensor

from difformer.data.dataset import Dataset, Edges, csr_tensor, scipy_csr
from difformer.data.table.cells import cell_text
from difformer.data.table.columns import Away
from difformer.data.table.encoder import LARGEST, Drift, TableEncoder
from difformer.data.table.files import Chunk, collected, is_frame, read_chunks
from difformer.errors import DataError, DriftWarning

Array = NDArray[Any]


@dataclass(frozen=True)
class Rows:
    """Rows as the model takes them, and their ids.

    Features are (n, width) float32, a dense array or a CSR matrix; training, neighbours and
    predictions all use these numbers.
    """

    features: Any
    ids: tuple[str, ...] | None

    def __len__(self) -> int:
        return self.features.shape[0]

    @classmethod
    def of(cls, features: Any, X: Any, ids: Any) -> Rows:
        """Encoded rows with the ids given, or those of a data frame's index; as texts.

        An index that only numbers the rows (a RangeIndex) is not used.
        """
        if ids is None and is_frame(X):
            ids = getattr(X, "index", None)
            ids = None if type(ids).__name__ == "RangeIndex" else ids
        if ids is None:
            return cls(features, None)
        names = tuple(cell_text(name) for name in ids)
        if len(names) != features.shape[0]:
            raise ValueError(
                f"ids must have one id for each of the {features.shape[0]} rows, got {len(names)}"
            )
        return cls(features, names)


def learn_rows(estimator: Any, X: Any, ids: Any) -> tuple[TableEncoder | None, Rows]:
    """Rows of fit, and how they were encoded (None for sparse rows, which are used as they are).

    The columns of a data frame are typed and encoded as those of a table, those of an array are
    scaled if the estimator's `scale` says so. A ValueError names row and column of a bad value.
    """
    given, ids = _features_and_ids(X, ids)
    if isinstance(X, Dataset) and X.encoder is not None:
        names = [column.name for column in X.encoder.columns]
        estimator.n_features_in_ = len(names)
        estimator.feature_names_in_ = np.array(names, dtype=object)
        return X.encoder, Rows.of(given, X, ids)
    learn = _learn_frame if is_frame(given) else _learn_array
    encoder, features = learn(estimator, given)
    if features.shape[0] < 2:
        raise ValueError(f"X must have at least two rows, got {features.shape[0]}")
    return encoder, Rows.of(features, given, ids)


def read_rows(estimator: Any, X: Any, ids: Any = None) -> Rows:
    """New rows, encoded like those of fit. A ValueError names row and column of a bad value.

    X may also be `Rows`, which are encoded already.
    """
    if isinstance(X, Rows):
        return X
    encoder: TableEncoder | None = estimator.encoder_
    given, ids = _features_and_ids(X, ids)
    if isinstance(X, Dataset) and X.encoder is not None:
        if X.encoder != encoder:
            raise ValueError("X must be encoded as in fit: give its data frame instead")
        return Rows.of(given, X, ids)
    dense: Array | None = None
    if is_frame(given) and encoder is not None:
        if ids is None and encoder.id is not None and encoder.id in given.columns:
            ids = given[encoder.id]
        chunk = _columns_of(estimator, given, encoder)
    else:
        checked = _checked(estimator, given, reset=False)
        if encoder is None:
            return Rows.of(_unscaled(sparse.csr_matrix(checked)), given, ids)
        dense = np.asarray(checked.toarray() if sparse.issparse(checked) else checked)
        chunk = {column.name: dense[:, j] for j, column in enumerate(encoder.columns)}
    away: Away = {}
    with _bad_cells():
        if dense is not None and all(column.kind == "number" for column in encoder.columns):
            features = encoder.encode_array(dense, away)
        else:
            features = encoder.encode_chunk(chunk, 0, "X", away=away)
    rows, drift = Rows.of(features, given, ids), Drift()
    drift.add(encoder, chunk, away, len(rows), start=0, names=rows.ids)
    if drift:
        warnings.warn(drift.line, DriftWarning, stacklevel=6)
    return rows


def _features_and_ids(X: Any, ids: Any) -> tuple[Any, Any]:
    """The features and the ids of a Dataset, where ids given go first; anything else as it is.

    Masked cells of an array become NaN, and a lazy frame is collected.
    """
    if isinstance(X, np.ma.MaskedArray):
        return np.ma.filled(X.astype(np.float64), np.nan), ids
    if not isinstance(X, Dataset):
        return collected(X), ids
    return dataset_features(X), X.ids or None if ids is None else ids


def to_tensor(features: Any) -> Tensor:
    """Rows as a float32 tensor, dense or sparse CSR."""
    if sparse.issparse(features):
        return csr_tensor(features)
    return torch.from_numpy(np.ascontiguousarray(features)).float()


def dataset_features(data: Dataset) -> Any:
    """A dataset's features as an array or a CSR matrix."""
    return data.x.numpy() if data.x.layout == torch.strided else scipy_csr(data.x)


def feature_scales(encoder: TableEncoder) -> tuple[Array, Array, Array]:
    """Mean and scale of each feature, and whether it is a scaled number (or date); each (width,).

    Other features have mean 0 and scale 1.
    """
    mean, scale = np.zeros(encoder.width), np.ones(encoder.width)
    numbers = np.zeros(encoder.width, bool)
    place = 0
    for column in encoder.columns:
        if column.kind in ("number", "date"):
            mean[place], scale[place] = column.learned["mean"], column.learned["scale"]
            numbers[place] = True
        place += column.width
    return mean, scale, numbers


@contextmanager
def _bad_cells(prefix: str = "") -> Generator[None, None, None]:
    """What is wrong with the cells of a table is a ValueError here, as scikit-learn expects."""
    try:
        yield
    except DataError as error:
        raise ValueError(f"{prefix}{error}") from error


def _columns_of(estimator: Any, X: Any, encoder: TableEncoder) -> Chunk:
    """The columns of a data frame, which may come in another order than in fit."""
    place = {name: j for j, name in enumerate(getattr(estimator, "feature_names_in_", ()))}
    own = [name for name in X.columns if name not in (*encoder.labels, encoder.id)]
    names = sorted(own, key=lambda name: place.get(name, len(place)))
    frame = X if names == list(X.columns) else X[names]
    validate_data(estimator, frame, reset=False, skip_check_array=True)
    chunk = next(read_chunks(frame))
    names = [column.name for column in encoder.columns]
    if not set(names) <= set(chunk):  # fitted on an array: its columns have no names
        chunk = dict(zip(names, chunk.values(), strict=True))
    return chunk


def _learn_frame(estimator: Any, frame: Any) -> tuple[TableEncoder, Any]:
    validate_data(estimator, frame, reset=True, skip_check_array=True)
    with _bad_cells("X: "):
        encoder = TableEncoder.learn(frame, start=0)
        features = encoder.encode(frame, strict=False)
    for column in encoder.columns:
        if column.bad:
            name, _, treatment = column.describe()
            warnings.warn(f"column {name!r} of X: {treatment}", UserWarning, stacklevel=4)
    return encoder, features


def _learn_array(estimator: Any, X: Any) -> tuple[TableEncoder | None, Any]:
    rows = _checked(estimator, X, reset=True)
    if sparse.issparse(rows):
        return None, _unscaled(rows)
    if not estimator.scale:
        _unscaled(rows)
    names = [str(j) for j in range(rows.shape[1])]
    encoder = TableEncoder.of_numbers(rows, names, scale=estimator.scale)
    return encoder, encoder.encode_array(rows)


def _unscaled(rows: Any) -> Any:
    what = f"a number beyond ±{LARGEST:g}, which is not scaled"
    _refuse(rows, lambda values: np.abs(values) > LARGEST, what)
    return rows.astype(np.float32)


def _checked(estimator: Any, X: Any, *, reset: bool) -> Any:
    """X as a float64 array, NaN where missing, or as a CSR matrix."""
    checked: Any = validate_data(
        estimator,
        X,
        reset=reset,
        accept_sparse="csr",
        dtype=np.float64,
        ensure_all_finite=False,
        ensure_min_samples=2 if reset else 1,
    )
    if sparse.issparse(checked):
        _refuse(checked, lambda data: ~np.isfinite(data), "NaN or infinity: it must be finite")
    else:
        _refuse(checked, np.isinf, "infinity: it must be finite")
    return checked


def _refuse(rows: Any, is_bad: Callable[[Array], Array], what: str) -> None:
    """ValueError naming row and column of the first bad value."""
    values = rows.data if sparse.issparse(rows) else rows
    bad = is_bad(values)
    if not bad.any():
        return
    if sparse.issparse(rows):
        stored = rows.tocoo()
        row, column = (int(each[np.argmax(bad)]) for each in (stored.row, stored.col))
    else:
        row, column = divmod(int(np.argmax(bad)), rows.shape[1])
    raise ValueError(f"Input X contains {what}; row {row}, column {column}")


def digests_of(rows: Rows) -> Array:
    """(n,) uint64: eight bytes per row, which show whether a row has changed since fit."""
    features = rows.features
    if sparse.issparse(features):
        parts = (
            features.indices[a:b].astype(np.int64).tobytes() + (features.data[a:b] + 0.0).tobytes()
            for a, b in zip(features.indptr[:-1], features.indptr[1:], strict=True)
        )
    else:
        parts = (row.tobytes() for row in np.ascontiguousarray(features + 0.0))
    digests = b"".join(blake2b(part, digest_size=8).digest() for part in parts)
    return np.frombuffer(digests, np.uint64)


def find_rows(rows: Rows, digests: Array, ids: Sequence[str] | None) -> Array:
    """The position in fit of each row, or -1 for a new row; never by values alone.

    A row with an id is the row of fit with that id if its values are the same. Without ids, rows
    are those of fit only if all of them are the same, in the same order.
    """
    own = digests_of(rows)
    if rows.ids is None or ids is None:
        same = np.array_equal(own, digests)
        return np.arange(len(rows)) if same else np.full(len(rows), -1)
    position = {name: row for row, name in enumerate(ids)}
    found = np.array([position.get(name, -1) for name in rows.ids], np.int64)
    return np.where(digests[found] == own, found, -1)


def edges_to(part: Array, edges: Edges | None, known: int) -> Edges | None:
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
