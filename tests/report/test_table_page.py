"""The page of a run on a table: what a person sees of it, and that the figures are right."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from difformer.blocks import Finder
from difformer.data.dataset import Dataset
from difformer.data.table.read import read_table
from difformer.estimators.settings import ONE_FORM
from difformer.jobs.own import OwnRun
from difformer.jobs.table import HeldOut, column_importance, train_own
from difformer.report.predictions import roc_blocks
from difformer.report.run_page import write_report
from difformer.report.table_page import headline, table_sections
from difformer.runs.open import load_run, open_table
from difformer.runs.run import read_run

EVIL = "</script><img src=x onerror=alert(1)>"


def make_table(path: Path, label: str, n: int = 240) -> Path:
    """Rooms decide the label, the age a little, the noise nothing; a quarter is unlabelled."""
    draw = np.random.default_rng(0)
    rooms, age, noise = draw.integers(1, 8, n), draw.uniform(0, 80, n), draw.normal(size=n)
    price = 1000 * (100 + 60 * rooms - 0.3 * age + draw.normal(0, 20, n))
    kinds = np.where(rooms + draw.normal(0, 1, n) > 4, EVIL, "small")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["house", "rooms", "age", "noise", label])
        for i in range(n):
            known = f"{price[i]:.2f}" if label == "price" else kinds[i]
            age_cell = "" if i % 19 == 0 else f"{age[i]:.1f}"
            line = [f"h{i}", rooms[i], age_cell, f"{noise[i]:.3f}"]
            writer.writerow([*line, known if i % 4 else ""])
    return path


def make_run(folder: Path, label: str, **more: Any) -> Path:
    nodes = str(make_table(folder / "t.csv", label))
    table: dict[str, Any] = {"nodes": nodes, "label": label, "id": "house"}
    data = read_table(**table)
    params = {"epochs": 30, "hidden_channels": 16, **more}
    _, run = train_own(data, folder / "run", params, table=table)
    assert run is not None
    loaded = open_table(folder / "run", run, data)
    write_report(folder / "run", loaded=loaded, projection="pca")
    return folder / "run"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    labels = ("price", "size")
    return {label: make_run(tmp_path_factory.mktemp(label), label) for label in labels}


def text_of(run: Path) -> str:
    return (run / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("label", ["price", "size"])
def test_the_page_says_first_how_good_it_is_and_folds_what_is_inside(
    runs: dict[str, Path], label: str
) -> None:
    page = text_of(runs[label])
    sections = re.findall(r'<section id="(\w[\w-]*)"', page)
    assert sections[:5] == ["result", "read", "rows", "quality", "columns"]
    folded = re.findall(r'<details class="folded"><summary><h2 id="(\w+)-title"', page)
    assert {"energy", "diffusivity", "states", "cost", "settings"} <= set(folded)
    assert not {"result", "read", "rows", "quality", "columns"} & set(folded)
    result = json.loads((runs[label] / "result.json").read_text())
    assert f"on {result['held_out']['rows']} labelled rows held out" in page
    assert "240 rows: 180 with a label, 60 to predict." in page
    assert "13 empty: the mean, and a flag" in page  # of age: every nineteenth
    assert len(page) < 3_000_000
    assert "missing" not in sections
    assert '<th scope="row">recipe</th>' in page
    assert not any(f'<th scope="row">{name}</th>' in page for name in ONE_FORM)
    assert EVIL not in page


def test_a_page_from_memory_is_the_one_from_the_folder(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    again = write_report(runs["price"], projection="pca", out=tmp_path / "page.html")
    assert again.read_bytes() == (runs["price"] / "report.html").read_bytes()


def test_the_first_sentence_says_what_matters() -> None:
    def said(**told: Any) -> str:
        ends = {name: [0.0, 1.0] for name in told["metrics"]}
        return headline({"held_out": {"rows": 90, "intervals": ends, **told}})

    skewed = {"accuracy": 0.951, "roc_auc": 0.853}
    first = said(metrics=skewed, baseline={"accuracy": 0.951, "roc_auc": 0.5})
    assert first.startswith("Area under the ROC curve 0.853 (95 % interval 0 to 1) on 90 labelled")
    assert said(metrics=skewed, baseline={"accuracy": 0.6}).startswith("Accuracy 0.951")
    numbers = said(metrics={"r2": 0.9, "mae": 688.0}, baseline={"r2": 0.0})
    assert numbers.endswith("0 without any column. Mean absolute error 688.")
    several = {"roc_auc_sport": 0.99, "accuracy_sport": 0.9, "roc_auc_wine": 0.8}
    told = said(metrics=several, baseline={})
    assert told == "Area under the ROC curve on 90 labelled rows held out: sport 0.99, wine 0.8."


def test_ours_stands_among_the_simple_methods_by_its_score(runs: dict[str, Path]) -> None:
    page = text_of(runs["price"])
    assert "ridge regression" in page
    assert "logistic" not in page
    result = json.loads((runs["price"] / "result.json").read_text())
    scores = {p["title"]: p["value"] for p in result["peers"]}
    scores["DIFFormer (this run)"] = result["held_out"]["metrics"]["rmse"]
    table = page[page.index("best first.") : page.index('<section id="read"')]
    shown = re.findall(r'<th scope="row">(.*?)</th>', table)
    assert shown == sorted(scores, key=scores.__getitem__)


def test_the_page_carries_no_more_rows_than_keep_it_small(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("difformer.report.table_page.MOST_CELLS", 210)
    sections = table_sections(read_run(runs["size"]), load_run(runs["size"]))
    (found,) = (b for s in sections for b in s.blocks if isinstance(b, Finder))
    assert len(found.header) == 7
    assert len(found.rows) == 30
    assert found.caption.endswith("30 of 240 rows.")


def test_rows_that_nothing_joins_do_not_meet(tmp_path: Path) -> None:
    page = text_of(make_run(tmp_path, "price", kernel="identity"))
    assert "Rows do not meet: the model has no graph." in page


def test_figures_of_a_regression_are_in_the_units_of_the_label(runs: dict[str, Path]) -> None:
    page = text_of(runs["price"])
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S).group(1))  # type: ignore[union-attr]
    for name in ("predicted-price", "residuals-price"):
        assert name in data["plots"]
    _, points = data["plots"]["predicted-price"]["data"]
    assert min(points["y"]) > 50_000  # predictions near zero were standardised ones
    x, y = np.array(points["x"]), np.array(points["y"])
    told = json.loads((runs["price"] / "result.json").read_text())["held_out"]["metrics"]
    assert np.abs(x - y).mean() == pytest.approx(told["mae"], rel=0.01)
    found = data["finders"]["rows"]
    assert found["header"][:3] == ["house", "true price", "price"]
    # A row without a value is drawn with its prediction, in the units of the label.
    explorer = data["explorer"]
    assert [value is None for value in explorer["value"]] == [i % 4 == 0 for i in range(240)]
    predicted = held_out(runs["price"])[0].estimator.transduction_.ravel()
    np.testing.assert_allclose(explorer["guess"], predicted, rtol=1e-3)
    assert "curve-loss" not in data["plots"]  # each curve once: the loss is the rmse again


def held_out(run: Path) -> tuple[OwnRun, Dataset, HeldOut]:
    loaded = load_run(run)
    own, table = loaded.own, loaded.table
    assert own is not None
    assert table is not None
    kept = HeldOut.of(own, table)
    assert kept is not None
    return own, table, kept


def test_column_importance_finds_the_column_that_decides(runs: dict[str, Path]) -> None:
    for label in ("price", "size"):
        own, table, kept = held_out(runs[label])
        metric, found = column_importance(own, table, kept)
        assert metric == {"price": "rmse", "size": "log_loss"}[label]
        names = [name for name, _ in found]
        values = dict(found)
        assert names[0] == "rooms"
        assert set(names) == {"rooms", "age", "noise"}
        assert abs(values["noise"]) < values["rooms"] / 3


def test_what_was_held_out_is_read_back(runs: dict[str, Path]) -> None:
    for label in ("price", "size"):
        own, _, kept = held_out(runs[label])
        with (runs[label] / "held_out.csv").open(encoding="utf-8", newline="") as file:
            _, *lines = csv.reader(file)
        assert [line[0] for line in lines] == [own.ids[row] for row in kept.rows]
        told = json.loads((runs[label] / "result.json").read_text())["held_out"]["metrics"]
        assert kept.metrics() == pytest.approx(told, rel=1e-5)


def test_the_curves_of_two_classes_are_those_of_scikit_learn() -> None:
    draw = np.random.default_rng(0)
    truth = draw.integers(2, size=200)
    chance = np.round(np.clip(truth * 0.3 + draw.uniform(size=200) * 0.7, 0, 1), 1)  # with ties
    roc, pr, table = roc_blocks(truth, chance, "yes")
    area = float(re.search(r"area ([\d.]+)", roc.caption).group(1))  # type: ignore[union-attr]
    assert area == pytest.approx(roc_auc_score(truth, chance), abs=1e-3)
    average = float(re.search(r"precision ([\d.]+);", pr.caption).group(1))  # type: ignore[union-attr]
    assert average == pytest.approx(average_precision_score(truth, chance), abs=1e-3)
    assert len(table.rows) == 9
    for threshold, *told in table.rows:
        guess = chance >= float(threshold)
        right = f"{truth[guess].mean():.3f}" if guess.any() else "–"
        shares = (truth[guess].sum() / truth.sum(), (guess == truth).mean())
        assert told == [str(guess.sum()), right, *(f"{share:.3f}" for share in shares)]
    assert roc_blocks(np.ones(5, int), chance[:5], "yes") == []
