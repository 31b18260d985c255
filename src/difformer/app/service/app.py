"""The service of a run on a table: its routes, what a request may be, and answers batch by batch.

Every request is limited (bytes, rows, time to arrive) and checked before the model sees it. An
error in it is a 4xx with one line; too much work is a 503 that says when to try again.
"""

from __future__ import annotations

import hmac
import html
import json
import logging
import math
import re
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import torch

from difformer.app.service.server import RETRY_AFTER, Limits, Together
from difformer.data.table.cells import cell_text, repeated
from difformer.data.table.columns import Away
from difformer.data.table.encoder import Drift
from difformer.errors import DataError, DifformerError, missing_extra
from difformer.files import json_text, one_line
from difformer.jobs.own import OwnRun, edges_of

try:
    from anyio import fail_after
    from prometheus_client import CollectorRegistry, Counter, generate_latest
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Route
except ImportError as missing:
    raise missing_extra("serve", "serve") from missing

FLOAT32 = 3.4e38
CHOICES = 200  # values of a category that the page offers
LONGEST = 500  # characters of a refusal
LOCAL = ("localhost", "127.0.0.1", "::1")
ALIVE = {"status": "ok"}
BODY = 'the body must be {"rows": [{column: value, ...}, ...]}, and maybe "edges"'
HERE = Path(__file__).parent

Chunk = dict[str, list[Any]]
Answers = dict[str, list[Any]]
"""The predictions of a request, one per row, and the warnings about its rows."""
Edges = dict[str, list[Any]] | None
"""The edges of a request by column: source, target and maybe weight."""

logger = logging.getLogger(__name__)


class RefusedError(HTTPException):
    """A 4xx or 503 of one line, which tells the client when to come back, or that it is cut off."""

    def __init__(self, status: int, reason: str) -> None:
        again = {"retry-after": str(RETRY_AFTER)} if status == 503 else {}
        closing = {"connection": "close"} if status in (408, 413, 503) else {}
        super().__init__(status, reason, again | closing)


class Service:
    """The application of a run: it answers requests, those that wait in one batch, and counts them.

    A batch costs little more than one request. A row's answer does not depend on the other
    requests: predictions go through the frozen context.

    Args:
        token: what a client must send as `Authorization: Bearer TOKEN`, except for the page;
            without it, /health says only that the service lives.
        hosts: host names that a client may use besides those of this machine; "*" is any.
    """

    def __init__(
        self,
        run: OwnRun | str | Path,
        limits: Limits | None = None,
        *,
        token: str | None = None,
        hosts: Sequence[str] = (),
    ) -> None:
        self.run = run = run if isinstance(run, OwnRun) else OwnRun.load(run)
        self.limits, self.token, self.id = limits or Limits(), token, run.encoder.id
        self.hosts = [*LOCAL, *(host.strip("[]").lower() for host in hosts)]
        columns = run.encoder.columns
        self.columns = [column.name for column in columns]
        self.required = [column.name for column in columns if column.kind != "skip"]
        self.largest = {
            column.name: max(FLOAT32, abs(column.learned["low"]), abs(column.learned["high"]))
            for column in columns
            if column.kind == "number"
        }
        self.cells = {name: self._cell("label", {}) for name in run.encoder.labels}  # not looked at
        self.cells |= {each.name: self._cell(each.kind, each.learned) for each in columns}
        self.cells |= {} if self.id is None else {self.id: self._cell("id", {})}
        self.together = Together(lambda batch: predict_together(run, batch), self.limits)
        self.bytes = 0  # of all bodies held
        self.counts = kept = CollectorRegistry()
        self.answered = Counter("difformer_requests", "Answers", ["status"], registry=kept)
        self.predicted = Counter("difformer_rows", "Rows answered", registry=kept)
        self.seconds = Counter("difformer_predict_seconds", "Waiting and computing", registry=kept)
        fixed: dict[str, Response] = {
            "/": HTMLResponse(_file("page.html"), headers={"x-frame-options": "DENY"}),
            "/docs": HTMLResponse(self.help()),
            "/openapi.json": JSONResponse(self.openapi()),
            "/health": JSONResponse({**ALIVE, "known_rows": len(run.ids), "columns": self.columns}),
        }
        routes = [Route(path, answer, methods=["GET"]) for path, answer in fixed.items()]
        routes += [Route("/metrics", self.metrics)]
        routes += [Route("/predict", self.predict, methods=["POST"])]
        self.app = Starlette(routes=routes, exception_handlers={HTTPException: _refused})
        self.app.router.redirect_slashes = False  # to whatever host the client's header names

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or refuse it; count the answers by status."""

        async def counting(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.answered.labels(str(message["status"])).inc()
            await send(message)

        app = self.app if scope["type"] != "http" else self._guard(scope) or self.app
        await app(scope, receive, counting)

    def _guard(self, scope: Any) -> Response | None:
        """What is answered to who asks for another host, or has no token; None if all is well.

        A page of another host may have had its name point to this machine: answered are the names
        of this machine, the address that the client has reached, and `hosts`. The page needs no
        token, as it holds nothing of the run; /health says only its status.
        """
        headers, path = dict(scope["headers"]), scope["path"]
        name = re.sub(r":\d*$", "", headers.get(b"host", b"").decode("latin-1"))
        name = name.strip("[]").lower()
        here = scope["server"] and name == scope["server"][0]
        if not here and not any(fnmatchcase(name, host) for host in self.hosts):
            say = f"{name[:100]!r} must be given to the service by --allowed-host"
            return JSONResponse({"detail": say}, 400, {"connection": "close"})
        shown, wanted = headers.get(b"authorization", b""), f"Bearer {self.token}".encode()
        if self.token is None or path == "/" or hmac.compare_digest(shown, wanted):
            return None
        if (scope["method"], path) == ("GET", "/health"):
            return JSONResponse(ALIVE)
        say = "the header Authorization must be 'Bearer ' and the token"
        closing = {"www-authenticate": "Bearer", "connection": "close"}
        return JSONResponse({"detail": say}, 401, closing)

    async def predict(self, request: Request) -> Response:
        """POST /predict."""
        try:
            body = await self._body(request)
            try:
                chunk, count, edges = self.read(body)
                begin = time.perf_counter()
                found = await self.answer(chunk, count, edges)
            finally:
                self.bytes -= len(body)
            self.predicted.inc(count)
            self.seconds.inc(time.perf_counter() - begin)
            return JSONResponse(found)
        except HTTPException:
            raise
        except Exception as error:
            logger.error("500: %s: %s", type(error).__name__, one_line(error)[:LONGEST])
            raise HTTPException(500, "a fault of the service; its log says more") from error

    async def metrics(self, _: Request) -> Response:
        """GET /metrics, for Prometheus."""
        return Response(generate_latest(self.counts), media_type="text/plain; version=0.0.4")

    async def _body(self, request: Request) -> bytes:
        """The body, of which no more than allowed is held."""
        limits, parts, size = self.limits, list[bytes](), 0
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if kind != "application/json":
            raise RefusedError(415, "content-type must be application/json")
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 20:
            raise RefusedError(400, "content-length must be a number")
        large = RefusedError(413, f"the body must have at most {limits.bytes} bytes")
        if int(length) > limits.bytes:
            raise large
        try:
            with fail_after(limits.seconds):
                async for part in request.stream():
                    size += len(part)
                    self.bytes += len(part)
                    parts.append(part)
                    if size > limits.bytes:
                        raise large
                    if self.bytes > max(limits.waiting_bytes, size):
                        raise RefusedError(503, "too many requests wait: try again later")
        except BaseException as error:
            self.bytes -= size
            if isinstance(error, TimeoutError):
                reason = f"the body must arrive within {limits.seconds:g} seconds"
                raise RefusedError(408, reason) from error
            if isinstance(error, ClientDisconnect):
                raise RefusedError(400, "the body must arrive as a whole") from error
            raise
        return b"".join(parts)

    def read(self, body: bytes) -> tuple[Chunk, int, Edges]:
        """The rows by column, how many, and the edges; RefusedError says what is wrong first."""
        try:
            content = json.loads(body, parse_constant=_no_constant, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            raise RefusedError(400, f"the body must be JSON ({str(error)[:100]})") from error
        if not isinstance(content, dict) or not {"rows"} <= {*content} <= {"rows", "edges"}:
            raise RefusedError(400, BODY)
        if self.id is None and "edges" in content:
            raise RefusedError(422, "edges must be left out: the table has no column of ids")
        found = cast("dict[str, Any]", content)
        edges, rows = _read_edges(found.get("edges"), self.limits.edges), found["rows"]
        if not isinstance(rows, list) or not rows:
            raise RefusedError(400, "rows must be a list of at least one object")
        if len(rows) > self.limits.rows:
            raise RefusedError(413, f"rows must be at most {self.limits.rows}, got {len(rows)}")
        for number, row in enumerate(cast("list[Any]", rows), 1):
            if not isinstance(row, dict):
                raise RefusedError(422, f"row {number} must be an object of column: value")
            for name in cast("tuple[str, ...]", (*self.cells, *row)):
                if fault := self._fault(row, name):
                    raise RefusedError(422, f"row {number}, column {name[:50]!r} {fault}")
        names = self.columns if self.id is None else [*self.columns, self.id]
        return {name: [row.get(name) for row in rows] for name in names}, len(rows), edges

    def _fault(self, row: Mapping[str, Any], name: str) -> str | None:
        """What is wrong with a column of a row, or None."""
        if name not in self.cells:
            return "was not there in training"
        if name not in row:
            return "is missing (null is a value)" if name in self.required else None
        value, longest = row[name], self.limits.cell
        if isinstance(value, dict | list):
            return "must be one value"
        if isinstance(value, str) and len(value) > longest:
            return f"is longer than {longest}"
        return "is too large a number" if _size(value) > self.largest.get(name, math.inf) else None

    async def answer(self, chunk: Chunk, rows: int, edges: Edges = None) -> Answers:
        """The answers for one request's rows; RefusedError if a value is wrong."""
        if self.together.rows + rows > max(self.limits.waiting_rows, rows):
            raise RefusedError(503, "too many rows wait for their answer: try again later")
        # Edges join only the rows of their own request.
        return await self.together.answer((chunk, edges), rows, alone=edges is not None)

    def _cell(self, kind: str, learned: Mapping[str, Any]) -> dict[str, Any]:
        """One cell of a column as JSON schema, with examples of its values."""
        if kind == "number":
            examples = [float(f"{learned['mean']:.4g}")]
            return {"type": ["number", "null"], "description": kind, "examples": examples}
        types = ["string", "number", "boolean", "null"]
        more = {"examples": list(learned["values"][:CHOICES])} if kind == "category" else {}
        return {"type": types, "description": kind, "maxLength": self.limits.cell, **more}

    def openapi(self) -> dict[str, Any]:
        """What is taken, from the columns of the run, and what is answered, from one answer."""
        told = json.loads(_file("openapi.json"))
        post, kind = told["paths"]["/predict"]["post"], "application/json"
        taken = post["requestBody"]["content"][kind]["schema"]["properties"]
        row = taken["rows"]["items"]
        row |= {"properties": self.cells, "required": self.required}
        row["x-edges"] = self.run.estimator.graph_ is not None  # whether they change anything
        taken["rows"]["maxItems"] = self.limits.rows
        taken["edges"]["maxItems"] = self.limits.edges
        if self.id is None:
            del taken["edges"]
        answers = {"predictions": self.run.fitted([0]), "warnings": [""]}
        post["responses"]["200"]["content"][kind]["schema"] = _schema(answers)
        return told

    def help(self) -> str:
        """One page without scripts: the columns and an example."""
        columns = "".join(
            f"<tr><td>{html.escape(c.name)}</td><td>{html.escape(c.kind)}</td></tr>"
            for c in self.run.encoder.columns
        )
        example = json_text({"rows": [dict.fromkeys(self.columns)]}, indent=2)
        return _file("help.html").format(example=html.escape(example), columns=columns)


def _file(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _schema(value: Any) -> dict[str, Any]:
    """The JSON schema of values like this one."""
    if isinstance(value, dict):
        properties = {name: _schema(each) for name, each in value.items()}
        return {"type": "object", "properties": properties, "required": [*value]}
    if isinstance(value, list):
        return {"type": "array", "items": _schema(value[0]) if value else {}}
    return {"type": {str: "string", int: "integer", float: "number"}[type(value)]}


def _size(value: Any) -> float:
    """A number's absolute value, infinite if too large for a float; 0 if it is not a number."""
    try:
        size = abs(float(value))
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return 0.0
    return 0.0 if isinstance(value, str) and math.isinf(size) else size  # "inf": no finite number


def _read_edges(edges: Any, most: int) -> Edges:
    """[[id, id], ...] or [[id, id, weight], ...] by column; None if there are no edges."""
    if edges is None or edges == []:
        return None
    if not isinstance(edges, list):
        raise RefusedError(422, "edges must be a list of [id, id] or [id, id, weight]")
    if len(edges) > most:
        raise RefusedError(413, f"edges must be at most {most}, got {len(edges)}")
    widths = {len(edge) if isinstance(edge, list) else 0 for edge in cast("list[Any]", edges)}
    if widths not in ({2}, {3}):
        raise RefusedError(422, "edges must all be [id, id], or all be [id, id, weight]")
    for number, edge in enumerate(cast("list[list[Any]]", edges), 1):
        if any(not isinstance(end, str | int) or isinstance(end, bool) for end in edge[:2]):
            raise RefusedError(422, f"edge {number} must join two ids")
        if len(edge) == 3 and not (isinstance(edge[2], int | float) and 0 <= edge[2] < FLOAT32):
            raise RefusedError(422, f"edge {number}: the weight must be a number of 0 or more")
    names = ("source", "target", "weight")
    return {name: list(cells) for name, cells in zip(names, zip(*edges, strict=True), strict=False)}


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, which names nothing twice; Python would keep the last value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = repeated(name for name, _ in pairs)
        raise RefusedError(400, f"the body has {twice[:50]!r} twice in one object")
    return found


def predict_together(
    run: OwnRun, batch: Sequence[tuple[Chunk, Edges]]
) -> list[Answers | Exception]:
    """The answers of each request; if one of them cannot be answered, each on its own.

    A request with edges, which join its rows, is alone.
    """
    chunks, edges = [chunk for chunk, _ in batch], batch[0][1]
    sizes = [len(next(iter(chunk.values()))) for chunk in chunks]
    merged = {name: [v for chunk in chunks for v in chunk[name]] for name in chunks[0]}
    try:
        found, away = _predict(run, merged, edges)
        answers: list[Answers | Exception] = []
        for chunk, size, end in zip(chunks, sizes, accumulate(sizes), strict=True):
            mine, drift = slice(end - size, end), Drift()
            own = {name: far[mine] for name, far in away.items()}
            drift.add(run.encoder, chunk, own, size, names=_ids(run, chunk))
            answers.append({"predictions": found[mine], "warnings": drift.lines})
        return answers
    except Exception as error:
        if len(chunks) == 1:
            return [error]
        return [predict_together(run, [request])[0] for request in batch]


def _predict(run: OwnRun, chunk: Chunk, edges: Edges) -> tuple[list[dict[str, Any]], Away]:
    away: Away = {}
    ids, graph = _ids(run, chunk) or [], None
    try:
        features = run.encoder.encode_chunk(chunk, 1, "the request", away=away)
        if edges is not None:
            if repeated(filter(None, ids)):
                raise DataError("ids must be different in a request with edges")
            graph = edges_of(run, ids, edges, logger.info)
        with torch.inference_mode():
            return run.answer(features, graph, ids=ids or None), away
    except (ValueError, DifformerError) as error:
        reason = str(error) if isinstance(error, DataError) else f"no answer: {error}"
        raise RefusedError(422, reason[:LONGEST]) from error


def _ids(run: OwnRun, chunk: Chunk) -> list[str] | None:
    """The rows' ids, '' for a row without: a row of training is answered as in training."""
    names = chunk.get(run.encoder.id or "")
    return names and ["" if name is None else cell_text(name) for name in names]


async def _refused(_: Request, error: Any) -> Response:
    return JSONResponse({"detail": error.detail}, error.status_code, error.headers)
