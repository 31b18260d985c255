"""Consistency over dropout: a hand-computed loss, and the cases it refuses."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from difformer.data.dataset import Batch
from difformer.train.objective import CrossEntropy
from difformer.train.settings import TrainSettings
from difformer.train.steps import consistency_loss


def steady(weight):
    return TrainSettings(consistency=weight, consistency_ramp=0)


class Alternating(nn.Module):
    """Gives two fixed answers in turn, as two dropout masks would."""

    def __init__(self, answers):
        super().__init__()
        self.answers = iter(answers)

    def forward(self, x, edge_index=None, edge_weight=None, batch=None):
        return next(self.answers)


def test_loss_is_the_mean_cross_entropy_and_the_distance_to_the_sharpened_mean():
    torch.manual_seed(0)
    a, b = torch.randn(2, 4, 3)
    y, rows = torch.tensor([0, 2, -1, -1]), torch.tensor([0, 1])
    batch = Batch(torch.zeros(4, 1), y, None, rows)
    loss = consistency_loss(Alternating([a, b]), batch, CrossEntropy(), steady(0.7), 1)
    supervised = (F.cross_entropy(a[:2], y[:2]) + F.cross_entropy(b[:2], y[:2])) / 2
    p, q = a.softmax(1), b.softmax(1)
    target = ((p + q) / 2) ** 2
    target = target / target.sum(1, keepdim=True)
    apart = ((p - target).square().sum() + (q - target).square().sum()) / 2 / 4
    torch.testing.assert_close(loss, supervised + 0.7 * apart)


def test_no_gradient_flows_through_the_target():
    a = torch.zeros(2, 2, requires_grad=True)
    batch = Batch(torch.zeros(2, 1), torch.tensor([0, 1]), None, torch.tensor([0, 1]))
    both = [a, a]
    loss = consistency_loss(Alternating(both), batch, CrossEntropy(), steady(1.0), 1)
    # At equal probabilities the sharpened mean is the mean: only the supervised part pulls.
    (grad,) = torch.autograd.grad(loss, a)
    (plain,) = torch.autograd.grad(F.cross_entropy(a, torch.tensor([0, 1])), a)
    torch.testing.assert_close(grad, plain)


def test_the_loop_trains_with_it_and_refuses_it_for_regression(problem, toy_dataset):
    _, plain = problem.fit()
    _, result = problem.with_settings(consistency=1.0, consistency_ramp=0).fit()
    assert result.history[-1]["loss"] != plain.history[-1]["loss"]
    assert result.metrics["test"]["accuracy"] > 0.6
    other = replace(problem, dataset=toy_dataset("regression")).with_settings(consistency=1.0)
    with pytest.raises(ValueError, match="consistency must be 0 for SquaredError"):
        other.fit()


def test_the_weight_rises_linearly_over_the_ramp():
    torch.manual_seed(0)
    a, b = torch.randn(2, 4, 3)
    batch = Batch(torch.zeros(4, 1), torch.tensor([0, 2, -1, -1]), None, torch.tensor([0, 1]))
    settings = TrainSettings(consistency=5.0, consistency_ramp=10)
    first, half, full, after = (
        float(consistency_loss(Alternating([a, b]), batch, CrossEntropy(), settings, epoch))
        for epoch in (1, 6, 11, 12)
    )
    assert first < half < full == after
    assert half - first == pytest.approx((full - first) / 2, rel=1e-4)
