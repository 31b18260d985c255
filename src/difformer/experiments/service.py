"""A small HTTP service for a run on one's own table: predictions, health, metrics, OpenAPI page.

Every request is bounded (bytes, rows, time to arrive) and checked before the model sees it; what
is wrong with it is a 4xx with one line that says what. A row's answer does not depend on who else
asks, for predictions go through the frozen context: so requests that wait are answered together.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

from difformer.errors import DataError, DifformerError
from difformer.experiments.own.run import OwnRun

__all__ = ["Limits", "make_app", "serve"]


@dataclass(frozen=True)
class Limits:
    """What one request may ask for."""

    bytes: int = 1_000_000
    rows: int = 1_000
    cell: int = 100_000  # characters of one text cell
    seconds: float = 10.0  # for the body to arrive
    concurrent: int = 2  # batches worked on at a time; requests that come meanwhile are the next


@dataclass
class Counters:
    """What /metrics reports, in the text form Prometheus reads."""

    requests: dict[int, int] = field(default_factory=dict[int, int])
    rows: int = 0
    seconds: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, status: int) -> None:
        with self.lock:
            self.requests[status] = self.requests.get(status, 0) + 1

    def predicted(self, rows: int, seconds: float) -> None:
        with self.lock:
            self.rows += rows
            self.seconds += seconds

    def text(self) -> str:
        lines = ["# TYPE difformer_requests_total counter"]
        with self.lock:
            for status, number in sorted(self.requests.items()):
                lines.append(f'difformer_requests_total{{status="{status}"}} {number}')
            lines += ["# TYPE difformer_rows_total counter", f"difformer_rows_total {self.rows}"]
            lines.append("# TYPE difformer_predict_seconds_total counter")
            lines.append(f"difformer_predict_seconds_total {self.seconds:.6f}")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Counted:
    """Counts the answers by status, straight from what is sent."""

    app: Any
    counters: Counters

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def counting(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.counters.count(message["status"])
            await send(message)

        await self.app(scope, receive, counting if scope["type"] == "http" else send)


class RefusedError(Exception):
    """A request that is answered with a 4xx and one line."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


Chunk = dict[str, list[Any]]
Answers = list[dict[str, Any]]


@dataclass(frozen=True)
class Waiting:
    """A request that has been read and checked."""

    chunk: Chunk
    rows: int
    answers: asyncio.Future[Answers]


class Together:
    """Answers in one batch the requests that wait: most of what one costs, it costs only once."""

    def __init__(self, run: OwnRun, limits: Limits) -> None:
        self.run, self.limits = run, limits
        self.waiting: deque[Waiting] = deque()
        self.workers: set[asyncio.Task[None]] = set()

    async def predict(self, chunk: Chunk, rows: int) -> Answers:
        """The answers for one request's rows; RefusedError where a value is wrong."""
        mine = Waiting(chunk, rows, asyncio.get_running_loop().create_future())
        self.waiting.append(mine)
        if len(self.workers) < self.limits.concurrent:
            worker = asyncio.create_task(self._work())
            self.workers.add(worker)
            worker.add_done_callback(self.workers.discard)
        return await mine.answers

    async def _work(self) -> None:
        while self.waiting:
            batch = self._next()
            chunks = [request.chunk for request in batch]
            found = await asyncio.to_thread(_predict_together, self.run, chunks)
            for request, answers in zip(batch, found, strict=True):
                if request.answers.done():  # whoever asked has gone
                    continue
                if isinstance(answers, Exception):
                    request.answers.set_exception(answers)
                else:
                    request.answers.set_result(answers)

    def _next(self) -> list[Waiting]:
        """The requests that have waited longest, of together no more rows than one may have."""
        batch = [self.waiting.popleft()]
        rows = batch[0].rows
        while self.waiting and rows + self.waiting[0].rows <= self.limits.rows:
            batch.append(self.waiting.popleft())
            rows += batch[-1].rows
        return batch


def make_app(run: OwnRun | str | Path, limits: Limits | None = None) -> Any:
    """The FastAPI application of a run."""
    try:
        from fastapi import FastAPI, Request
        from fastapi.responses import JSONResponse, PlainTextResponse
    except ImportError as error:
        raise DifformerError("serve needs: pip install 'difformer[serve]'") from error

    run = run if isinstance(run, OwnRun) else OwnRun.load(run)
    limits = limits or Limits()
    counters = Counters()
    together = Together(run, limits)
    schema = _schema(run, limits)
    app = FastAPI(title="difformer", description="Predictions of one run.", version="1")

    async def answer(request: Any) -> dict[str, Any]:
        body = await _body(request, limits)
        chunk, count = _chunk(run, body, limits)
        begin = time.perf_counter()
        predictions = await together.predict(chunk, count)
        counters.predicted(count, time.perf_counter() - begin)
        return {"predictions": predictions}

    # The annotations of nested functions are looked up by name among the module's globals, where
    # a late import is not: FastAPI is given the request through its own route class instead.
    async def predict(request: Any) -> Any:
        try:
            return JSONResponse(await answer(request))
        except RefusedError as refusal:
            return JSONResponse({"detail": refusal.reason}, refusal.status)

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

    @app.get("/metrics", summary="Counters for Prometheus", response_class=PlainTextResponse)
    def metrics() -> str:  # pyright: ignore[reportUnusedFunction]
        return counters.text()

    app.add_middleware(Counted, counters=counters)
    return app


REFUSALS: dict[int | str, str] = {
    400: "not JSON, or not rows of this table",
    408: "the body took too long to arrive",
    413: "more bytes or rows than allowed",
    415: "not application/json",
    422: "a column or a value is wrong",
}


def serve(
    folder: str | Path, *, host: str = "127.0.0.1", port: int = 8000, limits: Limits | None = None
) -> None:
    """Answer until stopped."""
    try:
        import uvicorn
    except ImportError as error:
        raise DifformerError("serve needs: pip install 'difformer[serve]'") from error
    app = make_app(folder, limits)
    # A connection closed while a slow client writes its next request is an error for the client.
    uvicorn.run(app, host=host, port=port, log_level="warning", timeout_keep_alive=75, backlog=1024)


async def _body(request: Any, limits: Limits) -> bytes:
    """The body, never more than allowed of it in memory."""
    import anyio

    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise RefusedError(415, "content-type must be application/json")
    length = request.headers.get("content-length", "0")
    if not length.isdigit():
        raise RefusedError(400, "content-length must be a number")
    if int(length) > limits.bytes:
        raise RefusedError(413, f"the body must have at most {limits.bytes} bytes")
    parts: list[bytes] = []
    size = 0
    with anyio.move_on_after(limits.seconds) as scope:
        async for part in request.stream():
            size += len(part)
            if size > limits.bytes:
                raise RefusedError(413, f"the body must have at most {limits.bytes} bytes")
            parts.append(part)
    if scope.cancelled_caught:
        raise RefusedError(408, f"the body must arrive within {limits.seconds:g} seconds")
    return b"".join(parts)


def _chunk(run: OwnRun, body: bytes, limits: Limits) -> tuple[Chunk, int]:
    """The rows of a request by column, checked; numbers JSON does not know are refused."""
    try:
        content = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"the body must be JSON ({str(error)[:100]})") from error
    if not isinstance(content, dict) or set(content) != {"rows"}:
        raise RefusedError(400, 'the body must be {"rows": [{column: value, ...}, ...]}')
    rows = content["rows"]
    if not isinstance(rows, list) or not rows:
        raise RefusedError(400, "rows must be a list of at least one object")
    if len(rows) > limits.rows:
        raise RefusedError(413, f"rows must be at most {limits.rows}, got {len(rows)}")
    allowed = {*_columns(run), run.encoder.label, run.encoder.id}
    for number, row in enumerate(rows, 1):
        _check_row(run, row, f"row {number}", allowed, limits)
    chunk = {name: [row[name] for row in rows] for name in _columns(run)}
    if run.encoder.id is not None:
        chunk[run.encoder.id] = [row.get(run.encoder.id) for row in rows]
    return chunk, len(rows)


def _check_row(run: OwnRun, row: Any, where: str, allowed: set[Any], limits: Limits) -> None:
    if not isinstance(row, dict):
        raise RefusedError(422, f"{where} must be an object of column: value")
    for name, value in cast("dict[str, Any]", row).items():
        if name not in allowed:
            raise RefusedError(422, f"{where}: column {name[:50]!r} was not there in training")
        if isinstance(value, dict | list):
            raise RefusedError(422, f"{where}, column {name!r} must be one value")
        if isinstance(value, str) and len(value) > limits.cell:
            raise RefusedError(422, f"{where}, column {name!r} is longer than {limits.cell}")
        if isinstance(value, int) and abs(value) > 10**300:
            raise RefusedError(422, f"{where}, column {name!r} is too large a number")
    for name in _columns(run):
        if name not in row:
            raise RefusedError(422, f"{where}: column {name!r} is missing (null is a value)")


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


def _predict(run: OwnRun, chunk: Chunk) -> Answers:
    import torch

    try:
        features = run.encoder.encode_chunk(chunk, 1, "the request")
    except DataError as error:
        raise RefusedError(422, str(error)) from error
    with torch.inference_mode():
        return run.answer(features, ids=_ids(run, chunk))


def _ids(run: OwnRun, chunk: Chunk) -> list[str] | None:
    """The rows' ids, empty where a row has none: a row of training is answered as in training."""
    names = chunk.get(run.encoder.id or "")
    return names and ["" if name is None else str(name).strip() for name in names]


def _columns(run: OwnRun) -> list[str]:
    return [column.name for column in run.encoder.columns]


def _schema(run: OwnRun, limits: Limits) -> dict[str, Any]:
    """The request's JSON schema, by the table's own columns."""
    kinds = {"number": {"type": ["number", "null"]}}
    text = {"type": ["string", "number", "boolean", "null"], "maxLength": limits.cell}
    row = {
        "type": "object",
        "required": _columns(run),
        "additionalProperties": False,
        "properties": {c.name: kinds.get(c.kind, text) for c in run.encoder.columns},
    }
    rows = {"type": "array", "minItems": 1, "maxItems": limits.rows, "items": row}
    body = {"type": "object", "required": ["rows"], "properties": {"rows": rows}}
    return {"required": True, "content": {"application/json": {"schema": body}}}


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
