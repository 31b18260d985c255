"""Series and edges from CSV files, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from difformer.data.series import read_edges_file, read_series_file
from difformer.errors import DataError

SERIES = "day,a,b\n2020-01-01,1,2\n2020-01-02,,4\n2020-01-03,5,na\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_series_file_has_times_nodes_and_missing_values(tmp_path: Path) -> None:
    series = read_series_file(write(tmp_path / "s.csv", SERIES))
    assert series.names == ("a", "b")
    np.testing.assert_array_equal(series.values, [[1, 2], [np.nan, 4], [5, np.nan]])


def test_edges_go_by_name_and_may_change_over_time(tmp_path: Path) -> None:
    series = read_series_file(write(tmp_path / "s.csv", SERIES))
    text = "source,target,weight\na,b,2\nb,a,3\n"
    ((index, weight),) = read_edges_file(write(tmp_path / "e.csv", text), series)
    assert index.tolist() == [[0, 1], [1, 0]]
    assert weight is not None
    assert weight.tolist() == [2, 3]
    text = "source,target,time\na,b,2020-01-01\nb,a,2020-01-03\n"
    graphs = read_edges_file(write(tmp_path / "e.csv", text), series)
    assert [g[0].tolist() for g in graphs] == [[[0], [1]], [[], []], [[1], [0]]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty: its first line must name the columns"),
        ("day,a\n", "has a header and no rows"),
        ("day\n1\n", "one a node, it has 1"),
        ("day,a,b\n1,2\n", "line 2: 2 cells where the header has 3"),
        ("day,a\n1,x\n", "line 2: a must be a number, got 'x'"),
        ("day,a\n2,1\n1,1\n", "sorted by time, step 1"),
        ("day,a\n9,1\n10,1\n10,1\n", "10.0 comes twice"),
        ("day,a,a\n1,1,2\n", "each node once, 'a' comes twice"),
    ],
)
def test_a_bad_series_file_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_series_file(write(tmp_path / "s.csv", text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("from,to\na,b\n", "must have columns source, target"),
        ("source,target\na,c\n", "line 2: 'c' is no node of the series"),
        ("source,target,weight\na,b,-1\n", "weight must be 0 or more, got '-1'"),
        ("source,target,time\na,b,2021-01-01\n", "is no step of the series"),
    ],
)
def test_a_bad_edges_file_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    series = read_series_file(write(tmp_path / "s.csv", SERIES))
    with pytest.raises(DataError, match=message):
        read_edges_file(write(tmp_path / "e.csv", text), series)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*none.csv: No such file"):
        read_series_file(tmp_path / "none.csv")
