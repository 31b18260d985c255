"""Label columns become classes, yes or no, or numbers; other cells are named."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from difformer.data.table.encoder import TableEncoder
from difformer.data.table.read import LabelCoder, read_table
from difformer.errors import DataError


@pytest.mark.parametrize(
    ("columns", "task", "y"),
    [
        ({"a": ["1", "0", ""], "b": ["0", "0", "1"]}, "multilabel", [[1, 0], [0, 0], [None, 1]]),
        ({"a": ["yes", "No"], "b": ["true", "FALSE"]}, "multilabel", [[1, 1], [0, 0]]),
        ({"a": [True, False], "b": [1.0, 0.0]}, "multilabel", [[1, 1], [0, 0]]),
        ({"a": ["1", "0"], "b": ["2.5", ""]}, "regression", [[1, 2.5], [0, None]]),
    ],
)
def test_several_labels_are_yes_or_no_or_numbers(
    columns: dict[str, Any], task: str, y: list[list[Any]]
) -> None:
    table = {"size": list(range(len(y))), **columns}
    data = read_table(table, ["a", "b"])
    assert data.task == task
    assert data.encoder.labels == ("a", "b")
    assert [column.name for column in data.encoder.columns] == ["size"]  # neither is a feature
    found = [[None if v != v else v for v in row] for row in data.y.tolist()]
    assert found == y
    again = TableEncoder.from_json(data.encoder.to_json())
    assert again.labels == ("a", "b")


def test_the_task_of_one_label_follows_from_its_cells() -> None:
    for labels, task in (([0, 1] * 10, "multiclass"), (range(20), "regression")):
        assert read_table({"a": [i % 7 for i in range(20)], "y": list(labels)}, "y").task == task


def test_several_labels_of_other_kinds_are_named() -> None:
    table = {"size": [1, 2, 3], "a": ["1", "0", "1"], "b": ["red", "blue", "red"]}
    with pytest.raises(DataError, match="row 1, column 'b': 'red' is not a number"):
        read_table(table, ["a", "b"])
    with pytest.raises(DataError, match="row 1, column 'b': 'red' must be yes or no"):
        read_table(table, ["a", "b"], task="multilabel")
    numbers = {"size": [1, 2], "a": ["1", "0"], "b": ["0", "1"]}
    assert read_table(numbers, ["a", "b"], task="regression").task == "regression"
    with pytest.raises(ValueError, match="multilabel or regression for several labels"):
        read_table(table, ["a", "b"], task="multiclass")
    with pytest.raises(ValueError, match="name columns once"):
        read_table(table, ["a", "a"])


PRICES = [1000 + 13.25 * i for i in range(60)]


@pytest.mark.parametrize(
    "cells",
    [
        [f"{price:.2f}" for price in PRICES],
        [f"{price:.2f}".replace(".", ",") for price in PRICES],
        [f"{price:,.2f}" for price in PRICES],
        [f"€{price:,.2f}" for price in PRICES],
    ],
)
def test_a_label_is_read_as_it_is_written(cells: list[str]) -> None:
    data = read_table({"a": list(range(60)), "price": cells}, "price")
    assert data.task == "regression"
    assert data.y[:, 0].tolist() == PRICES
    times = [1.7e15 + i for i in range(60)]  # microseconds since 1970 keep all their digits
    assert read_table({"a": cells, "when": times}, "when").y[:, 0].tolist() == times


def test_one_bad_label_is_reported_and_a_row_to_predict() -> None:
    cells = [str(price) for price in PRICES]
    cells[7], cells[9] = "forty", ""
    table = {"a": list(range(60)), "price": cells}
    data = read_table(table, "price")
    assert data.task == "regression"
    assert torch.isnan(data.y[:, 0]).nonzero()[:, 0].tolist() == [7, 9]
    said = "number; 1 empty, to predict; 1 not numbers, taken as empty (row 8: 'forty')"
    assert data.encoder.describe()[0] == ("price", "label", said)
    again = TableEncoder.from_json(data.encoder.to_json())
    assert again.describe() == data.encoder.describe()
    few = {"a": list(range(12)), "kind": ["1", "2", "x"] * 4}  # codes, and not a bad cell
    assert read_table(few, "kind").class_names == ("x", "1", "2")
    half = {**table, "price": ["forty", "7.5"] * 30}
    with pytest.raises(DataError, match="row 1, column 'price': 'forty' is not a number"):
        read_table(half, "price", task="regression")


def test_minus_one_is_unlabelled_as_in_python() -> None:
    table = {"a": [float(i) for i in range(12)], "y": [0, 1, -1] * 4}
    data = read_table(table, "y")
    assert data.class_names == ("0", "1")
    assert data.y.tolist() == [0, 1, -1] * 4
    assert read_table(table, "y", unlabelled=None).class_names == ("-1", "0", "1")
    texts = {**table, "y": ["a", "-1", "b"] * 4}  # NumPy makes it a text among texts
    assert read_table(texts, "y").y.tolist() == [0, -1, 1] * 4
    assert read_table(texts, "y", unlabelled=None).class_names == ("-1", "a", "b")


def some_bad(bad: int, cell: str) -> dict[str, list[Any]]:
    cells = [f"{i / 7:.3f}" for i in range(150)]
    for i in range(bad):
        cells[7 * i + 2] = cell
    return {"a": list(range(150)), "y": cells}


@pytest.mark.parametrize(
    ("bad", "cell", "message"),
    [
        (
            8,
            "n/k",
            r"row 3, column 'y': 'n/k' is not a number, nor are 7 of the other 149 cells \(row",
        ),
        (1, "inf", "row 3, column 'y': 'inf' is not a finite number: correct the cells"),
        (100 // 7, "-Infinity", "'-Infinity' is not a finite number, nor are 13 of the other 149"),
    ],
)
def test_a_label_of_numbers_and_other_cells_is_asked_about(
    bad: int, cell: str, message: str
) -> None:
    table = some_bad(bad, cell)
    with pytest.raises(DataError, match=message) as found:
        read_table(table, "y")
    assert "--task multiclass" in str(found.value)
    assert "\n" not in str(found.value)
    with pytest.raises(DataError, match=message):
        read_table(table, "y", task="regression")
    assert cell in read_table(table, "y", task="multiclass").class_names  # on purpose
    with pytest.raises(DataError, match=f"the table: column 'y': '{cell}' is not a"):
        LabelCoder.learn({"y": table["y"]}, 150, file="the table")
