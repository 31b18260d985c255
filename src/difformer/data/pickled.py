"""Read Planetoid's pickles without building what they name: nothing is imported or called.

Python's own unpickler runs with a `find_class` that gives only descriptions: a "call" of numpy's
constructor becomes a `Made`. An array is then built from the described type, shape and bytes.
"""

from __future__ import annotations

import io
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
    """What is described; numpy and scipy check that types, shapes, bytes and indices agree."""
    if not isinstance(value, Made):
        return value
    if value.maker == MATRIX:
        state = value.state
        parts = tuple(_value(state[part]) for part in ("data", "indices", "indptr"))
        matrix = sp.csr_matrix(cast("Any", parts), shape=state.get("_shape", state.get("shape")))
        matrix.check_format(full_check=True)
        return matrix
    _, shape, dtype, fortran, content = value.state
    kind = np.dtype(f"{dtype.state[1]}{dtype.arguments[0]}")
    array = np.frombuffer(content.encode("latin1"), kind)
    return array.reshape(shape, order="F" if fortran else "C").astype(kind.newbyteorder("="))
