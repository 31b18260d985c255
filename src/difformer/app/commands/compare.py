"""difformer compare: systems on the same splits, and a plain verdict."""

from __future__ import annotations

import shlex
import sys
from datetime import datetime, timezone
from json import dumps
from pathlib import Path
from typing import Annotated

from difformer.app import options as shared
from difformer.app.asked import named_table
from difformer.app.options import flag, parse_names
from difformer.app.output import interrupted, print_json, print_table, say
from difformer.compare.compare import DEFAULT_MODELS, DEFAULT_TRAIN, compare
from difformer.compare.comparison import comparison_table, verdict
from difformer.files import counted, write_atomic
from difformer.machine import commit, describe_machine
from difformer.systems.registry import SYSTEMS


def command(
    dataset: shared.DatasetName,
    models: Annotated[str, flag("A,B,...", f"Systems, or all: {', '.join(SYSTEMS)}.")] = ",".join(
        DEFAULT_MODELS
    ),
    splits: Annotated[int, flag("N", "How many splits.")] = 10,
    trials: Annotated[
        int,
        flag("N", "Settings each system tries on each split, by validation; 0: its defaults."),
    ] = 0,
    epochs: shared.Epochs = DEFAULT_TRAIN["epochs"],
    patience: shared.Patience = DEFAULT_TRAIN["patience"],
    out: Annotated[
        Path | None, shared.out("FOLDER", "Keep the results; the same command resumes there.")
    ] = None,
    workers: Annotated[int | None, flag("N", "Number of processes.", usual="one per core")] = None,
    label: shared.Label = None,
    id: shared.Id = None,
    edges: shared.EdgesFile = None,
    no_header: shared.NoHeader = False,
    data_dir: shared.DataDir = None,
    json: shared.Json = False,
    quiet: shared.Quiet = False,
) -> None:
    """Compare systems on the same splits with the same tuning budget, and say which is enough.

    Example: difformer compare cora --models mlp,gcn,difformer-s --splits 10 --out runs/compare

    With your own table: difformer compare table.csv --label COLUMN

    The row of a system that cannot run says why; a system that crashes does not stop the others.
    """
    from difformer.data.table.read import read_table

    table = named_table(dataset, label, id, edges, no_header)
    names = list(SYSTEMS) if models == "all" else parse_names(models) or []
    try:
        result = compare(
            read_table(dataset, **table) if table else dataset,
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
        lost = "nothing is kept without --out" if out is None else "the same command resumes it"
        raise interrupted(lost) from None
    record = {
        **result.to_json(),
        "command": shlex.join(["difformer", *sys.argv[1:]]),
        "machine": describe_machine(),
        "commit": commit(),
        "date": datetime.now(timezone.utc).date().isoformat(),
    }
    if out is not None:
        from difformer.report.compare_page import write_comparison
        from difformer.runs.run import COMPARISON

        write_atomic(out / COMPARISON, dumps(record, indent=1) + "\n")
        say(f"look at {write_comparison(out)}", quiet=quiet or json)
    if json:
        return print_json(record)
    print_table(
        comparison_table(result),
        f"{result.dataset}: {result.metric}, {counted(len(result.splits), 'split')}",
    )
    print("\n".join(verdict(result)))
