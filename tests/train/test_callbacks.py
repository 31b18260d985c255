"""Progress for people, TensorBoard for those who ask."""

from __future__ import annotations

import io
import sys

import pytest

from difformer import DIFFormer
from difformer.errors import DifformerError
from difformer.train.callbacks import Callback, Energies, Progress, TensorBoard, describe


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
    assert "val 0." in text


@pytest.mark.parametrize("quiet", [False, True])
def test_progress_is_silent_elsewhere(problem, monkeypatch, capsys, quiet):
    if quiet:
        monkeypatch.setattr(sys, "stderr", Terminal())
    problem.fit(callbacks=[Progress(quiet=quiet)])
    assert not (sys.stderr.getvalue() if quiet else capsys.readouterr().err)  # type: ignore[attr-defined]


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


def test_describe_is_short():
    row = {"epoch": 3, "loss": 0.5, "train_accuracy": 1.0, "val_accuracy": 0.75, "val_loss": 2.0}
    assert describe(row, "accuracy") == "loss 0.5000  train accuracy 1.0000  val 0.7500"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_gets_every_evaluated_epoch(problem, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, result = problem.fit(callbacks=[TensorBoard(tmp_path)])
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    written = [event.value for event in events.Scalars("val/accuracy")]
    assert written == pytest.approx([row["val_accuracy"] for row in result.history])


def test_a_missing_tensorboard_is_one_clear_line(problem, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(
        DifformerError, match=r"TensorBoard needs: pip install .difformer.tensorboard"
    ):
        problem.fit(callbacks=[TensorBoard(tmp_path)])


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
