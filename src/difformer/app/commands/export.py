"""difformer export: the model of a run for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from difformer.app.options import DataDir, Json, Overwrite, RunFolder, flag
from difformer.app.output import print_json, say
from difformer.files import counted


def command(
    run: RunFolder,
    onnx: Annotated[Path, flag("FILE", "Where the model goes, as ONNX.")],
    overwrite: Overwrite = False,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Write the model of a run as ONNX, and check that it answers as the run does.

    Example: difformer export runs/table-1 --onnx model.onnx

    The file predicts any number of new rows without edges, and needs neither the data nor
    difformer. Its input x has one number per column of the table: a number as it is, a date as
    days since 1970, a category by its place in the list in the file's metadata, NaN where missing.
    For a run on a dataset x has its features. The output y has the probability of every class, or
    the predicted numbers.
    """
    from difformer.app.onnx import export_run

    if onnx.exists() and not overwrite:
        raise ValueError(f"{onnx} is there already: add --overwrite to replace it")
    found = export_run(run, onnx, data_dir=data_dir)
    if json:
        print_json(
            {
                "file": str(onnx),
                "inputs": list(found.inputs),
                "outputs": list(found.outputs),
                "rows": found.rows,
                "difference": found.difference,
            }
        )
        return
    say(
        f"{onnx}: x has {counted(len(found.inputs), 'column')}, y has {', '.join(found.outputs)}; "
        f"its answers for {counted(found.rows, 'row')} are those of the run to "
        f"{found.difference:.1g}"
    )
