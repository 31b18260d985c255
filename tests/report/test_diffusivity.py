"""Diffusivity explained, against the dense matrix it never makes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from difformer import DIFFormer
from difformer.report import inside as diffusivity
from difformer.report.inside import (
    flow_between,
    layer_weights,
    spread,
    strongest,
)

KERNELS = ["simple", "sigmoid", "sharp", "identity", "constant", "softmax", "gaussian"]


def problem(kernel: str = "simple", **options: Any) -> tuple[DIFFormer, Tensor, Tensor]:
    torch.manual_seed(0)
    model = DIFFormer(5, 7, 3, num_layers=2, kernel=kernel, **options).eval()
    return model, torch.randn(23, 5), torch.arange(23) % 3


def dense(model: DIFFormer, x: Tensor, layer: int) -> Tensor:
    found = model.diffusivity(x, layer=layer)
    assert isinstance(found, Tensor)
    return found


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("heads", [1, 3])
def test_class_flow_is_that_of_the_dense_matrix(kernel: str, heads: int) -> None:
    model, x, y = problem(kernel, num_heads=heads, learn_qk=True)
    y[4] = -1
    for layer in (0, 1):
        s = dense(model, x, layer)
        flow = flow_between(layer_weights(model, x)[layer], y)
        for a in range(3):
            for b in range(3):
                expected = s[y == a][:, y == b].sum(1).mean()
                torch.testing.assert_close(flow.flow[a, b], expected, atol=1e-5, rtol=1e-4)
        same = (y.unsqueeze(0) == y.unsqueeze(1)) & (y >= 0)
        own = (s * same).sum(1)[y >= 0].mean()
        assert flow.within == pytest.approx(float(own), abs=1e-5)


def test_uniform_weights_have_no_lift_and_a_class_without_rows_is_nan() -> None:
    model, x, y = problem("constant")
    assert flow_between(layer_weights(model, x)[0], y).lift == pytest.approx(1.0)
    model, x, y = problem()
    y[y == 1] = 2
    flow = flow_between(layer_weights(model, x)[0], y)
    assert flow.flow.isnan().all(1).tolist() == [False, True, False]
    assert not bool(flow.flow[[0, 2]].isnan().any())
    assert 0 < flow.within <= 1


@pytest.mark.parametrize("kernel", KERNELS)
def test_top_pairs_are_those_of_the_dense_matrix(
    kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diffusivity, "CHUNK", 100)  # a few rows at a time
    model, x, _ = problem(kernel)
    s = dense(model, x, 1).clone()
    s.fill_diagonal_(-1)
    pairs = strongest(layer_weights(model, x)[-1], k=40)
    expected = s.flatten().topk(40).values
    expected = expected[expected > 0]
    torch.testing.assert_close(pairs.weight, expected)
    torch.testing.assert_close(s[pairs.target, pairs.source], pairs.weight)
    assert bool((pairs.target != pairs.source).all())
    assert pairs.uniform == pytest.approx(1 / 23)


def test_top_pairs_among_some_rows_have_both_ends_there() -> None:
    model, x, _ = problem()
    rows = torch.tensor([3, 9, 11, 20])
    pairs = strongest(layer_weights(model, x)[0], k=100, rows=rows)
    assert pairs.weight.numel() == 12
    assert set(pairs.source.tolist()) | set(pairs.target.tolist()) == {3, 9, 11, 20}


def test_concentration_runs_from_one_to_all_rows() -> None:
    rows = torch.tensor([2, 5])
    for kernel, wanted in (("constant", 23.0), ("identity", 1.0)):
        model, x, _ = problem(kernel)
        found = spread(layer_weights(model, x)[0], rows)
        torch.testing.assert_close(found, torch.full_like(found, wanted))
    model, x, _ = problem("simple")
    found = spread(layer_weights(model, x)[0], rows)
    torch.testing.assert_close(found, 1 / dense(model, x, 0).double()[rows].square().sum(1))
