"""A newcomer's own files, made here and as messy as they come: from the file to the answers.

Each test plays a case that a person meets, through the commands as they are typed. How exact the
parts are, is held by their own tests.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from difformer.app import cli

QUICK = ["--recipe", "alone", "--epochs", "8", "--hidden-channels", "8"]
HEAD = ["patient", "age", "income", "city", "seen", "same", "smoker", "state", "price"]


def run(*words: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in words])
    return int(ended.value.code or 0)


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
    encoding = how.pop("encoding", "utf-8")
    with path.open("w", encoding=encoding, newline="") as file:
        csv.writer(file, **how).writerows([head, *rows])
    return path


def table_of(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


@pytest.fixture(scope="module")
def classified(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


# --- tables ----------------------------------------------------------------------------------


def test_bad_cells_are_told_with_row_and_column_and_do_not_change_a_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
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


def test_labels_of_minus_one_and_two_targets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [[*r[:5], r[6], str({"ill": 1, "well": 0}.get(r[7], -1)), r[8]] for r in patients()]
    path = write(tmp_path / "t.csv", rows, [*HEAD[:5], "smoker", "y", "price"])
    words = ["--label", "y", "--kind", "price=skip", "--no-report", "--json", *QUICK]
    assert run("train", "--nodes", path, *words, "--out", tmp_path / "one") == 0
    one = json.loads(capsys.readouterr().out)
    assert (one["task"], len(table_of((tmp_path / "one/predictions.csv").read_text()))) == (
        "multiclass",
        41,
    )
    both = [[r[0], r[1], r[3], r[6] if r[7] else "", r[8]] for r in patients()]
    number = [[*r[:3], str(float(r[4]) / 7) if r[4] else "", r[4]] for r in both]
    path = write(tmp_path / "two.csv", number, ["id", "age", "city", "a", "b"])
    words = ["--label", "a", "--label", "b", "--id", "id", "--out", tmp_path / "two"]
    assert run("train", "--nodes", path, *words, "--no-report", "--json", *QUICK) == 0
    assert json.loads(capsys.readouterr().out)["task"] == "regression"
    lines = table_of((tmp_path / "two/predictions.csv").read_text())
    assert lines[0][:3] == ["id", "a", "b"]
    assert all(float(b) == pytest.approx(7 * float(a), rel=0.2) for _, a, b, *_ in lines[1:])


def test_answers_go_where_a_person_says_and_replace_nothing_else(
    classified: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["predict", classified / "run", classified / "new.csv"]
    assert run(*words, "-o", "-", "--level", "0.9") == 0
    found = capsys.readouterr()
    lines = table_of(found.out)
    assert [line[0] for line in lines] == ["patient", *(f"N{i}" for i in range(6))]
    assert {"probability of ill", "probability of well"} <= set(lines[0])
    assert "surprise" in found.err
    out, link = tmp_path / "out.csv", tmp_path / "link.csv"
    out.write_text("mine\n")
    assert run(*words, "-o", out) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert out.read_text() == "mine\n"
    link.symlink_to(out)
    assert run(*words, "-o", link, "--overwrite") == 0
    assert link.is_symlink()
    assert out.read_text().startswith("patient,")
    assert run(*words, "-o", os.devnull) == 0
    assert not Path(os.devnull).is_file()  # written to, and never replaced


def test_edges_among_new_rows_change_their_answers(
    classified: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["predict", classified / "run", classified / "new.csv", "-o", "-"]
    assert run(*words) == 0
    without = table_of(capsys.readouterr().out)
    assert run(*words, "--edges", classified / "new_edges.csv") == 0
    joined = table_of(capsys.readouterr().out)
    assert joined[1] != without[1]
    assert joined[5] == without[5]  # no edge of its own


def test_a_data_frame_is_typed_as_the_file_is(classified: Path) -> None:
    pandas = pytest.importorskip("pandas")
    import difformer

    frame = pandas.read_csv(classified / "t.csv", dtype=str, keep_default_na=False)
    data = difformer.read_table(frame, "state", id="patient", kinds={"price": "skip"})
    file = difformer.read_table(
        classified / "t.csv", "state", id="patient", kinds={"price": "skip"}
    )
    np.testing.assert_array_equal(data.x.numpy(), file.x.numpy())
    polars = pytest.importorskip("polars")
    other = difformer.read_table(
        polars.from_pandas(frame), "state", id="patient", kinds={"price": "skip"}
    )
    np.testing.assert_array_equal(other.x.numpy(), file.x.numpy())


def test_the_page_is_small_and_asks_nothing_of_the_network(classified: Path) -> None:
    page = (classified / "run/report.html").read_text(encoding="utf-8")
    assert len(page.encode()) < 3_000_000
    assert not re.search(r"""(src|href)=["']https?://""", page)
    for part in ("What was read", "Predictions", "Which columns matter", "What a threshold"):
        assert part in page


# --- series ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flu(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    lines[50][1] = ""
    lines[60][2] = "closed"
    head = ["week", *(f"d{j:02d}" for j in range(nodes))]
    write(folder / "flu.csv", lines[:70] + lines[71:-1], head)  # a week is left out
    write(folder / "newer.csv", lines[:70] + lines[71:], head)
    pairs = [[f"d{j:02d}", f"d{(j + 1) % nodes:02d}"] for j in range(nodes)]
    write(folder / "edges.csv", pairs, ["source", "target"])
    return folder


def test_counts_as_they_are_beat_what_is_simple_and_are_forecast_again_from_newer_ones(
    flu: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("difformer.estimators.backtest.MOST_NODES", 0)  # statsforecast is slow
    words = ["--edges", flu / "edges.csv", "--out", flu / "run", "--epochs", "60", "--json"]
    assert run("train", "--series", flu / "flu.csv", *words) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told["naive_nodes"]) == {"d03", "d07"}
    notes = " ".join(told["notes"])
    assert "closed" in notes
    errors = {name: found["mse"] for name, found in told["backtest"]["methods"].items()}
    ours = errors.pop("DIFFormer")
    assert set(errors) >= {"last value", "seasonal naive", "AR", "AR with neighbours"}
    assert ours < min(errors.values())
    assert len(told["backtest"]["methods"]["DIFFormer"]["mse_by_step"]) == 4
    assert run("predict", flu / "run", "--series", flu / "newer.csv", "-o", "-") == 0
    lines = table_of(capsys.readouterr().out)
    assert lines[1][0] == "2006-11-06"
    assert len(lines) == 5
    assert all(float(cell) >= 0 for line in lines[1:] for cell in line[1:])  # they are counts
    page = (flu / "run/report.html").read_text(encoding="utf-8")
    assert "Error by step" in page
    assert len(page.encode()) < 3_000_000
