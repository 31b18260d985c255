"""Tables are read chunk by chunk from every format, and what is no table is named."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from difformer.app.asked import check_files
from difformer.data.table.files import read_chunks
from difformer.data.table.read import read_table
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5.1,3.5,0\n4.9,3.0,1\n", "its first line holds no names, but values such as '5.1'"),
        ("7;3\n4;1\n", "its first line holds no names, but values such as '7'"),
        ("2020-01-01,3,\n2020-01-02,4,5\n", "its first line holds no names"),
        ("a,1,1\nb,2,3\n", "has two columns named '1'"),
        ("r0,0.8,a\nr1,0.7,a\n", "its first line holds no names, but values such as '0.8'"),
    ],
)
def test_a_first_line_that_is_a_row_is_refused_or_read_where_that_is_asked_for(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=f"{message}.*give --no-header") as caught:
        list(read_chunks(path))
    assert "\n" not in str(caught.value)
    (chunk,) = read_chunks(path, header=False)
    width = len(re.split("[,;]", text.partition("\n")[0]))
    assert list(chunk) == [f"column{j + 1}" for j in range(width)]
    assert all(len(cells) == 2 for cells in chunk.values())


@pytest.mark.parametrize("names", ["0,1,2", ",0,1", "id,400.5,401.5", "2019,2020", "a,b"])
def test_names_that_count_or_stand_beside_words_are_a_header(tmp_path: Path, names: str) -> None:
    (tmp_path / "t.csv").write_text(f"{names}\n{re.sub('[^,]+', '7', names)}\n")
    (chunk,) = read_chunks(tmp_path / "t.csv")
    assert list(chunk) == names.split(",")


def test_a_column_that_is_missing_among_values_hints_at_a_missing_header(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("r0,0.5,a\nr1,0.7,b\n")  # these may be names: no text comes again
    with pytest.raises(DataError, match="has no column 'kind'.*give --no-header"):
        read_table(path, "kind")
    data = read_table(path, "column3", id="column1", header=False)
    assert (data.ids, data.y.tolist()) == (("r0", "r1"), [0, 1])


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


def test_npz_is_read_and_pickled_arrays_are_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=np.ones((2, 2)), y=np.array(["a", "b"]))
    (chunk,) = read_chunks(tmp_path / "t.npz")
    assert list(chunk) == ["x[0]", "x[1]", "y"]
    assert chunk["y"] == ["a", "b"]
    np.savez(tmp_path / "t.npz", x=np.ones((2, 2)), y=np.ones(3))
    with pytest.raises(DataError, match=r"its arrays must have one length, got \[2, 3\]"):
        list(read_chunks(tmp_path / "t.npz"))
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
