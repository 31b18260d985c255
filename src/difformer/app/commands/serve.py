"""difformer serve: a run of `train --nodes` over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from difformer.app.options import argument, option
from difformer.app.output import say
from difformer.app.service.limits import Limits


def _limit(flag: str, help: str, least: float = 1) -> Any:
    return typer.Option(flag, min=least, help=help)


def command(
    run: Annotated[Path, argument("RUN", "The folder of a run of `train --nodes`.")],
    host: Annotated[
        str, typer.Option("--host", help="The address to listen on; 0.0.0.0 is every one.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=1, max=65535, help="The port to listen on.")
    ] = 8000,
    max_bytes: Annotated[int, _limit("--max-bytes", "The most bytes per request.")] = Limits.bytes,
    max_rows: Annotated[int, _limit("--max-rows", "The most rows per request.")] = Limits.rows,
    max_connections: Annotated[
        int, _limit("--max-connections", "The most connections at a time; of one client half.")
    ] = Limits.connections,
    seconds: Annotated[
        float, _limit("--seconds", "Seconds a header, or a body, may take to arrive.", 0.1)
    ] = Limits.seconds,
    idle: Annotated[
        float, _limit("--idle", "Seconds a connection may stay open between two requests.")
    ] = Limits.idle,
    level: Annotated[
        float | None,
        option(
            "--level", metavar="SHARE", help="Add intervals or sets of this level, such as 0.9."
        ),
    ] = None,
    token: Annotated[
        str | None,
        option(
            "--token", envvar="DIFFORMER_TOKEN", help="What clients must send as a Bearer token."
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        option(
            "--allowed-host",
            help="A host name that clients may use besides localhost and the address; may be "
            "repeated, and * is any.",
        ),
    ] = None,
) -> None:
    """Answer predictions over HTTP until stopped.

    Example: difformer serve runs/table-1 --port 8000

    GET / is a page to type a row into; POST /predict takes {"rows": [{column: value}]} and
    optionally "edges": [[id, id]]; GET /docs is a help page, /health and /metrics are for
    machines. A wrong request is answered with a 4xx and one line that says what is wrong, too much
    work with a 503. Give the token by the environment variable: other users of the machine can
    see the options of a command.
    """
    from difformer.app.service.server import serve
    from difformer.runs.run import need_kind

    need_kind(run, ("table",), "serve")
    if token is not None and not (token.isascii() and token.isprintable() and token.strip()):
        raise ValueError("--token must be printable ASCII characters, at least one")
    named = f"[{host}]" if ":" in host else host
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
        ready=lambda: say(f"http://{named}:{port}/ (Ctrl-C stops)"),
    )
