"""Every example runs as a newcomer would run it, from an empty folder, in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))
# The processes are forked from one that has imported what most examples import, once.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["difformer", "torch_geometric.nn", "torch_geometric.loader"])


def run(path: Path, folder: Path) -> None:
    """Run an example in `folder`; what it says goes to the file `said` there."""
    said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(REPOSITORY / "src")
    sys.argv = [str(path)]
    runpy.run_path(str(path), run_name="__main__")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 30, f"{path.name} has {len(lines)} lines; an example has at most 30"
    process = PROCESSES.Process(target=run, args=(path, tmp_path))
    process.start()
    process.join(timeout=300)
    process.kill()
    said = (tmp_path / "said").read_text(encoding="utf-8")
    assert process.exitcode == 0, said[-2000:]
    assert "skipped" not in said  # what it needs is in the extra `dev`
