"""Read Planetoid's pickles without building what they name: nothing is imported or called.

Python's own unpickler runs with a `find_class` that gives only descriptions: a "call" of numpy's
constructor becomes a `Made`. An array is then built from the described type, shape and bytes, after
a check that these agree.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any, cast

import numpy as np
import scipy.sparse as sp

# All names in Planetoid's files, with the modules of Python 2 and the numpy of that time.
ARRAY = "numpy.core.multiarray._reconstruct"
DTYPE = "numpy.dtype"
MATRIX = "scipy.sparse.csr.csr_matrix"
MAPPING = "collections.defaultdict"
NAMES = (ARRAY, "numpy.ndarray", DTYPE, MATRIX, MAPPING, "__builtin__.list")

TYPES = ("f4", "f8", "i4", "i8", "u1")


class Made:
    """An array, type or matrix as the pickle describes it: its constructor and arguments."""

    maker = ""
    arguments: tuple[Any, ...]
    state: Any = None

    def __new__(cls, *arguments: Any) -> Any:
        if cls.maker == MAPPING:
            return {}
        if cls.maker not in (ARRAY, DTYPE, MATRIX):
            raise ValueError(f"it calls {cls.maker}, which no Planetoid file needs")
        made: Made = super().__new__(cls)
        made.arguments = arguments
        return made

    def __setstate__(self, state: Any) -> None:
        if self.state is not None:
            raise ValueError("it builds one object twice")
        self.state = state


# The one written in Python: that in C takes any memory that a damaged number asks for.
class _Reader(pickle._Unpickler):  # pyright: ignore[reportPrivateUsage]
    def find_class(self, module: str, name: str) -> type[Made]:
        maker = f"{module}.{name}"
        if maker not in NAMES:
            raise ValueError(f"it names {maker}, which no Planetoid file needs")
        return type(name, (Made,), {"maker": maker})  # a new one: a pickle may change its class


def read_pickle(content: bytes) -> Any:
    """The array, sparse matrix, dict, list or number in a pickle of Planetoid's kind. O(bytes).

    Raises:
        ValueError: the pickle is damaged, or names anything that Planetoid's files do not.
    """
    try:
        # The names of Python 2 stay: `fix_imports` would read __builtin__ as builtins.
        return _value(_Reader(io.BytesIO(content), fix_imports=False, encoding="latin1").load())
    except ValueError:
        raise
    except Exception as error:  # of a damaged pickle, any
        raise ValueError(f"it is damaged ({type(error).__name__})") from error


def _value(value: Any) -> Any:
    if isinstance(value, Made):
        return _matrix(value) if value.maker == MATRIX else _array(value)
    return value


def _matrix(made: Made) -> Any:
    """The sparse matrix; scipy checks that its indices lie inside its shape."""
    state = _typed(made.state, dict)
    shape = state.get("_shape", state.get("shape"))
    parts = [_array(_typed(state[part], Made)) for part in ("data", "indices", "indptr")]
    matrix = sp.csr_matrix(cast("Any", tuple(parts)), shape=_sizes(shape))
    matrix.check_format(full_check=True)
    return matrix


def _array(made: Made) -> np.ndarray[Any, Any]:
    if made.maker != ARRAY:
        raise ValueError(f"it has {made.maker} where an array belongs")
    _, shape, dtype, fortran, text = _typed(made.state, tuple)
    kind, content = _dtype(_typed(dtype, Made)), _typed(text, str).encode("latin1")
    sizes = _sizes(shape)
    if math.prod(sizes) * kind.itemsize != len(content):
        raise ValueError(f"an array of shape {sizes} {kind} has {len(content)} bytes")
    order = "F" if fortran else "C"
    return (
        np.frombuffer(content, dtype=kind)
        .reshape(sizes, order=order)
        .astype(kind.newbyteorder("="))
    )


def _dtype(made: Made) -> np.dtype[Any]:
    code, order = made.arguments[0], _typed(made.state, tuple)[1]
    if made.maker != DTYPE or code not in TYPES or order not in ("<", ">", "|"):
        raise ValueError(f"it has an array of the type {code!r}, which no Planetoid file has")
    return np.dtype(f"{order}{code}")


def _sizes(shape: Any) -> tuple[int, ...]:
    sizes = _typed(shape, tuple)
    if not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError(f"it has an array of the shape {sizes!r}")
    return sizes


def _typed(value: Any, kind: type[Any]) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"it has a {type(value).__name__} where a {kind.__name__} belongs")
    return value
