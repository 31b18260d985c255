"""difformer train --series: a forecast from two CSV files, and one clear line on bad input."""

from __future__ import annotations

import csv
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from difformer.train.folder import read_config, read_result
from difformer.train.objective import SquaredError

Run = Callable[..., int]
Printed = pytest.CaptureFixture[str]
HEAD = ["source", "target"]


@pytest.fixture(autouse=True)
def without_classical(monkeypatch: pytest.MonkeyPatch) -> None:
    """statsforecast takes seconds, and has tests of its own."""
    monkeypatch.setattr("difformer.estimators.backtest.MOST_NODES", 0)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    series, edges = tmp_path / "series.csv", tmp_path / "edges.csv"
    waves = 5 + np.sin(np.arange(40)[:, None] / 3 + np.arange(3))
    days = [str(np.datetime64("2020-01-01") + i) for i in range(40)]
    rows = [
        f"{day},{','.join(f'{v:.4f}' for v in row)}" for day, row in zip(days, waves, strict=True)
    ]
    series.write_text("day,a,b,c\n" + "\n".join(rows) + "\n")
    edges.write_text("source,target,weight\na,b,1\nb,c,2\nc,a,0.5\n")
    return series, edges


def test_every_option_of_the_loop_and_the_model_is_obeyed(
    run: Run, files: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    words = ["--epochs", "3", "--lr", "0.02", "--hidden-channels", "5", "--no-report"]
    words += ["--model", "difformer-a", "--recipe", "linear", "--num-layers", "1"]
    assert run("train", "--series", files[0], "--out", out, *words) == 0
    kept = read_config(out / "config.toml")
    assert (kept["train"]["epochs"], kept["train"]["lr"]) == (3, 0.02)
    model = kept["model"]
    assert (model["hidden_channels"], model["kernel"], model["num_layers"]) == (5, "sigmoid", 1)
    result = read_result(out)
    assert result is not None
    assert result.epochs == 3


def test_ctrl_c_is_no_finished_forecast_and_the_run_goes_on(
    run: Run, files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["train", "--series", files[0], "--epochs", "20", "--no-report", "--out"]
    assert run(*words, tmp_path / "whole") == 0
    real, steps = SquaredError.loss, list[int]()

    def cut(*given: Any, **options: Any) -> Any:
        steps.append(1)
        if len(steps) == 5:
            signal.raise_signal(signal.SIGINT)
        return real(*given, **options)

    monkeypatch.setattr(SquaredError, "loss", cut)
    out = tmp_path / "cut"
    assert run(*words, out) == 130
    assert not (out / "forecast.csv").exists()
    assert run(*words, out) == 2  # it must be asked for
    assert run(*words, out, "--resume") == 0
    for name in ("metrics.csv", "model.safetensors", "forecast.csv"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.fixture(scope="module")
def flu(tmp_path_factory: pytest.TempPathFactory, run: Run) -> Path:
    """Weekly counts with winters of their own size, zeros, a constant, a sparse node and gaps."""
    folder = tmp_path_factory.mktemp("flu")
    draw, weeks, nodes = np.random.default_rng(3), 200, 12
    time = np.arange(weeks)[:, None]
    rate = np.full((weeks, nodes), 0.05)
    for winter in range(5):
        peak = 52 * winter + 6 + draw.normal(0, 2) + draw.uniform(0, 3, nodes)
        size = np.exp(draw.normal(2.5, 0.5)) * draw.gamma(4, 0.25, nodes)
        rate += size * np.exp(-0.5 * ((time - peak) / 4) ** 2)
    counts = draw.poisson(rate).astype(object)
    counts[:, 3], counts[:, 7] = 0, 2
    counts[90, 3] = 1
    days = [str(np.datetime64("2003-01-06") + 7 * i) for i in range(weeks)]
    lines = [[day, *map(str, row)] for day, row in zip(days, counts, strict=True)]
    lines[50][1], lines[60][2] = "", "closed"
    names = [f"d{j:02d}" for j in range(nodes)]
    pairs = [[f"d{j:02d}", f"d{(j + 1) % nodes:02d}"] for j in range(nodes)]
    rows = [["week", *names], *lines[:70], *lines[71:]]  # a week is left out
    for name, cells in (("flu", rows[:-1]), ("newer", rows), ("edges", [HEAD, *pairs])):
        (folder / f"{name}.csv").write_text("".join(f"{','.join(row)}\n" for row in cells))
    words = ["--edges", folder / "edges.csv", "--out", folder / "run", "--epochs", "60"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("difformer.estimators.backtest.MOST_NODES", 0)
        assert run("train", "--series", folder / "flu.csv", *words) == 0
    return folder


def test_counts_as_they_are_beat_what_is_simple(flu: Path) -> None:
    told = json.loads((flu / "run" / "series.json").read_text())
    assert set(told["naive_nodes"]) == {"d03", "d07"}
    assert "closed" in " ".join(told["notes"])
    tested = told["backtest"]
    errors = {name: found["mse"] for name, found in tested["methods"].items()}
    ours = errors.pop("DIFFormer")
    simple = {"last value", "seasonal naive", "mean of lags", "AR", "AR with neighbours"}
    assert set(errors) == simple
    assert ours < min(errors.values())
    assert all(len(found["mse_by_step"]) == 4 for found in tested["methods"].values())
    with (flu / "run" / "intervals.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 48
    for row in rows:
        low, middle, high = (float(row[k]) for k in ("from 90 %", "forecast", "to 90 %"))
        assert 0 <= low <= middle <= high
        assert high > low or row["node"] in ("d03", "d07")


def test_newer_values_are_forecast_without_refitting(run: Run, flu: Path, tmp_path: Path) -> None:
    before = (flu / "run" / "model.safetensors").read_bytes()
    out = tmp_path / "o.csv"
    words = ["predict", flu / "run", "--series", flu / "newer.csv", "-o", out]
    assert run(*words) == 0
    lines = [line.split(",") for line in out.read_text().splitlines()]
    weeks = ["2006-11-06", "2006-11-13", "2006-11-20", "2006-11-27"]
    assert [line[0] for line in lines[1:]] == weeks
    assert [line[8] for line in lines[1:]] == ["2"] * 4
    assert all(float(cell) >= 0 for line in lines[1:] for cell in line[1:])  # they are counts
    assert run(*words) == 2  # it is there already
    assert run(*words, "--overwrite", "--level", "0.8") == 0
    assert out.read_text().startswith("time,node,forecast,from 80 %,to 80 %")
    assert run(*words, "--overwrite", "--level", "0.77") == 2
    assert run("predict", flu / "run", "-o", out, "--overwrite") == 2
    assert (flu / "run" / "model.safetensors").read_bytes() == before


def test_the_page_of_a_series_has_a_fan_for_each_node(flu: Path) -> None:
    page = (flu / "run" / "report.html").read_text(encoding="utf-8")
    assert "2 nodes hardly vary; their forecast is the last value: d03, d07." in page
    start = page.index('id="data">') + len('id="data">')
    data = json.loads(page[start : page.index("</script>", start)])
    found = data["finders"]["nodes"]
    assert [row[0] for row in found["rows"]] == [f"d{j:02d}" for j in range(12)]
    assert [len(curve["data"]) for curve in found["curves"]] == [4] * 12
    assert data["plots"]["by-step"]["data"][0]["name"] == "DIFFormer"
    assert 'id="energy"' in page
    assert len(page) < 3_000_000


def test_what_was_put_right_in_reading_is_said_and_kept(
    run: Run, files: tuple[Path, Path], tmp_path: Path, capsys: Printed
) -> None:
    lines = files[0].read_text().splitlines()
    lines[5] = lines[5].rpartition(",")[0] + ",broken"
    files[0].write_text("\n".join([lines[0], *lines[:12:-1], *lines[1:11]]))
    words = ["--series", files[0], "--out", tmp_path / "run", "--epochs", "2"]
    assert run("train", *words) == 0
    said = " ".join(capsys.readouterr().out.split())
    notes = json.loads((tmp_path / "run" / "series.json").read_text())["notes"]
    assert [note.split(":")[0] for note in notes] == [
        "1 not numbers, taken as empty (row 33, column 'c'",
        "rows were put in the order of their times",
        "2 steps without a row, left empty, first 2020-01-11 00",
    ]
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    for note in notes[1:]:
        for shown in (said, page):
            assert f"Corrected while reading: {note}." in shown
    assert "(row 33, column 'c': 'broken')" in said
    assert run("predict", tmp_path / "run", "--series", files[0], "-o", "-") == 0
    assert notes[1] in " ".join(capsys.readouterr().err.split())


def test_one_node_one_step_and_intervals_that_end_at_0_are_said(cli: Any, tmp_path: Path) -> None:
    """In words: counts of one are singular, no dash stands for a figure, the cut is told."""
    draw, series = np.random.default_rng(0), tmp_path / "s.csv"
    values = 5 + np.sin(np.arange(90) / 3) + draw.normal(0, 0.3, 90)
    series.write_text("step,a\n" + "".join(f"{i},{v:.4f}\n" for i, v in enumerate(values)))
    run = str(tmp_path / "run")
    words = ["--series", str(series), "--out", run, "--epochs", "2", "--set", "lags=3"]
    done = cli("train", *words, "--set", "steps=1")
    said, page = " ".join(done.out.split()), (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "90 steps of 1 node," in page
    assert "over 1 step ahead from" in said
    assert "the next step in forecast.csv" in said
    cut = "end at 0 below, as no value of the series is negative"
    for text in (said, page):
        assert cut in text
        assert "pinball loss 0." in text
    done = cli("predict", run, "--series", str(series), "-o", "-", "--level", "0.9")
    assert cut in " ".join(done.err.split())
    assert "1 row predicted" in done.err
    series.write_text(series.read_text().replace("\n1,", "\n1,-", 1))
    done = cli("train", *words, "--set", "steps=12", "--set", "origins=14", "--out", f"{run}2")
    said = " ".join(done.out.split())
    assert "end at 0" not in said
    assert "loss –" not in said


def test_what_is_known_ahead_and_places_go_with_a_series(
    cli: Any, files: tuple[Path, Path], tmp_path: Path
) -> None:
    days = [line.split(",")[0] for line in files[0].read_text().splitlines()[1:]]
    days += ["2020-02-10", "2020-02-11"]
    known, places, out = tmp_path / "k.csv", tmp_path / "p.csv", str(tmp_path / "run")
    known.write_text("day,sale\n" + "".join(f"{d},{i % 2}\n" for i, d in enumerate(days)))
    places.write_text("node,x,y\na,0,0\nb,1,0\nc,0,1\n")
    words = ["train", "--series", str(files[0]), "--epochs", "3", "--out", out, "--set", "steps=2"]
    words += ["--known", str(known), "--places", str(places)]
    done = cli(*words)
    assert done.code == 0, done.err
    assert "left out above 0 nodes" in " ".join(done.out.split())
    assert "at their coordinates" in (tmp_path / "run" / "report.html").read_text()
    # From newer values, which need what is known of the steps after them.
    newer = tmp_path / "new.csv"
    newer.write_text("".join(files[0].read_text().splitlines(keepends=True)[:25]))
    predict = ["predict", out, "--series", str(newer), "-o", "-"]
    assert "known must have the 1 columns of fit" in cli.refused(*predict)
    later = tmp_path / "later.csv"
    later.write_text(known.read_text().replace(f"{days[24]},0\n", ""))
    assert f"known must go on with {days[24]}" in cli.refused(*predict, "--known", str(later))
    later.write_text("".join(known.read_text().splitlines(keepends=True)[:27]))
    done = cli(*predict, "--known", str(later))
    assert [line.split(",")[0] for line in done.out.splitlines()] == ["time", *days[24:26]]
    early = ["--set", "steps=3", "--out", str(tmp_path / "other")]
    assert "must have rows for 3 steps after the series, it has 2" in cli.refused(*words, *early)
