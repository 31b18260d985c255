"""The best epoch, its ties, and patience that starts afresh."""

from __future__ import annotations

import pytest

from difformer.errors import TrainingError
from difformer.metrics import Metric
from difformer.train.optimizer import Stopping


def run(values, direction="max", patience=None, losses=None):
    stopping = Stopping(Metric("m", "m", 1 if direction == "max" else -1), patience)
    for epoch, value in enumerate(values, start=1):
        stopping.update(epoch, {"m": value, "loss": losses[epoch - 1] if losses else 1.0})
        if stopping.exhausted(epoch):
            return stopping.best_epoch, epoch
    return stopping.best_epoch, None


def test_the_best_epoch_is_the_highest_or_the_lowest():
    assert run([1, 3, 2]) == (2, None)
    assert run([1, 3, 0], direction="min") == (3, None)


def test_a_tie_goes_to_the_lower_loss_and_then_to_the_earlier_epoch():
    assert run([1, 1, 1], losses=[3.0, 2.0, 2.0]) == (2, None)
    assert run([1, 1, 1]) == (1, None)


def test_patience_starts_afresh_with_every_improvement():
    assert run([1, 0, 2, 0, 3, 0, 0, 9], patience=2) == (5, 7)


def test_without_patience_it_never_stops():
    assert run([3, 2, 1, 0] * 50) == (1, None)


def test_a_metric_that_is_no_number_is_an_error():
    with pytest.raises(TrainingError, match="validation m is nan in epoch 2"):
        run([1.0, float("nan")])
