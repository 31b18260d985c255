"""difformer compare: systems on the same splits, and a plain verdict."""

from __future__ import annotations

import shlex
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import typer

from difformer.baselines.registry import SYSTEMS
from difformer.commands.options import DatasetName, Epochs, Patience, parse_names
from difformer.commands.output import (
    DataDir,
    Json,
    Quiet,
    interrupted,
    print_json,
    print_table,
    say,
)
from difformer.commands.own import EdgesFile, Id, Label, own_dataset
from difformer.experiments.compare import DEFAULT_MODELS, DEFAULT_TRAIN, Comparison, compare
from difformer.experiments.comparisons import comparison_table
from difformer.experiments.verdict import verdict


def command(
    dataset: DatasetName,
    models: Annotated[
        str,
        typer.Option("--models", metavar="A,B,...", help=f"Systems, or all: {', '.join(SYSTEMS)}."),
    ] = ",".join(DEFAULT_MODELS),
    splits: Annotated[int, typer.Option("--splits", metavar="N", help="How many splits.")] = 10,
    trials: Annotated[
        int,
        typer.Option(
            "--trials",
            metavar="N",
            help="Settings each system may try on each split, by validation; 0: its defaults.",
        ),
    ] = 0,
    epochs: Epochs = DEFAULT_TRAIN["epochs"],
    patience: Patience = DEFAULT_TRAIN["patience"],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FOLDER", help="Keep the results; the same command resumes there."
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", metavar="N", help="Processes side by side. [one per core]"),
    ] = None,
    label: Label = None,
    id: Id = None,
    edges: EdgesFile = None,
    data_dir: DataDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare systems on the same splits with the same tuning budget, and say which is enough.

    Example: difformer compare cora --models mlp,gcn,difformer-s --splits 10 --out runs/compare

    Your own table takes a dataset's place: difformer compare table.csv --label COLUMN

    A system that cannot run says why in its row; one that crashes takes nothing with it.
    """
    names = list(SYSTEMS) if models == "all" else parse_names(models) or []
    try:
        result = compare(
            own_dataset(dataset, label, id, edges),
            models=names,
            splits=splits,
            trials=trials,
            train={"epochs": epochs, "patience": min(patience, epochs)},
            data_dir=data_dir,
            folder=out,
            workers=workers,
            look=lambda line: say(line, quiet=quiet or json),
        )
    except KeyboardInterrupt:
        kept = "nothing is kept without --out" if out is None else "the same command resumes it"
        raise interrupted(kept) from None
    record = _record(result)
    if out is not None:
        from json import dumps

        from difformer.files import write_atomic

        write_atomic(out / "comparison.json", (dumps(record, indent=1) + "\n").encode())
        from difformer.report import write_comparison

        say(f"look at {write_comparison(out)}", quiet=quiet or json)
    if json:
        return print_json(record)
    print_table(
        comparison_table(result), f"{result.dataset}: {result.metric}, {len(result.splits)} splits"
    )
    print("\n".join(verdict(result)))


def _record(result: Comparison) -> dict[str, Any]:
    from difformer.experiments.machine import describe_machine

    words = ["difformer", *sys.argv[1:]]
    return {
        **result.to_json(),
        "command": shlex.join(words),
        "machine": describe_machine(),
        "date": datetime.now(timezone.utc).date().isoformat(),
    }
