"""The cost of importing the package and of printing the help.

python -m benchmarks.imports           writes results/benchmarks/imports.json

Each command runs in a new interpreter, in turn. Processor time depends less on the load of the
machine than the time on the clock.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

from benchmarks.measure import timed_command, write_results

COMMANDS = {
    "import torch": ["-c", "import torch"],
    "import difformer": ["-c", "import difformer"],
    "from difformer import DIFFormer": ["-c", "from difformer import DIFFormer"],
    "difformer --help": ["-m", "difformer", "--help"],
}
ROUNDS = 7


def main() -> None:
    """Measure in turn, print, write."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):
        for name, arguments in COMMANDS.items():
            spent = timed_command([sys.executable, *arguments])
            times[name].append(spent["processor_seconds"])
    results: dict[str, Any] = {}
    for name, found in times.items():
        ratio = statistics.median(a / b for a, b in zip(found, times["import torch"], strict=True))
        results[name] = {
            "seconds": round(statistics.median(found), 3),
            "of_import_torch": round(ratio, 2),
        }
        print(f"{name:34} {results[name]['seconds']:.2f} s, {ratio:.2f} of import torch")
    write_results("imports", results)


if __name__ == "__main__":
    main()
