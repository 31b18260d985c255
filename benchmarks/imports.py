"""What importing and asking for help cost.

python -m benchmarks.imports           writes results/benchmarks/imports.json

Each in a fresh interpreter, in turn; seconds of processor time, which a busy machine stretches less
than the clock's.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import write

COMMANDS = {
    "import torch": ["-c", "import torch"],
    "import difformer": ["-c", "import difformer"],
    "from difformer import DIFFormer": ["-c", "from difformer import DIFFormer"],
    "difformer --help": ["-m", "difformer", "--help"],
}
ROUNDS = 7


def seconds(arguments: list[str]) -> float:
    """Processor seconds of one interpreter."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure in turn, print, write."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):
        for name, arguments in COMMANDS.items():
            times[name].append(seconds(arguments))
    results: dict[str, Any] = {}
    for name, found in times.items():
        ratio = statistics.median(a / b for a, b in zip(found, times["import torch"], strict=True))
        results[name] = {
            "seconds": round(statistics.median(found), 3),
            "of_import_torch": round(ratio, 2),
        }
        print(f"{name:34} {results[name]['seconds']:.2f} s, {ratio:.2f} of import torch")
    write(Path("results/benchmarks/imports.json"), "python -m benchmarks.imports", results)


if __name__ == "__main__":
    main()
