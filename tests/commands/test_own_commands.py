"""difformer train --nodes, predict and serve, as a person types them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from difformer.app import cli


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    return int(ended.value.code or 0)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [f"n{i},{i % 2 * 3 + i / 40},{'ab'[i % 2] if i < 30 else ''}" for i in range(40)]
    (tmp_path / "t.csv").write_text("name,size,kind\n" + "\n".join(rows) + "\n")
    (tmp_path / "new.csv").write_text("name,size\nx,3.1\ny,0.2\n")
    return tmp_path / "t.csv"


def test_a_table_is_shown_trained_on_and_predicted_with(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--label", "kind", "--id", "name", "--epochs", "15", "--hidden-channels", "16"]
    assert run("train", "--nodes", "t.csv", *words) == 0
    shown, told = capsys.readouterr()
    assert re.search(r"size\s+number\s+scaled", shown)
    assert "graph: " in told
    page = Path("runs/t-1/report.html").read_text(encoding="utf-8")
    for sentence in (
        "Accuracy ",
        "Compared with simple methods on held-out labels",
    ):  # as on the page
        assert sentence in shown
        assert sentence in page
    assert "10 predictions in predictions.csv" in shown
    for part in ("t.csv", "How good it is", "Energy of each layer", "States and strongest"):
        assert part in page
    assert "What is missing" not in page
    assert "left out" not in page
    assert run("train", "--nodes", "t.csv", *words, "--out", "runs/t-1") == 2
    assert "add --resume" in capsys.readouterr().err
    assert run("train", "--nodes", "t.csv", *words, "--resume", "--no-report") == 0
    assert "kept in runs/t-1" in capsys.readouterr().out
    assert run("predict", "runs/t-1", "new.csv", "-o", "out.csv") == 0
    lines = Path("out.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in lines] == [["name", "kind"], ["x", "b"], ["y", "a"]]
    for model, kernels in (("difformer-a", {"sigmoid"}), ("auto", {"simple", "sigmoid"})):
        capsys.readouterr()
        assert run("train", "t.csv", *words, "--model", model, "--json", "--no-report") == 0
        assert json.loads(capsys.readouterr().out)["kernel"] in kernels


def test_a_table_without_a_header_gives_the_same_answers(table: Path) -> None:
    Path("bare.csv").write_text(table.read_text().partition("\n")[2])
    Path("new.csv").write_text("x,3.1,\ny,0.2,\n")
    quick = ["--epochs", "5", "--recipe", "stable", "--no-report", "--quiet"]
    words = ["--label", "column3", "--id", "column1", "--no-header", *quick]
    assert run("train", "bare.csv", *words, "--out", "bare") == 0
    assert run("predict", "bare", "new.csv", "--no-header", "-o", "bare-out.csv") == 0
    assert run("train", "t.csv", "--label", "kind", "--id", "name", *quick, "--out", "whole") == 0
    Path("new.csv").write_text("name,size,kind\nx,3.1,\ny,0.2,\n")
    assert run("predict", "whole", "new.csv", "-o", "whole-out.csv") == 0
    bare, whole = (Path(f"{name}-out.csv").read_text() for name in ("bare", "whole"))
    assert bare.partition("\n")[2] == whole.partition("\n")[2]


def test_a_file_takes_the_place_of_a_dataset_s_name(table: Path) -> None:
    from difformer.jobs.job import Experiment
    from difformer.jobs.rows import load_data

    experiment = Experiment.make(str(table), data={"label": "kind", "id": "name"})
    assert load_data(experiment).num_features == 1


def test_compare_takes_a_table_in_a_dataset_s_place(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--label", "kind", "--id", "name", "--models", "mlp,difformer-s", "--splits", "2"]
    assert run("compare", "t.csv", *words, "--epochs", "3", "--workers", "0", "--json") == 0
    assert {row["system"] for row in json.loads(capsys.readouterr().out)["rows"]} >= {"mlp"}


def test_kinds_and_the_task_may_be_said(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--id", "name", "--epochs", "2", "--hidden-channels", "16", "--no-report"]
    rows = [f"n{i},{i % 3},{i % 2 * 3 + i / 40},{i % 7}" for i in range(40)]
    Path("u.csv").write_text("name,size,other,y\n" + "\n".join(rows) + "\n")
    words += ["--task", "regression", "--kind", "size=category", "--kind", "other=skip", "--json"]
    assert run("train", "u.csv", "--label", "y", *words) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["task"], result["features"]) == ("regression", 3)
    from difformer.runs.open import load_run

    again = load_run(result["folder"]).table  # the table is read again, with the same options
    assert (again.task, again.num_features) == ("regression", 3)


def test_a_recipe_without_biases_trains_a_table_and_predicts_new_rows(table: Path) -> None:
    words = ["--label", "kind", "--id", "name", "--recipe", "linear", "--epochs", "2"]
    assert run("train", "t.csv", *words, "--no-report", "--out", "r") == 0
    assert run("predict", "r", "new.csv", "--out", "out.csv") == 0
    assert [line[:2] for line in Path("out.csv").read_text().splitlines()] == ["na", "x,", "y,"]


def test_help_signature_and_run_have_one_default(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from difformer import DIFFormerClassifier
    from difformer.train.folder import read_config

    defaults = DIFFormerClassifier().get_params()
    assert run("train", "--help") == 0
    shown = " ".join(re.sub(r"[│╭╮╰╯─]", " ", capsys.readouterr().out).split())
    for name in ("epochs", "lr", "weight_decay", "patience"):
        assert f"--{name.replace('_', '-')} {defaults[name]}" in shown
    words = ["--label", "kind", "--id", "name", "--no-report", "--hidden-channels", "8"]
    assert run("train", "t.csv", *words) == 0
    kept = read_config(Path("runs/t-1/config.toml"))["own"]
    different = {name for name, value in kept.items() if value != defaults[name]}
    assert different == {"random_state", "hidden_channels"}
