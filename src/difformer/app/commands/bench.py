"""difformer bench: run the benchmarks of a clone of the project."""

from __future__ import annotations

import json as json_module
import os
import subprocess
import sys
import time
from pathlib import Path
from runpy import run_module
from threading import Thread
from typing import Annotated

import typer

from difformer.app.options import DataDir, Json, argument, flag
from difformer.app.output import print_json, say
from difformer.errors import DifformerError

# Modules of benchmarks/ that measure something and write results/benchmarks/NAME.json.
BENCHMARKS = (
    "steps", "memory", "peers", "limit", "profiles", "growth", "imports", "snapshots", "large",
    "outofcore", "scale", "forecast_peers", "forecast_scatter", "fit_growth", "frozen_distance",
    "few_labels", "suite", "coverage", "intervals", "alone_recipe", "kernel_choice", "all_pair",
    "time_to_model", "neighbour_classes", "equal_weights", "service_load", "hostile", "simclr",
)  # fmt: skip
SUITE = "Of the suite"  # the heading of its options in --help


def command(
    names: Annotated[
        list[str] | None,
        argument("[NAME]...", f"Some of {', '.join(BENCHMARKS)}. [steps]"),
    ] = None,
    datasets: Annotated[
        str | None, flag("A,B,...", "Its tables and graphs. [all]", panel=SUITE)
    ] = None,
    systems: Annotated[
        str | None, flag("A,B,...", "difformer and its peers. [all]", panel=SUITE)
    ] = None,
    splits: Annotated[int | None, flag("N", "The first N of ten. [10]", panel=SUITE)] = None,
    workers: Annotated[
        int | None, flag("N", "Processes side by side. [one per core]", panel=SUITE)
    ] = None,
    again: Annotated[
        bool, flag("", "Measure again what the result file holds.", "--again", panel=SUITE)
    ] = False,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Measure speed, memory and accuracy beside plain algorithms and other methods.

    Example: difformer bench steps memory

    The defaults on eleven tables and seven graphs: difformer bench suite

    Runs in a clone of the project, and writes results/benchmarks/NAME.json with the command and
    the machine.
    """
    chosen = names or ["steps"]
    given = {
        "--datasets": datasets,
        "--systems": systems,
        "--splits": splits,
        "--workers": workers,
        "--data-dir": data_dir,
    }
    options = [str(word) for pair in given.items() if pair[1] is not None for word in pair]
    options += ["--again"] if again else []
    if options and chosen != ["suite"]:
        raise ValueError(f"{options[0]} is an option of suite, got {' '.join(chosen)}")
    for name in chosen:
        if name not in BENCHMARKS:
            raise ValueError(f"NAME must be one of {', '.join(BENCHMARKS)}, got {name!r}")
    if not Path("benchmarks/measure.py").exists():
        raise DifformerError(
            "benchmarks/ is not here: run difformer bench in a clone of the project"
        )
    for name in chosen:
        say(f"measuring {name}")
        output = sys.stderr if json else None
        words = [sys.executable, "-m", __name__, str(os.getpid()), name, *options]
        done = subprocess.run(words, stdout=output, check=False)
        if done.returncode == 2:  # it has printed the reason
            raise typer.Exit(2)
        if done.returncode:
            raise DifformerError(f"benchmarks.{name} ended with code {done.returncode}")
    if json:
        results = {n: Path(f"results/benchmarks/{n}.json").read_text("utf-8") for n in chosen}
        print_json({name: json_module.loads(text) for name, text in results.items()})


def measure(parent: int, name: str, *options: str) -> None:
    """Run a benchmark in this process, which ends with its parent; an error is one line."""

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    Thread(target=end_with_parent, daemon=True).start()
    sys.argv[1:] = options
    sys.path.insert(0, "")
    try:
        run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)
        return
    except KeyboardInterrupt:
        sys.exit(130)  # the parent says so
    except DifformerError as error:
        reason = f"error: {error}"
    except SystemExit as end:
        if not isinstance(end.code, str):
            raise
        reason = end.code
    print(reason, file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    measure(int(sys.argv[1]), *sys.argv[2:])
