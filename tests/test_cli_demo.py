"""difformer demo: nothing but the package is needed, and it ends with a table and a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from difformer.commands import demo
from difformer.data.dataset import Dataset


def test_the_demo_needs_no_home_no_data_and_no_network(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[Path] = []

    def page(folder: Path, data: Dataset) -> Path:
        pages.append(folder / "report.html")
        return pages[-1]

    monkeypatch.setattr(demo, "TRAIN", {**demo.TRAIN, "epochs": 2})
    monkeypatch.setattr(demo, "CORA", {**demo.CORA, "epochs": 2})
    monkeypatch.setattr(demo, "write_page", page)
    done = cli("demo", "--quiet")
    assert done.code == 0, done.err
    for method in ("logistic regression", "label spreading", "MLP", "DIFFormer-s", "DIFFormer-a"):
        assert method in done.out
    assert "Next:" in done.out
    assert [str(page) for page in pages] == [
        "runs/demo/digits-difformer-s-neighbours/report.html",
        "runs/demo/cora-difformer-s-citations/report.html",
    ]
    assert str(pages[0]) in done.out
    assert len(list(Path("runs/demo").glob("*/result.json"))) == 6
    again = json.loads(cli("demo", "--json").out)  # read back: nothing is trained twice
    assert len(again["rows"]) == 8


def test_cora_is_shown(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "write_page", lambda folder, data: folder / "report.html")
    monkeypatch.setattr(demo, "CORA", {**demo.CORA, "epochs": 3})
    monkeypatch.setattr(demo, "_digits", lambda out, quiet: [])
    rows = json.loads(cli("demo", "--json").out)["rows"]
    assert [row["method"] for row in rows] == ["MLP", "DIFFormer-s, citations"]
    assert rows[1]["accuracy"] > 0.3


def test_a_file_where_the_runs_should_go_is_refused(cli: Any) -> None:
    Path("runs").write_text("", encoding="utf-8")
    assert "is a file" in cli.refused("demo", "--out", "runs")
