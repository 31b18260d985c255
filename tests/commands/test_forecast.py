"""difformer train --series: a forecast from two CSV files, and one clear line on bad input."""

from __future__ import annotations

import csv
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from difformer.cli import main
from difformer.train.objective import SnapshotError
from difformer.train.run import read_config, read_result


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    series, edges = tmp_path / "series.csv", tmp_path / "edges.csv"
    waves = 5 + np.sin(np.arange(40)[:, None] / 3 + np.arange(3))
    days = [f"2020-{1 + i // 28:02d}-{1 + i % 28:02d}" for i in range(40)]
    rows = [
        f"{day},{','.join(f'{v:.4f}' for v in row)}" for day, row in zip(days, waves, strict=True)
    ]
    series.write_text("day,a,b,c\n" + "\n".join(rows) + "\n")
    edges.write_text("source,target,weight\na,b,1\nb,c,2\nc,a,0.5\n")
    return series, edges


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(words))
    return int(caught.value.code or 0)


def test_a_series_and_its_edges_leave_a_run_folder(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = ["train", "--series", str(files[0]), "--edges", str(files[1]), "--out", str(out)]
    code = run(*words, "--set", "epochs=5", "--set", "steps=3", "--json")
    assert code == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["nodes"] == ["a", "b", "c"]
    assert shown["backtest"]["mse"] > 0
    with (out / "forecast.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["time", "a", "b", "c"]
    assert [row[0] for row in rows[1:]] == ["2020-02-13", "2020-02-14", "2020-02-15"]
    kept = {path.name for path in out.iterdir()}
    assert kept >= {"config.toml", "metrics.csv", "model.safetensors", "series.json", "result.json"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cora"], "NAME must be left out with --series"),
        (["--set", "lag=3"], "lag"),
        (["--set", "lags=40"], "lags must be at least two fewer than the 40 steps"),
        (["--split", "random:0"], "--split must be left out with --series"),
        (["--data-dir", "d"], "--data-dir must be left out with --series"),
        (["--consistency", "1"], "--consistency must be left out with --series"),
        (["--model", "gcn"], "--model must be one of difformer-s, difformer-a with --series"),
        (["--recipe", "pap"], "recipe must be one of"),
    ],
)
def test_bad_words_are_answered_in_one_line(
    files: tuple[Path, Path],
    tmp_path: Path,
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = run("train", *words, "--series", str(files[0]), "--out", str(tmp_path / "run"))
    assert code == 2
    assert message in capsys.readouterr().err


def test_every_option_of_the_loop_and_the_model_is_obeyed(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = ["--epochs", "3", "--lr", "0.02", "--hidden-channels", "5", "--no-report"]
    words += ["--model", "difformer-a", "--recipe", "linear", "--num-layers", "1"]
    assert run("train", "--series", str(files[0]), "--out", str(out), *words) == 0
    kept = read_config(out / "config.toml")
    assert (kept["train"]["epochs"], kept["train"]["lr"]) == (3, 0.02)
    model = kept["model"]
    assert (model["hidden_channels"], model["kernel"], model["num_layers"]) == (5, "sigmoid", 1)
    assert read_result(out).epochs == 3


def test_ctrl_c_is_no_finished_forecast_and_the_run_goes_on(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["train", "--series", str(files[0]), "--epochs", "20", "--no-report", "--out"]
    assert run(*words, str(tmp_path / "whole")) == 0
    real = SnapshotError.loss
    steps: list[int] = []

    def cut(*given: Any, **options: Any) -> Any:
        steps.append(1)
        if len(steps) == 5:
            signal.raise_signal(signal.SIGINT)
        return real(*given, **options)

    monkeypatch.setattr(SnapshotError, "loss", cut)
    out = tmp_path / "cut"
    assert run(*words, str(out)) == 130
    assert not (out / "forecast.csv").exists()
    assert run(*words, str(out)) == 2  # it must be asked for
    assert run(*words, str(out), "--resume") == 0
    for name in ("metrics.csv", "model.safetensors", "forecast.csv"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_graph_of_other_nodes_is_answered_in_one_line(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files[1].write_text("source,target\na,z\n")
    words = ["train", "--series", str(files[0]), "--edges", str(files[1])]
    assert run(*words, "--out", str(tmp_path / "run")) == 2
    assert "'z' is no node of the series" in capsys.readouterr().err
    assert run("train", "cora", "--edges", str(files[1])) == 2
    assert "--edges must come with --series" in capsys.readouterr().err
