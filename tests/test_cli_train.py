"""difformer train, demo and reproduce as a person calls them."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import difformer
from difformer.data.fetch import FetchError, Web
from difformer.files import alone_in
from difformer.train.checkpoint import load_checkpoint
from difformer.train.folder import read_config

SOURCE = Path(difformer.__file__).parent.parent
SMALL = ("--num-layers", "1", "--hidden-channels", "4", "--no-report", "--quiet")
QUICK = ("train", "digits", "--epochs", "2", *SMALL)


def test_a_run_is_a_folder_and_the_next_one_another(cli: Any) -> None:
    assert "kept in runs/digits-difformer-s-1" in cli(*QUICK).out
    shown = cli(*(word for word in QUICK if word != "--no-report")).out
    assert "kept in runs/digits-difformer-s-2; look at runs/digits-difformer-s-2/report" in shown
    names = {"config.toml", "split.json", "metrics.csv", "model.safetensors", "result.json"}
    assert {p.name for p in Path("runs/digits-difformer-s-1").iterdir()} == names
    assert {p.name for p in Path("runs/digits-difformer-s-2").iterdir()} == names | {"report.html"}


@pytest.mark.parametrize("more", [(), ("--resume",)])
def test_a_folder_that_another_run_writes_to_is_refused(cli: Any, more: tuple[str, ...]) -> None:
    pytest.importorskip("fcntl")
    with alone_in(Path("r")):
        said = cli.refused(*QUICK, "--out", "r", *more)
    assert "another run is writing to r: wait until it ends, or give another folder" in said
    assert not list(Path("r").iterdir())


def test_json_is_one_document_and_nothing_else(cli: Any) -> None:
    done = cli(*QUICK, "--json", "--seeds", "2")
    record = json.loads(done.out)
    assert done.err == ""
    assert record["dataset"] == "digits"
    assert set(record["seeds"]) == {"0", "1"}
    assert 0 <= record["metrics"]["test"]["accuracy"]["mean"] <= 1


SET = (
    *("hidden_channels=4", "epochs=2", "kernel=constant", "use_graph=no", "graph_weight=none"),
    *("lr=0.02", "patience=1", "seed=9"),
)


def test_what_is_given_by_a_flag_or_by_set_reaches_the_config(cli: Any) -> None:
    cli(*QUICK, "--out", "r", "--kernel", "constant", "--no-use-graph", "--graph-weight", "none",
        "--lr", "0.02", "--patience", "1", "--split", "random:4", "--seed", "9")  # fmt: skip
    cli("train", "digits", "--no-report", "--out", "s", "--split", "random:4", "--set",
        "num-layers=1", *(word for pair in SET for word in ("--set", pair)))  # fmt: skip
    assert Path("s/config.toml").read_text() == Path("r/config.toml").read_text()
    config = read_config(Path("r/config.toml"))
    assert config["split"] == "random:4"
    assert config["model"]["kernel"] == "constant"
    assert config["model"]["use_graph"] is False
    assert config["model"]["graph_weight"] == "none"
    assert [config["train"][name] for name in ("lr", "patience", "seed")] == [0.02, 1, 9]


def test_a_runs_own_config_makes_the_same_run_again(cli: Any) -> None:
    cli(*QUICK, "--out", "one", "--tau", "0.3", "--split", "random:2", "--seed", "5")
    cli("train", "--config", "one/config.toml", "--out", "two", "--no-report")
    for name in ("config.toml", "metrics.csv", "model.safetensors", "split.json"):
        assert Path("one", name).read_bytes() == Path("two", name).read_bytes()


def test_words_win_over_the_config_and_another_system_leaves_its_model_behind(cli: Any) -> None:
    Path("c.toml").write_text(
        "dataset = 'digits'\nsplit = 'random:1'\n[model]\ntau = 0.3\n[train]\nepochs = 2\n",
        encoding="utf-8",
    )
    base = ("train", "--config", "c.toml", "--no-report")
    cli(*base, "--out", "a", "--epochs", "1", "--num-layers", "1")
    cli(*base, "--out", "b", "--model", "mlp", "--set", "num_layers=1")
    a, b = (read_config(Path(f, "config.toml")) for f in "ab")
    assert (a["model"]["tau"], a["train"]["epochs"], a["split"]) == (0.3, 1, "random:1")
    assert (b["system"], b["model"]["num_layers"]) == ("mlp", 1)
    assert "tau" not in b["model"]


def test_data_without_a_graph_takes_the_recipe_for_it_unless_it_gets_neighbours(cli: Any) -> None:
    cli(*QUICK, "--out", "a")
    cli(*QUICK, "--out", "b", "--neighbours", "4")
    a, b = (read_config(Path(f, "config.toml")) for f in "ab")
    assert (a["recipe"], b["recipe"], b["data"]) == ("alone", "stable", {"neighbours": 4})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "digits", "--batch-size", "1798", "--epochs", "1"], "batch_size must lie in 1"),
        (["train", "digits", "--device", "cuda:99"], "device"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_run(words: list[str], message: str, cli: Any) -> None:
    assert message in cli.refused(*words, "--quiet")
    assert not list(Path("runs").rglob("result.json"))


def test_a_run_that_is_refused_leaves_no_folder(cli: Any) -> None:
    Path("t.csv").write_text("a,b\n1,2\n")
    cli.refused("train", "--nodes", "t.csv", "--label", "c", "--out", "r")
    assert not Path("r").exists()


def test_a_resumed_run_whose_config_differs_is_refused_and_kept(cli: Any) -> None:
    cli(*QUICK, "--out", "r")
    before = {p.name: p.read_bytes() for p in Path("r").iterdir()}
    assert "r holds a run already: add --resume" in cli.refused(*QUICK, "--out", "r")
    line = cli.refused(*QUICK, "--out", "r", "--resume", "--tau", "0.1")
    assert "model.tau: 0.5 there, 0.1 now" in line
    assert {p.name: p.read_bytes() for p in Path("r").iterdir()} == before
    assert cli(*QUICK, "--out", "r", "--resume").code == 0


def test_more_seeds_go_on_with_those_there_are(cli: Any) -> None:
    cli(*QUICK, "--out", "r", "--seeds", "2")
    written = Path("r/seed-1/model.safetensors").stat().st_mtime_ns
    assert cli(*QUICK, "--out", "r", "--seeds", "3", "--resume").code == 0
    assert Path("r/seed-2/result.json").exists()
    assert Path("r/seed-1/model.safetensors").stat().st_mtime_ns == written


def test_without_a_network_the_line_says_where_to_put_the_data(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*values: Any) -> None:
        raise FetchError("no network")

    monkeypatch.setattr(Web, "fetch", offline)
    for words in (["train", "actor"], ["datasets", "fetch", "actor"]):
        line = cli.refused(*words)
        assert "no network" in line
        assert "--data-dir or $DIFFORMER_DATA" in line


def test_a_full_disk_is_one_line_that_says_what_to_do(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device" in cli.refused(*QUICK)


def test_tensorboard_logs_lie_in_the_run(cli: Any) -> None:
    pytest.importorskip("tensorboard")
    cli(*QUICK, "--out", "r", "--tensorboard")
    assert list(Path("r/tensorboard").glob("events*"))


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(
    ("number", "code", "ctrl_c"),
    # A background job may hand down an ignored Ctrl-C, which a run then ignores on purpose.
    [(signal.SIGINT, 130, signal.SIG_DFL), (signal.SIGTERM, 143, signal.SIG_IGN)],
)
def test_ctrl_c_or_sigterm_keeps_the_run_and_says_how_to_go_on(
    tmp_path: Path, number: int, code: int, ctrl_c: signal.Handlers
) -> None:
    words = ["train", "digits", "--epochs", "100000", "--no-report", "--out", "r", "--model", "mlp"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    process = subprocess.Popen(
        [sys.executable, "-m", "difformer", *words],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, ctrl_c),
    )
    metrics = tmp_path / "r" / "metrics.csv"
    deadline = time.monotonic() + 100
    while not (metrics.exists() and metrics.read_text(encoding="utf-8").count("\n") > 5):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(number)
    try:
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code, err
    assert "go on with: difformer train digits" in err
    assert "--resume" in err
    assert "Traceback" not in err
    result = json.loads((tmp_path / "r" / "result.json").read_text(encoding="utf-8"))
    assert result["interrupted"] is True
    assert (tmp_path / "r" / "model.safetensors").exists()
    # All epochs are kept, not only those up to the last checkpoint that was due.
    assert (
        load_checkpoint(tmp_path / "r" / "checkpoint.safetensors")[1]["epoch"] == result["epochs"]
    )


def test_reproduce_shows_what_is_there_and_runs_nothing(cli: Any) -> None:
    done = cli("reproduce", "table2", "--models", "difformer-s", "--show")
    assert done.code == 0
    assert "85.9 ± 0.4" in done.out
    assert "DIFFormer-a" not in done.out


def test_reproduce_measures_a_cell_and_goes_on(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["reproduce", "table2", "--models", "lp", "--datasets", "cora", "--protocols", "public"]
    words += ["--json"]
    first = json.loads(cli(*words, "--seeds", "1").out)
    (cell,) = first["cells"]
    assert cell["runs"] == 1
    assert cell["mean"] > 0.5
    assert cell["published"] == [68.2, None]
    assert json.loads(cli(*words, "--show").out)["cells"][0]["mean"] == cell["mean"]
