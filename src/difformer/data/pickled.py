"""Read Planetoid's pickles without unpickling: nothing in a file is imported or called.

A pickle is a small program. Only the instructions that Planetoid's files use are executed, and here
they only build descriptions: a "call" of numpy's constructor becomes a `Made`. An array is then
built from the described type, shape and bytes, after a check that these agree.
"""

from __future__ import annotations

import io
import math
import pickletools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import scipy.sparse as sp

# All names in Planetoid's files, with the modules of Python 2 and the numpy of that time.
ARRAY = "numpy.core.multiarray _reconstruct"
DTYPE = "numpy dtype"
MATRIX = "scipy.sparse.csr csr_matrix"
MAPPING = "collections defaultdict"
NAMES = (ARRAY, "numpy ndarray", DTYPE, MATRIX, MAPPING, "__builtin__ list")

WITH_ARGUMENT = (
    *("PROTO", "BININT", "BININT1", "BININT2", "BINSTRING", "SHORT_BINSTRING"),
    *("BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
)

OPCODES = {opcode.code: opcode for opcode in pickletools.opcodes}

TYPES = ("f4", "f8", "i4", "i8", "u1")


@dataclass(frozen=True)
class Name:
    """A function or class that the pickle refers to, by name only."""

    name: str


@dataclass
class Made:
    """An array, type or matrix as the pickle describes it: its constructor and arguments."""

    maker: str
    arguments: tuple[Any, ...]
    state: Any = None


def read_pickle(content: bytes) -> Any:
    """The array, sparse matrix, dict, list or number in a pickle of Planetoid's kind. O(bytes).

    Raises:
        ValueError: the pickle is damaged, or does anything that Planetoid's files do not.
    """
    try:
        return _value(_run(content))
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"it is damaged ({type(error).__name__})") from error


def _run(content: bytes) -> Any:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def pop_marked() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    def pop(count: int) -> tuple[Any, ...]:
        if count > len(stack) - (marks[-1] if marks else 0):
            raise ValueError("it takes more values than there are")
        items = tuple(stack[len(stack) - count :])
        del stack[len(stack) - count :]
        return items

    for name, argument in _instructions(content):
        match name:
            case "PROTO":
                pass
            case "GLOBAL":
                if argument not in NAMES:
                    named = str(argument).replace(" ", ".")
                    raise ValueError(f"it names {named}, which no Planetoid file needs")
                stack.append(Name(str(argument)))
            case "BININT" | "BININT1" | "BININT2" | "BINSTRING" | "SHORT_BINSTRING":
                stack.append(argument)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
            case "EMPTY_TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(pop("E123".index(name[-1])))
            case "MARK":
                marks.append(len(stack))
            case "TUPLE":
                stack.append(tuple(pop_marked()))
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_DICT":
                stack.append({})
            case "APPEND" | "APPENDS":
                items = pop(1) if name == "APPEND" else pop_marked()
                _typed(stack[-1], list).extend(items)
            case "SETITEM" | "SETITEMS":
                items = pop(2) if name == "SETITEM" else pop_marked()
                _typed(stack[-1], dict).update(zip(items[::2], items[1::2], strict=True))
            case "BINPUT" | "LONG_BINPUT":
                memo[cast("int", argument)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[cast("int", argument)])
            case "REDUCE" | "NEWOBJ":
                maker, arguments = pop(2)
                stack.append(_made(_typed(maker, Name).name, _typed(arguments, tuple)))
            case "BUILD":
                (state,) = pop(1)
                made = _typed(stack[-1], Made)
                if made.state is not None:
                    raise ValueError("it builds one object twice")
                made.state = state
            case "STOP":
                (value,) = pop(1)
                return value
            case _:
                raise ValueError(f"it uses {name}, which no Planetoid file needs")
    raise ValueError("it ends early")


def _instructions(content: bytes) -> Iterator[tuple[str, Any]]:
    """The instructions in turn, with the arguments of those that are executed."""
    stream = io.BytesIO(content)
    while code := stream.read(1):
        opcode = OPCODES[code.decode("latin1")]
        reader = opcode.arg.reader if opcode.arg and opcode.name in WITH_ARGUMENT else None
        if opcode.name == "GLOBAL":  # two lines, whose escapes pickletools would resolve
            lines = stream.readline(), stream.readline()
            yield opcode.name, " ".join(line.decode("latin1").strip("\n") for line in lines)
        else:
            yield opcode.name, reader(stream) if reader else None


def _made(maker: str, arguments: tuple[Any, ...]) -> Any:
    if maker == MAPPING:
        return {}
    if maker not in (ARRAY, DTYPE, MATRIX):
        raise ValueError(f"it calls {maker.replace(' ', '.')}, which no Planetoid file needs")
    return Made(maker, arguments)


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
        raise ValueError(f"it has {made.maker.replace(' ', '.')} where an array belongs")
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
