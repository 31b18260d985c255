"""Losses and metrics against scikit-learn, and the shapes they refuse."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, log_loss, r2_score, roc_auc_score

from difformer.data.dataset import Batch
from difformer.train.objective import macro_f1, mean_roc_auc, objective_for, roc_auc


def batch(y: torch.Tensor, rows: list[int], weight: torch.Tensor | None = None) -> Batch:
    return Batch(torch.zeros(len(y), 1), y, None, torch.tensor(rows), weight=weight)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.integers(-3, 3)), min_size=2, max_size=40))
def test_roc_auc_is_scikit_learns_with_ties(pairs):
    y = torch.tensor([float(label) for label, _ in pairs])
    score = torch.tensor([float(value) for _, value in pairs])
    ours = roc_auc(y, score)
    if y.unique().numel() == 1:
        assert ours != ours
    else:
        assert ours == pytest.approx(roc_auc_score(y, score), abs=1e-12)


def test_mean_roc_auc_skips_unknown_labels_and_one_sided_tasks():
    y = torch.tensor([[1, 0, 1], [0, 0, float("nan")], [1, 0, 0], [float("nan"), 0, 1.0]])
    score = torch.randn(4, 3)
    known = [0, 1, 2], [0, 2, 3]
    expected = [
        roc_auc_score(y[rows, k], score[rows, k]) for rows, k in zip(known, (0, 2), strict=True)
    ]
    assert mean_roc_auc(y, score) == pytest.approx(sum(expected) / 2, abs=1e-12)
    assert mean_roc_auc(y[:, 1:2], score[:, 1:2]) != mean_roc_auc(y[:, 1:2], score[:, 1:2])


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30))
def test_macro_f1_is_scikit_learns(pairs):
    y, guess = (torch.tensor(column) for column in zip(*pairs, strict=True))
    expected = f1_score(y, guess, average="macro", zero_division=0)
    assert macro_f1(y, guess, 5) == pytest.approx(expected, abs=1e-12)


def test_cross_entropy_counts_known_rows_only():
    y, output = torch.tensor([0, 1, 2, -1, 1]), torch.randn(5, 3)
    objective = objective_for("multiclass")
    expected = log_loss(y[[1, 2]], output[[1, 2]].double().softmax(1), labels=[0, 1, 2])
    assert float(objective.loss(output, batch(y, [1, 2, 3]))) == pytest.approx(expected, rel=1e-6)
    metrics = objective.metrics(output, y, torch.tensor([1, 2, 3]))
    assert metrics["loss"] == pytest.approx(expected, rel=1e-6)
    assert metrics["accuracy"] == float((output.argmax(1) == y)[[1, 2]].double().mean())


def test_two_classes_report_scikit_learns_area_under_the_roc_curve():
    y, output = torch.tensor([0, 1, 1, 0, 1, -1]), torch.randn(6, 3)
    two, three = (
        objective_for("multiclass").metrics(output[:, :c], y, torch.arange(6)) for c in (2, 3)
    )
    expected = roc_auc_score(y[:5], output[:5, :2].softmax(1)[:, 1])
    assert two["roc_auc"] == pytest.approx(expected)
    assert "roc_auc" not in three


def test_the_calibration_error_is_the_gap_of_confidence_and_share_right():
    # 0.8 in four rows, of which two are right; 0.6 in two rows, both right.
    share = torch.tensor([[0.8, 0.2]] * 4 + [[0.4, 0.6]] * 2)
    y = torch.tensor([0, 0, 1, 1, 1, 1])
    metrics = objective_for("multiclass").metrics(share.log(), y, torch.arange(6))
    assert metrics["ece"] == pytest.approx((4 * 0.3 + 2 * 0.4) / 6, abs=1e-6)
    yes = torch.tensor([[0.8], [0.8], [0.3], [0.3]])
    answers = torch.tensor([[1.0], [0.0], [0.0], [float("nan")]])
    metrics = objective_for("multilabel").metrics(yes.logit(), answers, torch.arange(4))
    assert metrics["ece"] == pytest.approx((2 * 0.3 + 1 * 0.3) / 3, abs=1e-6)


@pytest.mark.parametrize("task", ["multiclass", "multilabel", "regression"])
def test_weights_count_a_row_as_often_as_they_say(task):
    classes = torch.tensor([0, 1, 1, 0])
    y = classes if task == "multiclass" else classes.unsqueeze(1).float()
    output, plain = torch.randn(4, 2 if task == "multiclass" else 1), objective_for(task)
    repeated = plain.loss(output, batch(y, [0, 1, 1, 1, 2]))
    weight = torch.tensor([1.0, 3.0, 1.0, 9.0])
    assert plain.loss(output, batch(y, [0, 1, 2], weight)).allclose(repeated)
    if task == "multiclass":
        by_class = objective_for(task, class_weight=torch.tensor([1.0, 2.0]))
        repeated = plain.loss(output, batch(y, [0, 1, 1, 2, 2]))
        assert by_class.loss(output, batch(y, [0, 1, 2])).allclose(repeated)


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_unknown_labels_give_neither_loss_nor_gradient(task):
    y = torch.tensor([[1.0, float("nan")], [0.0, 1.0], [float("nan"), float("nan")]])
    output = torch.randn(3, 2, requires_grad=True)
    objective = objective_for(task)
    loss = objective.loss(output, batch(y, [0, 1, 2]))
    loss.backward()
    known = ~y.isnan()
    assert output.grad is not None
    assert (output.grad[~known] == 0).all()
    assert (output.grad[known] != 0).all()
    metrics = objective.metrics(output.detach(), y, torch.arange(3))
    assert metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-6)


def test_squared_error_reports_mse_mae_and_r2():
    y, output = torch.randn(6, 1), torch.randn(6, 1)
    metrics = objective_for("regression").metrics(output, y, torch.arange(6))
    assert metrics["mse"] == pytest.approx(float((output - y).square().mean()), rel=1e-6)
    assert metrics["mae"] == pytest.approx(float((output - y).abs().mean()), rel=1e-6)
    assert metrics["r2"] == pytest.approx(r2_score(y, output), rel=1e-5)


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_nothing_is_broadcast(task):
    objective = objective_for(task)
    for shape, other in (((4, 1), (4,)), ((4,), (4, 1)), ((4, 2), (4, 1))):
        output, y = torch.zeros(shape), torch.zeros(other)
        with pytest.raises(ValueError, match="same shape"):
            objective.loss(output, batch(y, [0, 1]))
        with pytest.raises(ValueError, match="same shape"):
            objective.metrics(output, y, torch.arange(4))


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match=r"\(n, classes\).*\(4,\)"):
        objective_for("multiclass").loss(torch.zeros(4), batch(torch.zeros(4).long(), [0]))
    with pytest.raises(ValueError, match="multiclass, multilabel, regression, got 'ranking'"):
        objective_for("ranking")
    with pytest.raises(ValueError, match="class_weight"):
        objective_for("regression", class_weight=torch.ones(2))
