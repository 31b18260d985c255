"""One request of the service: its body, its rows and edges, and the schema of both and of answers.

What a row may have, and the service's OpenAPI schema, come from the columns of the run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from difformer.app.service.limits import Limits
from difformer.data.table.cells import repeated
from difformer.jobs.own import OwnRun

FLOAT32 = 3.4e38
RETRY_AFTER = 1  # seconds after which a refused client may try again
CHOICES = 200  # values of a category that the page offers
BODY = 'the body must be {"rows": [{column: value, ...}, ...]}, and maybe "edges"'

Chunk = dict[str, list[Any]]
Answers = dict[str, list[Any]]
"""The predictions of a request, one per row, and the warnings about its rows."""
Edges = dict[str, list[Any]] | None
"""The edges of a request by column: source, target and maybe weight."""


class RefusedError(Exception):
    """A request that is answered with a 4xx or 503 and one line."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason

    @property
    def headers(self) -> dict[str, str]:
        """Tell the client when to try again, or that the rest of its body will not be read."""
        again = {"retry-after": str(RETRY_AFTER)} if self.status == 503 else {}
        return again | ({"connection": "close"} if self.status in (408, 413, 503) else {})


async def read_body(request: Any, limits: Limits, held: Any) -> bytes:
    """The body, of which no more than allowed is held; `held.bytes` counts the bytes of all."""
    import anyio
    from starlette.requests import ClientDisconnect

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
                held.bytes += len(part)
                parts.append(part)
                if size > limits.bytes:
                    raise RefusedError(413, f"the body must have at most {limits.bytes} bytes")
                if held.bytes > max(limits.waiting_bytes, size):
                    raise RefusedError(503, "too many requests wait: try again later")
    except BaseException as error:
        held.bytes -= size
        if isinstance(error, TimeoutError):
            reason = f"the body must arrive within {limits.seconds:g} seconds"
            raise RefusedError(408, reason) from error
        if isinstance(error, ClientDisconnect):
            raise RefusedError(400, "the body must arrive as a whole") from error
        raise
    return b"".join(parts)


class RequestModel:
    """The rows and edges that a run takes: reads a request, and describes itself as JSON schema."""

    def __init__(self, run: OwnRun, limits: Limits) -> None:
        self.columns = [column.name for column in run.encoder.columns]
        self.id, self.limits = run.encoder.id, limits
        self.joins = run.estimator.graph_ is not None  # whether edges change anything
        self.cells = {
            column.name: _cell_schema(column.kind, column.learned, limits)
            for column in run.encoder.columns
        }
        self.largest = {
            column.name: max(FLOAT32, abs(column.learned["low"]), abs(column.learned["high"]))
            for column in run.encoder.columns
            if column.kind == "number"
        }
        self.required = [c.name for c in run.encoder.columns if c.kind != "skip"]
        for name in run.encoder.labels:  # not looked at
            self.cells.setdefault(name, _cell_schema("label", {}, limits))
        if self.id is not None:
            self.cells[self.id] = _cell_schema("id", {}, limits)

    def read(self, body: bytes) -> tuple[Chunk, int, Edges]:
        """The rows by column, how many, and the edges; RefusedError says what is wrong."""
        try:
            content = json.loads(body, parse_constant=_no_constant, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            raise RefusedError(400, f"the body must be JSON ({str(error)[:100]})") from error
        if not isinstance(content, dict) or not {"rows"} <= {*content} <= {"rows", "edges"}:
            raise RefusedError(400, BODY)
        if self.id is None and "edges" in content:
            raise RefusedError(422, "edges must be left out: the table has no column of ids")
        found = cast("dict[str, Any]", content)
        edges = _read_edges(found.get("edges"), most=self.limits.edges)
        rows = self._rows(found["rows"])
        names = self.columns if self.id is None else [*self.columns, self.id]
        return {name: [row.get(name) for row in rows] for name in names}, len(rows), edges

    def _rows(self, rows: Any) -> list[dict[str, Any]]:
        """The rows; RefusedError names the first thing that is wrong by row and column."""
        if not isinstance(rows, list) or not rows:
            raise RefusedError(400, "rows must be a list of at least one object")
        found = cast("list[dict[str, Any]]", rows)
        if len(found) > self.limits.rows:
            raise RefusedError(413, f"rows must be at most {self.limits.rows}, got {len(found)}")
        for number, row in enumerate(found, 1):
            if not isinstance(row, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise RefusedError(422, f"row {number} must be an object of column: value")
            for name in (*self.cells, *row):
                if fault := self._fault(row, name):
                    raise RefusedError(422, f"row {number}, column {name[:50]!r} {fault}")
        return found

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

    def schema(self) -> dict[str, Any]:
        """The `requestBody` of the OpenAPI schema."""
        row = {**_object(self.cells, self.required), "additionalProperties": False}
        rows = {"type": "array", "minItems": 1, "maxItems": self.limits.rows, "items": row}
        properties: dict[str, Any] = {"rows": rows}
        if self.id is not None:
            row["x-edges"] = self.joins
            properties["edges"] = _edges_schema(self.limits)
        body = {**_object(properties, ["rows"]), "additionalProperties": False}
        return {"required": True, "content": {"application/json": {"schema": body}}}


def _object(properties: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": [*required]}


def _cell_schema(kind: str, learned: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """One cell of a column, with examples of its values."""
    if kind == "number":
        examples = [float(f"{learned['mean']:.4g}")]
        return {"type": ["number", "null"], "description": kind, "examples": examples}
    types = ["string", "number", "boolean", "null"]
    schema = {"type": types, "description": kind, "maxLength": limits.cell}
    examples = {"examples": list(learned["values"][:CHOICES])} if kind == "category" else {}
    return {**schema, **examples}


def _size(value: Any) -> float:
    """A number's absolute value, infinite if too large for a float; 0 if it is not a number."""
    try:
        size = abs(float(value))
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return 0.0
    return 0.0 if isinstance(value, str) and math.isinf(size) else size  # "inf": no finite number


def _read_edges(edges: Any, *, most: int) -> Edges:
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
        for end in edge[:2]:
            if not isinstance(end, str | int) or isinstance(end, bool):
                raise RefusedError(422, f"edge {number} must join two ids")
        if len(edge) == 3 and not (isinstance(edge[2], int | float) and 0 <= edge[2] < FLOAT32):
            raise RefusedError(422, f"edge {number}: the weight must be a number of 0 or more")
    names = ("source", "target", "weight")
    return {name: list(cells) for name, cells in zip(names, zip(*edges, strict=True), strict=False)}


def _edges_schema(limits: Limits) -> dict[str, Any]:
    return {
        "type": "array",
        "maxItems": limits.edges,
        "items": {"type": "array", "minItems": 2, "maxItems": 3},
        "description": "[id, id] or [id, id, weight]: a row of the request and another one, or "
        "one of training",
    }


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, which names nothing twice; Python would keep the last value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = repeated(name for name, _ in pairs)
        raise RefusedError(400, f"the body has {twice[:50]!r} twice in one object")
    return found


def answers_schema(run: OwnRun) -> dict[str, Any]:
    """The 200 of the OpenAPI schema."""
    number, text = {"type": "number"}, {"type": "string"}
    several = len(run.labels) > 1
    kind = ({"type": "integer"} if several else text) if run.classes else number
    one: dict[str, Any] = dict.fromkeys(run.labels, kind)
    if run.classes:
        one |= {} if several else {"probability": number}
        one["probabilities"] = {"type": "object", "additionalProperties": number}
    if run.level is not None:
        ends = {"type": "array", "items": number, "minItems": 2, "maxItems": 2}
        intervals = {"intervals": {"type": "object", "additionalProperties": ends}}
        one |= {"set": {"type": "array", "items": text}} if run.classes else intervals
    if run.influential:
        weighed = {"type": "object", "additionalProperties": {"type": ["string", "number"]}}
        one["influential"] = {"type": "array", "items": weighed}  # {"id", "weight"}
    predictions = {"type": "array", "items": _object(one, [*one])}
    parts = {"predictions": predictions, "warnings": {"type": "array", "items": text}}
    return {
        "description": "One answer per row, in the order of the rows; warnings name cells unlike "
        "all of training",
        "content": {"application/json": {"schema": _object(parts, [*parts])}},
    }
