"""The FastAPI application of a run: its routes, hosts, token, and counters."""

from __future__ import annotations

import hmac
import html
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from difformer.app.service.limits import Limits
from difformer.app.service.requests import (
    Answers,
    RefusedError,
    RequestModel,
    answers_schema,
    read_body,
)
from difformer.app.service.together import Together
from difformer.errors import missing_extra
from difformer.files import json_text, one_line
from difformer.jobs.own import OwnRun

LOCAL = ("localhost", "127.0.0.1", "::1")
ALIVE = {"status": "ok"}
PAGE = Path(__file__).parent / "page.html"

REFUSALS: dict[int | str, str] = {
    400: "not JSON, not rows of this table, or for another host",
    401: "no token, or another one",
    408: "the body took too long to arrive",
    413: "more bytes or rows than allowed",
    415: "not application/json",
    422: "a column or a value is wrong",
    503: "too much to do: try again later",
}

HELP = """<!doctype html><html lang="en"><meta charset="utf-8"><title>difformer</title>
<h1>Predictions of one run</h1>
<p>POST /predict with content-type application/json (null is a missing value):</p>
<pre>{example}</pre><table><tr><th>column</th><th>kind</th></tr>{columns}</table>
<p><a href=".">Type a row</a> and see the answer; <a href="openapi.json">openapi.json</a>,
<a href="health">health</a>, <a href="metrics">metrics</a></p></html>"""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Guard:
    """Refuses who has no token, or asks for another host, and counts all answers by status.

    A page of another host may have had its name point to this machine: answered are the names of
    this machine, the address that the client has reached, and `hosts`.
    """

    app: Any
    counter: Any
    hosts: Sequence[str]
    token: str | None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def counting(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.counter.labels(str(message["status"])).inc()
            await send(message)

        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = dict(scope["headers"])
        app = self._for_host(scope, headers) or self._with_token(scope, headers) or self.app
        return await app(scope, receive, counting)

    def _for_host(self, scope: Any, headers: Mapping[bytes, bytes]) -> Any:
        from starlette.responses import JSONResponse

        name = re.sub(r":\d*$", "", headers.get(b"host", b"").decode("latin-1"))
        name = name.strip("[]").lower()
        reached = scope["server"] and scope["server"][0]
        if name == reached or any(fnmatchcase(name, host) for host in self.hosts):
            return None
        say = f"{name[:100]!r} must be given to the service by --allowed-host"
        return JSONResponse({"detail": say}, 400, {"connection": "close"})

    def _with_token(self, scope: Any, headers: Mapping[bytes, bytes]) -> Any:
        """The page needs no token, as it holds nothing of the run; /health says only its status."""
        from starlette.responses import JSONResponse

        if self.token is None or scope["path"] == "/":
            return None
        shown = headers.get(b"authorization", b"")
        if hmac.compare_digest(shown, f"Bearer {self.token}".encode()):
            return None
        if (scope["method"], scope["path"]) == ("GET", "/health"):
            return JSONResponse(ALIVE)
        say = "the header Authorization must be 'Bearer ' and the token"
        closing = {"www-authenticate": "Bearer", "connection": "close"}
        return JSONResponse({"detail": say}, 401, closing)


class Service:
    """A run that answers requests, and counts them."""

    def __init__(self, run: OwnRun, limits: Limits) -> None:
        from prometheus_client import CollectorRegistry, Counter

        self.run, self.limits = run, limits
        self.model, self.together = RequestModel(run, limits), Together(run, limits)
        self.registry = registry = CollectorRegistry()
        self.answered = Counter("difformer_requests", "Answers", ["status"], registry=registry)
        self.rows = Counter("difformer_rows", "Rows answered", registry=registry)
        self.seconds = Counter(
            "difformer_predict_seconds", "Waiting and computing", registry=registry
        )

    async def predict(self, request: Any) -> Any:
        """POST /predict; an error is one line."""
        from starlette.responses import JSONResponse

        try:
            return JSONResponse(await self._answer(request))
        except RefusedError as refusal:
            return JSONResponse({"detail": refusal.reason}, refusal.status, refusal.headers)
        except Exception as error:
            logger.error("500: %s: %s", type(error).__name__, one_line(error)[:500])
            return JSONResponse({"detail": "a fault of the service; its log says more"}, 500)

    async def _answer(self, request: Any) -> Answers:
        body = await read_body(request, self.limits, self.together)
        try:
            chunk, count, edges = self.model.read(body)
            begin = time.perf_counter()
            found = await self.together.predict(chunk, count, edges)
        finally:
            self.together.bytes -= len(body)
        self.rows.inc(count)
        self.seconds.inc(time.perf_counter() - begin)
        return found

    def health(self) -> dict[str, Any]:
        """GET /health."""
        return {**ALIVE, "known_rows": len(self.run.ids), "columns": self.model.columns}

    def metrics(self) -> Any:
        """GET /metrics, for Prometheus."""
        from prometheus_client import generate_latest
        from starlette.responses import Response

        return Response(generate_latest(self.registry), media_type="text/plain; version=0.0.4")

    def page(self) -> Any:
        """GET /: type a row and see its answer."""
        from starlette.responses import HTMLResponse

        return HTMLResponse(PAGE.read_text(encoding="utf-8"), headers={"x-frame-options": "DENY"})

    def help(self) -> Any:
        """GET /docs: one page without scripts, the columns and an example."""
        from starlette.responses import HTMLResponse

        columns = "".join(
            f"<tr><td>{html.escape(c.name)}</td><td>{html.escape(c.kind)}</td></tr>"
            for c in self.run.encoder.columns
        )
        example = json_text({"rows": [dict.fromkeys(self.model.columns)]}, indent=2)
        return HTMLResponse(HELP.format(example=html.escape(example), columns=columns))


def make_app(
    run: OwnRun | str | Path,
    limits: Limits | None = None,
    *,
    token: str | None = None,
    hosts: Sequence[str] = (),
) -> Any:
    """The FastAPI application of a run.

    Args:
        token: what a client must send as `Authorization: Bearer TOKEN`, except for the page;
            without it, /health says only that the service lives.
        hosts: host names that a client may use besides those of this machine; "*" is any.
    """
    try:
        import prometheus_client  # noqa: F401 # pyright: ignore[reportUnusedImport]
        from fastapi import FastAPI, Request
    except ImportError as error:
        raise missing_extra("serve", "serve") from error

    run = run if isinstance(run, OwnRun) else OwnRun.load(run)
    service = Service(run, limits or Limits())
    # FastAPI's own help page loads scripts from elsewhere.
    app = FastAPI(
        title="difformer",
        description="Predictions of one run.",
        version="1",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # it would send clients to whatever host their header names
    )

    async def predict(request: Any) -> Any:
        return await service.predict(request)

    # FastAPI looks an annotation up among the module's globals, where a late import is not.
    predict.__annotations__ = {"request": Request}
    refusals: dict[int | str, Any] = {s: {"description": text} for s, text in REFUSALS.items()}
    app.post(
        "/predict",
        summary="Label and probability of each row",
        response_model=None,
        openapi_extra={"requestBody": service.model.schema()},
        responses={200: answers_schema(run), **refusals},
    )(predict)
    app.get("/health", summary="Whether the service answers")(service.health)
    app.get("/metrics", summary="Counters for Prometheus", response_model=None)(service.metrics)
    app.get("/", include_in_schema=False, response_model=None)(service.page)
    app.get("/docs", include_in_schema=False, response_model=None)(service.help)
    named = [*LOCAL, *(host.strip("[]").lower() for host in hosts)]
    app.add_middleware(Guard, counter=service.answered, hosts=named, token=token)
    return app
