"""Confusion and calibration against their definitions."""

from __future__ import annotations

import torch

from difformer.report.predictions import (
    calibration_block,
    confusion_blocks,
    regression_blocks,
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
    block = calibration_block(probability, torch.tensor([0, 0, 0, 1]), "test")
    assert "calibration error 0; on the whole well balanced" in block.caption
    assert block.table is not None
    assert block.table.rows == [["0.75", "0.75", "4"]]


def test_an_over_confident_model_is_said_to_be() -> None:
    probability = torch.tensor([[0.99, 0.01]] * 10)
    block = calibration_block(probability, torch.tensor([0, 1] * 5), "test")
    assert "calibration error 0.49; on the whole over-confident" in block.caption


def test_many_classes_become_a_list_of_confusions() -> None:
    output, y = torch.eye(40)[torch.arange(40) % 39], torch.arange(40)
    blocks = confusion_blocks(output, y, [f"c{i}" for i in range(40)], "test")
    assert blocks[0].rows == [["c39", "c0", "1"]]


def test_a_regression_of_many_rows_is_sampled_and_said_so() -> None:
    y = torch.randn(6000, generator=torch.Generator().manual_seed(0))
    block, _ = regression_blocks(y + 1, y, "test")
    assert "5,000 of 6,000 sampled" in block.caption
    assert "mean squared error 1" in block.caption
