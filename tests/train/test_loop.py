"""The loop: equal bits for equal seeds, the best epoch kept, hooks used where they are."""

from __future__ import annotations

import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from difformer.data.dataset import Batch, Prediction
from difformer.data.split import Split
from difformer.errors import TrainingError
from difformer.metrics import Metric
from difformer.train.batches import FullBatch, predict
from difformer.train.callbacks import Callback
from difformer.train.loop import fit, pick_device
from difformer.train.objective import objective_for
from difformer.train.steps import Stopping


class Watch(Callback):
    """Keeps a number of each epoch."""

    def __init__(self, see):
        self.see, self.seen = see, []

    def on_epoch(self, fit):
        self.seen.append(self.see(fit))


@pytest.mark.parametrize("task", ["multiclass", "multilabel", "regression"])
def test_every_task_is_learned(problem, toy_dataset, task):
    problem = replace(problem, dataset=toy_dataset(task)).with_settings(epochs=150)
    _, result = problem.fit()
    metric, bound = {"multiclass": ("accuracy", 0.7), "multilabel": ("roc_auc", 0.85)}.get(
        task, ("r2", 0.7)
    )
    assert result.metrics["test"][metric] > bound
    assert result.stopped == "epochs"
    assert result.epochs == 150


def test_equal_seeds_give_equal_bits_whatever_is_drawn_outside(problem):
    first, result = problem.fit()
    torch.manual_seed(3)
    np.random.seed(3)
    expected = torch.rand(3), np.random.rand()
    torch.manual_seed(3)
    np.random.seed(3)
    second, again = problem.fit()
    assert torch.rand(3).equal(expected[0])  # the global generators are left alone
    assert np.random.rand() == expected[1]
    other, _ = problem.with_settings(seed=1).fit()
    assert first.linear.weight.equal(second.linear.weight)
    assert result.history == again.history
    assert not first.linear.weight.equal(other.linear.weight)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_the_loop_is_plain_adam_on_the_mean_loss(problem, name):
    problem = problem.with_settings(weight_decay=0.1, epochs=7, optimizer=name)
    problem.split = Split("s", range(30), [], range(60, 90))  # no validation: the last is kept
    model, linear = type(problem.model())(5, 3), nn.Linear(5, 3)
    linear.load_state_dict(model.linear.state_dict())
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    optimizer = kind(linear.parameters(), lr=0.05, weight_decay=0.1)
    x, y = problem.dataset.x, problem.dataset.y
    for _ in range(7):
        optimizer.zero_grad()
        nn.functional.cross_entropy(linear(x)[:30], y[:30]).backward()
        optimizer.step()
    _, result = problem.fit(model=lambda: model)
    torch.testing.assert_close(model.linear.weight, linear.weight)  # fused, so rounded otherwise
    assert result.best_epoch == 7
    assert "val" not in result.metrics


def test_the_weights_of_the_best_epoch_are_left_in_the_model(problem):
    model, result = problem.with_settings(epochs=40, lr=0.5).fit()
    best = max(result.history, key=lambda row: (row["val_accuracy"], -row["val_loss"]))
    assert result.best_epoch == best["epoch"] < 40
    assert result.metrics["val"]["accuracy"] == best["val_accuracy"]
    assert not model.training
    output = predict(model, FullBatch(problem.dataset, problem.split).observed()).output
    assert objective_for("multiclass").metrics(
        output, problem.dataset.y, problem.split.test
    ) == pytest.approx(result.metrics["test"])


@pytest.mark.parametrize(("pick", "sign"), [("loss", 1), ("accuracy", -1), ("macro_f1", -1)])
def test_the_epoch_is_picked_by_the_metric_that_is_asked_for(problem, pick, sign):
    _, result = problem.with_settings(epochs=40, lr=0.3, pick_by=pick).fit()
    values = [(sign * row[f"val_{pick}"], row["val_loss"]) for row in result.history]
    assert result.best_epoch == 1 + values.index(min(values))
    with pytest.raises(ValueError, match="pick_by must be one of loss, accuracy, .*'roc_auc'"):
        problem.with_settings(pick_by="roc_auc").fit()


def test_the_test_rows_are_counted_once_at_the_end(problem):
    class Counting(type(objective_for("multiclass"))):
        tested = 0

        def metrics(self, output, y, rows):
            Counting.tested += bool((rows >= 60).any())
            return super().metrics(output, y, rows)

    source = FullBatch(problem.dataset, problem.split)
    result = fit(problem.model(), source, Counting(), problem.split, problem.settings)
    assert Counting.tested == 1
    assert not any(name.startswith("test") for row in result.history for name in row)


def test_patience_stops_the_run_and_evaluation_may_be_rare(problem):
    _, result = problem.with_settings(epochs=500, lr=0.5, patience=10, eval_every=4).fit()
    assert result.stopped == "patience"
    assert all(row["epoch"] % 4 == 0 for row in result.history)
    assert 10 <= result.epochs - result.best_epoch < 14
    _, result = problem.with_settings(epochs=10, eval_every=4).fit()
    assert [row["epoch"] for row in result.history] == [4, 8, 10]  # the last one always


def test_warmup_clipping_and_threads_are_those_of_the_settings(problem):
    def see(fit):
        norm = float(sum(p.grad.square().sum() for p in fit.model.parameters()) ** 0.5)
        return fit.optimizer.param_groups[0]["lr"], norm, torch.get_num_threads()

    before, watch = torch.get_num_threads(), Watch(see)
    chosen = {"warmup": 4, "grad_clip": 0.01, "threads": before + 1}
    problem.with_settings(epochs=6, **chosen).fit(callbacks=[watch])
    rates, norms, threads = zip(*watch.seen, strict=True)
    assert rates == pytest.approx((0.0125, 0.025, 0.0375, 0.05, 0.05, 0.05))
    assert max(norms) <= 0.01 * (1 + 1e-5)
    assert set(threads) == {before + 1}
    assert torch.get_num_threads() == before


def test_a_penalty_is_added_to_the_loss(problem):
    class Shrunk(type(problem.model())):
        def forward(self, *arguments):
            return Prediction(super().forward(*arguments), 100 * self.linear.weight.square().sum())

    model, result = problem.with_settings(epochs=60).fit(model=lambda: Shrunk(5, 3))
    plain, _ = problem.with_settings(epochs=60).fit(model=lambda: type(problem.model())(5, 3))
    assert model.linear.weight.norm() < 0.1 * plain.linear.weight.norm()
    assert result.history[0]["loss"] > 10 * result.history[0]["train_loss"]


def test_a_model_sees_the_training_labels_once_and_may_choose_by_the_validation_ones(problem):
    class Seeing(type(problem.model())):
        seen: tuple[Batch, ...] = ()

        def observe(self, batch):
            assert self.linear.weight.grad is None
            self.seen += (batch,)

        def choose_by(self, rows, y):
            self.judges = rows, y

    model, result = problem.fit(model=lambda: Seeing(5, 3))
    (batch,), (rows, y) = model.seen, model.judges
    assert (batch.y >= 0).nonzero().flatten().equal(problem.split.train)
    assert torch.equal(rows, problem.split.val)
    assert torch.equal(y, problem.dataset.y[rows])
    assert "val" in result.metrics  # they stay validation rows


def test_a_method_may_bring_its_own_step_and_group_its_parameters(problem):
    class Own(type(problem.model())):
        steps = 0

        def training_step(self, batch, objective, optimizer):
            assert self.training
            assert (batch.y >= 0).sum() == 30
            self.steps += 1
            optimizer.zero_grad()
            loss = 2 * objective.loss(predict(self, batch).output, batch)
            loss.backward()
            optimizer.step()
            return float(loss.detach())

        def parameter_groups(self):
            weight, bias = self.linear.parameters()
            return [{"params": [weight]}, {"params": [bias], "lr": 1e-30}]

    model, result = problem.fit(model=lambda: Own(5, 3))
    assert model.steps == 12
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    start, _ = problem.with_settings(epochs=1, lr=1e-30).fit(model=lambda: Own(5, 3))
    assert model.linear.bias.allclose(start.linear.bias)
    assert not model.linear.weight.allclose(start.linear.weight)


def test_a_model_without_parameters_is_evaluated_once(problem, tmp_path):
    class Centroids(nn.Module):
        """The nearest mean of the training rows of each class."""

        calls = 0

        def observe(self, batch):
            means = [batch.x[batch.y == c].mean(0) for c in range(3)]
            self.register_buffer("means", torch.stack(means))

        def forward(self, x, edge_index=None, edge_weight=None, batch=None):
            self.calls += 1
            return -torch.cdist(x, self.means)

    model, result = problem.fit(tmp_path, model=Centroids)
    assert model.calls == 2  # once to choose, once for the result
    assert (result.epochs, result.best_epoch, result.stopped) == (0, 0, "evaluated")
    assert result.metrics["test"]["accuracy"] > 0.5
    again, read = problem.fit(tmp_path, model=Centroids)
    assert read == result
    assert again.means.equal(model.means)


def test_ctrl_c_ends_what_is_fitted_without_epochs_at_once(problem):
    """There is no epoch to finish, and nothing half-way to keep."""

    class Still(nn.Module):
        def forward(self, x, *_):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        problem.fit(model=Still)


@pytest.mark.parametrize(
    ("lr", "value", "told"),
    [
        (0.05, float("inf"), "nan in epoch 1"),
        (1e10, 0.0, "the loss is"),
        (1e30, 0.0, "the loss is"),
    ],
)
def test_a_loss_that_is_no_number_or_runs_away_says_what_to_try(problem, lr, value, told):
    problem.dataset.x[3, 2] += value
    with pytest.raises(TrainingError, match=f"diverged, .*{told}.* try a lower lr than") as caught:
        problem.with_settings(lr=lr).fit()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("task", ["multiclass", "multilabel", "regression"])
def test_what_only_the_evaluation_shows_to_have_diverged_is_said(problem, toy_dataset, task):
    """The step of the last epoch is evaluated, and no loss is computed after it."""
    problem.dataset = toy_dataset(task)
    with pytest.raises(TrainingError, match=r"diverged, .* in epoch 1: try a lower lr than 1e\+30"):
        problem.with_settings(lr=1e30, epochs=1).fit()


def test_batches_are_weighed_by_their_rows_and_empty_ones_skipped(problem):
    class Parts(FullBatch):
        pieces = ([], [0], list(range(1, 30)))

        def epoch(self, number):
            for rows in self.pieces:
                yield replace(self.observed(), rows=torch.tensor(rows, dtype=torch.int64))

    source = Parts(problem.dataset, problem.split)
    tiny = problem.with_settings(lr=1e-12, epochs=1)
    _, result = tiny.fit(source=source, model=lambda: type(problem.model())(5, 3))
    row = result.history[0]
    assert row["loss"] == pytest.approx(row["train_loss"], rel=1e-5)
    source.pieces = ([],)
    with pytest.raises(ValueError, match="epoch 1 has none"):
        tiny.fit(source=source)


def test_a_callback_may_stop_the_run(problem):
    class Prune(Callback):
        def on_epoch(self, fit):
            fit.stopped = "pruned"

    _, result = problem.with_settings(eval_every=5).fit(callbacks=[Prune()])
    assert (result.stopped, result.epochs, len(result.history)) == ("pruned", 1, 1)


def test_parts_of_the_split_that_are_needed_are_named(problem):
    source = FullBatch(problem.dataset, problem.split)
    problem.split = Split("s", [0, 1], [], [2])
    with pytest.raises(ValueError, match="patience must be None"):
        problem.with_settings(patience=3).fit()
    problem.split = Split("s", [], [0], [2])
    with pytest.raises(ValueError, match=r"split\.train must hold"):
        problem.fit(source=source)


def test_a_gpu_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == torch.device("cpu")
    with pytest.raises(ValueError, match="got 'cuda:3' and torch sees no GPU"):
        pick_device("cuda:3")


@pytest.mark.parametrize(
    ("values", "better", "patience", "losses", "best", "stopped"),
    [
        ([1, 3, 2], 1, None, None, 2, None),
        ([1, 3, 0], -1, None, None, 3, None),
        ([1, 1, 1], 1, None, [3.0, 2.0, 2.0], 2, None),  # the lower loss, then the earlier epoch
        ([1, 1, 1], 1, None, None, 1, None),
        ([1, 0, 2, 0, 3, 0, 0, 9], 1, 2, None, 5, 7),  # patience starts afresh each time
        ([3, 2, 1, 0] * 50, 1, None, None, 1, None),
    ],
)
def test_the_best_epoch_its_ties_and_patience(values, better, patience, losses, best, stopped):
    stopping, ended = Stopping(Metric("m", "m", better), patience), None
    for epoch, value in enumerate(values, start=1):
        stopping.update(epoch, {"m": value, "loss": losses[epoch - 1] if losses else 1.0})
        if stopping.exhausted(epoch):
            ended = epoch
            break
    assert (stopping.best_epoch, ended) == (best, stopped)
    with pytest.raises(TrainingError, match="validation m is nan in epoch 2"):
        stopping.update(2, {"m": float("nan"), "loss": 1.0})
