"""Damage to bytes and to JSON values, drawn from a seeded generator."""

from __future__ import annotations

import copy
import json
import sys
from random import Random
from typing import Any

NUMBERS = [None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**30, 10**400, 0.5, -0.0]
NUMBERS += [1e-320, 1e39, 1e200, 1e308, float("nan"), float("inf")]
TEXTS = ["", " ", "nan", "x", "../../etc/passwd", "x" * 5000, "\x00", "\ud800", "é"]
TEXTS += ["0001-01-01", "9999-12-31T23:59:59.999999+23:59", "99999-01-01"]
NESTED: list[Any] = [[], {}, [1], {"a": 1}, [[[]]]]
VALUES = (*NUMBERS, *TEXTS, *NESTED)
WORDS = "NaN 1e999 -1e308 1e39 -1 0 \" ' , ; \\ud800 \\ { } [ ] null true Infinity 2020-02-30"
WORDS += " 0001-01-01T00:00:00+23:59 99999-12-31 1_000 1,5 1.234.567,8 =1+1 \U0001f600"
TOKENS = [word.encode() for word in WORDS.split()]
TOKENS += [b"", b"\x00", b"\xff\xfe", b"\xc3", b"\xef\xbb\xbf", b"\t", b"\r", b"\n", b"\n\n"]
TOKENS += [b"9" * 400, b"[" * 3000, b'{"a":' * 3000, b"x" * 20_000]


def damage_bytes(content: bytes, draw: Random) -> bytes:
    """Up to four changes: bits, cuts, copies, moved parts, tokens that readers stumble over."""
    found = bytearray(content)
    for _ in range(0 if draw.random() < 0.02 else draw.choice((1, 1, 1, 2, 4))):
        n = len(found)
        at, kind = draw.randrange(n + 1), draw.randrange(8)
        size = draw.choice((1, 1, 2, 8, 64, max(1, n // 4)))
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
            found[at:at] = bytes(found[other : other + size])
    return bytes(found)


def damage_json(content: bytes, draw: Random) -> bytes:
    """Lines of JSON, or one document, with values changed in a few of them."""
    try:
        return dumps(change_value(json.loads(content), draw), draw)
    except json.JSONDecodeError:
        lines = content.splitlines()
    for at in draw.sample(range(len(lines)), draw.randrange(1, 4)):
        lines[at] = dumps(change_value(json.loads(lines[at]), draw), draw)
    return b"\n".join(lines) + b"\n"


def damage_header(content: bytes, draw: Random) -> bytes:
    """The JSON header of a safetensors file changed, its length made to fit or not."""
    size = int.from_bytes(content[:8], "little")
    text = dumps(change_value(json.loads(content[8 : 8 + size]), draw), draw)
    length = len(text) if draw.random() < 0.9 else draw.choice((0, 2**40, len(text) * 2))
    return length.to_bytes(8, "little") + text + content[8 + size :]


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items: Any = value.items() if isinstance(value, dict) else ()
    items = list(enumerate(value))[:50] if isinstance(value, list) else items
    return [path, *(place for key, child in items for place in _places(child, (*path, key)))]


def change_value(value: Any, draw: Random, values: tuple[Any, ...] = VALUES) -> Any:
    """A copy with one to three places replaced, removed, doubled or renamed."""
    value = copy.deepcopy(value)
    for _ in range(draw.choice((1, 1, 2, 3))):
        path, new = draw.choice(_places(value)), copy.deepcopy(draw.choice(values))
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


def tell(**what: Any) -> None:
    """One line of JSON for the parent process, whatever a command has done to stdout."""
    print(json.dumps(what), file=sys.__stdout__, flush=True)
