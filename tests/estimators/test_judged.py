"""Judging by held-out labels: weights, temperatures, averages of outputs."""

from __future__ import annotations

import math

import pytest
import torch

from difformer.estimators.choice import Form
from difformer.estimators.judged import Judged, judge, weighed
from difformer.estimators.problem import Outcome, Problem
from difformer.metrics import METRICS, TEMPERED
from difformer.train.objective import CrossEntropy, objective_for


def judged(losses: list[float]) -> Judged:
    tensor = torch.tensor(losses)
    return Judged(Form("f", "identity"), tensor.unsqueeze(1), tensor, 1.0)


def test_forms_that_cannot_be_told_apart_count_alike_and_a_worse_one_does_not() -> None:
    equal = [0.1, 0.5, 0.3, 0.7]
    worse = [value + 2 + 0.01 * i for i, value in enumerate(equal)]
    weights = [one.weight for one in weighed([judged(equal), judged(equal), judged(worse)])]
    assert weights == pytest.approx([0.5, 0.5, 0.0])


def test_doubt_about_the_errors_lets_a_slightly_worse_form_count_more() -> None:
    best, other = [0.1, 0.5, 0.3, 0.7], [0.2, 0.4, 0.6, 0.8]
    plain, doubted = (weighed([judged(best), judged(other)], d)[1].weight for d in (1.0, 1.4))
    assert 0 < plain < doubted < 0.5


def test_a_form_is_compared_on_the_rows_that_it_was_judged_by() -> None:
    nan = float("nan")
    first, second = judged([0.1, 0.2, 5.0, 6.0]), judged([0.1, 0.2, nan, nan])
    weights = [one.weight for one in weighed([first, second])]
    assert weights == pytest.approx([0.5, 0.5])


def test_the_temperature_is_that_of_the_held_out_rows() -> None:
    """Outputs four times too large are divided by about four."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4000, 3, generator=generator)
    y = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    problem = Problem(y, Outcome("multiclass", (3,)), objective_for("multiclass"), 3, y.numpy())
    rows = torch.arange(4000)
    found = judge(Form("f", "identity"), problem, [(rows, 4 * logits)], rows)
    assert found.temperature == pytest.approx(4, rel=0.1)
    expected = torch.nn.functional.cross_entropy(logits, y)
    assert found.loss == pytest.approx(float(expected), abs=0.01)
    probabilities = (4 * logits / found.temperature).softmax(1)
    torch.testing.assert_close(found.outputs.softmax(1), probabilities)


@pytest.mark.parametrize("outcome", [Outcome("multiclass", (3,)), Outcome("multilabel")])
def test_combined_outputs_are_the_mean_of_probabilities(outcome: Outcome) -> None:
    a, b = torch.randn(5, 3), torch.randn(5, 3)
    turn = torch.sigmoid if outcome.task == "multilabel" else lambda t: t.softmax(1)
    found = turn(outcome.combine([a, b], [0.25, 0.75], [2.0, 1.0]))
    torch.testing.assert_close(found, 0.25 * turn(a / 2) + 0.75 * turn(b))


def test_the_epoch_is_picked_by_the_loss_after_calibration() -> None:
    """Logits that are four times too large are as good as they are after division by four."""
    y = torch.tensor([0, 1, 0, 1, 1, 0])
    logits = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    objective = CrossEntropy(monitor=METRICS[TEMPERED])
    rows = torch.arange(6)
    plain, large = (objective.metrics(logits * c, y, rows) for c in (1.0, math.e))
    assert large["loss"] > plain["loss"]
    assert large[TEMPERED] == pytest.approx(plain[TEMPERED], abs=1e-6)
    assert plain[TEMPERED] <= plain["loss"]
