"""A small HTTP service for a run on one's own table: predictions, health, metrics, a help page.

Every request is bounded (bytes, rows, time to arrive) and checked before the model sees it; what
is wrong with it is a 4xx with one line that says what, and too much work is a 503 that says when to
come back. A row's answer does not depend on who else asks, for predictions go through the frozen
context: so requests that wait are answered together. `server` listens and bounds connections.
"""

from __future__ import annotations

import asyncio
import hmac
import html
import json
import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

from difformer.data.columns import cell_text
from difformer.errors import DataError, DifformerError, missing_extra
from difformer.experiments.own.run import OwnRun

__all__ = ["RETRY_AFTER", "Limits", "make_app"]

FLOAT32 = 3.4e38
RETRY_AFTER = 1  # seconds after which a client that was sent away may come back
LONGEST = 500  # characters of a refusal
CHOICES = 200  # values of a category that the page offers
OPEN_TO_ALL = ("/health", "/")  # answered without the token: nothing of the run is in them
PAGE = Path(__file__).parent / "assets" / "service.html"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """What one request may ask for, and all of them together."""

    bytes: int = 1_000_000
    rows: int = 1_000
    edges: int = 20_000
    cell: int = 100_000  # characters of one text cell
    seconds: float = 10.0  # for the header, and then for the body to arrive
    concurrent: int = 2  # batches worked on at a time; requests that come meanwhile are the next
    waiting_rows: int = 4_000  # rows of requests that wait; more are sent away
    waiting_bytes: int = 16_000_000  # bytes of bodies being read or waiting
    connections: int = 512  # open at a time
    idle: float = 60.0  # seconds a connection may stay open between two requests


class RefusedError(Exception):
    """A request that is answered with a 4xx or 503 and one line."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason

    @property
    def headers(self) -> dict[str, str]:
        """What tells the client to come back, or that the rest of its body will not be read."""
        again = {"retry-after": str(RETRY_AFTER)} if self.status == 503 else {}
        return again | ({"connection": "close"} if self.status in (408, 413, 503) else {})


@dataclass(frozen=True)
class Counted:
    """Counts the answers by status, straight from what is sent."""

    app: Any
    counter: Any

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def counting(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.counter.labels(str(message["status"])).inc()
            await send(message)

        await self.app(scope, receive, counting if scope["type"] == "http" else send)


@dataclass(frozen=True)
class WithToken:
    """Lets in who shows the token; compared in constant time."""

    app: Any
    token: str

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_TO_ALL:
            shown = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(shown, f"Bearer {self.token}".encode()):
                from starlette.responses import JSONResponse

                say = {"detail": "the header Authorization must be 'Bearer ' and the token"}
                headers = {"www-authenticate": "Bearer", "connection": "close"}
                await JSONResponse(say, 401, headers)(scope, receive, send)
                return
        await self.app(scope, receive, send)


Chunk = dict[str, list[Any]]
Answers = list[dict[str, Any]]
Edges = dict[str, list[Any]] | None
"""The edges of a request by column: source, target and maybe weight."""


@dataclass(frozen=True)
class Waiting:
    """A request that has been read and checked."""

    chunk: Chunk
    rows: int
    answers: asyncio.Future[Answers]
    edges: Edges = None


class Together:
    """Answers in one batch the requests that wait: most of what one costs, it costs only once."""

    def __init__(self, run: OwnRun, limits: Limits) -> None:
        self.run, self.limits = run, limits
        self.waiting: deque[Waiting] = deque()
        self.rows = self.bytes = 0  # of the requests that wait; of all bodies held
        self.workers: set[asyncio.Task[None]] = set()

    async def predict(self, chunk: Chunk, rows: int, edges: Edges = None) -> Answers:
        """The answers for one request's rows; RefusedError where a value is wrong."""
        if self.rows + rows > max(self.limits.waiting_rows, rows):
            raise RefusedError(503, "too many rows wait for their answer: try again later")
        mine = Waiting(chunk, rows, asyncio.get_running_loop().create_future(), edges)
        self.waiting.append(mine)
        self.rows += rows
        if len(self.workers) < self.limits.concurrent:
            worker = asyncio.create_task(self._work())
            self.workers.add(worker)
            worker.add_done_callback(self.workers.discard)
        return await mine.answers

    async def _work(self) -> None:
        while self.waiting:
            batch = self._next()
            chunks = [request.chunk for request in batch]
            if (edges := batch[0].edges) is None:
                found = await asyncio.to_thread(_predict_together, self.run, chunks)
            else:
                found = await asyncio.to_thread(_predict_joined, self.run, chunks[0], edges)
            for request, answers in zip(batch, found, strict=True):
                if request.answers.done():  # whoever asked has gone
                    continue
                if isinstance(answers, Exception):
                    request.answers.set_exception(answers)
                else:
                    request.answers.set_result(answers)

    def _next(self) -> list[Waiting]:
        """The requests that have waited longest, of together no more rows than one may have.

        One with edges is answered alone: they join its rows and no others.
        """
        batch = [self.waiting.popleft()]
        rows = batch[0].rows
        while (
            self.waiting
            and batch[0].edges is None is self.waiting[0].edges
            and rows + self.waiting[0].rows <= self.limits.rows
        ):
            batch.append(self.waiting.popleft())
            rows += batch[-1].rows
        self.rows -= rows
        return batch


def make_app(
    run: OwnRun | str | Path,
    limits: Limits | None = None,
    *,
    token: str | None = None,
    hosts: Sequence[str] = (),
) -> Any:
    """The FastAPI application of a run.

    Args:
        token: what a client must send as `Authorization: Bearer TOKEN`, but for /health.
        hosts: the names a client may call the service by; any where empty.
    """
    try:
        from fastapi import FastAPI, Request
        from fastapi.responses import HTMLResponse, JSONResponse, Response
        from prometheus_client import CollectorRegistry, Counter, generate_latest
        from starlette.middleware.trustedhost import TrustedHostMiddleware
    except ImportError as error:
        raise missing_extra("serve", "serve") from error

    run = run if isinstance(run, OwnRun) else OwnRun.load(run)
    limits = limits or Limits()
    registry = CollectorRegistry()
    requests = Counter("difformer_requests", "Answers", ["status"], registry=registry)
    rows = Counter("difformer_rows", "Rows answered", registry=registry)
    seconds = Counter("difformer_predict_seconds", "Waiting and computing", registry=registry)
    together = Together(run, limits)
    schema = _schema(run, limits)
    # FastAPI's own help page loads scripts from elsewhere.
    app = FastAPI(
        title="difformer",
        description="Predictions of one run.",
        version="1",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # it would send clients to whatever host their header names
    )

    async def answer(request: Any) -> dict[str, Any]:
        body = await _body(request, limits, together)
        try:
            chunk, count, edges = _chunk(run, body, limits)
            begin = time.perf_counter()
            predictions = await together.predict(chunk, count, edges)
        finally:
            together.bytes -= len(body)
        rows.inc(count)
        seconds.inc(time.perf_counter() - begin)
        return {"predictions": predictions}

    # The annotations of nested functions are looked up by name among the module's globals, where
    # a late import is not: FastAPI is given the request through its own route class instead.
    async def predict(request: Any) -> Any:
        try:
            return JSONResponse(await answer(request))
        except RefusedError as refusal:
            return JSONResponse({"detail": refusal.reason}, refusal.status, refusal.headers)
        except Exception as error:
            logger.error("500: %s: %s", type(error).__name__, " ".join(str(error).split())[:500])
            return JSONResponse({"detail": "a fault of the service; its log says more"}, 500)

    predict.__annotations__ = {"request": Request, "return": Any}
    app.post(
        "/predict",
        summary="Label and probability of each row",
        response_model=None,
        openapi_extra={"requestBody": schema},
        responses={s: {"description": text} for s, text in REFUSALS.items()},
    )(predict)

    @app.get("/health", summary="Whether the service answers")
    def health() -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        return {"status": "ok", "known_rows": len(run.ids), "columns": _columns(run)}

    @app.get("/metrics", summary="Counters for Prometheus", response_model=None)
    def metrics() -> Any:  # pyright: ignore[reportUnusedFunction]
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4")

    @app.get("/", include_in_schema=False, response_model=None)
    def page() -> Any:  # pyright: ignore[reportUnusedFunction]
        return HTMLResponse(PAGE.read_text(encoding="utf-8"), headers={"x-frame-options": "DENY"})

    @app.get("/docs", include_in_schema=False, response_model=None)
    def docs() -> Any:  # pyright: ignore[reportUnusedFunction]
        return HTMLResponse(_help_page(run))

    if token is not None:
        app.add_middleware(WithToken, token=token)
    if hosts:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)
    app.add_middleware(Counted, counter=requests)
    return app


REFUSALS: dict[int | str, str] = {
    400: "not JSON, or not rows of this table",
    401: "no token, or another one",
    408: "the body took too long to arrive",
    413: "more bytes or rows than allowed",
    415: "not application/json",
    422: "a column or a value is wrong",
    503: "too much to do: try again later",
}


async def _body(request: Any, limits: Limits, together: Together) -> bytes:
    """The body, never more than allowed of it in memory; its bytes are counted in `together`."""
    import anyio

    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise RefusedError(415, "content-type must be application/json")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > 20:
        raise RefusedError(400, "content-length must be a number")
    if int(length) > limits.bytes:
        raise RefusedError(413, f"the body must have at most {limits.bytes} bytes")
    parts: list[bytes] = []
    size = 0
    try:
        with anyio.fail_after(limits.seconds):
            async for part in request.stream():
                size += len(part)
                together.bytes += len(part)
                parts.append(part)
                if size > limits.bytes:
                    raise RefusedError(413, f"the body must have at most {limits.bytes} bytes")
                if together.bytes > max(limits.waiting_bytes, size):
                    raise RefusedError(503, "too many requests wait: try again later")
    except TimeoutError as error:
        together.bytes -= size
        reason = f"the body must arrive within {limits.seconds:g} seconds"
        raise RefusedError(408, reason) from error
    except BaseException:
        together.bytes -= size
        raise
    return b"".join(parts)


def _chunk(run: OwnRun, body: bytes, limits: Limits) -> tuple[Chunk, int, Edges]:
    """A request's rows by column, checked, and its edges; numbers JSON has not are refused."""
    try:
        content = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"the body must be JSON ({str(error)[:100]})") from error
    if not isinstance(content, dict) or {"rows"} != set(content) - {"edges"}:
        what = 'the body must be {"rows": [{column: value, ...}, ...]}, and maybe "edges"'
        raise RefusedError(400, what)
    rows = content["rows"]
    if not isinstance(rows, list) or not rows:
        raise RefusedError(400, "rows must be a list of at least one object")
    if len(rows) > limits.rows:
        raise RefusedError(413, f"rows must be at most {limits.rows}, got {len(rows)}")
    known = _largest(run)
    for number, row in enumerate(rows, 1):
        _check_row(run, row, f"row {number}", known, limits)
    chunk = {name: [row.get(name) for row in rows] for name in _columns(run)}
    if run.encoder.id is not None:
        chunk[run.encoder.id] = [row.get(run.encoder.id) for row in rows]
    return chunk, len(rows), _edges(run, content.get("edges"), limits)


def _edges(run: OwnRun, edges: Any, limits: Limits) -> Edges:
    """[[id, id], ...] or [[id, id, weight], ...] by column; None where there are none."""
    if edges is None or edges == []:
        return None
    if run.encoder.id is None:
        raise RefusedError(422, "edges must be left out: the table has no column of ids")
    if not isinstance(edges, list):
        raise RefusedError(422, "edges must be a list of [id, id] or [id, id, weight]")
    if len(edges) > limits.edges:
        raise RefusedError(413, f"edges must be at most {limits.edges}, got {len(edges)}")
    widths = {len(edge) if isinstance(edge, list) else 0 for edge in cast("list[Any]", edges)}
    if widths not in ({2}, {3}):
        raise RefusedError(422, "edges must all be [id, id], or all be [id, id, weight]")
    for number, edge in enumerate(cast("list[list[Any]]", edges), 1):
        for end in edge[:2]:
            if not isinstance(end, str | int) or isinstance(end, bool):
                raise RefusedError(422, f"edge {number} must join two ids")
        if len(edge) == 3 and not (isinstance(edge[2], int | float) and 0 <= edge[2] < FLOAT32):
            raise RefusedError(422, f"edge {number}: the weight must be a number of 0 or more")
    names = ("source", "target", "weight")
    return {name: list(cells) for name, cells in zip(names, zip(*edges, strict=True), strict=False)}


def _largest(run: OwnRun) -> dict[str | None, float]:
    """The columns a row may have, with the largest number of each: a float32, or as in training."""
    largest = dict.fromkeys([*_columns(run), *run.encoder.labels, run.encoder.id], math.inf)
    for column in run.encoder.columns:
        if column.kind == "number":
            low, high = column.learned["low"], column.learned["high"]
            largest[column.name] = max(FLOAT32, abs(low), abs(high))
    return largest


def _check_row(
    run: OwnRun, row: Any, where: str, known: dict[str | None, float], limits: Limits
) -> None:
    if not isinstance(row, dict):
        raise RefusedError(422, f"{where} must be an object of column: value")
    for name, value in cast("dict[str, Any]", row).items():
        if name not in known:
            raise RefusedError(422, f"{where}: column {name[:50]!r} was not there in training")
        if isinstance(value, dict | list):
            raise RefusedError(422, f"{where}, column {name!r} must be one value")
        if isinstance(value, str) and len(value) > limits.cell:
            raise RefusedError(422, f"{where}, column {name!r} is longer than {limits.cell}")
        if _size(value) > known[name]:
            raise RefusedError(422, f"{where}, column {name!r} is too large a number")
    for name in _wanted(run):
        if name not in row:
            raise RefusedError(422, f"{where}: column {name!r} is missing (null is a value)")


def _size(value: Any) -> float:
    """A number's absolute value, infinite where a float cannot hold it; 0 for what is none."""
    try:
        size = abs(float(value))
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return 0.0
    return 0.0 if isinstance(value, str) and math.isinf(size) else size  # "inf": no finite number


def _predict_joined(run: OwnRun, chunk: Chunk, edges: Edges) -> list[Answers | Exception]:
    """The answers of one request whose rows have edges."""
    try:
        return [_predict(run, chunk, edges)]
    except Exception as error:
        return [error]


def _predict_together(run: OwnRun, chunks: list[Chunk]) -> list[Answers | Exception]:
    """The answers of each request; where one of them cannot be answered, each on its own."""
    sizes = [len(next(iter(chunk.values()))) for chunk in chunks]
    merged = {name: [v for chunk in chunks for v in chunk[name]] for name in chunks[0]}
    try:
        found = _predict(run, merged)
        ends = list(accumulate(sizes))
        return [found[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    except Exception as error:
        if len(chunks) == 1:
            return [error]
        return [_predict_together(run, [chunk])[0] for chunk in chunks]


def _predict(run: OwnRun, chunk: Chunk, edges: Edges = None) -> Answers:
    import torch

    from difformer.experiments.own.predict import edges_of

    try:
        features = run.encoder.encode_chunk(chunk, 1, "the request")
        ids = _ids(run, chunk) or []
        graph = None
        if edges is not None:
            if len(set(filter(None, ids))) < len([name for name in ids if name]):
                raise RefusedError(422, "ids must be different in a request with edges")
            graph = edges_of(run, ids, edges, logger.info)
    except DataError as error:
        raise RefusedError(422, str(error)[:LONGEST]) from error
    try:
        with torch.inference_mode():
            return run.answer(features, graph, ids=ids or None)
    except (ValueError, DifformerError) as error:
        raise RefusedError(422, f"no answer: {error}"[:LONGEST]) from error


def _ids(run: OwnRun, chunk: Chunk) -> list[str] | None:
    """The rows' ids, empty where a row has none: a row of training is answered as in training."""
    names = chunk.get(run.encoder.id or "")
    return names and ["" if name is None else cell_text(name) for name in names]


def _columns(run: OwnRun) -> list[str]:
    return [column.name for column in run.encoder.columns]


def _wanted(run: OwnRun) -> list[str]:
    """The columns that every row must have: those the model looks at."""
    return [column.name for column in run.encoder.columns if column.kind != "skip"]


def _schema(run: OwnRun, limits: Limits) -> dict[str, Any]:
    """The request's JSON schema, by the table's own columns."""
    kinds = {"number": {"type": ["number", "null"]}}
    text = {"type": ["string", "number", "boolean", "null"], "maxLength": limits.cell}
    row: dict[str, Any] = {
        "type": "object",
        "required": _wanted(run),
        "additionalProperties": False,
        "properties": {
            c.name: {**kinds.get(c.kind, text), **_hint(c)} for c in run.encoder.columns
        },
    }
    rows = {"type": "array", "minItems": 1, "maxItems": limits.rows, "items": row}
    wanted: dict[str, Any] = {"rows": rows}
    if run.encoder.id is not None:
        row["properties"][run.encoder.id] = {**text, "description": "id"}
        row["x-edges"] = run.estimator.graph_ is not None  # whether edges change anything
        edge = {"type": "array", "minItems": 2, "maxItems": 3}
        wanted["edges"] = {
            "type": "array",
            "maxItems": limits.edges,
            "items": edge,
            "description": "[id, id] or [id, id, weight]: a row of the request and another one, or "
            "one of training",
        }
    body = {"type": "object", "required": ["rows"], "properties": wanted}
    return {"required": True, "content": {"application/json": {"schema": body}}}


def _hint(column: Any) -> dict[str, Any]:
    """What kind of column it is and a usual value, for who types a row."""
    learned, found = column.learned, {"description": column.kind}
    if column.kind == "number":
        found["examples"] = [float(f"{learned['mean']:.4g}")]
    elif column.kind == "category":
        found["examples"] = list(learned["values"][:CHOICES])
    return found


def _help_page(run: OwnRun) -> str:
    """One page without scripts: the columns and an example."""
    columns = "".join(
        f"<tr><td>{html.escape(c.name)}</td><td>{html.escape(c.kind)}</td></tr>"
        for c in run.encoder.columns
    )
    example = html.escape(json.dumps({"rows": [dict.fromkeys(_columns(run))]}, indent=2))
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>difformer</title>
<h1>Predictions of one run</h1>
<p>POST /predict with content-type application/json (null is a missing value):</p>
<pre>{example}</pre><table><tr><th>column</th><th>kind</th></tr>{columns}</table>
<p><a href=".">Type a row</a> and see the answer; <a href="openapi.json">openapi.json</a>,
<a href="health">health</a>, <a href="metrics">metrics</a></p></html>"""


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
