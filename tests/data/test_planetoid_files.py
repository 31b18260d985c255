"""The script that embeds Planetoid's files never unpickles; a hostile or damaged one is refused."""

from __future__ import annotations

import io
import os
import pickle
import struct
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from difformer.errors import DataError
from scripts import embed_citations as planetoid

OLD_MODULES = {b"cnumpy._core.": b"cnumpy.core.", b"cscipy.sparse._csr": b"cscipy.sparse.csr"}


class OldPickler(pickle._Pickler):
    """Writes text and bytes as Python 2 wrote its strings."""

    dispatch = dict(pickle._Pickler.dispatch)  # noqa: RUF012

    def save_string(self, value: bytes | str) -> None:
        content = value.encode("latin1") if isinstance(value, str) else value
        self.write(pickle.BINSTRING + struct.pack("<i", len(content)) + content)
        self.memoize(value)

    dispatch[bytes] = dispatch[str] = save_string


def old_pickle(value: Any) -> bytes:
    """A pickle as Planetoid wrote them: protocol 2, under the module names of its day."""
    stream = io.BytesIO()
    OldPickler(stream, protocol=2).dump(value)
    text = stream.getvalue()
    for new, old in OLD_MODULES.items():
        text = text.replace(new, old)
    return text


def write_tiny(folder: Path, **changes: Any) -> None:
    """Seven papers in Planetoid's layout: four known, of which two train, and tests 4 and 6.

    Paper 5 is skipped by test.index, as fifteen are in citeseer.
    """
    one_hot = np.eye(2, dtype=np.int32)
    graph = defaultdict(list, {0: [1, 1], 1: [0], 2: [2], 4: [6], 6: [4], 3: [], 5: []})
    parts: dict[str, Any] = {
        "x": sp.csr_matrix(np.array([[1, 1, 0], [0, 0, 2]], dtype=np.float32)),
        "allx": sp.csr_matrix(
            np.array([[1, 1, 0], [0, 0, 2], [3, 0, 1], [1, 0, 0]], dtype=np.float32)
        ),
        "tx": sp.csr_matrix(np.array([[0, 6, 0], [0, 4, 0]], dtype=np.float32)),
        "y": one_hot[[0, 1]],
        "ally": one_hot[[0, 1, 1, 0]],
        "ty": one_hot[[1, 0]],
        "graph": graph,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for part, value in (parts | changes).items():
        if part != "test.index":
            (folder / f"ind.tiny.{part}").write_bytes(old_pickle(value))
    (folder / "ind.tiny.test.index").write_text(changes.get("test.index", "6\n4\n"))


def test_tiny_files_are_read_row_by_row(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    raw = planetoid.read_raw(tmp_path, "tiny")
    assert raw.x.toarray().tolist() == [
        [1, 1, 0],
        [0, 0, 2],
        [3, 0, 1],
        [1, 0, 0],
        [0, 4, 0],
        [0, 0, 0],
        [0, 6, 0],
    ]
    assert raw.y.tolist() == [0, 1, 1, 0, 0, 0, 1]
    assert raw.edges.tolist() == [[0, 1], [0, 1], [1, 0], [2, 2], [4, 6], [6, 4]]
    assert raw.public.train.tolist() == [0, 1]
    assert raw.public.val.tolist() == [2, 3]
    assert raw.public.test.tolist() == [4, 6]


class Evil:
    """A pickle of it runs a command when it is read by the ordinary unpickler."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_names_anything_else_is_refused_and_not_run(
    tmp_path: Path, protocol: int
) -> None:
    write_tiny(tmp_path)
    witness = tmp_path / "witness"
    evil = pickle.dumps(Evil(f"touch {witness}"), protocol=protocol)
    (tmp_path / "ind.tiny.graph").write_bytes(evil)
    # From protocol 4 on, the pickle is refused before it gets as far as naming anything.
    names = r"(names (posix|nt)\.system|uses \w+), which no Planetoid file needs"
    with pytest.raises(DataError, match=names):
        planetoid.read_raw(tmp_path, "tiny")
    assert not witness.exists()


@pytest.mark.parametrize(
    "name", ["builtins.eval", "__builtin__.eval", "numpy.load", "os.system", "collections.deque"]
)
def test_only_six_names_are_admitted(name: str, tmp_path: Path) -> None:
    write_tiny(tmp_path)
    module, _, attribute = name.rpartition(".")
    (tmp_path / "ind.tiny.x").write_bytes(f"c{module}\n{attribute}\n.".encode())
    with pytest.raises(DataError, match=f"names {name}"):
        planetoid.read_raw(tmp_path, "tiny")
    assert len(planetoid.NAMES) == 6


HEAD, MIDDLE = b"\x80\x02cnumpy\n", b"(K\x02K\x02tU\x02i4"
ARRAY = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
INT = (
    b"cnumpy\ndtype\nU\x02i4K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
)
OBJECT = INT.replace(b"U\x02i4", b"U\x02O8")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HEAD + b"ndarray\n" + MIDDLE + b"\x86R.", "calls numpy.ndarray"),  # memory not set
        (HEAD + b"ndarray\n(" + MIDDLE + b"NK\x00(JAAAAJAAAAttR.", "calls numpy.ndarray"),
        (ARRAY + b"K\x02K\x02\x86" + INT + b"\x89U\x08AAAAAAAAtb.", "cannot reshape"),
        (ARRAY + b"K\x02K\x02\x86" + OBJECT + b"\x89U\x20" + b"A" * 32 + b"tb.", "OBJECT array"),
        (ARRAY + b"K\x00K\x02\x86" + INT + b"q\x00\x89U\x00tbh\x00Nb.", "builds one object twice"),
        (b"\x80\x02(.", "is damaged"),
        (b"\x80\x02U\x01aK\x01K\x02\x86b.", "is damaged"),
    ],
)
def test_an_array_that_forges_memory_is_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    """numpy's own constructors would take shapes, strides and types that reach beyond the bytes."""
    write_tiny(tmp_path)
    (tmp_path / "ind.tiny.y").write_bytes(content)
    with pytest.raises(DataError, match=rf"ind.tiny.y is not a Planetoid file: .*{message}"):
        planetoid.read_raw(tmp_path, "tiny")


def test_a_matrix_whose_indices_point_outside_is_refused(tmp_path: Path) -> None:
    matrix = sp.csr_matrix(np.ones((2, 3), dtype=np.float32))
    matrix.indices[0] = 1 << 20
    write_tiny(tmp_path, tx=matrix)
    with pytest.raises(DataError, match=r"ind.tiny.tx is not a Planetoid file: .*indices"):
        planetoid.read_raw(tmp_path, "tiny")


@pytest.mark.parametrize("part", planetoid.PICKLED)
def test_a_cut_or_changed_pickle_is_refused_in_one_line(tmp_path: Path, part: str) -> None:
    rng = np.random.default_rng(planetoid.PICKLED.index(part))
    write_tiny(tmp_path)
    path = tmp_path / f"ind.tiny.{part}"
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match=f"ind.tiny.{part} is not a Planetoid file"):
            planetoid.read_raw(tmp_path, "tiny")
    for _ in range(30):
        content = bytearray(whole)
        for place in rng.integers(len(content), size=3):
            content[place] = int(rng.integers(256))
        path.write_bytes(bytes(content))
        try:
            planetoid.read_raw(tmp_path, "tiny")
        except DataError as error:
            assert "\n" not in str(error)  # noqa: PT017
