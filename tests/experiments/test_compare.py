"""Comparing systems: same splits, paired differences, failures kept apart, plain verdicts."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
import torch

from difformer.compare import compare as module
from difformer.compare.compare import compare
from difformer.compare.comparison import Comparison, Row, verdict
from difformer.data.dataset import Dataset
from difformer.data.snapshots import TemporalDataset
from difformer.data.split import Split
from difformer.errors import RunError
from difformer.jobs.rows import splits_of
from difformer.statistics import paired_difference, spread
from difformer.systems.registry import SYSTEMS

TRAIN = {"epochs": 8, "patience": None, "lr": 0.05}


def make_dataset(n: int = 60, *, graph: bool = True) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    y = (torch.arange(n) % 3).long()
    x = torch.randn(n, 6, generator=generator) + 2.0 * torch.nn.functional.one_hot(y, 6)
    source = torch.arange(n - 3)
    edges = torch.stack([source, source + 3])  # along each class
    return Dataset("toy", x, y, edge_index=edges if graph else None, class_names=("a", "b", "c"))


def toy_splits(data: Dataset, number: int) -> list[Split]:
    return [data.split(f"ratio:0.4/0.3/0.3:{seed}") for seed in range(number)]


def run(data: Dataset, models: list[str], number: int = 2, **options: Any) -> Comparison:
    options = {"workers": 0, "train": TRAIN, **options}
    return compare(data, models=models, splits=toy_splits(data, number), **options)


def test_a_system_that_cannot_run_says_so_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone, mlp = run(make_dataset(graph=False), ["gcn", "mlp"]).rows
    assert "needs a graph" in str(alone.cannot)
    assert len(mlp.runs) == 2
    monkeypatch.setitem(SYSTEMS, "gcn", replace(SYSTEMS["gcn"], cost=lambda *sizes: 1e15))
    large, mlp = run(make_dataset(), ["gcn", "mlp"]).rows
    assert "GB of memory" in str(large.cannot)  # which it would take
    assert len(mlp.runs) == 2


def test_an_error_on_one_split_loses_nothing_of_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    real = module._run_split

    def fails(task: Any, split: Split) -> dict[str, Any]:
        if task.system == "gcn" and split.name.endswith(":1"):
            raise RuntimeError("a fault\nin two lines")
        return real(task, split)

    monkeypatch.setattr(module, "_run_split", fails)
    result = run(make_dataset(), ["gcn", "mlp"], 3)
    gcn, mlp = result.rows
    assert len(gcn.runs) == 2
    assert list(gcn.errors.values()) == ["RuntimeError: a fault in two lines"]
    assert len(mlp.runs) == 3
    assert [row.system for row in result.ranked()] == ["mlp"]


def test_a_second_call_runs_only_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_dataset()
    first = run(data, ["mlp"], 2, folder=tmp_path)
    asked: list[str] = []
    real = module._run_split

    def counted(task: Any, split: Split) -> dict[str, Any]:
        asked.append(f"{task.system} {split.name}")
        return real(task, split)

    monkeypatch.setattr(module, "_run_split", counted)
    second = run(data, ["mlp", "gcn"], 3, folder=tmp_path)
    assert len(asked) == 4  # the third split of one, three of the other
    assert [set(row.runs) for row in second.rows] == [set(second.splits)] * 2
    assert dict(second.rows[0].runs).items() >= dict(first.rows[0].runs).items()
    with pytest.raises(RunError, match="another configuration"):
        run(data, ["mlp"], folder=tmp_path, trials=2)
    other = replace(data, y=(data.y + 1) % 3)
    with pytest.raises(RunError, match=r"another configuration \(data.fingerprint"):
        run(other, ["mlp"], folder=tmp_path)


def test_bad_names_and_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="models must be one or more different"):
        run(make_dataset(), ["mlp", "mlp"])
    with pytest.raises(ValueError, match="trials must be 0 or more"):
        run(make_dataset(), ["mlp"], trials=-1)


def test_the_same_tuning_budget_is_spent_on_every_split(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    result = run(make_dataset(), ["mlp", "gcn"], 2, trials=2, folder=tmp_path)
    for row in result.rows:
        assert [run["trials"] for run in row.runs.values()] == [2, 2]
        assert (tmp_path / row.system / "trials.sqlite").exists()


def test_processes_measure_memory_say_what_is_done_and_take_sparse_features(
    tmp_path: Path,
) -> None:
    data, said = make_dataset(), list[str]()
    data = replace(data, x=data.x.to_sparse_csr())
    held = torch.ones(2**27)  # half a gigabyte that is this process's own, not the children's
    options: Any = {"folder": tmp_path, "look": said.append}
    result = run(data, ["mlp", "logistic"], 2, workers=2, **options)
    assert held.numel()
    assert all(len(row.runs) == 2 for row in result.rows)
    assert all(2**17 < (row.memory or 0) < 2**29 for row in result.rows)
    for system in ("mlp", "logistic"):
        lines = [line for line in said if line.startswith(system)]
        assert lines == [f"{system}: 1 of 2 splits", f"{system}: done"]
    (tmp_path / "mlp" / "system.json").write_text('{"memory": 1000000000000}')
    assert run(data, ["mlp"], 3, workers=1, folder=tmp_path).rows[0].memory == 10**12  # the most


def test_every_kind_of_data_travels_to_another_process() -> None:
    data = TemporalDataset("toy", torch.ones(6, 2), torch.ones(6, 1), "regression", num_nodes=3)
    found = pickle.loads(pickle.dumps(data))  # noqa: S301 - what was written here
    assert (found.fingerprint, found.num_nodes) == (data.fingerprint, 3)


def test_a_process_that_dies_without_a_word_takes_nothing_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_dataset()
    run(data, ["mlp"], 1, folder=tmp_path)
    monkeypatch.setattr(module, "run_in_child", os._exit)  # ends at once, and with a code
    result = run(data, ["gcn", "mlp"], 1, workers=1, folder=tmp_path)
    gcn, mlp = result.rows
    assert list(gcn.errors.values()) == ["its process ended with code 1"]
    assert len(mlp.runs) == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, workers: int) -> None:
    (tmp_path / "mlp").write_text("in the way")
    with pytest.raises(RunError, match="cannot write .*mlp"):
        run(make_dataset(), ["mlp"], 1, folder=tmp_path, workers=workers)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_the_one_that_started_them(tmp_path: Path, number: int) -> None:
    code = (
        "from difformer.compare.compare import compare\n"
        "if __name__ == '__main__':\n"
        "    compare('digits', models=['mlp'], splits=1, workers=1, folder='kept',\n"
        "            train={'epochs': 10**7, 'patience': None})\n"
    )
    (tmp_path / "main.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(Path(module.__file__).parents[2])}
    parent = subprocess.Popen([sys.executable, "main.py"], cwd=tmp_path, env=environment)
    children: set[int] = set()
    try:
        wait_until(lambda: (tmp_path / "kept" / "mlp").exists())  # it has begun
        children = children_of(parent.pid)
        assert children
        parent.send_signal(number)
        parent.wait()
        wait_until(lambda: not any(map(is_running, children)))
    finally:
        parent.kill()
        parent.wait()
        for child in filter(is_running, children):
            os.kill(child, signal.SIGKILL)


def wait_until(done: Callable[[], bool], seconds: float = 600.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.05)


def children_of(pid: int) -> set[int]:
    return {int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_splits_are_the_datas_own_where_there_are_enough() -> None:
    data = make_dataset()
    own = {f"own-{i}": replace(s, name=f"own-{i}") for i, s in enumerate(toy_splits(data, 3))}
    data = replace(data, splits=own)
    assert [s.name for s in splits_of(data, 2)] == ["own-0", "own-1"]
    assert splits_of(data, 4)[0].name == "ratio:0.5/0.25/0.25:0"


def test_paired_difference_is_students_interval() -> None:
    from scipy.stats import ttest_rel

    a, b = [0.81, 0.84, 0.79, 0.83], [0.80, 0.80, 0.78, 0.83]
    gap = paired_difference(a, b)
    low, high = ttest_rel(a, b).confidence_interval(0.95)
    assert (gap.low, gap.high) == (pytest.approx(low), pytest.approx(high))
    assert not gap.certain
    assert paired_difference([1.0], [0.5]).low is None
    with pytest.raises(ValueError, match="same splits"):
        paired_difference([1.0], [])
    assert spread([1.0]) == (1.0, None)


def test_the_pairs_needed_are_those_whose_interval_leaves_zero_out() -> None:
    from scipy.stats import t

    gaps = [0.03, -0.01, 0.02]
    gap = paired_difference(gaps, [0.0] * 3)
    assert not gap.certain
    assert gap.needed is not None
    deviation = stdev(gaps)
    for pairs, certain in ((gap.needed, True), (gap.needed - 1, False)):
        half = t.ppf(0.975, pairs - 1) * deviation / pairs**0.5
        assert (half < gap.mean) == certain
    assert paired_difference([1.0, -1.0], [0.0, 0.0]).needed is None
    assert paired_difference([1.0, -1.0 + 1e-6], [0.0, 0.0]).needed is None  # over 1,000
    assert paired_difference([1.0], [0.0]).needed is None


def made(values: dict[str, list[float]], *, metric: str = "accuracy", graph: bool = True) -> Any:
    """A comparison with these test figures; validation is the same."""
    number = len(next(iter(values.values())))
    names = tuple(f"s{i}" for i in range(number))
    rows = tuple(
        Row(
            system,
            {n: {"val": v, "test": v, "seconds": 1.0} for n, v in zip(names, figures, strict=True)},
        )
        for system, figures in values.items()
    )
    return Comparison("toy", metric, names, 0, rows, graph)


LOSES = {
    "difformer-s": [0.70, 0.71, 0.70],
    "difformer-g": [0.74, 0.75, 0.745],
    "gcn": [0.80, 0.81, 0.80],
    "mlp": [0.5, 0.52, 0.51],
}
WINS = {
    "difformer-s": [0.85, 0.86, 0.85],
    "difformer-g": [0.82, 0.83, 0.825],
    "gcn": [0.80, 0.81, 0.80],
}


@pytest.mark.parametrize(
    ("values", "best", "all_pairs", "graph", "gcn"),
    [
        (
            LOSES,
            "DIFFormer loses: GCN is better than DIFFormer-s, -10.0",
            "No, it hurts",
            "Yes: GCN against MLP",
            "Yes: GCN is better than DIFFormer, graph term only",
        ),
        (
            WINS,
            "DIFFormer wins",
            "Yes: DIFFormer-s against the same model without it",
            "Not asked",
            "No: DIFFormer-s is better",
        ),
    ],
)
def test_the_verdict_says_whether_difformer_wins_and_a_gcn_is_enough(
    values: dict[str, list[float]], best: str, all_pairs: str, graph: str, gcn: str
) -> None:
    lines = verdict(made(values))
    assert lines[0].startswith(best)
    assert f"all-pair diffusion help on this data? {all_pairs}" in lines[1]
    assert f"the graph help? {graph}" in lines[2]
    assert f"GCN enough? {gcn}" in lines[3]


def test_the_verdict_claims_nothing_from_noise_or_from_one_system() -> None:
    noise = {"difformer-s": [0.8, 0.7, 0.9], "gcn": [0.7, 0.9, 0.78], "mlp": [0.9, 0.7, 0.75]}
    lines = verdict(made(noise))
    assert lines[0].startswith("Is DIFFormer better? Cannot tell from 3 splits: ")  # over 1,000
    assert all("Cannot tell from 3 splits" in line for line in lines)
    assert not any("Yes" in line or "No:" in line for line in lines)
    close = made({"difformer-s": [0.83, 0.80, 0.82], "gcn": [0.80, 0.81, 0.80]})
    assert "Cannot tell from 3 splits; about 12 would: DIFFormer-s" in verdict(close)[3]
    single = verdict(made({"difformer-s": [0.9], "gcn": [0.1], "mlp": [0.2]}))
    assert single[0].startswith("Is DIFFormer better? Cannot tell from 1 split: ")
    assert verdict(made({"gcn": [0.8]}))[0].startswith("Nothing to say")


def test_lower_is_better_where_the_metric_says_so() -> None:
    result = made({"difformer-s": [1.0, 1.1, 1.0], "gcn": [2.0, 2.1, 2.0]}, metric="mse")
    assert result.ranked()[0].system == "difformer-s"
    assert verdict(result)[0].startswith("DIFFormer wins")
