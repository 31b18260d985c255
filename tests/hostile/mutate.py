"""Damage to bytes and to JSON values, drawn from a seeded generator."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

__all__ = ["VALUES", "change_value", "damage_bytes", "nested"]

VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    -(2**63) - 1,
    10**30,
    10**400,
    0.5,
    -0.0,
    1e-320,
    1e39,
    1e200,
    1e308,
    float("nan"),
    float("inf"),
    "",
    " ",
    "nan",
    "x",
    "../../etc/passwd",
    "x" * 5000,
    "\x00",
    "\ud800",
    "é",
    "0001-01-01",
    "9999-12-31T23:59:59.999999+23:59",
    "99999-01-01",
    [],
    {},
    [1],
    {"a": 1},
    [[[]]],
)

TOKENS = (
    b"NaN",
    b"1e999",
    b"-1e308",
    b"1e39",
    b"9" * 400,
    b"-1",
    b"0",
    b"",
    b"\x00",
    b"\xff\xfe",
    b"\xc3",
    b"\xef\xbb\xbf",
    b'"',
    b"'",
    b",",
    b";",
    b"\t",
    b"\r",
    b"\n",
    b"\n\n",
    b"\\ud800",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b"null",
    b"true",
    b"Infinity",
    b"2020-02-30",
    b"0001-01-01T00:00:00+23:59",
    b"99999-12-31",
    b"1_000",
    b"1,5",
    b"1.234.567,8",
    b"=1+1",
    b"[" * 3000,
    b'{"a":' * 3000,
    b"\xf0\x9f\x98\x80",
    b"x" * 20_000,
)


def nested(depth: int) -> Any:
    """Lists in lists."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def damage_bytes(content: bytes, draw: Random) -> bytes:
    """Up to four changes: bits, cuts, copies, moved parts, tokens that readers stumble over."""
    found = bytearray(content)
    for _ in range(0 if draw.random() < 0.02 else draw.choice((1, 1, 1, 2, 4))):
        n = len(found)
        at = draw.randrange(n + 1)
        size = draw.choice((1, 1, 2, 8, 64, max(1, n // 4)))
        kind = draw.randrange(8)
        if kind == 0 and n:
            found[at % n] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del found[at : at + size]
        elif kind == 2:
            del found[at:]
        elif kind == 3:
            found[at:at] = found[at : at + size]
        elif kind == 4:
            found[at:at] = draw.choice(TOKENS)
        elif kind == 5:
            token = draw.choice(TOKENS)
            found[at : at + max(1, len(token))] = token
        elif kind == 6:
            found[at : at + size] = draw.randbytes(size)
        elif n:
            other = draw.randrange(n)
            part = bytes(found[other : other + size])
            found[at:at] = part
    return bytes(found)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    places = [path]
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = list(enumerate(value))[:50]
    for key, child in items:
        places += _places(child, (*path, key))
    return places


def change_value(value: Any, draw: Random, values: tuple[Any, ...] = VALUES) -> Any:
    """A copy with one to three places replaced, removed, doubled or renamed."""
    value = copy.deepcopy(value)
    for _ in range(draw.choice((1, 1, 2, 3))):
        path = draw.choice(_places(value))
        new = copy.deepcopy(draw.choice(values))
        if not path:
            if draw.random() < 0.1:
                return new
            continue
        parent = value
        for key in path[:-1]:
            parent = parent[key]
        kind, key = draw.randrange(6), path[-1]
        if kind == 0:
            del parent[key]
        elif kind == 1 and isinstance(parent, dict):
            parent[str(draw.choice(VALUES))[:50]] = parent.pop(key)
        elif kind == 1:
            parent.insert(key, copy.deepcopy(parent[key]))
        elif kind == 2 and isinstance(parent[key], int | float):
            parent[key] = draw.choice((-1, 2, 1000)) * parent[key]
        else:
            parent[key] = new
    return value


def dumps(value: Any, draw: Random) -> bytes:
    """JSON text, now and then with NaN, lone surrogates or depth that JSON has not."""
    text = json.dumps(value, ensure_ascii=draw.random() < 0.7)
    if draw.random() < 0.03:
        text = text.replace("1", "[" * 5000 + "]" * 5000, 1)
    return text.encode("utf-8", "surrogatepass" if draw.random() < 0.5 else "replace")
