"""difformer predict: new rows, or the next steps of a series, from a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from difformer.app import options as shared
from difformer.app.options import argument, flag
from difformer.app.output import print_json, say
from difformer.files import counted


def command(
    run: shared.RunFolder,
    out: Annotated[str, shared.out("FILE.csv", "Where predictions go; - is standard output.")],
    table: Annotated[Path | None, argument("FILE", "New rows; see below.")] = None,
    series: Annotated[
        Path | None,
        flag(
            "FILE",
            "In place of FILE: newer values, whose next steps are forecast without refitting.",
        ),
    ] = None,
    edges: Annotated[
        Path | None,
        flag("FILE", "Id, id (and weight): what joins new rows to known ones and to one another."),
    ] = None,
    known: Annotated[
        Path | None,
        flag(
            "FILE",
            "With a run of `train --series --known`: the same columns for the newer values.",
        ),
    ] = None,
    level: Annotated[
        float | None,
        flag(
            "SHARE",
            "Add intervals (of numbers) or sets (of classes) that hold the truth this often, such "
            "as 0.9.",
        ),
    ] = None,
    no_header: shared.NoHeader = False,
    overwrite: shared.Overwrite = False,
    data_dir: shared.DataDir = None,
    json: shared.Json = False,
) -> None:
    """Predict new rows with a trained model, none depending on the others.

    Example: difformer predict runs/table-1 new.csv -o out.csv

    For a run of `train --nodes` FILE has the columns of training, in any format; other columns
    are ignored. The output gives the label of each row, the probability of every class, and the
    known rows that weigh most in it. A row with the id and the values of a row of training is
    answered as in training. A note names cells that are unlike all of training. For a run on a
    dataset FILE has one column per feature, in order; for a run of `train --series` it is a series
    of the same nodes, whose next steps are forecast.
    """
    from difformer.data.table.encoder import Drift
    from difformer.runs.answer import predict_run

    given = table or series
    if given is None or (table is not None and series is not None):
        raise ValueError("FILE must be given, or --series FILE: what to predict")
    if json and out == "-":
        raise ValueError("--json must be left out with -o -: both write to standard output")
    drift = Drift()
    count = predict_run(
        run,
        given,
        out,
        edges=edges,
        known=known,
        level=level,
        overwrite=overwrite,
        header=not no_header,
        data_dir=data_dir,
        tell=lambda note: say(f"note: {note}"),
        drift=drift,
    )
    if json:
        print_json({"rows": count, "out": out, "drift": drift.to_json()})
    else:
        say(f"{counted(count, 'row')} predicted into {'standard output' if out == '-' else out}")
