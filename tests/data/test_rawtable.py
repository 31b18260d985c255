"""Tables are read chunk by chunk from every format, and what is no table is named."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from difformer.commands.asked import check_files
from difformer.data.rawtable import read_chunks
from difformer.data.tables import read_table
from difformer.errors import DataError


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.xls", b"", "must end in .csv"),
        ("t.npz", b"PK\x03\x04", "not an npz file"),
        ("t.jsonl", b"{", "line 1 is not JSON"),
        ("t.jsonl", b"[1]", "line 1 must be an object"),
        ("t.jsonl", b'{"a": [1]}', "row 1, column 'a' must be one value"),
        ("t.csv", b"a,y\n\xff\xfe,1\n", "cannot be read"),
    ],
)
def test_a_file_that_is_no_table_is_named(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(read_chunks(tmp_path / name))


def not_files(folder: Path) -> dict[str, str]:
    """Names that are not those of files, and what they are."""
    (folder / "folder.csv").mkdir()
    os.mkfifo(folder / "pipe.csv")
    (folder / "loop.csv").symlink_to("loop.csv")
    (folder / "folder.csv" / "t.csv").touch()
    return {
        "none.csv": "no such file",
        "folder.csv": "is a folder: name a file",
        "pipe.csv": "is a pipe or a device: write it to a file first",
        "loop.csv": "Too many levels of symbolic links",
    }


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_what_is_no_file_is_said_to_be_what_it_is(tmp_path: Path) -> None:
    for name, said in not_files(tmp_path).items():
        path = tmp_path / name
        with pytest.raises(DataError, match=f"^{re.escape(str(path))}: {said}$"):
            list(read_chunks(path))
        with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: {said}$"):
            check_files(path)


def test_pickled_arrays_are_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=np.array([{}], dtype=object))
    with pytest.raises(DataError, match="plain arrays"):
        list(read_chunks(tmp_path / "t.npz"))


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_the_separator_is_recognised(tmp_path: Path, mark: str) -> None:
    rows = [
        ["a", "b;c" if mark == "," else "b,c", "y"],
        *[[f"{i}", f"{i * i}", "uv"[i % 2]] for i in range(9)],
    ]
    (tmp_path / "t.csv").write_text("\n".join(mark.join(row) for row in rows))
    data = read_table(tmp_path / "t.csv", "y")
    assert data.num_features == 2


def test_a_file_in_latin_1_is_hinted_at(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("name,y\nMüller,1\n".encode("latin-1"))
    with pytest.raises(DataError, match="cannot be read as UTF-8 .*Latin-1.* save it as UTF-8"):
        read_table(tmp_path / "t.csv", "y")


def test_a_hundred_thousand_columns_are_read(tmp_path: Path) -> None:
    names = ",".join(f"c{i}" for i in range(100_000))
    (tmp_path / "t.csv").write_text(f"{names}\n{','.join('1' * 100_000)}\n")
    assert len(next(iter(read_chunks(tmp_path / "t.csv")))) == 100_000


def test_half_a_surrogate_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"a": "\\ud800", "y": 1}\n')
    with pytest.raises(DataError, match="line 1 is not JSON"):
        list(read_chunks(tmp_path / "t.jsonl"))
    (tmp_path / "t.jsonl").write_text('{"a": ' + "[" * 100_000 + "\n")
    with pytest.raises(DataError, match="line 1 is not JSON"):
        list(read_chunks(tmp_path / "t.jsonl"))
