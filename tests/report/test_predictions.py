"""Confusion and calibration against their definitions."""

from __future__ import annotations

import pytest
import torch

from difformer.report.predictions import (
    calibration,
    calibration_block,
    confusion_blocks,
    regression_block,
)


def test_confusion_counts_every_row_once() -> None:
    output = torch.eye(3)[torch.tensor([0, 0, 1, 2, 2])]
    y = torch.tensor([0, 1, 1, 2, 0])
    table = confusion_blocks(output, y, ["a", "b", "c"], "test")[0]
    assert [row[1:5] for row in table.rows] == [
        ["1", "0", "1", "2"],
        ["1", "1", "0", "2"],
        ["0", "0", "1", "1"],
    ]
    assert [row[5:] for row in table.rows] == [
        ["0.500", "0.500"],
        ["0.500", "1.000"],
        ["1.000", "0.500"],
    ]


def test_a_perfectly_calibrated_model_has_no_calibration_error() -> None:
    probability = torch.tensor([[0.75, 0.25]] * 4)
    bins, error = calibration(probability, torch.tensor([0, 0, 0, 1]))
    assert error == pytest.approx(0)
    assert bins == [[0.75, 0.75, 4.0]]


def test_an_over_confident_model_is_said_to_be() -> None:
    probability = torch.tensor([[0.99, 0.01]] * 10)
    y = torch.tensor([0, 1] * 5)
    assert calibration(probability, y)[1] == pytest.approx(0.49, abs=1e-6)
    assert "over-confident" in calibration_block(probability, y, "test").caption


def test_many_classes_become_a_list_of_confusions() -> None:
    output, y = torch.eye(40)[torch.arange(40) % 39], torch.arange(40)
    blocks = confusion_blocks(output, y, [f"c{i}" for i in range(40)], "test")
    assert blocks[0].rows == [["c39", "c0", "1"]]


def test_a_regression_of_many_rows_is_sampled_and_said_so() -> None:
    y = torch.randn(6000, generator=torch.Generator().manual_seed(0))
    block = regression_block(y + 1, y, "test")
    assert "5,000 of 6,000 sampled" in block.caption
    assert "mean squared error 1" in block.caption
