"""Dropout: its rate, its scale, its gradient, its seed; kept or drawn again, the same mask."""

import pytest
import torch

from difformer.core import draws as module
from difformer.core.draws import dropout


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(100_000,), (333, 301)])
def test_share_dropped_and_scale(rate, shape):
    torch.manual_seed(0)
    out = dropout(torch.ones(shape), rate)
    share = (out == 0).float().mean().item()
    assert share == pytest.approx(rate, abs=4 * (rate * (1 - rate) / out.numel()) ** 0.5)
    assert out[out != 0].unique().item() == pytest.approx(1 / (1 - rate), rel=2e-4)
    assert out.mean().item() == pytest.approx(1.0, abs=0.03)


def test_neighbouring_entries_are_independent():
    torch.manual_seed(0)
    kept = (dropout(torch.ones(400_000), 0.5) != 0).double()
    # The four entries of a word, and words in a row.
    for lag in (1, 2, 3, 4):
        together = (kept[lag:] * kept[:-lag]).mean().item()
        assert together == pytest.approx(0.25, abs=0.004)


@pytest.mark.parametrize("chunk", [2**18, 20])
@pytest.mark.parametrize("kept", [2**24, 0])
@pytest.mark.parametrize("shape", [(1,), (3, 5), (63, 7), (0, 4)])
def test_the_gradient_has_the_mask_of_the_output(chunk, kept, shape, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", chunk)
    monkeypatch.setattr(module, "KEPT_ENTRIES", kept)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    out = dropout(x, 0.5)
    probe = torch.randn(shape, dtype=torch.float64)
    out.backward(probe)
    mask = out.detach() / x.detach()
    torch.testing.assert_close(x.grad, probe * mask)


def test_the_seed_of_torch_decides_whatever_the_order_of_memory_and_the_chunks(monkeypatch):
    def dropped(x):
        torch.manual_seed(3)
        return dropout(x, 0.5)

    x = torch.randn(31, 17)
    expected = dropped(x)
    assert not torch.equal(dropout(x, 0.5), expected)
    assert torch.equal(dropped(x.T.contiguous().T), expected)
    monkeypatch.setattr(module, "CHUNK", 24)
    assert torch.equal(dropped(x), expected)


def test_nothing_is_dropped_out_of_training_or_at_rate_zero():
    x = torch.ones(10)
    assert dropout(x, 0.5, training=False) is x
    assert dropout(x, 0.0) is x
