from __future__ import annotations

import torch

from difformer.data.registry import load_dataset, load_raw


def test_digits_are_whole_and_scaled() -> None:
    data = load_dataset("digits")
    assert tuple(data.x.shape) == (1797, 64)
    assert data.y.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert data.x.dtype == torch.float32
    assert data.x.abs().max() <= 1
    assert data.x.mean(dim=0).abs().max() < 1e-5
    assert data.edge_index is None


def test_the_images_of_digits_are_dark_where_the_pixels_are_high() -> None:
    data, images = load_dataset("digits"), load_raw("digits")
    assert images.pixels.shape == (1797, 3, 8, 8)
    assert images.y.equal(data.y)
    dark = 255 - images.pixels[:, 0].flatten(1).float()
    torch.testing.assert_close(dark / 255 - (dark / 255).mean(0), data.x, atol=5e-3, rtol=0)
