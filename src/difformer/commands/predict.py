"""difformer predict: new rows of a table, from a run of `train --nodes`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from difformer.commands.output import Json, print_json


def command(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run of `train --nodes`.")
    ],
    table: Annotated[
        Path, typer.Argument(metavar="FILE", help="New rows: the columns of training, any format.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE.csv", help="Where predictions go.")
    ],
    edges: Annotated[
        Path | None,
        typer.Option(
            "--edges",
            metavar="FILE",
            help="Known id, new id (and weight): what joins new rows to known ones.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Predict new rows with a trained model, none depending on the others.

    Example: difformer predict runs/table-1 new.csv -o out.csv

    The file gives each row's label, its probability, and the known rows that weigh most in it.
    """
    from difformer.experiments.own.predict import predict_own

    count = predict_own(run, table, out, edges=edges)
    if json:
        print_json({"rows": count, "out": str(out)})
    else:
        print(f"{count} rows predicted into {out}")
