"""difformer report, energy, compare, tune, shard, features and bench, as a person calls them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from difformer.compare.comparison import comparison_block
from difformer.data.features import read_features
from difformer.machine import commit

Run = Callable[..., int]
Printed = pytest.CaptureFixture[str]


# --- compare and tune ------------------------------------------------------------------------


def test_compare_prints_a_table_and_a_verdict_and_keeps_both(
    run: Run, capsys: Printed, tmp_path: Path
) -> None:
    words = ["compare", "digits", "--models", "mlp,gcn,lp-knn,difformer-s", "--splits", "2"]
    words += ["--epochs", "3", "--workers", "0", "--out", str(tmp_path / "kept")]
    assert run(*words) == 0
    out = capsys.readouterr().out
    assert "GCN" in out
    assert "needs a graph, the data has none" in out
    assert "Does all-pair diffusion help on this data?" in out
    kept = json.loads((tmp_path / "kept" / "comparison.json").read_text())
    assert kept["commit"] == commit()
    assert kept["command"].startswith("difformer")
    runs = {row["system"]: len(row["runs"]) for row in kept["rows"]}
    assert runs == {"mlp": 2, "gcn": 0, "lp-knn": 2, "difformer-s": 2}
    block = comparison_block(tmp_path / "kept" / "comparison.json")
    assert block.startswith("| Model | Test | Paired difference to the best |")
    assert all(line in block for line in kept["verdict"])
    assert run(*words, "--json") == 0  # reads what is there
    assert json.loads(capsys.readouterr().out)["rows"] == kept["rows"]


def test_tune_names_the_best_setting_by_validation(
    run: Run, capsys: Printed, tmp_path: Path
) -> None:
    pytest.importorskip("optuna")
    words = ["tune", "digits", "--model", "mlp", "--trials", "2", "--epochs", "3"]
    words += ["--storage", str(tmp_path / "t.sqlite")]
    assert run(*words) == 0
    out, err = capsys.readouterr()
    assert "best:" in out
    assert "trial 2 of 2" in err
    assert run(*words, "--json") == 0
    out = capsys.readouterr().out
    assert len(json.loads(out)["trials"]) == 2
    assert "test" not in out


@pytest.mark.parametrize(
    ("name", "option", "where"), [("compare", "--out", "kept"), ("tune", "--storage", "s.sqlite")]
)
def test_ctrl_c_says_whether_the_same_command_goes_on(
    run: Run,
    name: str,
    option: str,
    where: str,
    tmp_path: Path,
    capsys: Printed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"difformer.app.commands.{name}.{name}", interrupt)
    words = [name, "digits", "--model" if name == "tune" else "--models", "mlp"]
    assert run(*words) == 130
    assert tuple(capsys.readouterr()) == ("", f"interrupted: nothing is kept without {option}\n")
    assert run(*words, option, tmp_path / where) == 130
    assert tuple(capsys.readouterr()) == ("", "interrupted: the same command resumes it\n")


# --- report, energy and figures --------------------------------------------------------------


def test_energies_are_logged_shown_on_the_page_and_checked(
    run: Run, capsys: Printed, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    words = ["--epochs", "3", "--num-layers", "2", "--hidden-channels", "8", "--quiet"]
    words += ["--monitor", "energy", "--no-report", "--out", str(folder)]
    assert run("train", "digits", *words) == 0
    header = (folder / "metrics.csv").read_text().splitlines()[0].split(",")
    assert header[-2:] == ["energy_1", "energy_2"]
    assert run("report", folder, "--projection", "pca") == 0
    assert str(folder / "report.html") in capsys.readouterr().out
    assert "curve-energy" in (folder / "report.html").read_text(encoding="utf-8")
    assert run("report", folder, "--points", "50", "--projection", "pca", "--json") == 0
    assert json.loads(capsys.readouterr().out)["bytes"] > 1_000_000
    assert run("energy", folder) == 0
    assert "A bare step" in capsys.readouterr().out
    assert run("energy", folder, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert [layer["layer"] for layer in record["layers"]] == [1, 2]
    assert record["lambda"] == pytest.approx(1 / 1797)


def test_figure_3_is_written_with_its_numbers(run: Run, tmp_path: Path, capsys: Printed) -> None:
    assert run("reproduce", "fig3", "--out", tmp_path, "--json") == 0
    files = json.loads(capsys.readouterr().out)["files"]
    names = {Path(file).name for file in files}
    assert names == {"fig3.png", "fig3.svg", "curves.csv", "field.csv", "points.csv", "README.md"}
    assert all(Path(file).stat().st_size > 100 for file in files)
    for words, message in ((["fig9"], "fig9"), (["fig3", "--show", "--out", "x"], "--show")):
        assert run("reproduce", *words) == 2
        assert message in capsys.readouterr().err


# --- shard -----------------------------------------------------------------------------------


def test_shard_says_what_it_found_or_prints_it_as_one_document(
    run: Run, tmp_path: Path, capsys: Printed
) -> None:
    pytest.importorskip("duckdb")
    rows = [f"u{i},{i * 0.37 % 2:.3f},{'ab'[i % 2]}" for i in range(40)]
    (tmp_path / "nodes.csv").write_text("\n".join(["name,size,kind", *rows]) + "\n")
    edges = [f"u{i},u{(i + 1) % 40}" for i in range(40)] + ["u0,u1", "u0,nobody"]
    (tmp_path / "edges.csv").write_text("\n".join(["from,to", *edges]) + "\n")
    table = ["--nodes", tmp_path / "nodes.csv", "--edges", tmp_path / "edges.csv", "--label"]
    table += ["kind", "--id", "name", "--parts", "4", "--memory", "12GB"]
    assert run("shard", tmp_path / "parts", *table) == 0
    shown = capsys.readouterr().out
    for line in ("dangling edges 1", "repeated edges 1", "edges kept, each way 80", "cut by range"):
        assert line in " ".join(shown.split())
    assert "train with: difformer train" in shown
    assert run("shard", tmp_path / "parts", *table) == 0
    assert capsys.readouterr().out == shown  # what is there
    assert run("shard", tmp_path / "parts", *table, "--parts", "3") == 2
    assert "holds a sharded dataset already" in capsys.readouterr().err
    assert run("shard", tmp_path / "other", *table, "--partition", "streaming", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["parts"], found["dangling edges"]) == (40, 4, 1)
    assert 0 < found["cut"] < 1
    assert found["peak_memory"] > 0


# --- features --------------------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Twelve images of two classes, each in its folder."""
    generator = np.random.default_rng(0)
    for i in range(12):
        path = tmp_path / "pictures" / ("dark", "light")[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 100, (8, 8, 3)) + 150 * (i % 2)
        Image.fromarray(pixels.astype("uint8")).save(path)
    return tmp_path / "pictures"


SMALL = ("--width", "4", "--side", "8", "--epochs", "2", "--batch-size", "6", "--device", "cpu")


@pytest.mark.parametrize("encoder", ["simclr", "random"])
def test_the_same_seed_gives_the_same_features_and_a_kept_run_goes_on(
    run: Run, pictures: Path, tmp_path: Path, encoder: str, capsys: Printed
) -> None:
    first, second, other = (tmp_path / f"{name}.npz" for name in "abc")
    words = ("features", pictures, "--encoder", encoder, *SMALL, "--json")
    kept = ("--run", tmp_path / "run")
    assert run(*words, "--out", first, *kept) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["rows"], said["features"], said["encoder"]) == (12, 32, encoder)
    assert (tmp_path / "run" / "metrics.csv").exists() == (encoder == "simclr")
    assert run(*words, "--out", other, "--seed", "1") == 0
    features = read_features(first)
    assert features.class_names == ("dark", "light")
    assert features.y is not None
    assert features.y.bincount().tolist() == [6, 6]
    assert not features.x.equal(read_features(other).x)
    for again in ((), kept):
        assert run(*words, "--out", second, *again) == 0
        assert features.x.equal(read_features(second).x)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--encoder", "resnet"), "encoder must be one of effnetlite0"),
        (("--encoder", "minilm"), "encoder minilm does not take images"),
        (("--batch-size", "13"), "batch_size must lie in 2 to 12"),
        (("--epochs", "-1"), "epochs must"),
        (("--width", "0"), "width must"),
        (("--side", "0"), "side must"),
        (("--out", "f.csv"), "out must end in .npz"),
        (("nowhere",), "a folder of images"),
        (("empty.txt", "--encoder", "minilm"), "has no text"),
        (("damaged",), "2 of 12"),
    ],
)
def test_bad_features_are_one_line_and_leave_nothing(
    run: Run,
    pictures: Path,
    tmp_path: Path,
    words: tuple[str, ...],
    message: str,
    capsys: Printed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_text("\n\n")
    source, rest = (words[0], words[1:]) if words[0][0] != "-" else (str(pictures), words)
    if source == "damaged":
        source = str(pictures)
        (pictures / "dark" / "0.png").write_bytes(b"not an image")
        (pictures / "dark" / "2.png").write_bytes(b"")
    assert run("features", source, *SMALL, "--out", "f.npz", *rest) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not list(tmp_path.glob("*.npz*"))


# --- bench -----------------------------------------------------------------------------------

MODULES = {
    "measure": "",
    "steps": "from multiprocessing import get_context\nfrom pathlib import Path\nimport sys\n\n"
    "def double(sender):\n    sender.send(42)\n\n"
    "if __name__ == '__main__':\n"
    "    receive, send = get_context('spawn').Pipe()\n"
    "    get_context('spawn').Process(target=double, args=(send,)).start()\n"
    "    print('found', receive.recv(), sys.argv[1:])\n",
    "memory": "from difformer.errors import RunError\nraise RunError('the disk is full')\n",
    "peers": "import sys\nsys.exit('error: no such peer')\n",
    "limit": "1 / 0\n",
    "growth": "import time\nfrom pathlib import Path\nPath('began').write_text('')\n"
    "time.sleep(30)\nPath('ended').write_text('')\n",
}


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with small benchmarks of those names."""
    (tmp_path / "benchmarks").mkdir()
    for name, text in MODULES.items():
        (tmp_path / "benchmarks" / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bench(name: str) -> Any:
    command = [sys.executable, "-m", "difformer", "bench", name]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize(
    ("name", "code", "out", "said"),
    [
        ("steps", 0, "found 42 []\n", ""),
        ("memory", 2, "", "error: the disk is full\n"),
        ("peers", 2, "", "error: no such peer\n"),
        ("limit", 2, "", "error: benchmarks.limit ended with code 1\n"),
    ],
)
def test_a_benchmark_runs_as_the_program_it_is_and_its_end_is_told(
    clone: Path, name: str, code: int, out: str, said: str
) -> None:
    child = bench(name)
    shown, told = child.communicate(timeout=60)
    assert (child.returncode, shown) == (code, out), told
    lines = [line for line in told.splitlines(True) if "measuring" not in line]
    assert "".join(lines[-1:]) == said
    assert (len(lines) > 1) == (name == "limit")  # the traceback of a fault


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_benchmark_ends_with_the_command_that_started_it(clone: Path, how: int) -> None:
    child = bench("growth")
    while not (clone / "began").exists():
        assert child.poll() is None, child.communicate()
        time.sleep(0.05)
    os.kill(child.pid, how)
    child.communicate(timeout=60)  # its pipes are closed when the benchmark has ended too
    assert not (clone / "ended").exists()
