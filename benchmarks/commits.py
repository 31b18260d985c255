"""Compare the training step of two commits: python -m benchmarks.commits OLD NEW [CASE]

Each commit is checked out into its own folder and runs in its own process. Steps are taken
alternately, so that both see the same machine. Prints the speed-up of NEW; fails if the losses of
the first step differ. CASE is one of benchmarks.steps [cora].
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

STEPS = 40

# Talks over pipes: one line in, one step done, its milliseconds out.
WORKER = """
import sys, time, torch
from benchmarks.steps import SETTINGS, problem, stepper
from difformer import DIFFormer, Graph
case = sys.argv[1]
dense, x, edges, outputs = problem(case)
torch.manual_seed(0)
options = {**SETTINGS[case], "dropout": 0.0}
model = DIFFormer(x.shape[1], 64, outputs, use_weight=False, **options)
graph = None if edges is None else Graph.from_edges(edges, x.shape[0])
step = stepper(model, x, graph, torch.arange(x.shape[0]) % outputs)
print(float(step()), flush=True)
for _ in sys.stdin:
    begin = time.perf_counter()
    step()
    print(1e3 * (time.perf_counter() - begin), flush=True)
"""


class Side:
    """One commit's worker."""

    def __init__(self, commit: str, folder: Path, case: str) -> None:
        subprocess.run(
            ["git", "worktree", "add", "--detach", "-q", str(folder), commit], check=True
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "src"), "."])}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", WORKER, case],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.loss = self._read()

    def step(self) -> float:
        """Milliseconds of one step."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> float:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the worker ended with code {self.process.wait()}")
        return float(line)

    def close(self, folder: Path) -> None:
        """Stop the worker and take the checkout away."""
        self.process.kill()
        self.process.wait()
        subprocess.run(["git", "worktree", "remove", "--force", str(folder)], check=False)


def compare(old: str, new: str, case: str) -> tuple[float, float, float]:
    """Median milliseconds of both, and the median ratio old / new."""
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / "old", Path(name) / "new"]
        sides: list[Side] = []
        try:
            for commit, folder in zip((old, new), folders, strict=True):
                sides.append(Side(commit, folder, case))
            a, b = sides
            if abs(a.loss - b.loss) > 1e-3 * abs(a.loss):
                raise SystemExit(f"{case}: losses differ ({a.loss} and {b.loss}), no ratio")
            for side in sides:
                side.step()
            times = [(a.step(), b.step()) for _ in range(STEPS)]
        finally:
            for side, folder in zip(sides, folders, strict=False):
                side.close(folder)
    before, after = (statistics.median(t) for t in zip(*times, strict=True))
    return before, after, statistics.median(x / y for x, y in times)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    chosen = sys.argv[3] if len(sys.argv) == 4 else "cora"
    milliseconds = compare(sys.argv[1], sys.argv[2], chosen)
    print(
        "{}: {:.1f} ms before, {:.1f} ms after, {:.2f} times as fast".format(chosen, *milliseconds)
    )
