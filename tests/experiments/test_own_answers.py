"""What a run on a table says of itself, in the table's own units, and where its answers go."""

from __future__ import annotations

import csv
import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from difformer.data.table.read import read_table
from difformer.errors import DataError, RunError
from difformer.jobs.table import HeldOut, score, train_own
from difformer.runs.answer import predict_run

ONE = {"kernel": "simple", "early_stopping": True}  # one form, by its validation rows
FEW = {"epochs": 60, "hidden_channels": 16, "graph": None, **ONE}


def houses(n: int, seed: int = 0) -> dict[str, list[Any]]:
    """Rooms, age and price (around 300,000) of houses, and whether they have a garden."""
    draw = np.random.default_rng(seed)
    rooms, age = draw.integers(1, 8, n), draw.uniform(0, 80, n)
    price = 100_000 + 60_000 * rooms - 900 * age + draw.normal(0, 20_000, n)
    garden = (rooms + draw.normal(0, 1, n) > 4).astype(int)
    return {
        "house": [f"h{i}" for i in range(n)],
        "rooms": rooms.tolist(),
        "age": age.round(2).tolist(),
        "price": price.round(2).tolist(),
        "rent": (price / 250).round(2).tolist(),
        "garden": garden.tolist(),
        "garage": (1 - garden).tolist(),
    }


def only(table: dict[str, list[Any]], *labels: str) -> dict[str, list[Any]]:
    """The houses with some of their labels."""
    return {name: table[name] for name in ("house", "rooms", "age", *labels)}


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def priced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    table = only(houses(300), "price")
    table["price"][200:] = [None] * 100
    folder = tmp_path_factory.mktemp("houses") / "run"
    train_own(read_table(table, "price", id="house"), folder, FEW)
    return folder


def test_a_regression_is_scored_in_the_units_of_its_label(priced: Path) -> None:
    result = json.loads((priced / "result.json").read_text())
    told = result["held_out"]
    kept = lines(priced / "held_out.csv")
    assert told["rows"] == len(kept) >= 40
    truth = np.array([float(row["true price"]) for row in kept])
    found = np.array([float(row["price"]) for row in kept])
    prices = dict(zip(houses(300)["house"], houses(300)["price"], strict=True))
    assert truth.tolist() == [prices[row["house"]] for row in kept]  # to the last digit
    by_hand = {
        "r2": 1 - np.square(truth - found).sum() / np.square(truth - truth.mean()).sum(),
        "mae": np.abs(truth - found).mean(),
        "rmse": np.sqrt(np.square(truth - found).mean()),
    }
    assert told["metrics"] == pytest.approx(by_hand, rel=1e-5)
    assert result["metrics"] == {"val": told["metrics"]}
    assert result["validation"] == told["metrics"]
    assert told["metrics"]["r2"] > 0.6
    assert 5_000 < told["metrics"]["mae"] < 60_000
    assert told["baseline"]["r2"] == pytest.approx(0, abs=1e-9)
    for name, (low, high) in told["intervals"].items():
        assert low < told["metrics"][name] < high
    curve = lines(priced / "metrics.csv")
    assert "val_loss" not in curve[0]  # each curve once: the loss is the rmse again
    best = min(float(row["val_rmse"]) for row in curve)
    assert best == pytest.approx(told["metrics"]["rmse"], rel=0.05)


def test_new_rows_get_intervals_at_the_level_asked_for(priced: Path, tmp_path: Path) -> None:
    new = houses(400, seed=1)
    predict_run(priced, only(new), tmp_path / "o.csv", level=0.8)
    found = lines(tmp_path / "o.csv")
    assert list(found[0])[:4] == ["house", "price", "price from 80 %", "price to 80 %"]
    inside = [
        float(row["price from 80 %"]) <= price <= float(row["price to 80 %"])
        for row, price in zip(found, new["price"], strict=True)
    ]
    assert 0.68 < np.mean(inside) < 0.92
    with pytest.raises(ValueError, match="level must lie between 0 and 1, got 90"):
        predict_run(priced, new, tmp_path / "p.csv", level=90)


def test_a_label_far_from_zero_is_scored_and_written_as_one_near_it(
    priced: Path, tmp_path: Path
) -> None:
    unit = 1e6  # microseconds since 1970
    table = only(houses(300), "price")
    when = [(1.7e9 + price / 1e4) * unit for price in table.pop("price")]  # a minute around a time
    table["when"] = [*when[:200], *[None] * 100]
    result, own = train_own(read_table(table, "when", id="house", task="regression"), tmp_path, FEW)
    assert own is not None
    near = json.loads((priced / "result.json").read_text())
    told, beside = result["held_out"], near["held_out"]
    assert told["metrics"]["r2"] == pytest.approx(beside["metrics"]["r2"], abs=1e-3)
    assert told["baseline"]["r2"] == pytest.approx(0, abs=1e-9)
    assert told["baseline"]["mae"] == pytest.approx(
        beside["baseline"]["mae"] / 1e4 * unit, rel=1e-3
    )
    peers = {peer["system"]: peer["value"] / unit for peer in result["peers"]}
    assert peers == pytest.approx({p["system"]: p["value"] / 1e4 for p in near["peers"]}, rel=1e-2)
    written = [float(row["when"]) for row in lines(tmp_path / "predictions.csv")]
    assert written == own.estimator.transduction_[200:].tolist()  # the same numbers, all digits
    assert len(set(written)) == len({row["price"] for row in lines(priced / "predictions.csv")})
    truth = [float(row["true when"]) for row in lines(tmp_path / "held_out.csv")]
    assert set(truth) <= set(when)


def test_several_numbers_are_predicted_together_each_in_its_units(tmp_path: Path) -> None:
    table = only(houses(250), "price", "rent")
    table["price"][200:] = [None] * 50
    table["rent"][200:] = [None] * 50
    result, _ = train_own(read_table(table, ["price", "rent"], id="house"), tmp_path / "run", FEW)
    assert result["validation"]["r2_price"] > 0.7
    ratio = result["validation"]["mae_price"] / result["validation"]["mae_rent"]
    assert 100 < ratio < 600
    filled = lines(tmp_path / "run" / "predictions.csv")
    assert list(filled[0]) == ["house", "price", "rent", "influential"]
    truth = np.array(houses(250)["rent"][200:])
    assert np.corrcoef(truth, [float(row["rent"]) for row in filled])[0, 1] > 0.8


def test_every_class_has_its_probability_and_a_set_may_be_asked_for(tmp_path: Path) -> None:
    table = only(houses(300), "garden")
    table["garden"] = [
        ("bare", "small", "large")[v + (i % 7 == 0)] for i, v in enumerate(table["garden"])
    ]
    train_own(read_table(table, "garden", id="house"), tmp_path / "run", FEW)
    predict_run(tmp_path / "run", table, tmp_path / "o.csv", level=0.9)
    for row in lines(tmp_path / "o.csv"):
        chances = {n: float(row[f"probability of {n}"]) for n in ("bare", "small", "large")}
        assert sum(chances.values()) == pytest.approx(1, abs=1e-6)
        assert max(chances, key=chances.__getitem__) == row["garden"]
        assert float(row["probability"]) == max(chances.values())
        assert row["garden"] in row["90 % set"].split("; ")


def test_the_interval_of_a_share_is_wilsons() -> None:
    """Of 4 of 4 it begins at 4 / (4 + 1.96²); of many it is as wide as a binomial's."""
    truth = np.array([0, 1, 0, 1])
    chance = np.eye(2)[truth] * 0.8 + 0.1
    told = score(HeldOut("multiclass", np.arange(4), truth, chance, ("a", "b")))
    assert told["intervals"]["accuracy"] == pytest.approx([4 / (4 + 1.96**2), 1], abs=1e-3)
    labels = np.array([[0.0, 1.0], [1.0, np.nan], [0.0, np.nan], [1.0, 0.0]])
    found = np.nan_to_num(labels) * 0.8 + 0.1
    told = score(HeldOut("multilabel", np.arange(4), labels, found, ("a", "b")))
    assert told["intervals"]["accuracy_b"] == pytest.approx([2 / (2 + 1.96**2), 1], abs=1e-3)
    draw = np.random.default_rng(0)
    for m in (100, 1600):
        truth, chance = draw.integers(2, size=m), draw.dirichlet((1, 1), size=m)
        told = score(HeldOut("multiclass", np.arange(m), truth, chance, ("a", "b")))
        (low, high), p = told["intervals"]["accuracy"], told["metrics"]["accuracy"]
        assert high - low == pytest.approx(2 * 1.96 * np.sqrt(p * (1 - p) / m), rel=0.2)
    assert score(None) == {}


def test_new_columns_and_bad_cells_are_told_of_and_passed_over(
    priced: Path, tmp_path: Path
) -> None:
    new, notes = houses(40, seed=2), list[str]()

    def predicted(table: dict[str, list[Any]]) -> str:
        predict_run(priced, table, tmp_path / "o.csv", tell=notes.append, overwrite=True)
        return (tmp_path / "o.csv").read_text()

    found = predicted(new)
    assert notes == ["the table: ignored, because not in training: rent, garden, garage"]
    plain = only(new)
    assert predicted(plain) == found
    plain["age"] = [*plain["age"][:7], None, *plain["age"][8:]]
    empty = predicted(plain)
    assert len(notes) == 1
    plain["age"][7] = "forty"
    assert predicted(plain) == empty
    where = "row 8, column 'age': 'forty'"
    assert notes[1:] == [f"the table: 1 cell taken as empty, because not as in training: {where}"]
    plain["age"] = [str(age).replace(".", ",") for age in new["age"]]
    with pytest.raises(DataError, match=r"row 1, column 'age': .* written 1234\.5 in training"):
        predicted(plain)


def test_an_answer_is_written_where_a_person_says_and_replaces_nothing_else(
    priced: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = only(houses(3, seed=3))
    predict_run(priced, new, "-")
    text = capsys.readouterr().out
    assert text.splitlines()[0].startswith("house,price")
    target, link = tmp_path / "real.csv", tmp_path / "link.csv"
    target.write_text("precious")
    link.symlink_to(target)
    with pytest.raises(RunError, match=r"link\.csv is there already: add --overwrite"):
        predict_run(priced, new, link)
    assert target.read_text() == "precious"
    predict_run(priced, new, link, overwrite=True)
    assert link.is_symlink()
    assert target.read_text() == text
    with pytest.raises(RunError, match="is a folder"):
        predict_run(priced, new, tmp_path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    predict_run(priced, new, pipe, overwrite=True)
    reader.join(timeout=60)
    assert read == [text]
    assert pipe.is_fifo()
    with pytest.raises(Exception, match="rooms"):
        predict_run(priced, {"house": ["x"]}, tmp_path / "never.csv")
    assert not (tmp_path / "never.csv").exists()
