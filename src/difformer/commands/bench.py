"""difformer bench: the benchmarks of a clone, each a ratio measured side by side."""

from __future__ import annotations

import json as json_module
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from difformer.commands.output import Json, print_json, say
from difformer.errors import DifformerError

# Modules of benchmarks/ that measure something and write results/benchmarks/NAME.json.
BENCHMARKS = (
    "steps",
    "memory",
    "peers",
    "limit",
    "profiles",
    "growth",
    "imports",
    "snapshots",
    "large",
    "scale",
    "forecast_scatter",
    "fit_growth",
    "frozen_distance",
    "few_labels",
    "alone_recipe",
    "kernel_choice",
    "neighbour_classes",
    "service_load",
    "simclr",
)


def command(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help=f"Some of {', '.join(BENCHMARKS)}. [steps]"),
    ] = None,
    json: Json = False,
) -> None:
    """Measure speed and memory beside the paper's plain algorithms and other peers.

    Example: difformer bench steps memory

    Runs in a clone of the project, and writes results/benchmarks/NAME.json with the command and
    the machine.
    """
    chosen = names or ["steps"]
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
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}"], stdout=output, check=False
        )
        if done.returncode:
            raise DifformerError(f"benchmarks.{name} ended with code {done.returncode}")
    if json:
        results = {n: Path(f"results/benchmarks/{n}.json").read_text("utf-8") for n in chosen}
        print_json({name: json_module.loads(text) for name, text in results.items()})
