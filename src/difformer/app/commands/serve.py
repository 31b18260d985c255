"""difformer serve: a run of `train --nodes` over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from difformer.app.options import argument, flag
from difformer.app.output import say
from difformer.app.service.server import Limits


def command(
    run: Annotated[Path, argument("RUN", "The folder of a run of `train --nodes`.")],
    host: Annotated[
        str, flag("HOST", "The address to listen on; 0.0.0.0 is every one.")
    ] = "127.0.0.1",
    port: Annotated[int, flag("N", "The port to listen on.", min=1, max=65535)] = 8000,
    max_bytes: Annotated[int, flag("N", "The most bytes per request.", min=1)] = Limits.bytes,
    max_rows: Annotated[int, flag("N", "The most rows per request.", min=1)] = Limits.rows,
    max_connections: Annotated[
        int, flag("N", "The most connections at a time; of one client half.", min=1)
    ] = Limits.connections,
    seconds: Annotated[
        float, flag("X", "Seconds a header, or a body, may take to arrive.", min=0.1)
    ] = Limits.seconds,
    idle: Annotated[
        float, flag("X", "Seconds a connection may stay open between two requests.", min=1)
    ] = Limits.idle,
    level: Annotated[
        float | None, flag("SHARE", "Add intervals or sets of this level, such as 0.9.")
    ] = None,
    token: Annotated[
        str | None,
        flag("TEXT", "What clients must send as a Bearer token.", envvar="DIFFORMER_TOKEN"),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        flag(
            "HOST",
            "A host name that clients may use besides localhost and the address; may be repeated, "
            "and * is any.",
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
    from difformer.app.service.app import Service
    from difformer.app.service.server import listen, make_server
    from difformer.jobs.own import OwnRun
    from difformer.runs.run import need_kind

    need_kind(run, ("table",), "serve")
    if token is not None and not (token.isascii() and token.isprintable() and token.strip()):
        raise ValueError("--token must be printable ASCII characters, at least one")
    named = f"[{host}]" if ":" in host else host
    limits = Limits(
        bytes=max_bytes, rows=max_rows, connections=max_connections, seconds=seconds, idle=idle
    )
    answers = OwnRun.load(run, level=level)
    with listen(host, port) as listening:
        say(f"http://{named}:{port}/ (Ctrl-C stops)")
        app = Service(answers, limits, token=token, hosts=(host, *(allowed_host or ())))
        make_server(app, limits).run([listening])
