"""difformer demo: nothing but the package is needed, and it ends with a table and a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from difformer.commands import demo
from difformer.data.download import Web, Wheel
from difformer.experiments.specs import load_spec
from difformer.report import poster


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two epochs of everything, few points, and no network."""
    for settings in demo.CORA.values():
        monkeypatch.setitem(settings, "train", {"epochs": 2})
    monkeypatch.setattr(demo, "DIGITS", {**demo.DIGITS, "epochs": 2})
    monkeypatch.setattr(poster, "ROWS", 60)
    monkeypatch.setattr(Web, "fetch", None)
    monkeypatch.setattr(Wheel, "fetch", None)


def test_the_demo_needs_no_home_no_data_and_no_network(cli: Any, quick: None) -> None:
    done = cli("demo", "--quiet", "--picture", "p.svg")
    assert done.code == 0, done.err
    for method in ("GCN", "DIFFormer-s, citations", "DIFFormer-a", "label spreading", "no graph"):
        assert method in done.out
    assert "Next:" in done.out
    assert len(list(Path("runs/demo").glob("*/result.json"))) == 5
    page = Path("runs/demo/report.html").read_text(encoding="utf-8")
    assert "runs/demo/report.html" in done.out
    for text in ("DIFFormer in a minute", "Neural Networks", "states-before", "states-after"):
        assert text in page
    assert "Before diffusion" in Path("p.svg").read_text(encoding="utf-8")
    again = json.loads(cli("demo", "--json").out)  # read back: nothing is trained twice
    assert len(again["rows"]) == 7
    published = {row["method"]: row["published"] for row in again["rows"]}
    mean, deviation = load_spec("table2").published["difformer-s"]["cora"]  # type: ignore[misc]
    assert published["DIFFormer-s, citations"] == f"{mean} ± {deviation}"


def test_where_the_runs_or_the_picture_cannot_go_is_refused(cli: Any) -> None:
    Path("runs").write_text("", encoding="utf-8")
    assert "is a file" in cli.refused("demo", "--out", "runs")
    assert "must end in .svg or .png" in cli.refused("demo", "--picture", "p.jpg")
