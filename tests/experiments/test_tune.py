"""Tuning: validation only, resumable, and a setting that fails is not the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from difformer.compare import tune as module
from difformer.compare.tune import Trial, TuneResult, grid_for, grid_size, tune
from difformer.data.dataset import Dataset
from difformer.data.split import Split
from difformer.errors import DifformerError
from difformer.jobs.job import Experiment

pytest.importorskip("optuna")


ROWS = torch.arange(60)
X = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
DATA = Dataset("digits", X + 2.0 * torch.eye(6)[ROWS % 3], ROWS % 3, class_names=("a", "b", "c"))
SPLIT = Split("toy", ROWS[:20], ROWS[20:40], ROWS[40:])


def experiment(system: str = "mlp", **train: Any) -> Experiment:
    settings = {} if system == "logistic" else {"epochs": 4, "patience": None, **train}
    return Experiment.make("digits", system=system, split="toy", train=settings)


def search(trials: int, asked: Experiment | None = None, **options: Any) -> TuneResult:
    options = {"dataset": DATA, "split": SPLIT, **options}
    return tune(asked or experiment(), trials=trials, **options)


def judge_by(judge: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Train nothing: a setting is worth what this says of it."""
    monkeypatch.setattr(module, "_validate", lambda *values: (judge(*values), None))


def test_the_first_trial_is_the_experiment_itself_and_the_best_is_at_least_as_good() -> None:
    result = search(4)
    assert len(result.trials) == 4
    assert result.trials[0].model == {}
    assert (result.best.value or 0) >= (result.trials[0].value or 0)
    tuned = result.tuned()
    assert tuned.train.lr == result.best.train.get("lr", tuned.train.lr)


def test_test_rows_are_taken_away_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def look(asked: Any, data: Dataset, split: Split, metric: str) -> float:
        seen.append(split.test.numel())
        return 0.5

    judge_by(look, monkeypatch)
    search(2)
    assert seen == [0, 0]


def test_a_stored_search_goes_on_where_it_was(tmp_path: Path) -> None:
    storage, made = tmp_path / "tune.sqlite", list[int]()
    first = search(2, storage=storage)
    second = search(3, storage=storage, look=lambda trial, wanted: made.append(trial.number))
    assert made == [2]
    assert second.trials[:2] == first.trials
    changes: dict[str, Any] = {
        "epochs": {"asked": experiment(epochs=5)},
        "data": {"dataset": replace(DATA, y=DATA.y.flip(0))},
        "split": {"split": replace(SPLIT, val=SPLIT.val[1:])},
    }
    for differs, changed in changes.items():
        with pytest.raises(DifformerError, match=rf"other settings \({differs}\)"):
            search(3, storage=storage, **changed)


class Killed(BaseException):
    """Ends a trial as a signal does: nobody catches it."""


@pytest.mark.parametrize("end", [KeyboardInterrupt, Killed])
@pytest.mark.parametrize("kind", ["search", "grid"])
@pytest.mark.parametrize("cut", [1, 2])
def test_a_search_that_was_cut_short_ends_as_one_that_was_not(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: type[BaseException],
    kind: str,
    cut: int,
) -> None:
    asked: list[Experiment] = []

    def cut_short(experiment: Experiment, *values: Any) -> float:
        asked.append(experiment)
        if len(asked) == cut:
            raise end
        return experiment.train.lr

    judge_by(cut_short, monkeypatch)
    where: Any = {"search": kind, "storage": tmp_path / "t.sqlite"}
    with pytest.raises(end):
        search(4, **where)
    result = search(4, **where)
    assert len(asked) == 5  # the trial that was cut short is made again, the same
    assert asked[cut] == asked[cut - 1]
    assert [t.settings == {} for t in result.trials] == [True, False, False, False]
    whole = search(4, search=kind)
    assert [(t.settings, t.value) for t in whole.trials] == [
        (t.settings, t.value) for t in result.trials
    ]


def test_a_storage_that_is_no_database_is_one_line(tmp_path: Path) -> None:
    storage = tmp_path / "t.sqlite"
    storage.write_text("this is no database, and it is long enough to be taken for one" * 20)
    with pytest.raises(DifformerError, match="cannot use the storage .* not a database"):
        search(1, storage=storage)


def test_a_setting_that_fails_or_has_no_value_is_a_failed_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    def some_fail(*values: Any) -> float:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("no")
        return float("nan") if len(calls) == 3 else 0.1 * len(calls)

    judge_by(some_fail, monkeypatch)
    result = search(4)
    failed = "ValueError: the validation accuracy is nan"
    assert [t.error for t in result.trials] == [None, "RuntimeError: no", failed, None]
    assert result.best.number == 3


def test_where_nothing_runs_the_reasons_are_told() -> None:
    failed = Trial(0, {}, {}, None, error="ValueError: bad")
    with pytest.raises(DifformerError, match="no setting of mlp could be run: ValueError: bad"):
        _ = TuneResult(experiment(), "accuracy", (failed,)).best
    with pytest.raises(ValueError, match="must have validation rows"):
        search(1, split=replace(SPLIT, val=SPLIT.val[:0]))


def test_the_grid_is_the_papers() -> None:
    grid = grid_for("gcn")
    assert grid["train.lr"] == (0.0001, 0.001, 0.01, 0.1)
    assert grid["model.num_layers"] == (2, 4, 8, 16)
    assert grid_size("gcn") == 4 * 6 * 3 * 3 * 4
    assert "model.k" in grid_for("gcn-knn")
    for trial in search(3, search="grid").trials[1:]:
        assert trial.train["lr"] in grid["train.lr"]
        assert trial.model["hidden_channels"] in grid["model.hidden_channels"]


def test_what_a_library_fits_has_no_learning_rate_to_search() -> None:
    result = search(3, experiment("logistic"))
    assert all(not trial.train for trial in result.trials)
    assert all(set(trial.model) == {"C"} for trial in result.trials[1:])
    assert set(grid_for("logistic")) == {"model.C"}
    assert grid_size("logistic") == 5
