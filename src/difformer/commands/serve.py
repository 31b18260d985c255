"""difformer serve: a run of `train --nodes` over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from difformer.commands.output import say


def command(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run of `train --nodes`.")
    ],
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; 0.0.0.0 is every one.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port.")] = 8000,
    max_bytes: Annotated[
        int, typer.Option("--max-bytes", min=1, help="Largest request.")
    ] = 1_000_000,
    max_rows: Annotated[
        int, typer.Option("--max-rows", min=1, help="Most rows per request.")
    ] = 1_000,
) -> None:
    """Answer predictions over HTTP until stopped.

    Example: difformer serve runs/table-1 --port 8000

    POST /predict {"rows": [{column: value}]}; GET /docs is the OpenAPI page, /health and /metrics
    are for machines. What is wrong with a request is a 4xx and one line.
    """
    from difformer.experiments.service import Limits, serve

    if run.is_dir() and not (run / "estimator.safetensors").exists():
        raise ValueError(f"RUN must be a run of `train --nodes`, {run} is none")
    say(f"http://{host}:{port}/docs (Ctrl-C stops)")
    serve(run, host=host, port=port, limits=Limits(bytes=max_bytes, rows=max_rows))
