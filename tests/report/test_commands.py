"""difformer report, energy, train --monitor and reproduce fig3, as a person types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from difformer.app.cli import main

FAST = ["--epochs", "3", "--num-layers", "2", "--hidden-channels", "8", "--quiet"]


def difformer(*words: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "run"
    words = ["train", "digits", *FAST, "--monitor", "energy", "--no-report", "--out", path]
    assert difformer(*words) == 0
    return path


def test_monitor_energy_logs_each_layers_energy(folder: Path) -> None:
    header = (folder / "metrics.csv").read_text().splitlines()[0].split(",")
    assert header[-2:] == ["energy_1", "energy_2"]


def test_report_writes_the_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert difformer("report", folder, "--projection", "pca") == 0
    assert str(folder / "report.html") in capsys.readouterr().out
    assert "curve-energy" in (folder / "report.html").read_text(encoding="utf-8")
    assert difformer("report", folder, "--points", "50", "--projection", "pca", "--json") == 0
    assert json.loads(capsys.readouterr().out)["bytes"] > 1_000_000


def test_energy_checks_the_theorem(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert difformer("energy", folder) == 0
    assert "A bare step" in capsys.readouterr().out
    assert difformer("energy", folder, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert [layer["layer"] for layer in record["layers"]] == [1, 2]
    assert record["lambda"] == pytest.approx(1 / 1797)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["report", "nowhere"], "nowhere is not a run folder"),
        (["energy", "nowhere"], "nowhere is not a run folder"),
        (["energy", "RUN", "--weight", "0"], "--weight must be a finite number above 0"),
        (["report", "RUN", "--projection", "umap"], "projection must be one of"),
        (["train", "digits", "--monitor", "loss"], "--monitor must be energy, got 'loss'"),
        (["reproduce", "fig9"], "fig9"),
        (["reproduce", "fig3", "--show", "--out", "nowhere"], "leave --show out"),
    ],
)
def test_bad_words_are_one_line_and_exit_code_2(
    folder: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert difformer(*[folder if word == "RUN" else word for word in words]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error


def test_a_baseline_has_no_energy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "digits", "--model", "mlp", "--epochs", "2", "--no-report", "--quiet"]
    assert difformer(*words, "--out", tmp_path / "run") == 0
    assert difformer("energy", tmp_path / "run") == 2
    assert "only DIFFormer has energies" in capsys.readouterr().err


def test_figure_3_is_written_with_its_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert difformer("reproduce", "fig3", "--out", tmp_path, "--json") == 0
    files = json.loads(capsys.readouterr().out)["files"]
    names = {Path(file).name for file in files}
    assert names == {"fig3.png", "fig3.svg", "curves.csv", "field.csv", "points.csv", "README.md"}
    assert all(Path(file).stat().st_size > 100 for file in files)
