"""difformer demo: nothing but the package is needed, and it ends with a table and a page."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from difformer.data.fetch import Web
from difformer.estimators.classifier import DIFFormerClassifier
from difformer.jobs.job import Experiment, read_config_file
from difformer_paper import demo
from difformer_paper import demo as poster
from difformer_paper.reproduce import DEMO
from difformer_paper.specs import load_spec

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two epochs of everything, few points, and no network."""
    monkeypatch.setattr(demo, "FEWER_EPOCHS", dict.fromkeys(demo.CELLS, 2))
    monkeypatch.setattr(DIFFormerClassifier, "epochs", 2)
    monkeypatch.setattr(poster, "ROWS", 60)
    monkeypatch.setattr(Web, "fetch", None)


def test_the_demo_needs_no_home_no_data_and_no_network(cli: Any, quick: None) -> None:
    done = cli("demo", "--quiet", "--picture", "p.svg")
    assert done.code == 0, done.err
    for text in ("GCN", "DIFFormer-a", "label spreading", "DIFFormerClassifier()", "one seed"):
        assert text in done.out
    assert "Next:" in done.out
    assert len(list(Path("runs/demo").glob("*/result.json"))) == 3
    page = Path("runs/demo/report.html").read_text(encoding="utf-8")
    assert "runs/demo/report.html" in done.out
    for text in ("DIFFormer in a minute", "Neural Networks", "states-before", "states-after"):
        assert text in page
    assert '"type":"scattergl"' not in page  # WebGL would leave grey boxes where there is none
    for text in ("one seed", "GCN stops after 2 epochs", "DIFFormer-a stops after 2 epochs"):
        assert text in " ".join(page.split())
    assert "Before diffusion" in Path("p.svg").read_text(encoding="utf-8")
    again = json.loads(cli("demo", "--json").out)
    assert len(again["rows"]) == 6
    row = {row["method"]: row for row in again["rows"]}["DIFFormer-s"]
    figure, deviation = load_spec("table2").published["difformer-s"]["cora"]  # type: ignore[misc]
    assert row["published"] == f"{figure} ± {deviation}"
    assert row["measured"] in page


def test_what_the_demo_calls_measured_is_in_the_result_files() -> None:
    shown = json.loads((REPOSITORY / DEMO).read_text(encoding="utf-8"))
    assert demo.measured(REPOSITORY / "results") == (REPOSITORY / DEMO).read_text(encoding="utf-8")
    for cell, text in shown.items():
        runs = json.loads((REPOSITORY / f"results/table2/{cell}.json").read_bytes())["runs"]
        figures = [100 * run["metrics"]["test"]["accuracy"] for run in runs]
        assert text == f"{mean(figures):.1f} ± {stdev(figures):.1f} ({len(figures)})"


def test_the_demo_trains_with_the_settings_of_table_2(cli: Any, quick: None) -> None:
    assert cli("demo", "--quiet").code == 0
    for cell in demo.cells():
        result = json.loads((REPOSITORY / f"results/table2/{cell.name}.json").read_bytes())
        config = read_config_file(Path(f"runs/demo/cora-{cell.system}/config.toml"))
        made = Experiment.make(**config)
        differing = {
            key
            for section, found in (("model", made.model), ("train", vars(made.train)))
            for key, value in result["settings"][section].items()
            if found[key] != value
        }
        assert differing == {"epochs"}
        assert made.split == "released"


def test_where_the_runs_or_the_picture_cannot_go_is_refused(cli: Any) -> None:
    Path("runs").write_text("", encoding="utf-8")
    assert "is a file" in cli.refused("demo", "--out", "runs")
    assert "must end in .svg or .png" in cli.refused("demo", "--picture", "p.jpg")
