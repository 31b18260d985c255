"""Cells are measured once, kept run by run, and shown beside what was published."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from difformer.data.registry import load_dataset
from difformer.errors import DataError, RunError
from difformer.jobs import rows as run_module
from difformer.jobs.job import Experiment
from difformer.machine import commit, commit_of
from difformer.train.folder import FitResult, Run
from difformer_paper.measure import (
    CellResult,
    measure_cell,
    other_settings,
    read_cell,
    read_results,
    result_path,
)
from difformer_paper.specs import load_spec, parse_spec
from difformer_paper.tables import View, figures_table, fill_page, verdicts_table

TOY = """
title = "Toy"
metric = "accuracy"
percent = true
systems = ["mlp", "gcn"]
[columns.digits]
title = "Digits"
[protocols.random]
title = "random splits"
splits = ["random:0", "random:1"]
seeds = [0, 1]
[variants.default]
title = "own"
train = { epochs = 1 }
[published]
mlp = { digits = [90.5, 1.5] }
"""


RESULTS = Path(__file__).parents[2] / "results"
SPEC = parse_spec("toy", TOY)
MLP, GCN = SPEC.cells()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The runs that were made; each takes no time and is right in (80 + seed) per cent."""
    made: list[tuple[str, int]] = []

    def run(experiment: Experiment, **options: Any) -> Run:
        (seed,) = experiment.seeds
        made.append((experiment.split, seed))
        metrics = {"test": {"accuracy": 0.8 + seed / 100}, "val": {"accuracy": 0.5}}
        fit = FitResult(metrics, 3, 5, "epochs", [], 1.25)
        return Run({f"seed {seed}": fit})

    monkeypatch.setattr(run_module, "run_experiment", run)
    return made


def measure(out: Path, cell: Any = MLP, spec: Any = SPEC, **options: Any) -> CellResult:
    data = load_dataset("digits")
    result, interrupted = measure_cell(spec, cell, out, dataset=lambda e: data, **options)
    assert not interrupted
    return result


def test_every_split_is_run_with_every_seed_and_kept(runs: list[Any], tmp_path: Path) -> None:
    result = measure(tmp_path)
    assert runs == [("random:0", 0), ("random:0", 1), ("random:1", 0), ("random:1", 1)]
    assert result.mean("accuracy") == pytest.approx(0.805)
    assert result.spread("accuracy")[1] == pytest.approx(0.00577, abs=1e-5)
    assert read_results(tmp_path, "toy") == [result]
    assert result.mean("epoch_seconds") == 0.25  # the cost may be the figure of a table


def test_what_is_there_is_not_run_again_and_what_was_cut_off_goes_on(
    runs: list[Any], tmp_path: Path
) -> None:
    """An option that is new since then counts as its default."""
    whole = measure(tmp_path)
    file = result_path(tmp_path, SPEC, MLP)
    before = file.read_bytes()
    assert measure(tmp_path) == whole
    assert file.read_bytes() == before
    content = json.loads(before)
    del content["settings"]["train"]["warmup"]
    del content["settings"]["model"]["num_layers"]
    content["runs"] = content["runs"][:3]
    file.write_text(json.dumps(content), encoding="utf-8")
    assert len(runs) == 4
    assert measure(tmp_path).runs == whole.runs
    assert runs[4:] == [("random:1", 1)]


def test_a_result_says_how_it_was_made_and_nothing_of_whose_machine(
    runs: list[Any], tmp_path: Path
) -> None:
    measure(tmp_path)
    written = json.loads(result_path(tmp_path, SPEC, MLP).read_text(encoding="utf-8"))
    asked = "--models mlp --datasets digits --variants default --protocols random"
    assert written["command"] == f"difformer reproduce toy {asked}"
    assert written["settings"]["train"]["epochs"] == 1
    assert set(written["machine"]) == {"cores", "memory_gb", "system", "python", "torch"}
    assert [run["commit"] for run in written["runs"]] == [commit()] * 4
    assert "published" not in written
    assert str(tmp_path) not in json.dumps(written)


def test_a_call_for_fewer_runs_takes_nothing_away(runs: list[Any], tmp_path: Path) -> None:
    narrow = replace(MLP, seeds=(0,))
    assert len(measure(tmp_path, narrow).runs) == 2
    assert len(measure(tmp_path).runs) == 4
    assert len(measure(tmp_path, narrow).runs) == 4
    assert len(runs) == 4


@pytest.mark.parametrize("fresh", [False, True])
def test_runs_that_another_process_adds_meanwhile_are_kept_and_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: bool
) -> None:
    mine, other = (replace(MLP, splits=(split,)) for split in MLP.splits)
    made: list[tuple[str, int]] = []

    def run(experiment: Experiment, **options: Any) -> Run:
        (seed,) = experiment.seeds
        made.append((experiment.split, seed))
        if len(made) == 2:  # in the middle of a run of ours, after our first was written
            measure(tmp_path, other)
        fit = FitResult({"test": {"accuracy": seed / 10}}, 3, 5, "epochs", [], 1.25)
        return Run({f"seed {seed}": fit})

    monkeypatch.setattr(run_module, "run_experiment", run)
    result = measure(tmp_path, mine, fresh=fresh)
    assert [(run["split"], run["seed"]) for run in result.runs] == result.wanted
    assert read_results(tmp_path, "toy") == [result]
    assert len(result.runs) == 4
    made.clear()
    result_path(tmp_path, SPEC, MLP).unlink()
    assert measure(tmp_path, fresh=fresh).runs == result.runs
    assert sorted(made) == result.wanted


def test_other_settings_are_an_error_that_says_which_unless_fresh(
    runs: list[Any], tmp_path: Path
) -> None:
    measure(tmp_path)
    other = parse_spec("toy", TOY.replace("epochs = 1", "epochs = 2"))
    changed = other.cells(systems=["mlp"])[0]
    with pytest.raises(RunError, match=r"train.epochs: 1 there, 2 now.*--fresh"):
        measure(tmp_path, changed, other)
    assert measure(tmp_path, changed, other, fresh=True).settings["train"]["epochs"] == 2


def test_a_system_that_cannot_run_has_its_reason_in_the_table(tmp_path: Path) -> None:
    result = measure(tmp_path, GCN)
    assert result.cannot is not None
    assert not result.missing
    table = figures_table(View(SPEC, read_results(tmp_path, "toy")))
    assert "needs a graph" in table.rows[-1][-1]


def test_a_damaged_result_file_is_named(tmp_path: Path) -> None:
    file = result_path(tmp_path, SPEC, MLP)
    file.parent.mkdir()
    file.write_text("{", encoding="utf-8")
    with pytest.raises(RunError, match=f"cannot read the result .*{file.name}"):
        measure(tmp_path)


def test_a_full_disk_keeps_the_runs_made_before(
    runs: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno
    import os

    calls = 0
    sync = os.fsync

    def full(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 2:  # a file and its folder: one run
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="No space left on device.*make room"):
        measure(tmp_path)
    (kept,) = read_results(tmp_path, "toy")
    assert len(kept.runs) == 1


def test_measured_figures_stand_beside_the_published_ones(runs: list[Any], tmp_path: Path) -> None:
    measure(tmp_path)
    table = figures_table(View(SPEC, read_results(tmp_path, "toy")))
    assert table.header == ("Model", "Settings", "Digits")
    assert tuple(table.rows) == (
        ("MLP", "published", "90.5 ± 1.5"),
        ("MLP", "own", "80.5 ± 0.6 (4)"),
    )
    assert any(n.startswith("Measured: random splits;") for n in table.notes)  # all of them


@pytest.mark.parametrize(
    ("published", "verdict"),
    [
        ("[79.5, 0.6]", "within"),
        ("[79.0, 0.6]", "better (+1.5)"),
        ("[90.5, 1.5]", "worse (-10.0)"),
        ("[80.0, 0.0]", "within"),
        ('"out of memory"', "better (out of memory)"),
    ],
)
def test_a_figure_is_within_two_published_deviations_or_better_or_has_its_reason(
    runs: list[Any], tmp_path: Path, published: str, verdict: str
) -> None:
    reasons = '[reasons]\nmlp = "the digits are smaller"\n'
    spec = parse_spec("toy", TOY.replace("[90.5, 1.5]", published) + reasons)
    table = verdicts_table(View(spec, [measure(tmp_path)]))
    why = "the digits are smaller" if verdict.startswith("worse") else ""
    assert tuple(table.rows) == (("MLP", verdict, why),)


def test_an_unfinished_cell_says_how_many_runs_it_has(runs: list[Any], tmp_path: Path) -> None:
    result = measure(tmp_path)
    part = replace(result, runs=result.runs[:1], wanted=result.wanted[:2], note="slow")
    table = figures_table(View(SPEC, [part]))  # the spec asks for more runs than it did then
    assert table.rows[1][-1] == "80.0 (1 of 4 runs)¹"
    assert table.notes == (
        "¹ slow",
        f"Measured: random splits; mean ± standard deviation (runs); {', '.join(part.commits)}.",
    )


# The others hold runs from before some options of kernels they do not use had a default of none.
WHOLE = ["fig2b", "fig5", "table2", "table3", "table4", "table8", "table9"]


# Not in fig6 to fig8, which draw one run, nor in table5, where simple forecasts have no seed.
@pytest.mark.parametrize("name", [*WHOLE, "fig2a", "fig4", "table10"])
def test_committed_cells_have_their_settings_and_five_runs_or_a_reason(name: str) -> None:
    spec, found = load_spec(name), 0
    for cell in spec.cells():
        result = read_cell(spec, cell, RESULTS)
        if result is not None:
            assert name not in WHOLE or other_settings(spec, cell, result) == [], cell.name
            assert result.cannot or not result.asked(cell).missing, cell.name
            assert result.cannot or len(result.runs) >= 5, cell.name
            found += result.cannot is None
    assert found


def test_a_table_names_the_commits_of_its_runs_and_marks_each_note(
    runs: list[Any], tmp_path: Path
) -> None:
    result = measure(tmp_path)
    assert result.commits == {commit_of({"commit": commit()})}
    first, *rest = result.runs
    older = replace(result, runs=[{k: v for k, v in first.items() if k != "commit"}, *rest])
    (note,) = figures_table(View(SPEC, [older])).notes
    assert note.endswith(f"; {', '.join(sorted([*result.commits, 'before 2a0c100']))}.")
    notes = {"cora": "slow", "citeseer": "one seed", "pubmed": "slow"}
    results = [
        replace(result, cell=f"{column}.mlp.default.released", column=column, note=note)
        for column, note in notes.items()
    ]
    table = figures_table(View(load_spec("table2"), results, systems=["mlp"]))
    assert [figure[-1] for figure in table.rows[1][-3:]] == ["¹", "²", "¹"]
    assert table.notes[:2] == ("¹ slow", "² one seed")


def test_a_page_is_filled_between_its_markers_and_only_there(tmp_path: Path) -> None:
    page = "before\n<!-- results: table2 systems=mlp -->\nold\n<!-- end of results -->\nafter\n"
    filled = fill_page(page, tmp_path)
    assert "old" not in filled
    assert "| MLP | published |  | 56.1 ± 1.6 |" in filled
    assert filled.startswith("before\n<!-- results: table2 systems=mlp -->\n| Model |")
    assert filled.endswith("\n<!-- end of results -->\nafter\n")
    assert fill_page(filled, tmp_path) == filled


def test_a_page_with_a_wrong_marker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="without '<!-- end of results -->'"):
        fill_page("<!-- results: table2 -->\n", tmp_path)
    with pytest.raises(ValueError, match="'rows=mlp' must be systems="):
        fill_page("<!-- results: table2 rows=mlp -->\n<!-- end of results -->", tmp_path)


def test_data_that_is_nowhere_is_a_reason_in_the_row_and_names_no_folder(
    runs: list[Any], tmp_path: Path
) -> None:
    told: list[str] = []

    def absent(experiment: Experiment) -> Any:
        raise DataError("digits is not in /somewhere; could not be fetched")

    result, _ = measure_cell(SPEC, MLP, tmp_path, dataset=absent, say=told.append)
    assert result.cannot == "not measured: digits is not here and cannot be fetched"
    assert told == [f"{MLP.name}: digits is not in /somewhere; could not be fetched"]
    shown = figures_table(View(SPEC, read_results(tmp_path, "toy")))
    assert [row[1] for row in shown.rows] == ["published"]
    assert shown.notes[-1].endswith("the data is not here and cannot be fetched: digits.")
