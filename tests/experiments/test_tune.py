"""Tuning: validation only, resumable, and a setting that fails is not the end."""

from __future__ import annotations

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


@pytest.fixture
def data() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    y = (torch.arange(60) % 3).long()
    x = torch.randn(60, 6, generator=generator) + 2.0 * torch.nn.functional.one_hot(y, 6)
    return Dataset("digits", x, y, class_names=("a", "b", "c"))


@pytest.fixture
def split() -> Split:
    rows = torch.arange(60)
    return Split("toy", rows[:20], rows[20:40], rows[40:])


def experiment(**train: Any) -> Experiment:
    settings = {"epochs": 4, "patience": None, **train}
    return Experiment.make("digits", system="mlp", split="toy", train=settings)


def test_the_first_trial_is_the_experiment_itself_and_the_best_is_at_least_as_good(
    data: Dataset, split: Split
) -> None:
    result = tune(experiment(), trials=4, dataset=data, split=split)
    assert len(result.trials) == 4
    assert result.trials[0].model == {}
    assert result.best.value is not None
    assert result.best.value >= (result.trials[0].value or 0)
    tuned = result.tuned()
    assert tuned.train.lr == result.best.train.get("lr", tuned.train.lr)


def test_test_rows_are_taken_away_before_training(
    data: Dataset, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def look(experiment: Any, data: Dataset, split: Split, metric: str) -> tuple[float, None]:
        seen.append(split.test.numel())
        return 0.5, None

    monkeypatch.setattr(module, "_validate", look)
    tune(experiment(), trials=2, dataset=data, split=split)
    assert seen == [0, 0]


def test_a_stored_search_goes_on_where_it_was(data: Dataset, split: Split, tmp_path: Path) -> None:
    storage = tmp_path / "tune.sqlite"
    first = tune(experiment(), trials=2, dataset=data, split=split, storage=storage)
    made: list[int] = []
    second = tune(
        experiment(),
        trials=3,
        dataset=data,
        split=split,
        storage=storage,
        look=lambda trial, wanted: made.append(trial.number),
    )
    assert made == [2]
    assert second.trials[:2] == first.trials
    for differs, changed in {
        r"\(epochs\)": {"experiment": experiment(epochs=5)},
        r"\(data\)": {"dataset": replace(data, y=data.y.flip(0))},
        r"\(split\)": {"split": replace(split, val=split.val[1:])},
    }.items():
        asked: Any = {"experiment": experiment(), "dataset": data, "split": split, **changed}
        with pytest.raises(DifformerError, match=f"other settings {differs}"):
            tune(**asked, trials=3, storage=storage)


class Killed(BaseException):
    """Ends a trial as a signal does: nobody catches it."""


@pytest.mark.parametrize("end", [KeyboardInterrupt, Killed])
@pytest.mark.parametrize("search", ["search", "grid"])
@pytest.mark.parametrize("cut", [1, 2])
def test_a_search_that_was_cut_short_tries_the_defaults_and_wastes_no_trial(
    data: Dataset,
    split: Split,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: type[BaseException],
    search: str,
    cut: int,
) -> None:
    asked: list[Experiment] = []

    def cut_short(experiment: Experiment, *args: Any) -> tuple[float, None]:
        asked.append(experiment)
        if len(asked) == cut:
            raise end
        return 0.1 * len(asked), None

    monkeypatch.setattr(module, "_validate", cut_short)
    where: Any = {"dataset": data, "split": split, "storage": tmp_path / "t.sqlite"}
    with pytest.raises(end):
        tune(experiment(), trials=3, search=search, **where)
    result = tune(experiment(), trials=3, search=search, **where)
    assert len(asked) == 4  # the trial that was cut short is made again, the same
    assert asked[cut] == asked[cut - 1]
    assert [t.model == {} and t.train == {} for t in result.trials] == [True, False, False]
    assert all(t.value is not None for t in result.trials)


def test_a_storage_that_is_no_database_is_one_line(
    data: Dataset, split: Split, tmp_path: Path
) -> None:
    storage = tmp_path / "t.sqlite"
    storage.write_text("this is no database, and it is long enough to be taken for one" * 20)
    with pytest.raises(DifformerError, match="cannot use the storage .* not a database"):
        tune(experiment(), trials=1, dataset=data, split=split, storage=storage)


def test_a_setting_that_fails_is_a_failed_trial(
    data: Dataset, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def second_fails(*args: Any) -> tuple[float, None]:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("no")
        return 0.1 * len(calls), None

    monkeypatch.setattr(module, "_validate", second_fails)
    result = tune(experiment(), trials=3, dataset=data, split=split)
    assert [t.error for t in result.trials] == [None, "RuntimeError: no", None]
    assert result.best.number == 2


def test_where_nothing_runs_the_reasons_are_told(data: Dataset, split: Split) -> None:
    far = experiment()
    with pytest.raises(DifformerError, match="no setting of mlp could be run: ValueError: bad"):
        _ = TuneResult(far, "accuracy", (Trial(0, {}, {}, None, error="ValueError: bad"),)).best
    with pytest.raises(ValueError, match="must have validation rows"):
        tune(far, trials=1, dataset=data, split=replace(split, val=split.val[:0]))


def test_the_grid_is_the_papers(data: Dataset, split: Split) -> None:
    grid = grid_for("gcn")
    assert grid["train.lr"] == (0.0001, 0.001, 0.01, 0.1)
    assert grid["model.num_layers"] == (2, 4, 8, 16)
    assert grid_size("gcn") == 4 * 6 * 3 * 3 * 4
    assert "model.k" in grid_for("gcn-knn")
    result = tune(experiment(), trials=3, search="grid", dataset=data, split=split)
    for trial in result.trials[1:]:
        assert trial.train["lr"] in grid["train.lr"]
        assert trial.model["hidden_channels"] in grid["model.hidden_channels"]


def test_what_a_library_fits_has_no_learning_rate_to_search(data: Dataset, split: Split) -> None:
    fitted = Experiment.make("digits", system="logistic", split="toy")
    result = tune(fitted, trials=3, dataset=data, split=split)
    assert all(not trial.train for trial in result.trials)
    assert all(set(trial.model) == {"C"} for trial in result.trials[1:])
    assert set(grid_for("logistic")) == {"model.C"}
    assert grid_size("logistic") == 5
