"""New cells against what the columns of training remember: what is named, and what is not."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from difformer.data.table.encoder import Drift, TableEncoder

Array = NDArray[Any]
N = 400


def table(n: int, seed: int) -> dict[str, list[Any]]:
    draw = np.random.default_rng(seed)
    days = np.datetime64("2022-01-01") + draw.integers(0, 700, n)
    return {
        "age": np.round(draw.gamma(6, 7, n).clip(17, 90)).tolist(),
        "income": np.where(draw.random(n) < 0.05, np.nan, draw.lognormal(10, 1, n)).tolist(),
        "city": draw.choice(["Rome", "Oslo", "Bonn"], n).tolist(),
        "joined": [str(day) for day in days],
    }


@pytest.fixture(scope="module")
def encoder() -> TableEncoder:
    return TableEncoder.from_json(TableEncoder.learn(table(N, 0)).to_json())


def drift_of(encoder: TableEncoder, new: dict[str, list[Any]]) -> Drift:
    drift, away = Drift(), dict[str, Array]()
    encoder.encode_chunk(new, away=away)
    drift.add(encoder, new, away, len(new["age"]))
    return drift


def test_fresh_rows_of_the_same_table_are_not_named(encoder: TableEncoder) -> None:
    drift = drift_of(encoder, table(5000, 1))
    assert drift.odd <= 5
    assert not drift.empty


@pytest.mark.parametrize("n", [100, 300, 1000])
@pytest.mark.parametrize("draw", ["normal", "uniform", "exponential", "lognormal", "poisson"])
def test_at_most_one_fresh_row_in_a_thousand_is_named_whatever_the_tail(draw: str, n: int) -> None:
    named = 0
    for seed in range(5):
        generator = np.random.default_rng(seed)
        rows = getattr(generator, draw)(size=(n + 4000, 5))
        encoder, drift = TableEncoder.of_numbers(rows[:n], [*"abcde"]), Drift()
        away: dict[str, Array] = {}
        encoder.encode_array(rows[n:], away)
        drift.add(encoder, dict(zip("abcde", rows[n:].T, strict=True)), away, 4000)
        named += drift.odd
    assert named <= 20


@pytest.mark.parametrize(
    ("column", "value", "seen"),
    [
        ("age", 500, "17 to"),
        ("age", -60, "17 to"),
        ("city", "Paris", "'Bonn', 'Oslo', 'Rome'"),
        ("joined", "2025-06-01", "2022-01-0"),
        ("joined", "2019-06-01", "2022-01-0"),
    ],
)
def test_a_cell_unlike_all_of_training_is_named_with_what_was_seen(
    encoder: TableEncoder, column: str, value: Any, seen: str
) -> None:
    new = table(3, 2)
    new[column][1] = value
    drift = drift_of(encoder, new)
    assert "1 of 3 rows" in drift.line
    assert f"row 2, column {column!r}: {value!r}, in training {seen}" in drift.line
    (told,) = json.loads(json.dumps(drift.to_json()))["columns"]
    assert (told["column"], told["row"], told["value"], told["cells"]) == (column, 2, value, 1)


def test_a_missing_cell_is_not_an_unknown_one(encoder: TableEncoder) -> None:
    new = {**table(3, 2), "city": ["", None, "Rome"], "income": [None] * 3}
    assert not drift_of(encoder, new)


def test_a_column_that_is_empty_far_more_often_is_named(encoder: TableEncoder) -> None:
    new = table(100, 3)
    new["income"][:60] = [None] * 60
    new["city"][50:] = [""] * 50
    lines = drift_of(encoder, new).lines
    assert any("column 'income' is empty in" in line and "% of the rows" in line for line in lines)
    assert "column 'city' is empty in 50 % of the rows, 0 % in training" in lines
    few = {name: cells[:10] for name, cells in new.items()}
    assert not drift_of(encoder, few)  # ten rows say nothing about a share


def test_blocks_add_up_and_the_worst_cell_of_a_column_is_shown(encoder: TableEncoder) -> None:
    drift = Drift()
    for start, ages in ((1, [300, 30, 40]), (4, [700, 50, 400])):
        new = {**table(3, 4), "age": ages}
        away: dict[str, Array] = {}
        encoder.encode_chunk(new, away=away)
        drift.add(encoder, new, away, 3, start=start, names=[f"p{start + i}" for i in range(3)])
    assert "3 of 6 rows" in drift.line
    assert "row 'p4', column 'age': 700, in training 17 to" in drift.line
    assert "(3 cells)" in drift.line


def test_a_column_that_is_nearly_always_one_value_or_constant_is_not_judged() -> None:
    rows = np.zeros((N, 2))
    rows[:3, 0] = 1
    encoder, away = TableEncoder.of_numbers(rows, ["rare", "same"]), dict[str, Array]()
    encoder.encode_array(np.full((1, 2), 9.0), away)
    assert not away


def test_a_description_of_an_earlier_version_is_read_and_judges_only_categories(
    encoder: TableEncoder,
) -> None:
    record = json.loads(encoder.to_json())
    for column in record["columns"]:
        del column["seen"], column["rows"]
    old = TableEncoder.from_json(json.dumps(record))
    assert old == encoder
    new = {**table(30, 5), "age": [500] * 30, "income": [None] * 30, "city": ["Paris"] * 30}
    (told,) = drift_of(old, new).to_json()["columns"]
    assert told["column"] == "city"
