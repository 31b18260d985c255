"""difformer predict: new rows, or the next steps of a series, from a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from difformer.commands.output import DataDir, Json, print_json


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run of `train`.")],
    table: Annotated[
        Path, typer.Argument(metavar="FILE", help="New rows, or a series; see below.")
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
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Predict new rows with a trained model, none depending on the others.

    Example: difformer predict runs/table-1 new.csv -o out.csv

    For a run of `train --nodes` FILE has the columns of training, in any format; the output gives
    each row's label, its probability, and the known rows that weigh most in it. A row with the id
    and the values of a row of training is answered as in training. For a run on a dataset FILE has
    one column per feature, in order; for a run of `train --series` it is a series of the same
    nodes, whose next steps are forecast.
    """
    from difformer.experiments.answers import predict_run

    count = predict_run(run, table, out, edges=edges, data_dir=data_dir)
    if json:
        print_json({"rows": count, "out": str(out)})
    else:
        print(f"{count} rows predicted into {out}")
