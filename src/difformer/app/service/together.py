"""Answer the requests that wait in one batch, because a batch costs little more than one request.

A row's answer does not depend on the other requests: predictions go through the frozen context.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from difformer.app.service.limits import Limits
from difformer.app.service.requests import Answers, Chunk, Edges, RefusedError
from difformer.data.table.cells import cell_text
from difformer.data.table.columns import Away
from difformer.data.table.encoder import Drift
from difformer.errors import DataError, DifformerError
from difformer.jobs.own import OwnRun

LONGEST = 500  # characters of a refusal

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Waiting:
    """A request that has been read and checked."""

    chunk: Chunk
    rows: int
    answers: asyncio.Future[Answers]
    edges: Edges = None


class Together:
    """The requests that wait, and the workers that answer them batch by batch."""

    def __init__(self, run: OwnRun, limits: Limits) -> None:
        self.run, self.limits = run, limits
        self.waiting: deque[Waiting] = deque()
        self.rows = self.bytes = 0  # of the requests that wait; of all bodies held
        self.workers: set[asyncio.Task[None]] = set()

    async def predict(self, chunk: Chunk, rows: int, edges: Edges = None) -> Answers:
        """The answers for one request's rows; RefusedError if a value is wrong."""
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
            chunks, edges = [request.chunk for request in batch], batch[0].edges
            found = await asyncio.to_thread(predict_together, self.run, chunks, edges)
            for request, answers in zip(batch, found, strict=True):
                if request.answers.done():  # the client has gone
                    continue
                if isinstance(answers, Exception):
                    request.answers.set_exception(answers)
                else:
                    request.answers.set_result(answers)

    def _next(self) -> list[Waiting]:
        """The requests that have waited longest, together of no more rows than one may have.

        A request with edges is answered alone, because they join only its own rows.
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


def predict_together(
    run: OwnRun, chunks: list[Chunk], edges: Edges = None
) -> list[Answers | Exception]:
    """The answers of each request; if one of them cannot be answered, each on its own.

    With `edges` there is one request, whose rows they join.
    """
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
        return [predict_together(run, [chunk])[0] for chunk in chunks]


def _predict(run: OwnRun, chunk: Chunk, edges: Edges) -> tuple[list[dict[str, Any]], Away]:
    import torch

    from difformer.jobs.own import edges_of

    try:
        away: Away = {}
        features = run.encoder.encode_chunk(chunk, 1, "the request", away=away)
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
            return run.answer(features, graph, ids=ids or None), away
    except (ValueError, DifformerError) as error:
        raise RefusedError(422, f"no answer: {error}"[:LONGEST]) from error


def _ids(run: OwnRun, chunk: Chunk) -> list[str] | None:
    """The rows' ids, '' for a row without: a row of training is answered as in training."""
    names = chunk.get(run.encoder.id or "")
    return names and ["" if name is None else cell_text(name) for name in names]
