"""Edges of a table go by the ids of its rows, and bad ones are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from difformer.data.graphs import read_edges
from difformer.errors import DataError


def test_edges_go_by_id(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("from,to,weight\na,b,2\nb,c,0.1\n")
    edges, weight = read_edges(tmp_path / "e.csv", {"a": 0, "b": 1, "c": 2})
    assert edges.tolist() == [[0, 1], [1, 2]]
    assert weight is not None
    assert weight.tolist() == [2.0, 0.1]
    (tmp_path / "e.csv").write_text("from;to;weight\na;b;2\nb;c;0,1\n")
    again, weight = read_edges(tmp_path / "e.csv", {"a": 0, "b": 1, "c": 2})
    assert weight is not None
    assert (again.tolist(), weight.tolist()) == (edges.tolist(), [2.0, 0.1])


@pytest.mark.parametrize("text", ["a,b,2\nb,c,0.1\n", "a;b;2\nb;c;0,1\n"])
def test_a_first_line_that_joins_two_known_ids_is_an_edge_and_this_is_said(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "e.csv").write_text(text)
    with pytest.warns(UserWarning, match=r"e\.csv: has no header: its first line, a to b, is read"):
        edges, weight = read_edges(tmp_path / "e.csv", {"a": 0, "b": 1, "c": 2})
    assert edges.tolist() == [[0, 1], [1, 2]]
    assert weight is not None
    assert weight.tolist() == [2.0, 0.1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("from,to,weight\na,b,1e39\n", "row 1, column 'weight': '1e39' must be a weight"),
        ("from\na\n", "must have source, target"),
    ],
)
def test_bad_edges_are_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "e.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_edges(tmp_path / "e.csv", {"a": 0, "b": 1})
