"""difformer shard on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from difformer.app.cli import main

pytest.importorskip("duckdb")


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


@pytest.fixture
def table(tmp_path: Path) -> list[str]:
    rows = [f"u{i},{i * 0.37 % 2:.3f},{'ab'[i % 2]}" for i in range(40)]
    (tmp_path / "nodes.csv").write_text("\n".join(["name,size,kind", *rows]) + "\n")
    edges = [f"u{i},u{(i + 1) % 40}" for i in range(40)] + ["u0,u1", "u0,nobody"]
    (tmp_path / "edges.csv").write_text("\n".join(["from,to", *edges]) + "\n")
    words = ["--nodes", tmp_path / "nodes.csv", "--edges", tmp_path / "edges.csv"]
    return [str(w) for w in (*words, "--label", "kind", "--id", "name", "--parts", 4)]


def test_it_says_what_it_found(table: list[str], tmp_path: Path, capsys) -> None:
    assert run("shard", tmp_path / "parts", *table, "--memory", "12GB") == 0
    shown = capsys.readouterr().out
    for line in ("dangling edges 1", "repeated edges 1", "edges kept, each way 80", "cut by range"):
        assert line in " ".join(shown.split())
    assert "train with: difformer train" in shown
    assert run("shard", tmp_path / "parts", *table, "--memory", "12GB") == 0
    assert capsys.readouterr().out == shown  # what is there
    assert run("shard", tmp_path / "parts", *table, "--parts", "3") == 2
    assert "holds a sharded dataset already" in capsys.readouterr().err


def test_json_is_one_document(table: list[str], tmp_path: Path, capsys) -> None:
    words = ("--partition", "streaming", "--memory", "12GB", "--json")
    assert run("shard", tmp_path / "parts", *table, *words) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["parts"], found["dangling edges"]) == (40, 4, 1)
    assert 0 < found["cut"] < 1
    assert found["peak_memory"] > 0
