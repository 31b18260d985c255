"""difformer report: the page of a run, from what its folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from difformer.app import options as shared
from difformer.app.output import print_json


def command(
    run: shared.RunFolder,
    out: Annotated[
        Path | None, shared.out("FILE", "Where the page goes.", default="RUN/report.html")
    ] = None,
    projection: Annotated[
        str,
        shared.flag(
            "auto|pca|tsne",
            "How states are drawn in two dimensions; auto: t-SNE where there are few rows.",
        ),
    ] = "auto",
    points: Annotated[int, shared.flag("N", "Rows drawn; more are sampled.", min=2)] = 20_000,
    data_dir: shared.DataDir = None,
    json: shared.Json = False,
) -> None:
    """Write the page of a run: one HTML file that needs no network.

    Example: difformer report runs/cora-difformer-s-1

    The page shows curves, results, confusion, calibration, energies, states and diffusivities. It
    names what is missing, such as files of the folder or the data, and shows the rest.
    """
    from difformer.report.run_page import write_report

    path = write_report(run, data_dir=data_dir, projection=projection, max_points=points, out=out)
    if json:
        print_json({"page": str(path), "bytes": path.stat().st_size})
    else:
        print(f"look at {path}")
