"""Progress for people, TensorBoard for those who ask."""

from __future__ import annotations

import io
import re
import sys

import pytest

from difformer import DIFFormer
from difformer.train.callbacks import Callback, Energies, Progress, TensorBoard


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_shows_the_current_metrics_on_a_terminal(problem, monkeypatch):
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    problem.fit(callbacks=[Progress("toy")])
    text = stderr.getvalue()
    assert "toy" in text
    assert "12/12" in text
    assert "loss 0." in text
    assert re.search(r"train accuracy [01]\.\d{4}  val 0\.", text)


@pytest.mark.parametrize("quiet", [False, True])
def test_progress_is_silent_elsewhere(problem, monkeypatch, quiet):
    stderr = Terminal() if quiet else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    problem.fit(callbacks=[Progress(quiet=quiet)])
    assert not stderr.getvalue()


def test_callbacks_are_ended_when_an_error_ends_the_run(problem):
    class Failing(Callback):
        ended: object = "not yet"

        def on_epoch(self, fit):
            raise ZeroDivisionError

        def on_end(self, fit, result):
            self.ended = result

    callback = Failing()
    with pytest.raises(ZeroDivisionError):
        problem.fit(callbacks=[callback])
    assert callback.ended is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_gets_every_evaluated_epoch(problem, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, result = problem.fit(callbacks=[TensorBoard(tmp_path)])
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    written = [event.value for event in events.Scalars("val/accuracy")]
    assert written == pytest.approx([row["val_accuracy"] for row in result.history])


def test_each_layers_energy_is_logged(problem, tmp_path):
    model, result = problem.fit(
        tmp_path, model=lambda: DIFFormer(5, 4, 3, num_layers=2), callbacks=[Energies()]
    )
    assert all({"energy_1", "energy_2"} <= set(row) for row in result.history)
    header = (tmp_path / "metrics.csv").read_text().splitlines()[0]
    assert header.endswith("energy_1,energy_2")
    best = result.history[result.best_epoch - 1]
    expected = model.energies(problem.dataset.x).tolist()
    assert [best["energy_1"], best["energy_2"]] == pytest.approx(expected, rel=1e-5)


def test_a_model_without_an_energy_cannot_log_it(problem):
    with pytest.raises(ValueError, match="Linear has no energy"):
        problem.fit(callbacks=[Energies()])
