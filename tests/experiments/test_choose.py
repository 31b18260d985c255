"""Settings by validation: both rules, and what is printed for the spec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from difformer.compare import tune as search
from difformer.compare.tune import Trial, TuneResult, tune
from difformer.data.registry import load_dataset
from difformer.data.snapshots import TemporalDataset, time_split
from difformer.jobs import rows as run
from difformer.jobs.job import Experiment
from difformer.machine import commit
from difformer_paper.choose import choose, rules
from difformer_paper.measure import measure_cell, other_settings, read_cell
from difformer_paper.specs import load_spec, parse_spec

TRAIN = ("lr", "weight_decay")


def tried(val: float, **settings: float) -> Trial:
    model = {name: value for name, value in settings.items() if name not in TRAIN}
    train = {name: value for name, value in settings.items() if name in TRAIN}
    return Trial(0, model, train, val, standard_error=0.05)


def found(*trials: Trial) -> TuneResult:
    return TuneResult(Experiment.make("covid", system="mlp"), "mse", trials)


def one(table: str, **names: str) -> Any:
    """The spec, and its only cell of these names."""
    spec = load_spec(table)
    (cell,) = spec.cells(columns=["covid"], **{key: [name] for key, name in names.items()})
    return spec, cell


def test_the_most_regularised_of_the_best_structure_within_one_error_is_chosen() -> None:
    best = tried(0.70, source=0.0, lr=0.05, weight_decay=0.0, dropout=0.0)
    near = tried(0.72, source=0.0, lr=0.01, weight_decay=0.0, dropout=0.2)
    slow = tried(0.74, source=0.0, lr=0.005, weight_decay=0.0, dropout=0.2)
    other_source = tried(0.71, source=0.5, lr=0.01, weight_decay=0.005, dropout=0.5)
    far = tried(0.80, source=0.0, lr=0.01, weight_decay=0.005, dropout=0.5)
    every = found(near, far, other_source, best, slow)
    assert every.best is best
    assert every.simplest is slow


def test_both_rules_are_printed_each_for_its_variant_and_can_be_read_back() -> None:
    _, cell = one("table5", systems="mlp", variants="baseline")
    low = tried(0.70, lr=0.05, weight_decay=0.0, dropout=0.0)
    near = tried(0.72, lr=0.01, weight_decay=0.0, dropout=0.2)
    text = rules(cell, found(low, near))
    assert text.index('variants = ["baseline-lowest"]') < text.index('variants = ["baseline"]')
    toy = """
title = "Toy"
metric = "mse"
systems = ["mlp"]
columns.covid = {}
protocols.time = { splits = ["time"], seeds = [0] }
variants.baseline = { systems = ["mlp"] }
variants.baseline-lowest = { systems = ["mlp"] }
"""
    read = {c.variant: (c.model, c.train) for c in parse_spec("toy", toy + text).cells()}
    assert read["baseline"] == (near.model, near.train)
    assert read["baseline-lowest"] == (low.model, low.train)


def test_a_variant_may_take_the_lowest_error_alone() -> None:
    _, cell = one("table5", systems="node-ar", variants="naive")
    text = rules(cell, found(tried(0.7, ridge=1.0), tried(0.72, ridge=10.0)))
    assert text.count("[[cells]]") == 1
    assert "model = { ridge = 1.0 }" in text


def test_every_point_of_a_grid_of_ones_own_is_tried_and_nothing_else() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(40, 3), torch.randn(40, 1)
    data = TemporalDataset("toy", x, y, "regression", num_nodes=4)
    experiment = Experiment.make("covid", system="mlp", seeds=(3, 4), train={"epochs": 2})
    grid = {"train.lr": [0.01, 0.1], "model.dropout": [0.0, 0.5]}
    split = time_split(10, 4)
    result = tune(experiment, trials=None, search=grid, dataset=data, split=split)
    points = {(t.train["lr"], t.model["dropout"]) for t in result.trials}
    assert len(result.trials) == 4
    assert points == {(0.01, 0.0), (0.01, 0.5), (0.1, 0.0), (0.1, 0.5)}
    assert all(t.standard_error and t.standard_error > 0 for t in result.trials)


def test_a_choice_is_kept_with_every_point_and_goes_on_where_it_was_cut_short(
    tmp_path: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIFFORMER_DATA", str(data_root))
    asked: list[Experiment] = []

    def judge(experiment: Experiment, *args: object) -> tuple[float, float]:
        asked.append(experiment)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return experiment.model["ridge"], 0.5

    monkeypatch.setattr(search, "_validate", judge)
    spec, cell = one("table5", systems="node-ar", variants="naive")
    with pytest.raises(KeyboardInterrupt):
        choose(spec, cell, seeds=2, out=tmp_path)
    result = choose(spec, cell, seeds=2, out=tmp_path)
    ridges = [e.model["ridge"] for e in asked]
    assert sorted(set(ridges)) == [0.0, 1.0, 10.0, 100.0]
    assert len(ridges) == 5  # the one that was cut short again, no other twice
    assert result.best.value == 0.0
    (path,) = (tmp_path / "table5").iterdir()
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert kept["commit"] == commit()
    assert kept["lowest"] == {"settings": {"ridge": 0.0}, "val": 0.0, "error": 0.5, "seeds": 2}
    assert len(kept["tried"]) == 4


# What the first setting lacks is a rate at which it learns anything.
SLOW = """
title = "Toy"
metric = "accuracy"
budget = 4
systems = ["mlp"]
columns.digits = {}
protocols.one = { splits = ["random:0"], seeds = [0, 1] }
[variants.own]
systems = ["mlp"]
model = { hidden_channels = 24 }
train = { epochs = 5, lr = 1e-9 }
[[cells]]
columns = ["digits"]
choose = { lr = [0.01, 1e-9], dropout = [0.0, 0.1, 0.2] }
"""


def slow(folder: Path, old: str = "", new: str = "") -> Any:
    """That spec with a change, its cell, and where the results of its table are."""
    spec = parse_spec("toy", SLOW.replace(old, new) if old else SLOW)
    return spec, *spec.cells(), folder / "tables"


def test_a_rule_says_what_to_choose_and_the_budget_how_many_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Experiment] = []

    def judge(experiment: Experiment, *args: object) -> tuple[float, None]:
        asked.append(experiment)
        return experiment.train.lr, None

    monkeypatch.setattr(search, "_validate", judge)
    spec, cell, tables = slow(tmp_path)
    result = choose(spec, cell, seeds=1, out=tmp_path, measured=tables)
    assert {e.model["hidden_channels"] for e in asked} == {24}
    assert [e.seeds for e in asked] == [(100,)] * 4
    kept = json.loads((tmp_path / "toy" / f"{cell.name}.json").read_text(encoding="utf-8"))
    assert len({str(tried["settings"]) for tried in kept["tried"]}) == 4
    # The cell as it stands comes first, in the search and where the choice is confirmed.
    stands, choice = kept["confirmed"]
    assert kept["tried"][0]["settings"] == stands["settings"] == {}
    assert choice["val"] > stands["val"]
    assert (choice["seeds"], choice["settings"]["lr"]) == (2, 0.01)
    (again,) = parse_spec("toy", f"{SLOW}{rules(cell, result)}").cells()
    assert again.train["lr"] == 0.01
    (fewer,) = parse_spec("toy", f"{SLOW}[[cells]]\nbudget = 2\n").cells()
    assert (cell.budget, fewer.budget) == (4, 2)


def test_a_choice_that_is_not_better_by_the_runs_of_the_table_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lucky(experiment: Experiment, *args: object) -> tuple[float, None]:
        return 1.0 - experiment.train.lr, None

    monkeypatch.setattr(search, "_validate", lucky)
    spec, cell, tables = slow(tmp_path, "lr = 1e-9 }", "lr = 0.01 }")
    result = choose(spec, cell, seeds=1, out=tmp_path, measured=tables)
    assert result.best.settings == {}
    assert rules(cell, result) == ""
    assert [path.suffix for path in (tmp_path / "toy").iterdir()] == [".json"]
    table = read_cell(spec, cell, tables)
    assert table is not None
    assert not other_settings(spec, cell, table)


def test_no_run_is_made_twice_and_the_table_keeps_those_of_the_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, cell, tables = slow(tmp_path, "budget = 4", "budget = 2")
    measure_cell(spec, cell, tables, dataset=lambda _: load_dataset("digits"))
    ran: list[tuple[float, tuple[int, ...]]] = []

    def watched(experiment: Experiment, **rest: Any) -> run.Run:
        ran.append((experiment.train.lr, experiment.seeds))
        if len(ran) == 4:
            raise KeyboardInterrupt
        return run_experiment(experiment, **rest)

    run_experiment = run.run_experiment
    monkeypatch.setattr(run, "run_experiment", watched)
    with pytest.raises(KeyboardInterrupt):
        choose(spec, cell, seeds=1, out=tmp_path, measured=tables)
    result = choose(spec, cell, seeds=1, out=tmp_path, measured=tables)
    # The search, then the choice by the seeds of the table, the interrupted one again.
    assert ran == [(1e-9, (100,)), (0.01, (100,)), *[(0.01, (seed,)) for seed in (0, 1, 1)]]
    assert [path.suffix for path in (tmp_path / "toy").iterdir()] == [".json"]
    told = parse_spec("toy", f"{SLOW}{rules(cell, result)}")
    (chosen,) = told.cells()
    measure_cell(told, chosen, tables, dataset=lambda _: load_dataset("digits"))
    assert len(ran) == 5
    table = read_cell(told, chosen, tables)
    assert table is not None
    assert table.mean("accuracy", "val") == pytest.approx(result.best.value, abs=1e-6)


def test_a_full_disk_at_the_end_of_a_search_loses_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, cell, tables = slow(tmp_path, "budget = 4", "budget = 2")

    def full(*args: object, **options: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr("difformer_paper.choose.write_json", full)
        with pytest.raises(OSError, match="no space left"):
            choose(spec, cell, seeds=1, out=tmp_path, measured=tables)
    monkeypatch.setattr(run, "run_experiment", full)
    result = choose(spec, cell, seeds=1, out=tmp_path, measured=tables)
    assert result.best.train["lr"] == 0.01
    table = read_cell(spec, cell, tables)
    assert table is not None
    assert table.settings["train"]["lr"] == 0.01
