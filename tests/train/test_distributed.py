"""Any number of processes trains as one does; what they send; what a failed one leaves behind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from difformer.errors import DifformerError
from difformer.train.checkpoint import load_checkpoint
from difformer.train.distributed import fault, meet
from difformer.train.processes import Comm
from difformer.train.settings import launched


@pytest.fixture(scope="module")
def answers(script, tmp_path_factory):
    folder = tmp_path_factory.mktemp("equal")
    script("shardable.py", "equal", folder)
    return {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}


def close(one, other, name):
    a, b = (torch.tensor(each, dtype=torch.float64) for each in (one, other))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-9, msg=lambda text: f"{name}: {text}")


def same_metrics(answer, other):
    assert answer["metrics"].keys() == other["metrics"].keys()
    for part, metrics in answer["metrics"].items():
        assert metrics == pytest.approx(other["metrics"][part], abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_losses_and_predictions_are_those_of_one_process(answers, world):
    alone = answers["alone"]
    mine = answers[f"{world}-0"]
    assert len(mine) > 5
    for name, answer in mine.items():
        expected = alone[name.removesuffix(" on disk")]
        for key in ("losses", "predictions"):
            close(answer[key], expected[key], name)
        if "batches" not in name or "on disk" not in name:  # else evaluated in batches too
            same_metrics(answer, expected)
    assert len(mine["s graph"]["losses"]) == len(mine["a graph"]["losses"]) == 20


def test_every_process_ends_with_the_same_model_and_metrics(answers):
    for world in (2, 4):
        for rank in range(1, world):
            for name, answer in answers[f"{world}-{rank}"].items():
                lead = answers[f"{world}-0"][name]
                assert answer["predictions"] == lead["predictions"]
                assert answer["metrics"] == lead["metrics"]


@pytest.mark.parametrize("world", [2, 4])
def test_outputs_from_parts_do_not_depend_on_the_number_of_processes(answers, world):
    for name, one in answers["1-0"].items():
        if "outputs" in one and name in answers[f"{world}-0"]:
            each = [answers[f"{world}-{rank}"][name] for rank in range(world)]
            close([row for found in each for row in found["outputs"]], one["outputs"], name)
            same_metrics(each[0], one)


def test_bytes_of_the_all_pair_term_do_not_depend_on_the_number_of_rows(answers):
    sent = answers["bytes-0"]
    d, layers, directions = 8, 2, 2
    for name in sent:
        assert sent[name]["context"] == (d * d + 2 * d + 1) * 8 * layers * directions, name
    assert sent["100000"] == sent["1000"]
    assert sent["10000 graph"]["boundary"] > 50 * sent["100 graph"]["boundary"]


def test_processes_meet_only_those_of_their_own_life():
    store = dist.HashStore()
    names: set[str] = set()
    for _ in range(3):  # a job that is restarted twice keeps its store
        with ThreadPoolExecutor(3) as pool:
            # The others come first and find what the dead left there.
            order = (1, 2, 0)
            found = {pool.submit(meet, store, rank, 3).result for rank in order}
            lives = {result(timeout=20) for result in found}
        assert len(lives) == 1
        names |= lives
    assert len(names) == 3


def test_a_rank_that_never_comes_is_named():
    with pytest.raises(DifformerError, match=r"ranks \[1\] must join within 0:00:00.05"):
        meet(dist.HashStore(), 0, 2, timeout=timedelta(seconds=0.05))


@pytest.fixture(scope="module")
def faulty(script, tmp_path_factory):
    """Jobs of two ranks in which something goes wrong in the third epoch."""
    folder = tmp_path_factory.mktemp("faulty")
    script("shardable.py", "faults", folder)
    return folder


AGREE = "rank 0 of 2: all processes must have the same {}: rank 1 differs from rank 0"
LOST = "rank {} of 2: lost the other processes"


@pytest.mark.parametrize(
    ("kind", "messages", "codes"),
    [
        ("memory", ["rank 1 of 2: out of memory (", LOST.format(0)], [1, 1]),
        ("killed", [LOST.format(0)], [1, -9]),
        ("disk", ["rank 0 of 2: cannot write", "No space left on device", LOST.format(1)], [2, 1]),
        ("silent", [LOST.format(0), LOST.format(1)], [1, 1]),
        ("batch", ["rank 0 of 2: batch_size must lie in 1 to 41", "got 42"], [2, 2]),
        ("lr", [AGREE.format("settings")], [2, 2]),
        ("epochs", [AGREE.format("settings")], [2, 2]),
        ("data", [AGREE.format("data")], [2, 2]),
        ("version", [AGREE.format("code")], [2, 2]),
    ],
)
def test_the_rank_that_saw_a_fault_says_so_and_all_stop(faulty, kind, messages, codes):
    assert json.loads((faulty / "codes.json").read_text())[kind] == codes
    said = (faulty / f"{kind}.err").read_text()
    for message in messages:
        assert message in said
    assert "Traceback" not in said


@pytest.mark.parametrize("kind", ["memory", "killed", "disk", "silent"])
def test_the_last_good_checkpoint_stays_and_the_run_goes_on_from_it(faulty, kind):
    folder = faulty / kind
    assert load_checkpoint(folder / "checkpoint.safetensors")[1]["epoch"] == 2
    assert not list(folder.glob(".*.part"))
    assert not (folder / "result.json").exists()


def can_cut_links() -> bool:
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return False
    return (
        subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False).returncode == 0
    )


@pytest.mark.skipif(not can_cut_links(), reason="separate networks need root and `ip`")
def test_a_cut_link_is_one_line_of_each_rank_and_the_checkpoint_stays(script, tmp_path):
    script("shardable.py", "link", tmp_path)
    assert json.loads((tmp_path / "codes.json").read_text()) == [1, 1]
    said = (tmp_path / "link.err").read_text()
    for rank in range(2):
        assert len([line for line in said.splitlines() if LOST.format(rank) in line]) == 1
    assert "Traceback" not in said
    assert load_checkpoint(tmp_path / "link" / "checkpoint.safetensors")[1]["epoch"] == 2
    assert not (tmp_path / "link" / "result.json").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the system names threads on Linux only")
def test_no_thread_of_a_job_outlives_it(script, tmp_path):
    """One that still frees a tensor when Python ends would abort the process."""
    script("shardable.py", "threads", tmp_path)
    for rank in range(2):
        assert "gloo" not in (tmp_path / str(rank)).read_text()


def test_alone_a_job_sends_nothing():
    comm = Comm()
    assert not launched()
    assert repr(comm) == "rank 0 of 1"
    value = torch.ones(3)
    assert comm.sum(value, "x") is value
    assert not comm.sent


def test_faults_are_told_apart():
    lost = RuntimeError("[pair.cc] Connection closed by peer [127.0.0.1]:1")
    assert "lost the other processes" in fault(lost, Comm())
    assert fault(ValueError("lr must be 1"), Comm()) == (
        "difformer: rank 0 of 1: lr must be 1; the last checkpoint is kept"
    )


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
OFTEN = ("--max-restarts=2", "--monitor-interval=0.2")


def test_a_killed_rank_is_restarted_and_the_result_is_the_one_it_would_have_been(script, tmp_path):
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    script("shardable.py", "calm", calm)
    killed.mkdir()
    (killed / "data").symlink_to(calm / "data")
    script("shardable.py", "train", killed, launcher=(*TORCHRUN, *OFTEN))
    for data in ("memory", "parts"):
        assert (killed / f"{data}.dies").exists()
        ours, theirs = (
            json.loads((folder / data / "result.json").read_text()) for folder in (killed, calm)
        )
        assert ours["metrics"] == theirs["metrics"]
        assert ours["epochs"] == theirs["epochs"] == 12
        for file in ("metrics.csv", "model.safetensors"):
            again, whole = ((folder / data / file).read_bytes() for folder in (killed, calm))
            assert again == whole, (data, file)


# What is freed goes back to the system at once, so that what is held can be seen.
RETURNED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def test_the_memory_of_a_process_is_its_share_of_the_data_and_a_step(script, tmp_path):
    script("shardable.py", "memory", tmp_path, **RETURNED)

    def most(world: int, batch_size: int | None = None) -> int:
        files = (tmp_path / f"{world}-{rank}-{batch_size}.txt" for rank in range(world))
        return max(int(file.read_text()) for file in files)

    one, two, four = (most(world) for world in (1, 2, 4))
    features = sum(file.stat().st_size for file in tmp_path.glob("part-*/x.npy"))
    assert one > features
    # A step over processes keeps queries, keys and values, which one process alone does not.
    assert two < 0.75 * one
    assert four < 0.55 * two
    assert most(1, 5000) < 0.4 * features  # streamed: some batches, and the labels
