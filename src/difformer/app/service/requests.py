"""One request of the service: its body, and the pydantic models of rows and answers.

The model that checks the rows is made from the columns of the run, and the service's OpenAPI schema
from that model. pydantic is imported only where a model is made: it comes with the extra `serve`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, cast

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
        from pydantic import TypeAdapter

        self.columns = [column.name for column in run.encoder.columns]
        self.id = run.encoder.id
        self.limits = limits
        self.adapter: Any = TypeAdapter(_body_type(run, limits))

    def read(self, body: bytes) -> tuple[Chunk, int, Edges]:
        """The rows by column, how many, and the edges; RefusedError says what is wrong."""
        from pydantic import ValidationError

        try:
            content = json.loads(body, parse_constant=_no_constant, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            raise RefusedError(400, f"the body must be JSON ({str(error)[:100]})") from error
        try:
            found = self.adapter.validate_python(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            raise self._refusal(first["loc"], first["type"], first["msg"], content) from error
        names = self.columns if self.id is None else [*self.columns, self.id]
        rows: list[dict[str, Any]] = found["rows"]
        chunk = {name: [row.get(name) for row in rows] for name in names}
        return chunk, len(rows), found.get("edges")

    def schema(self) -> dict[str, Any]:
        """The `requestBody` of the OpenAPI schema, without references."""
        found = self.adapter.json_schema()
        found["properties"]["rows"]["items"] = found.pop("$defs")["Row"]
        return {"required": True, "content": {"application/json": {"schema": found}}}

    def _refusal(self, place: Sequence[Any], kind: str, told: str, content: Any) -> RefusedError:
        """One line about the first thing that is wrong, by row and column."""
        match list(place):
            case ["rows"] if kind == "too_long":
                most, got = self.limits.rows, len(content["rows"])
                return RefusedError(413, f"rows must be at most {most}, got {got}")
            case ["rows"] if kind != "missing":
                return RefusedError(400, "rows must be a list of at least one object")
            case ["rows", int(row)]:
                return RefusedError(422, f"row {row + 1} must be an object of column: value")
            case ["rows", int(row), column]:
                reasons = {
                    "extra_forbidden": "was not there in training",
                    "missing": "is missing (null is a value)",
                }
                what = reasons.get(kind, told.removeprefix("Value error, "))
                return RefusedError(422, f"row {row + 1}, column {str(column)[:50]!r} {what}")
            case ["edges"] if self.id is None and set(content) == {"rows", "edges"}:
                return RefusedError(422, "edges must be left out: the table has no column of ids")
            case _:
                return RefusedError(400, BODY)


def _body_type(run: OwnRun, limits: Limits) -> Any:
    """The type of a request, made from the columns of the run."""
    from pydantic import FailFast, Field, PlainValidator, WithJsonSchema
    from typing_extensions import NotRequired

    row: dict[str, Any] = {}
    for column in run.encoder.columns:
        found = _cell_type(column.kind, column.learned, limits)
        row[column.name] = NotRequired[found] if column.kind == "skip" else found
    for name in run.encoder.labels:  # not looked at
        row.setdefault(name, NotRequired[_cell_type("label", {}, limits)])
    body: dict[str, Any] = {}
    about: dict[str, Any] = {}
    if run.encoder.id is not None:
        row[run.encoder.id] = NotRequired[_cell_type("id", {}, limits)]
        about = {"x-edges": run.estimator.graph_ is not None}  # whether edges change anything
        read = PlainValidator(partial(_read_edges, most=limits.edges))
        body["edges"] = NotRequired[Annotated[Any, read, WithJsonSchema(_edges_schema(limits))]]
    one = _typed("Row", row, extra="forbid", json_schema_extra=about)
    size = Field(min_length=1, max_length=limits.rows)
    body["rows"] = Annotated[list[one], size, FailFast()]  # all that is wrong may be far too much
    return _typed("Body", body, extra="forbid")


def _typed(name: str, fields: Mapping[str, Any], **config: Any) -> Any:
    """A TypedDict, because columns may have any names; strict, without conversions."""
    from typing_extensions import TypedDict

    made = cast("Any", TypedDict)(name, fields)
    made.__pydantic_config__ = {"strict": True, **config}
    return made


def _cell_type(kind: str, learned: Mapping[str, Any], limits: Limits) -> Any:
    """The type of one cell of a column, with examples of its values."""
    from pydantic import AfterValidator, WithJsonSchema

    schema: dict[str, Any] = {"type": ["string", "number", "boolean", "null"], "description": kind}
    largest = math.inf
    if kind == "number":
        schema |= {"type": ["number", "null"], "examples": [float(f"{learned['mean']:.4g}")]}
        largest = max(FLOAT32, abs(learned["low"]), abs(learned["high"]))
    else:
        schema["maxLength"] = limits.cell
        schema |= {"examples": list(learned["values"][:CHOICES])} if kind == "category" else {}
    check = partial(_check_cell, longest=limits.cell, largest=largest)
    return Annotated[Any, AfterValidator(check), WithJsonSchema(schema)]


def _check_cell(value: Any, *, longest: int, largest: float) -> Any:
    if isinstance(value, dict | list):
        raise ValueError("must be one value")
    if isinstance(value, str) and len(value) > longest:
        raise ValueError(f"is longer than {longest}")
    if _size(value) > largest:
        raise ValueError("is too large a number")
    return value


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


def answers_model(run: OwnRun) -> Any:
    """The pydantic adapter of what a run answers."""
    from pydantic import TypeAdapter

    several = len(run.labels) > 1
    kind = (int if several else str) if run.classes else float
    one: dict[str, Any] = dict.fromkeys(run.labels, kind)
    if run.classes:
        one |= {} if several else {"probability": float}
        one["probabilities"] = dict[str, float]
    if run.level is not None:
        ends = {"intervals": dict[str, tuple[float, float]]}
        one |= {"set": list[str]} if run.classes else ends
    if run.influential:
        one["influential"] = list[dict[str, str | float]]  # {"id", "weight"}
    made: Any = list[_typed("Answer", one)]
    return TypeAdapter(made)


def answers_schema(run: OwnRun) -> dict[str, Any]:
    """The 200 of the OpenAPI schema, without references."""
    found = answers_model(run).json_schema()
    found["items"] = found.pop("$defs")["Answer"]
    told = {"type": "array", "items": {"type": "string"}}
    parts = {"predictions": found, "warnings": told}
    body = {"type": "object", "required": [*parts], "properties": parts}
    return {
        "description": "One answer per row, in the order of the rows; warnings name cells unlike "
        "all of training",
        "content": {"application/json": {"schema": body}},
    }
