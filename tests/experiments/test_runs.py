"""Runs of every kind: one list, one reader, and the same commands for all of them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import difformer
from difformer.app.cli import main
from difformer.jobs.job import Experiment
from difformer.jobs.rows import run_experiment
from difformer.runs.run import differing_settings, read_run

KINDS = {
    "cell.json": "cell",
    "compared": "comparison",
    "dataset": "dataset",
    "seeds": "dataset",
    "series": "series",
    "table": "table",
}
CELL = {
    "table": "toy",
    "cell": "digits.mlp.own.random",
    "system": "mlp",
    "column": "digits",
    "variant": "own",
    "protocol": "random",
    "dataset": "digits",
    "command": "difformer x",
    "settings": {"model": {"dropout": 0.5}},
    "wanted": [["random:0", 0], ["random:0", 1]],
    "machine": {},
    "date": "2026-01-01",
    "version": "1",
    "runs": [
        {"split": "random:0", "seed": s, "metrics": {"test": {"accuracy": a}}, "seconds": 1.0}
        for s, a in ((0, 0.5), (1, 0.7))
    ],
}


PIXELS = ",".join(f"p{i}" for i in range(64))


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def predicted(folder: Path, rows: Any, work: Path) -> list[dict[str, str]]:
    """What `predict` writes for rows of pixels."""
    new, out = work / "new.csv", work / "out.csv"
    np.savetxt(new, rows, delimiter=",", header=PIXELS, comments="", fmt="%.17g")
    assert run("predict", str(folder), str(new), "--out", str(out)) == 0
    with out.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of every kind."""
    root = tmp_path_factory.mktemp("runs")
    files = tmp_path_factory.mktemp("files")
    waves = 5 + np.sin(np.arange(40)[:, None] / 3 + np.arange(3))
    lines = [f"{i},{','.join(f'{v:.4f}' for v in row)}" for i, row in enumerate(waves)]
    (files / "series.csv").write_text("t,a,b,c\n" + "\n".join(lines) + "\n")
    noise = np.random.default_rng(0).normal(size=(40, 2))
    rows = [f"{a},{b},{'uv'[i % 2] if i < 30 else ''}" for i, (a, b) in enumerate(noise)]
    (files / "table.csv").write_text("a,b,y\n" + "\n".join(rows) + "\n")
    quick = ["--epochs", "2", "--no-report", "--quiet", "--out"]
    assert run("train", "digits", *quick, str(root / "dataset")) == 0
    assert run("train", "digits", "--seeds", "2", *quick, str(root / "seeds")) == 0
    assert run("train", "--series", str(files / "series.csv"), *quick, str(root / "series")) == 0
    table = ["--nodes", str(files / "table.csv"), "--label", "y"]
    assert run("train", *table, *quick, str(root / "table")) == 0
    compared = ["compare", "digits", "--models", "mlp,gcn-knn", "--splits", "2", "--epochs", "1"]
    assert run(*compared, "--workers", "0", "--out", str(root / "compared")) == 0
    (root / "cell.json").write_text(json.dumps(CELL))
    (root / "other.json").write_text("{}")
    (root / "empty").mkdir()
    return root


def test_runs_of_every_kind_are_listed_with_their_figure(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("runs", str(root), "--json") == 0
    listed = json.loads(capsys.readouterr().out)["runs"]
    assert {Path(line["run"]).name: line["kind"] for line in listed} == KINDS
    assert all(line["state"] == "finished" and line["mean"] is not None for line in listed)
    by_name = {Path(line["run"]).name: line for line in listed}
    assert by_name["cell.json"]["mean"] == pytest.approx(0.6)
    assert by_name["seeds"]["fits"] == 2
    assert by_name["series"]["metric"] == "mse"


def test_a_page_of_runs_needs_nothing_else_and_is_escaped(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "<img src=x>.json"
    bad.write_text(json.dumps(CELL))
    page = tmp_path / "page.html"
    assert run("runs", str(root), str(bad), "--out", str(page)) == 0
    assert f"look at {page}" in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert "<img src=x>" not in text
    assert "&lt;img src=x&gt;" in text
    assert "difformer-s on digits" in text


def test_two_runs_are_compared_by_the_settings_in_which_they_differ(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    words = ["train", "digits", "--epochs", "3", "--dropout", "0.1", "--no-report", "--quiet"]
    assert run(*words, "--out", str(other)) == 0
    runs = [read_run(root / "dataset"), read_run(other)]
    assert set(differing_settings(runs)) == {"train.epochs", "model.dropout"}
    capsys.readouterr()
    assert run("runs", str(root / "dataset"), str(other)) == 0
    out = capsys.readouterr().out
    assert "Settings that differ" in out
    assert "model.dropout" in out


def test_load_run_gives_the_estimator_back(root: Path) -> None:
    table = difformer.load_run(root / "table")
    assert isinstance(table.estimator, difformer.DIFFormerClassifier)
    assert table.dataset.num_rows == 40
    series = difformer.load_run(root / "series")
    assert isinstance(series.estimator, difformer.DIFFormerForecaster)
    with (root / "series" / "forecast.csv").open() as file:
        kept = [[float(cell) for cell in line[1:]] for line in list(csv.reader(file))[1:]]
    np.testing.assert_allclose(series.estimator.predict(4), kept, rtol=1e-6)


@pytest.mark.parametrize("name", ["dataset", "seeds", "series", "table"])
def test_energy_and_report_work_on_every_kind(
    root: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("energy", str(root / name), "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["layers"]) >= 2
    page = tmp_path / "page.html"
    quick = ("--projection", "pca", "--points", "200")
    assert run("report", str(root / name), "--out", str(page), *quick) == 0
    text = page.read_text(encoding="utf-8")
    assert "is left out" not in text
    assert "Diffusivity" in text or "diffusivity" in text


def test_predict_works_on_every_kind(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digits = difformer.load_dataset("digits")
    out = tmp_path / "out.csv"
    lines = predicted(root / "dataset", digits.x[:7].numpy(), tmp_path)
    loaded = difformer.load_run(root / "dataset")
    model: Any = loaded.model
    with torch.no_grad():
        frozen = model.double().freeze(digits.x.double())(digits.x[:7].double())
    assert [line["label"] for line in lines] == [str(int(i)) for i in frozen.argmax(1)]
    series = json.loads((root / "series" / "series.json").read_text())["series"]
    assert run("predict", str(root / "series"), series, "--out", str(out), "--overwrite") == 0
    assert out.read_bytes() == (root / "series" / "forecast.csv").read_bytes()


def test_a_run_of_the_default_system_predicts_and_has_energies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`train NAME` without options keeps an average of several models."""
    experiment = Experiment.make(
        "digits",
        system="difformer",
        split="ratio:0.4/0.3/0.3:0",
        data={"sample": 60},
        model={"time_budget": 0.001},
    )
    folder = tmp_path / "run"
    run_experiment(experiment, folder=folder)
    loaded = difformer.load_run(folder)
    rows = loaded.dataset.x[:5].double().numpy() + 0.01
    chances = [float(line["probability"]) for line in predicted(folder, rows, tmp_path)]
    model: Any = loaded.estimator
    assert chances == pytest.approx(model.predict_proba(rows).max(1), abs=1e-5)
    capsys.readouterr()
    assert run("energy", str(folder), "--json") == 0
    assert json.loads(capsys.readouterr().out)["layers"]


@pytest.mark.parametrize(
    ("name", "cells", "message"),
    [
        ("dataset", "a,b\n1,2\n", "must have 64 columns of features, it has 2"),
        ("dataset", f"{PIXELS}\n{'x,' * 63}1\n", "row 1, column 'p0' must be a number, got 'x'"),
        ("series", "t,a\n1,2\n2,3\n", "nodes of fit"),
    ],
)
def test_a_file_that_does_not_fit_is_one_line(
    root: Path,
    tmp_path: Path,
    name: str,
    cells: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    new = tmp_path / "new.csv"
    new.write_text(cells)
    assert run("predict", str(root / name), str(new), "--out", str(tmp_path / "out.csv")) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *(
            (f"{command} {{}}/{name}{more}", f"{name} is {kind}, which holds no model: ")
            for command, more in (("predict", " x.csv -o y.csv"), ("energy", ""), ("serve", ""))
            for name, kind in {
                "compared": "a comparison of systems",
                "cell.json": "a result file",
            }.items()
        ),
        ("serve {}/series", "is a run on a series: serve needs a run on a table"),
        ("serve {}/dataset", "is a run on a dataset: serve needs a run on a table"),
        ("runs {}/empty", "PATH must hold a run, none is in"),
        ("runs {}/nowhere", "is not there"),
    ],
)
def test_a_command_says_why_a_run_is_not_for_it(
    root: Path, words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words.format(root).split()) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert "\n" not in said


def test_a_result_file_has_a_page(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("report", str(root / "cell.json")) == 0
    page = (root / "cell.html").read_text(encoding="utf-8")
    (root / "cell.html").unlink()
    assert "mlp on digits" in page
    assert "0.6 ± 0.14" in page
