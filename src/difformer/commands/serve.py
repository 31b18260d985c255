"""difformer serve: a run of `train --nodes` over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from difformer.commands.output import say
from difformer.commands.shared import argument, option
from difformer.experiments.service.limits import Limits


def command(
    run: Annotated[Path, argument("RUN", "The folder of a run of `train --nodes`.")],
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; 0.0.0.0 is every one.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port.")] = 8000,
    max_bytes: Annotated[
        int, typer.Option("--max-bytes", min=1, help="Largest request.")
    ] = Limits.bytes,
    max_rows: Annotated[
        int, typer.Option("--max-rows", min=1, help="Most rows per request.")
    ] = Limits.rows,
    max_connections: Annotated[
        int, typer.Option("--max-connections", min=1, help="Most connections at a time.")
    ] = Limits.connections,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, help="For a header, or a body, to arrive.")
    ] = Limits.seconds,
    idle: Annotated[
        float, typer.Option("--idle", min=1, help="Seconds open between two requests.")
    ] = Limits.idle,
    level: Annotated[
        float | None,
        option(
            "--level", metavar="SHARE", help="Add intervals or sets of this level, such as 0.9."
        ),
    ] = None,
    token: Annotated[
        str | None,
        option("--token", envvar="DIFFORMER_TOKEN", help="Clients must send it as Bearer."),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        option("--allowed-host", help="Name clients may call it by; repeatable."),
    ] = None,
) -> None:
    """Answer predictions over HTTP until stopped.

    Example: difformer serve runs/table-1 --port 8000

    GET / is a page to type a row into. POST /predict {"rows": [{column: value}]}, and maybe
    "edges": [[id, id]]; GET /docs is a help page, /health and /metrics are for machines. What is
    wrong with a request is a 4xx and one line, too much work a 503. The token is better given by
    the environment variable, which other users of the machine cannot see.
    """
    from difformer.experiments.kinds import need_kind
    from difformer.experiments.service import serve

    need_kind(run, ("table",), "serve")
    if token is not None and not (token.isascii() and token.isprintable() and token.strip()):
        raise ValueError("--token must be printable ASCII characters, at least one")
    limits = Limits(
        bytes=max_bytes, rows=max_rows, connections=max_connections, seconds=seconds, idle=idle
    )
    serve(
        run,
        host=host,
        port=port,
        limits=limits,
        token=token,
        hosts=allowed_host or (),
        level=level,
        ready=lambda: say(f"http://{host}:{port}/ (Ctrl-C stops)"),
    )
