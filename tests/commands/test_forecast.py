"""difformer train --series: a forecast from two CSV files, and one clear line on bad input."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from difformer.cli import main


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
    assert shown["nodes"] == 3
    assert shown["backtest"]["mse"] > 0
    with (out / "forecast.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["time", "a", "b", "c"]
    assert [row[0] for row in rows[1:]] == ["2020-02-13", "2020-02-14", "2020-02-15"]
    kept = {path.name for path in out.iterdir()}
    assert kept >= {"config.toml", "metrics.csv", "model.safetensors", "scale.json", "result.json"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cora"], "NAME must be left out with --series"),
        (["--set", "lag=3"], "lag"),
        (["--set", "lags=40"], "lags must be at least two fewer than the 40 steps"),
        (["--recipe", "paper"], "--recipe must be left out"),
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


def test_a_graph_of_other_nodes_is_answered_in_one_line(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files[1].write_text("source,target\na,z\n")
    words = ["train", "--series", str(files[0]), "--edges", str(files[1])]
    assert run(*words, "--out", str(tmp_path / "run")) == 2
    assert "'z' is no node of the series" in capsys.readouterr().err
    assert run("train", "cora", "--edges", str(files[1])) == 2
    assert "--edges must come with --series" in capsys.readouterr().err
