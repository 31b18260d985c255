"""A newcomer's own tables, as messy as they come: train, predict and compare as they are typed.

How exact the parts are, is held by their own tests.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import difformer
from difformer.train.folder import read_config

Run = Callable[..., int]
Printed = pytest.CaptureFixture[str]

QUICK = ["--recipe", "alone", "--epochs", "8", "--hidden-channels", "8"]
HEAD = ["patient", "age", "income", "city", "seen", "same", "smoker", "state", "price"]


def patients(n: int = 160) -> list[list[str]]:
    """One bad age, one bad date, missing ages, a constant, ids, dates, labels for three of four."""
    draw = np.random.default_rng(0)
    rows: list[list[str]] = []
    for i in range(n):
        age, smokes = int(draw.integers(18, 80)), bool(draw.random() < 0.5)
        income = float(np.round(np.exp(draw.normal(10.3, 0.4)), 2))
        city = str(draw.choice(["München", "Köln", "Zürich"]))
        ill = 0.06 * (age - 48) + 2 * smokes + draw.normal() > 1
        price = 120_000 + 900 * age + 1.5 * income + draw.normal(0, 4000)
        day = str(np.datetime64("2019-01-01") + int(draw.integers(700)))
        known = i % 4 > 0
        shown = "forty" if i == 17 else "" if i in (5, 6) else str(age)
        day = "31.12.2019" if i == 40 else day
        answers = ["ill" if ill else "well", f"{price:.2f}"] if known else ["", ""]
        smoker = "yes" if smokes else "no"
        rows.append([f"P{i:03d}", shown, str(income), city, day, "x", smoker, *answers])
    return rows


def write(path: Path, rows: list[list[str]], head: list[str] = HEAD, **how: Any) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, **how).writerows([head, *rows])
    return path


def table_of(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


@pytest.fixture(scope="module")
def classified(tmp_path_factory: pytest.TempPathFactory, run: Run) -> Path:
    """A run on the messy table, with a graph that names ids, and files of new rows."""
    folder = tmp_path_factory.mktemp("newcomer")
    write(folder / "t.csv", patients())
    pairs = [[f"P{i:03d}", f"P{(i * 7 + 1) % 160:03d}"] for i in range(160)]
    write(folder / "edges.csv", pairs, ["from", "to"])
    new = [[f"N{i}", str(20 + 8 * i), "30000", "Köln", "2020-01-01", "x", "yes"] for i in range(6)]
    write(folder / "new.csv", [[*row, "?"] for row in new], [*HEAD[:7], "surprise"])
    write(folder / "new_edges.csv", [["N0", "N1"], ["N2", "P003"]], ["from", "to"])
    words = ["--label", "state", "--id", "patient", "--kind", "price=skip"]
    words += ["--edges", str(folder / "edges.csv"), "--out", str(folder / "run")]
    assert run("train", "--nodes", folder / "t.csv", *words, "--recipe", "stable", *QUICK[2:]) == 0
    return folder


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clean table in the folder to work in, and new rows."""
    monkeypatch.chdir(tmp_path)
    rows = [f"n{i},{i % 2 * 3 + i / 40},{'ab'[i % 2] if i < 30 else ''}" for i in range(40)]
    (tmp_path / "t.csv").write_text("name,size,kind\n" + "\n".join(rows) + "\n")
    (tmp_path / "new.csv").write_text("name,size\nx,3.1\ny,0.2\n")
    return tmp_path / "t.csv"


def test_bad_cells_are_told_with_row_and_column_and_do_not_change_a_kind(
    run: Run, tmp_path: Path, capsys: Printed
) -> None:
    write(tmp_path / "t.csv", patients())
    words = ["--label", "state", "--out", str(tmp_path / "run"), "--no-report", *QUICK]
    assert run("train", "--nodes", tmp_path / "t.csv", *words) == 0
    shown = capsys.readouterr().out
    assert re.search(r"age\s+number\s.*2 empty.*1 not numbers.*\(row 18: 'forty'\)", shown)
    assert re.search(r"seen\s+date\s.*1 not dates.*\(row 41: '31.12.2019'\)", shown)
    assert re.search(r"same\s+skip\s.*the same in every row", shown)
    assert re.search(r"patient\s+skip\s.*an identifier", shown)
    assert re.search(r"state\s+label\s.*2 classes; 40 empty, to predict", shown)


def test_separators_decimal_commas_and_grouped_numbers_give_the_same_columns(
    run: Run, tmp_path: Path, capsys: Printed
) -> None:
    rows = patients()
    german = [[*r[:2], r[2].replace(".", ","), *r[3:8], r[8].replace(".", ",")] for r in rows]
    english = [[*r[:2], f"{float(r[2]):,.2f}", *r[3:]] for r in rows]
    files = [
        write(tmp_path / "plain.csv", rows),
        write(tmp_path / "tabs.tsv", rows, delimiter="\t"),
        write(tmp_path / "german.csv", german, delimiter=";"),
        write(tmp_path / "english.csv", english),
    ]
    found: list[float] = []
    for path in files:
        words = ["--label", "price", "--out", str(path.with_suffix("")), "--no-report", *QUICK]
        assert run("train", "--nodes", path, *words, "--json") == 0
        found.append(json.loads(capsys.readouterr().out)["held_out"]["metrics"]["mae"])
    assert found == pytest.approx([found[0]] * 4)
    assert 1_000 < found[0] < 60_000  # in the units of the price


def test_labels_of_minus_one_and_two_targets(run: Run, tmp_path: Path, capsys: Printed) -> None:
    rows = [[*r[:5], r[6], str({"ill": 1, "well": 0}.get(r[7], -1)), r[8]] for r in patients()]
    path = write(tmp_path / "t.csv", rows, [*HEAD[:5], "smoker", "y", "price"])
    quiet = ["--no-report", "--json", *QUICK]
    words = ["--label", "y", "--kind", "price=skip", *quiet, "--out", tmp_path / "one"]
    assert run("train", "--nodes", path, *words) == 0
    assert json.loads(capsys.readouterr().out)["task"] == "multiclass"
    assert len(table_of((tmp_path / "one/predictions.csv").read_text())) == 41
    both = [[r[0], r[1], r[3], r[6] if r[7] else "", r[8]] for r in patients()]
    number = [[*r[:3], str(float(r[4]) / 7) if r[4] else "", r[4]] for r in both]
    path = write(tmp_path / "two.csv", number, ["id", "age", "city", "a", "b"])
    words = ["--label", "a", "--label", "b", "--id", "id", "--out", tmp_path / "two", *quiet]
    assert run("train", "--nodes", path, *words) == 0
    assert json.loads(capsys.readouterr().out)["task"] == "regression"
    lines = table_of((tmp_path / "two/predictions.csv").read_text())
    assert lines[0][:3] == ["id", "a", "b"]
    assert all(float(b) == pytest.approx(7 * float(a), rel=0.2) for _, a, b, *_ in lines[1:])


def test_answers_go_where_a_person_says_and_replace_nothing_else(
    run: Run, classified: Path, tmp_path: Path, capsys: Printed
) -> None:
    words = ["predict", classified / "run", classified / "new.csv"]
    assert run(*words, "-o", "-", "--level", "0.9") == 0
    found = capsys.readouterr()
    lines = table_of(found.out)
    assert [line[0] for line in lines] == ["patient", *(f"N{i}" for i in range(6))]
    assert {"probability of ill", "probability of well"} <= set(lines[0])
    assert "surprise" in found.err
    out = tmp_path / "out.csv"
    out.write_text("mine\n")
    assert run(*words, "-o", out) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert out.read_text() == "mine\n"
    assert run(*words, "-o", out, "--overwrite") == 0
    assert out.read_text().startswith("patient,")
    assert run(*words, "-o", os.devnull) == 0
    assert not Path(os.devnull).is_file()  # written to, and never replaced
    # Edges among new rows change the answers of those that they join.
    capsys.readouterr()
    assert run(*words, "-o", "-") == 0
    without = table_of(capsys.readouterr().out)
    assert run(*words, "-o", "-", "--edges", classified / "new_edges.csv") == 0
    joined = table_of(capsys.readouterr().out)
    assert joined[1] != without[1]
    assert joined[5] == without[5]


def test_a_table_is_shown_trained_on_and_predicted_with(
    run: Run, table: Path, capsys: Printed
) -> None:
    words = ["--label", "kind", "--id", "name", "--epochs", "15", "--hidden-channels", "16"]
    assert run("train", "--nodes", "t.csv", *words) == 0
    shown, told = capsys.readouterr()
    assert re.search(r"size\s+number\s+scaled", shown)
    assert "graph: " in told
    page = Path("runs/t-1/report.html").read_text(encoding="utf-8")
    for sentence in ("Accuracy ", "Compared with simple methods on held-out labels"):
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


def test_a_table_without_a_header_gives_the_same_answers(run: Run, table: Path) -> None:
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


def test_a_file_takes_a_dataset_s_place_in_compare_and_in_python(
    run: Run, table: Path, capsys: Printed
) -> None:
    words = ["--label", "kind", "--id", "name", "--models", "mlp,difformer-s", "--splits", "2"]
    assert run("compare", "t.csv", *words, "--epochs", "3", "--workers", "0", "--json") == 0
    assert {row["system"] for row in json.loads(capsys.readouterr().out)["rows"]} >= {"mlp"}
    from difformer.jobs.job import Experiment
    from difformer.jobs.rows import load_data

    experiment = Experiment.make(str(table), data={"label": "kind", "id": "name"})
    assert load_data(experiment).num_features == 1


def test_kinds_and_the_task_may_be_said(run: Run, table: Path, capsys: Printed) -> None:
    words = ["--id", "name", "--epochs", "2", "--hidden-channels", "16", "--no-report"]
    rows = [f"n{i},{i % 3},{i % 2 * 3 + i / 40},{i % 7}" for i in range(40)]
    Path("u.csv").write_text("name,size,other,y\n" + "\n".join(rows) + "\n")
    words += ["--task", "regression", "--kind", "size=category", "--kind", "other=skip", "--json"]
    assert run("train", "u.csv", "--label", "y", *words) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["task"], result["features"]) == ("regression", 3)
    from difformer.runs.open import load_run

    again = load_run(result["folder"]).table  # the table is read again, with the same options
    assert again is not None
    assert (again.task, again.num_features) == ("regression", 3)


def test_help_signature_and_run_have_one_default(run: Run, table: Path, capsys: Printed) -> None:
    defaults = difformer.DIFFormerClassifier().get_params()
    assert run("train", "--help") == 0
    shown = " ".join(re.sub(r"[│╭╮╰╯─]", " ", capsys.readouterr().out).split())
    for name in ("epochs", "lr", "weight_decay", "patience"):
        assert f"--{name.replace('_', '-')} {defaults[name]}" in shown
    words = ["--label", "kind", "--id", "name", "--no-report", "--hidden-channels", "8"]
    assert run("train", "t.csv", *words) == 0
    kept = read_config(Path("runs/t-1/config.toml"))["own"]
    different = {name for name, value in kept.items() if value != defaults[name]}
    assert different == {"random_state", "hidden_channels"}
    # A recipe without biases trains a table too, and predicts new rows.
    words = ["--label", "kind", "--id", "name", "--recipe", "linear", "--epochs", "2"]
    assert run("train", "t.csv", *words, "--no-report", "--out", "r") == 0
    assert run("predict", "r", "new.csv", "--out", "out.csv") == 0
    assert [line[:2] for line in Path("out.csv").read_text().splitlines()] == ["na", "x,", "y,"]
