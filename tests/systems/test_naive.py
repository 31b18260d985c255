"""Naive forecasts: what they say, and that they see training targets only."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from difformer.data.snapshots import from_windows
from difformer.systems.registry import get_system
from difformer.train.batches import Snapshots
from difformer.train.loop import fit
from difformer.train.objective import SnapshotError, broadcast_mse
from difformer.train.settings import TrainSettings


def build(name: str, lags: int, **options: float) -> torch.nn.Module:
    system = get_system(name)
    return system.build(system.configure(**options), lags, 1)


def test_last_value_and_mean_of_lags() -> None:
    x = torch.tensor([[1.0, 2.0, 6.0], [0.0, 0.0, 3.0]])
    assert build("last-value", 3)(x).tolist() == [[6.0], [3.0]]
    assert build("mean-of-lags", 3)(x).tolist() == [[3.0], [1.0]]


@pytest.mark.parametrize("name", ["node-ar", "pooled-ar"])
@pytest.mark.parametrize("ridge", [0.0, 5.0])
def test_an_autoregression_is_least_squares_on_the_training_rows(name: str, ridge: float) -> None:
    series = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    data = from_windows("toy", series, 2)
    split = data.split("time")
    model = build(name, 2, ridge=ridge)
    result = fit(model, Snapshots(data, split), SnapshotError(num_nodes=3), split, TrainSettings())
    train = split.train.numel() // 3
    x, y = data.x.reshape(-1, 3, 2).double().numpy(), data.y.reshape(-1, 3).double().numpy()
    expected = np.empty_like(y)
    for nodes in [[0], [1], [2]] if name == "node-ar" else [[0, 1, 2]]:
        a = x[:train, nodes].reshape(-1, 2)
        a = np.c_[a, np.ones(len(a))]
        gram = a.T @ a + ridge * np.diag([1, 1, 0])
        w = np.linalg.solve(gram, a.T @ y[:train, nodes].ravel())
        expected[:, nodes] = x[:, nodes] @ w[:-1] + w[-1]
    output = model(data.x).reshape(-1, 3).detach().numpy()
    np.testing.assert_allclose(output, expected, atol=1e-5)
    test = split.test
    mse = np.square(expected - y).reshape(-1)[test.numpy()].mean()
    assert result.metrics["test"]["mse"] == pytest.approx(mse, rel=1e-4)


def test_the_released_cost_averages_over_all_pairs_of_a_snapshot() -> None:
    output, y = torch.randn(12, 1), torch.randn(12, 1)
    rows = torch.arange(4, 12)
    expected = np.mean(
        [
            float(((output[s : s + 4] - y[s : s + 4].squeeze(1)) ** 2).mean())  # (4, 1) − (4,)
            for s in (4, 8)
        ]
    )
    assert broadcast_mse(output, y, rows, 4) == pytest.approx(expected, rel=1e-5)
