"""The suite: its sets and splits, runs that go on, and what its tables say."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import suite as bench
from benchmarks import suite_tables
from benchmarks.suite_sets import SETS, load_set

TABLE, GRAPH = "iris", "cora"  # neither needs a folder of data


@pytest.mark.parametrize("name", [TABLE, "digits"])
def test_a_table_has_ten_labels_per_class_and_tests_all_other_rows(name):
    chosen = load_set(name)
    split = chosen.split(4)
    few = chosen.labels(split)
    assert set(np.bincount(few[few >= 0])) == {10}
    assert sorted([*split.train.tolist(), *split.test.tolist()]) == list(range(len(few)))
    assert (few[split.test.numpy()] == -1).all()
    assert chosen.split(4).train.equal(split.train)
    assert not chosen.split(5).train.equal(split.train)


def test_the_labels_of_a_graph_are_those_to_train_and_to_validate():
    chosen = load_set(GRAPH)
    split = chosen.split(0)
    few = chosen.labels(split)
    known = sorted([*split.train.tolist(), *split.val.tolist()])
    assert np.flatnonzero(few >= 0).tolist() == known
    assert len(split.test) == 1000


INSIDE = {"iris", "wine", "breast_cancer", "digits", "cora", "citeseer"}  # need no folder of data


@pytest.mark.parametrize("name", sorted(SETS))
def test_every_set_is_read_with_ten_splits(name, request):
    root = None if name in INSIDE else request.getfixturevalue("data_root")
    chosen = load_set(name, root)
    assert chosen.data.num_rows == chosen.X.shape[0]
    assert (chosen.kind == "graph") == (chosen.data.edge_index is not None)
    for number in (0, bench.SPLITS - 1):
        split = chosen.split(number).check(chosen.data.num_rows)
        assert len(split.test)
        assert (chosen.data.y[split.test] >= 0).all()
        assert bool(len(split.val)) == (chosen.kind == "graph")


def test_a_run_goes_on_where_it_was_killed(tmp_path, monkeypatch):
    path = tmp_path / "suite.json"
    measured: list[bench.Job] = []
    real = bench.measure

    def counted(job, chosen):
        measured.append(job)
        if len(measured) == 3:
            raise KeyboardInterrupt
        return real(job, chosen)

    monkeypatch.setattr(bench, "measure", counted)
    with pytest.raises(KeyboardInterrupt):
        bench.suite([TABLE], ["knn", "logistic"], 2, workers=0, path=path)
    kept = json.loads(path.read_text())["results"][TABLE]["systems"]
    assert kept["knn"].keys() == {"0"}
    assert kept["logistic"].keys() == {"0"}
    whole = bench.suite([TABLE], ["knn", "logistic"], 2, workers=0, path=path)
    assert len(measured) == 5  # two of four were there already
    assert whole[TABLE]["systems"]["knn"]["0"] == kept["knn"]["0"]
    bench.suite([TABLE], ["knn", "logistic"], 2, workers=0, path=path)
    assert len(measured) == 5
    bench.suite([TABLE], ["knn"], 1, workers=0, path=path, again=True)
    assert len(measured) == 6


def test_ours_and_its_peers_are_measured_on_the_same_test_rows():
    chosen = load_set(TABLE)
    for system in (bench.OURS, "logistic", "label-spreading"):
        first = bench.measure(bench.Job(TABLE, system, 1), chosen)
        assert first["split"] == "per class 10:1"
        assert first["accuracy"] > 0.8
        assert 0 < first["log_loss"] < 1
        assert 0 <= first["ece"] < 0.5
        again = bench.measure(bench.Job(TABLE, system, 1), chosen)
        assert {**first, "seconds": 0} == {**again, "seconds": 0}


def test_a_system_of_graphs_is_not_asked_for_on_a_table():
    kinds = {TABLE: "table", GRAPH: "graph"}
    jobs = list(bench.jobs_of([TABLE, GRAPH], bench.SYSTEMS, 1, kinds))
    assert {job.system for job in jobs if job.dataset == TABLE} == {bench.OURS, *bench.ROWS}
    assert {job.system for job in jobs if job.dataset == GRAPH} == set(bench.SYSTEMS)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ((["moon"], ["knn"], 1), "datasets must be among sonar"),
        (([TABLE], ["svm"], 1), "systems must be among difformer"),
        (([TABLE], ["knn"], 11), "splits must be 1 to 10, got 11"),
    ],
)
def test_what_is_not_known_is_named(asked, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        bench.suite(*asked, workers=0, path=tmp_path / "suite.json")


# --- tables ------------------------------------------------------------------------------------


def made(scores, kind="table"):
    """A result file's content: {set: {system: accuracy by split}}."""
    return {
        name: {
            "kind": kind,
            "metric": "accuracy",
            "systems": {
                system: {
                    str(i): {"accuracy": v, "log_loss": 1 - v, "ece": 0.1, "seconds": 1.0}
                    for i, v in enumerate(values)
                }
                for system, values in systems.items()
            },
        }
        for name, systems in scores.items()
    }


RESULTS = made(
    {
        "a": {"difformer": [0.9, 0.8], "knn": [0.8, 0.6], "forest": [0.7, 0.7]},
        "b": {"difformer": [0.5, 0.5], "knn": [0.4, 0.6], "forest": [0.6, 0.6]},
    }
)


def test_ranks_are_means_over_sets_and_ties_share_theirs():
    place = suite_tables.ranks(RESULTS, "table")
    assert place == {"difformer": 1.75, "knn": 2.5, "forest": 1.75}
    assert suite_tables.ranks(RESULTS, "graph") == {}


def test_figures_that_differ_by_their_rounding_tie():
    third = made({"a": {"difformer": [0.84314, 0.86275], "knn": [0.82353, 0.88235]}})
    assert suite_tables.ranks(third, "table") == {"difformer": 1.5, "knn": 1.5}


def test_a_system_that_missed_a_set_has_no_rank():
    some = made({"a": {"difformer": [0.9], "knn": [0.8]}, "b": {"difformer": [0.9]}})
    assert suite_tables.ranks(some, "table") == {"difformer": 1.0}
    shown = suite_tables.suite_tables(some)
    assert shown[-1] == ["kNN", "80.0", "—", "—"]


def test_paired_differences_are_over_sets_and_over_splits():
    sets = suite_tables.over_sets(RESULTS, "table", "knn")
    splits = suite_tables.over_splits(RESULTS, "table", "knn")
    assert sets is not None
    assert splits is not None
    assert sets.mean == pytest.approx(0.075) == pytest.approx(splits.mean)
    assert sets.high - sets.mean == pytest.approx(12.7062 * 0.075)  # t of one degree
    assert splits.high - splits.mean == pytest.approx(12.7062 * 0.025, rel=1e-4)
    row = next(row for row in suite_tables.suite_paired(RESULTS) if row[0] == "kNN")
    assert row[1].startswith("+7.5 [")
    assert row[3] == "1 of 2"


def test_sets_that_are_far_behind_are_named_with_the_best_peer():
    rows = suite_tables.suite_behind(RESULTS)
    assert [row[:4] for row in rows[1:]] == [["b", "50.0", "random forest", "60.0"]]
    ahead = made({"a": {"difformer": [0.9, 0.8], "knn": [0.9, 0.81]}})
    assert suite_tables.suite_behind(ahead)[1][0] == "none"


def test_the_summary_counts_what_it_says():
    shown = dict(suite_tables.suite_shown(RESULTS))
    assert shown["mean rank; best peer"] == "1.8, place 1 of 3; random forest 1.8"
    far = "datasets on which the best peer is more than two points ahead"
    assert shown[far] == "1 of 2; lowest difference -10.0"
    low = "datasets on which the log loss is at most that of the best peer"
    assert shown[low] == "1 of 2"
    assert shown["mean expected calibration error"] == "0.100"


def test_every_table_is_made_of_a_result_file_of_both_kinds():
    both = {**RESULTS, **made({"g": {"difformer": [0.8, 0.9], "gcn": [0.7, 0.8]}}, "graph")}
    for maker in suite_tables.MAKERS:
        rows = maker(both)
        assert len(rows) > 1
        assert {len(row) for row in rows} == {len(rows[0])}


def test_options_of_the_suite_are_refused_for_other_benchmarks(monkeypatch):
    from difformer.app.cli import main

    monkeypatch.chdir(Path(__file__).parents[1])
    with pytest.raises(SystemExit) as ended:
        main(["bench", "steps", "--splits", "2"])
    assert ended.value.code == 2
