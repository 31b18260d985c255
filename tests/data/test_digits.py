from __future__ import annotations

import torch

from difformer.data.registry import load_dataset


def test_digits_are_whole_and_scaled() -> None:
    data = load_dataset("digits")
    assert tuple(data.x.shape) == (1797, 64)
    assert data.y.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert data.x.dtype == torch.float32
    assert data.x.abs().max() <= 1
    assert data.x.mean(dim=0).abs().max() < 1e-5
    assert data.edge_index is None


def test_digits_have_rows_enough_for_the_random_split() -> None:
    split = load_dataset("digits").split("random:0")
    assert split.describe() == "random:0: 200 train, 500 val, 1000 test"
