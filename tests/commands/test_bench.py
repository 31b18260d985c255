"""difformer bench: a benchmark of the clone runs, says its fault in one line, and ends with us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

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


def bench(*words: str, **options: Any) -> Any:
    command = [sys.executable, "-m", "difformer", "bench", *words]
    return subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )


def test_a_benchmark_runs_as_the_program_it_is(clone: Path) -> None:
    child = bench("steps")
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (0, "found 42 []\n"), err


@pytest.mark.parametrize(
    ("name", "said"), [("memory", "error: the disk is full\n"), ("peers", "error: no such peer\n")]
)
def test_what_a_person_can_put_right_is_one_line(clone: Path, name: str, said: str) -> None:
    child = bench(name)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 2
    assert [line for line in err.splitlines(True) if "measuring" not in line] == [said]


def test_a_fault_of_a_benchmark_names_it(clone: Path) -> None:
    _, err = bench("limit").communicate(timeout=60)
    assert "ZeroDivisionError" in err
    assert err.endswith("error: benchmarks.limit ended with code 1\n")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_benchmark_ends_with_the_command_that_started_it(clone: Path, how: int) -> None:
    child = bench("growth")
    while not (clone / "began").exists():
        assert child.poll() is None, child.communicate()
        time.sleep(0.05)
    os.kill(child.pid, how)
    child.communicate(timeout=60)  # its pipes are closed when the benchmark has ended too
    assert not (clone / "ended").exists()
