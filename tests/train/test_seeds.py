"""Several seeds: each as if run alone, summed up, resumed one by one."""

from __future__ import annotations

import json
import statistics

import pytest
import torch

from difformer.data.split import Split
from difformer.errors import RunError
from difformer.machine import commit
from difformer.train.batches import FullBatch
from difformer.train.callbacks import Callback
from difformer.train.objective import objective_for
from difformer.train.seeds import fit_seeds


@pytest.fixture
def run(problem):
    def run(seeds, folder=None, settings=None, **options):
        def make(seed):
            rows = torch.randperm(90, generator=torch.Generator().manual_seed(seed))
            split = Split(f"random:{seed}", rows[:30], rows[30:60], rows[60:], seed)
            return problem.model(), FullBatch(problem.dataset, split), split

        objective = objective_for("multiclass")
        settings = settings or problem.settings
        return fit_seeds(make, objective, settings, seeds=seeds, folder=folder, **options)

    return run


def test_a_seed_does_not_depend_on_the_others(run):
    together, alone = run([0, 1, 2]), run([2])
    assert together.results[2].history == alone.results[2].history
    assert together.results[0].history != alone.results[2].history


def test_the_summary_is_mean_and_sample_deviation(run, tmp_path):
    result = run([3, 4, 5], tmp_path)
    values = [one.metrics["test"]["accuracy"] for one in result.results.values()]
    assert result.mean("test", "accuracy") == pytest.approx(statistics.mean(values))
    assert result.std("test", "accuracy") == pytest.approx(statistics.stdev(values))
    summary = json.loads((tmp_path / "result.json").read_text())
    assert summary["metrics"]["test"]["accuracy"]["std"] == result.std("test", "accuracy")
    assert set(summary["seeds"]) == {"3", "4", "5"}
    assert summary["commit"] == commit()
    assert not summary["interrupted"]
    assert (tmp_path / "seed-4" / "model.safetensors").exists()
    assert "lr = 0.05" in (tmp_path / "config.toml").read_text()
    alone = run([0]).to_json()["metrics"]["test"]["accuracy"]
    assert alone["std"] is None  # one seed has none


def test_more_seeds_are_added_to_those_that_are_done(run, tmp_path):
    class Count(Callback):
        started = 0

        def on_start(self, fit):
            Count.started += 1

    run([0, 1], tmp_path)
    result = run([0, 1, 2], tmp_path, callbacks=lambda seed: [Count()])
    assert Count.started == 1
    assert result.to_json()["metrics"] == run([0, 1, 2]).to_json()["metrics"]


def test_an_interrupted_seed_ends_the_rest_and_goes_on_later(run, tmp_path):
    class Interrupt(Callback):
        def on_epoch(self, fit):
            if fit.settings.seed == 1 and fit.epoch == 5:
                raise KeyboardInterrupt

    cut = run([0, 1, 2], tmp_path, callbacks=lambda seed: [Interrupt()])
    assert cut.interrupted
    assert list(cut.results) == [0, 1]
    assert json.loads((tmp_path / "result.json").read_text())["interrupted"]
    whole = run([0, 1, 2], tmp_path)
    assert not whole.interrupted
    assert whole.results[1].history == run([1]).results[1].history


def test_another_configuration_is_refused(run, problem, tmp_path):
    run([0], tmp_path)
    with pytest.raises(RunError, match=r"train\.lr: 0\.05 there, 0\.2 now"):
        run([0, 1], tmp_path, problem.with_settings(lr=0.2).settings)
    assert not (tmp_path / "seed-1").exists()


@pytest.mark.parametrize("seeds", [[], [1, 1]])
def test_seeds_must_be_different_numbers(run, seeds):
    with pytest.raises(ValueError, match="seeds must be one or more different numbers"):
        run(seeds)
