"""A run that is killed, interrupted or out of disk goes on to the bits it would have had."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from difformer import DIFFormer, Graph
from difformer.errors import RunError
from difformer.tensorfiles import read_tensors, write_tensors
from difformer.train.batches import FullBatch
from difformer.train.callbacks import Callback

FILES = ["config.toml", "metrics.csv", "model.safetensors", "result.json", "split.json"]
SCRIPT = Path(__file__).with_name("killable.py")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks and kills children")


def start(mode: str, folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), mode, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return output.strip()


def digests(folder: Path) -> dict[str, str]:
    """Of everything in a run folder but the time it took."""
    kept = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}
    result = json.loads((folder / "result.json").read_text())
    assert result.pop("seconds") > 0
    assert result.pop("peak_memory") > 0
    return kept | {"result.json": json.dumps(result)}


def same_as_whole(problem, tmp_path, **options):
    """Go on with the run in `cut`: its model, its result, and those of a run that never stopped."""
    ours, theirs = (problem.fit(tmp_path / name, **options) for name in ("cut", "whole"))
    assert digests(tmp_path / "cut") == digests(tmp_path / "whole")
    return *ours, *theirs


def stopped(problem, folder, epoch=5, **options):
    """The checkpoint of a run that an error ended."""

    class Stop(Callback):
        def on_epoch(self, fit) -> None:
            if fit.epoch == epoch:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        problem.fit(folder, callbacks=[Stop()], **options)
    return folder / "checkpoint.safetensors"


@needs_fork
def test_killed_at_any_write_and_resumed_gives_the_same_bits(tmp_path):
    number = int(finish(start("points", tmp_path)))
    assert number > 20
    whole = digests(tmp_path / str(number))
    assert sorted(whole) == FILES
    for call in range(1, number):
        assert digests(tmp_path / str(call)) == whole, call


@needs_fork
def test_ctrl_c_leaves_a_usable_run_that_goes_on_to_the_same_bits(tmp_path):
    process = start("train", tmp_path / "cut")
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    result = json.loads((tmp_path / "cut" / "result.json").read_text())
    assert result["interrupted"]
    assert 3 <= result["epochs"] < 200
    assert result["metrics"]["test"]["accuracy"] > 0
    assert (tmp_path / "cut" / "model.safetensors").exists()
    assert finish(process) == "epochs"  # closing stdin lets it go on
    whole = start("train", tmp_path / "whole")
    assert finish(whole).split() == ["started", "epochs", "epochs"]
    assert digests(tmp_path / "cut") == digests(tmp_path / "whole")


def test_a_second_ctrl_c_in_mid_epoch_also_goes_on_to_the_same_bits(problem, tmp_path):
    class Interrupted(type(problem.model())):
        steps = 0

        def forward(self, *arguments):
            type(self).steps += 1
            if type(self).steps == 11:  # a training forward: they alternate with evaluations
                raise KeyboardInterrupt
            return super().forward(*arguments)

    _, result = problem.fit(tmp_path / "cut", model=lambda: Interrupted(5, 3, 0.3))
    assert result.interrupted
    assert result.best_epoch <= result.epochs == 5
    same_as_whole(problem, tmp_path)


def test_an_interrupt_before_the_first_evaluation_has_nothing_to_keep(problem, tmp_path):
    class Never(nn.Linear):
        def forward(self, *arguments):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        problem.fit(tmp_path, model=lambda: Never(5, 3))
    assert not (tmp_path / "result.json").exists()


def given(problem, kind):
    """A problem of a kind, and how `fit` is called: a graph, sparse rows, or a teacher beside."""
    if kind == "pseudo":
        return problem.with_settings(pseudo_labels=1.0, pseudo_warmup=3), {}
    if kind == "linear":
        return problem.with_settings(eval_every=3, patience=6, warmup=4), {}
    x, edges = problem.dataset.x, torch.randint(90, (2, 300), generator=torch.Generator())
    rows = x.relu().to_sparse_csr() if kind == "sparse" else x
    data = replace(problem.dataset, x=rows)
    source = FullBatch(data, problem.split, Graph.from_edges(edges, 90, self_loops=True))
    model = partial(DIFFormer, 5, 8, 3, num_layers=3, dropout=0.2)
    return problem, {"source": source, "model": model}


@pytest.mark.parametrize(
    ("kind", "epoch", "every"),
    [
        *(("linear", epoch, every) for epoch in (1, 5, 11) for every in (0.0, 1e9)),
        *((kind, 7, 0.0) for kind in ("difformer", "sparse", "pseudo")),
    ],
)
def test_an_error_in_mid_run_loses_nothing(problem, tmp_path, kind, epoch, every):
    problem, options = given(problem.with_settings(checkpoint_every=every), kind)
    stopped(problem, tmp_path / "cut", epoch, **options)
    model, result, other, whole = same_as_whole(problem, tmp_path, **options)
    assert result.history == whole.history
    for name, value in model.state_dict().items():
        assert value.equal(other.state_dict()[name])


def test_a_finished_run_is_read_back(problem, tmp_path):
    model, result = problem.fit(tmp_path)

    class Untouched(Callback):
        def on_start(self, fit) -> None:
            raise AssertionError("must not train again")

    other, again = problem.fit(tmp_path, callbacks=[Untouched()])
    assert again == result
    assert other.linear.weight.equal(model.linear.weight)


def test_a_full_disk_keeps_the_last_good_checkpoint(problem, tmp_path, monkeypatch):
    free = 21  # writes that still fit
    real = os.fsync

    def fsync(handle):
        nonlocal free
        free -= 1
        if free < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(RunError, match="No space left on device; what was there before") as caught:
        problem.fit(tmp_path / "cut")
    assert "\n" not in str(caught.value)
    assert "checkpoint.safetensors" in str(caught.value)
    assert (tmp_path / "cut" / "checkpoint.safetensors").exists()
    assert not list((tmp_path / "cut").glob(".*"))  # no half file left
    free = 10**6
    same_as_whole(problem, tmp_path)


def test_another_configuration_is_refused_by_the_names_that_differ(problem, tmp_path):
    problem.fit(tmp_path, config={"model": {"width": 3}})
    before = digests(tmp_path)
    with pytest.raises(RunError, match=r"model.width: 3 there, 4 now; train.lr: 0.05 there, 0.1 "):
        problem.with_settings(lr=0.1).fit(tmp_path, config={"model": {"width": 4}})
    with pytest.raises(RunError, match=r"model.width: 3 there, none now"):
        problem.fit(tmp_path)
    assert digests(tmp_path) == before


def test_another_split_and_a_folder_without_its_config_are_refused(problem, tmp_path):
    problem.fit(tmp_path)
    split, problem.split = problem.split, type(problem.split)("toy", [0, 1], [2], [3])
    with pytest.raises(RunError, match="another split"):
        problem.fit(tmp_path)
    problem.split = split
    (tmp_path / "config.toml").unlink()
    with pytest.raises(RunError, match=r"no config\.toml"):
        problem.fit(tmp_path)


def test_another_model_is_refused(problem, tmp_path):
    stopped(problem, tmp_path)
    wider = type(problem.model())
    with pytest.raises(RunError, match=r"checkpoint.safetensors holds the weights of another"):
        problem.fit(tmp_path, model=lambda: wider(5, 4))


CHANGES = {
    "longer": lambda t: t.repeat(2, *[1] * (t.dim() - 1)) if t.dim() else t.repeat(2),
    "double": lambda t: t.double(),
    "one": lambda t: t.reshape(-1)[:1],
    "whole": lambda t: t.to(torch.int64),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("moment", ["exp_avg", "exp_avg_sq", "step"])
def test_moments_of_another_shape_or_type_are_refused(problem, tmp_path, change, moment):
    path = stopped(problem, tmp_path)
    tensors, rest = read_tensors(path, "checkpoint")
    name = next(n for n in tensors if n.startswith("optimizer.state.") and n.endswith(moment))
    tensors[name] = CHANGES[change](tensors[name])
    write_tensors(path, "checkpoint", tensors, rest)
    with pytest.raises(RunError, match=f"optimiser of another model: {moment} of parameter 0"):
        problem.fit(tmp_path)


@pytest.mark.parametrize("name", ["epoch", "seconds"])
def test_a_checkpoint_without_a_number_is_refused(problem, tmp_path, name):
    path = stopped(problem, tmp_path)
    tensors, rest = read_tensors(path, "checkpoint")
    write_tensors(path, "checkpoint", tensors, {**rest, name: None})
    with pytest.raises(RunError, match="is damaged"):
        problem.fit(tmp_path)


def test_any_changed_byte_of_a_checkpoint_is_refused(problem, tmp_path):
    path = stopped(problem, tmp_path)
    whole, draw = path.read_bytes(), random.Random(0)
    tensors = 8 + int.from_bytes(whole[:8], "little")  # where they start
    places = [draw.randrange(8, len(whole)) for _ in range(40)]
    places += [draw.randrange(tensors, len(whole)) for _ in range(40)]
    changed = [
        whole[:i] + bytes([whole[i] ^ 1 << draw.randrange(8)]) + whole[i + 1 :] for i in places
    ]
    for content in (b"", b"x" * 100, whole[:-9], *changed):
        path.write_bytes(content)
        if json_of(content) == json_of(whole) and content[tensors:] == whole[tensors:]:
            continue  # white space in the header
        with pytest.raises(RunError) as caught:
            problem.fit(tmp_path)
        assert "\n" not in str(caught.value)
        assert "damaged" in str(caught.value)


def json_of(content):
    end = 8 + int.from_bytes(content[:8], "little")
    try:
        header = json.loads(content[8:end])
        return {**header, "__metadata__": json.loads(header["__metadata__"]["difformer"])}
    except (ValueError, KeyError, TypeError):
        return None


def test_a_folder_that_cannot_be_made_is_one_clear_line(problem, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot write .*config\.toml: Not a directory"):
        problem.fit(tmp_path / "file" / "run")
