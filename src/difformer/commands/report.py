"""difformer report: the page of a run, from what its folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from difformer.commands.output import print_json
from difformer.commands.shared import DataDir, Json, RunFolder, option


def command(
    run: RunFolder,
    out: Annotated[
        Path | None,
        option(
            "--out", "-o", metavar="FILE", help="Where the page goes.", default="RUN/report.html"
        ),
    ] = None,
    projection: Annotated[
        str,
        typer.Option(
            "--projection",
            metavar="auto|pca|tsne",
            help="How states are drawn in two dimensions; auto: t-SNE where there are few rows.",
        ),
    ] = "auto",
    points: Annotated[
        int, typer.Option("--points", metavar="N", help="Rows drawn; more are sampled.", min=2)
    ] = 20_000,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Write the page of a run: one HTML file that needs no network.

    Example: difformer report runs/cora-difformer-s-1

    Curves, results, confusion, calibration, energies, states and diffusivities. What the folder
    does not hold, or data that is not to be found, is named in the page, and the rest is shown.
    """
    from difformer.report.run_page import write_report

    path = write_report(run, data_dir=data_dir, projection=projection, max_points=points, out=out)
    if json:
        print_json({"page": str(path), "bytes": path.stat().st_size})
    else:
        print(f"look at {path}")
