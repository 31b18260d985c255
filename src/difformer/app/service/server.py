"""The HTTP server of the service: bounded connections, time limits, and a graceful stop.

uvicorn limits neither the time a header takes nor a client that does not read its answer; the
protocol here limits both, and answers 503 if every connection is taken, or half of them by one
client. It hangs up so that a client that is still sending can read why.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from difformer.errors import DifformerError, missing_extra

RETRY_AFTER = 1  # seconds after which a refused client may try again
HEADER_BYTES = 16_384  # of one request's line and headers
BUSY = (
    f"HTTP/1.1 503 Service Unavailable\r\nretry-after: {RETRY_AFTER}\r\n"
    "content-length: 0\r\nconnection: close\r\n\r\n"
).encode()

logger = logging.getLogger("uvicorn.error")


@dataclass(frozen=True)
class Limits:
    """The limits of one request, and of all requests together."""

    bytes: int = 1_000_000
    rows: int = 1_000
    edges: int = 20_000
    cell: int = 100_000  # characters of one text cell
    seconds: float = 10.0  # for the header, and then for the body to arrive
    concurrent: int = 2  # batches worked on at a time; requests that come meanwhile are the next
    waiting_rows: int = 4_000  # rows of requests that wait; more are refused
    waiting_bytes: int = 16_000_000  # bytes of bodies being read or waiting
    drained: int = 256_000_000  # bytes of a refused body that are read, so that its client sees why
    connections: int = 512  # open at a time, half of them by one client
    idle: float = 60.0  # seconds a connection may stay open between two requests


class Together:
    """The requests that wait, and the workers that answer them batch by batch.

    Args:
        predict: the answers of a batch, or what to raise in place of one.
    """

    def __init__(self, predict: Callable[[list[Any]], list[Any]], limits: Limits) -> None:
        self.predict, self.limits, self.rows = predict, limits, 0
        self.waiting: deque[tuple[Any, int, bool, asyncio.Future[Any]]] = deque()
        self.workers: set[asyncio.Task[None]] = set()

    async def answer(self, request: Any, rows: int, *, alone: bool = False) -> Any:
        """The answer to one request of so many rows, maybe in a batch with others."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting.append((request, rows, alone, answer))
        self.rows += rows
        if len(self.workers) < self.limits.concurrent:
            worker = asyncio.create_task(self._work())
            self.workers.add(worker)
            worker.add_done_callback(self.workers.discard)
        return await answer

    async def _work(self) -> None:
        """Answer those that have waited longest, together of no more rows than one may have."""
        while self.waiting:
            batch = [self.waiting.popleft()]
            _, rows, alone, _ = batch[0]
            while self.waiting and not alone and not self.waiting[0][2]:
                if rows + self.waiting[0][1] > self.limits.rows:
                    break
                batch.append(self.waiting.popleft())
                rows += batch[-1][1]
            self.rows -= rows
            found = await asyncio.to_thread(self.predict, [request for request, *_ in batch])
            for (*_, answer), own in zip(batch, found, strict=True):
                if answer.done():  # the client has gone
                    continue
                if isinstance(own, Exception):
                    answer.set_exception(own)
                else:
                    answer.set_result(own)


def make_server(app: Any, limits: Limits | None = None) -> Any:
    """uvicorn's server of an app, bounded; at a SIGTERM or Ctrl-C it still answers what it has."""
    try:
        import uvicorn
    except ImportError as error:
        raise missing_extra("serve", "serve") from error
    limits = limits or Limits()
    config = uvicorn.Config(
        app,
        http=_protocol(limits),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=limits.idle,  # pyright: ignore[reportArgumentType] any number will do
        timeout_graceful_shutdown=int(limits.seconds) + 1,
        h11_max_incomplete_event_size=HEADER_BYTES,
    )
    once = OncePerSecond()
    for name in ("uvicorn.error", "difformer.app.service.app", "asyncio"):
        logging.getLogger(name).addFilter(once)
    return uvicorn.Server(config)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; DifformerError if the port cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DifformerError(f"cannot listen on {host} port {port}: {reason}") from error


class OncePerSecond(logging.Filter):
    """Logs each message at most once per second, so that many bad clients do not fill the disk."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now, text = time.monotonic(), str(record.msg)
        if now - self.last.get(text, -1.0) < 1.0:
            return False
        if len(self.last) > 1000:
            self.last.clear()
        self.last[text] = now
        return True


class Lingering:
    """A transport that its protocol closes in its own way."""

    def __init__(self, transport: Any, close: Callable[[], None]) -> None:
        self.transport, self.close = transport, close

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)


def _protocol(limits: Limits) -> Any:
    """uvicorn's HTTP/1.1 protocol with a deadline wherever it would wait for a client."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Bounded(H11Protocol):
        deadline: asyncio.TimerHandle | None = None
        left: int | None = None  # bytes to read and drop once this side has hung up

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.transport: Any = Lingering(transport, self.close)
            # One client has one address of IPv4, but 64 bits of IPv6; no address once it has gone.
            self.network = ip_address(self.client[0]).packed[:8] if self.client else b""
            taken: set[Any] = self.connections
            same = sum(other.network == self.network for other in taken)
            if len(taken) > limits.connections or same > (limits.connections + 1) // 2:
                most = limits.connections
                logger.warning("too many connections: at most %d, half of them of a client", most)
                transport.write(BUSY)
                transport.close()
            self.wait()  # for the first header, or for the 503 to be taken

        def data_received(self, data: bytes) -> None:
            if self.left is None:
                super().data_received(data)
            else:
                self.left -= len(data)
            if self.left is not None:
                if self.left < 0:
                    self.transport.abort()
            elif self.conn.their_state is not h11.IDLE:
                self.stop_waiting()
            elif self.deadline is None:
                self.wait()  # for the rest of this header

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.conn.their_state is h11.SEND_BODY:
                self.close()

        def close(self) -> None:
            """Hang up; a client that still sends is heard out, or a reset would lose its answer."""
            if self.left is not None:
                return
            self.wait()  # for the client to read its answer, and to hang up as well
            self.left = limits.drained
            if self.conn.their_state not in (h11.SEND_BODY, h11.ERROR):
                self.transport.transport.close()
                return
            if self.cycle:
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            self.flow.resume_reading()
            self.transport.write_eof()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self.stop_waiting()

        def pause_writing(self) -> None:
            super().pause_writing()
            self.wait()  # for the client to read its answer

        def resume_writing(self) -> None:
            super().resume_writing()
            if self.left is None:
                self.stop_waiting()

        def timeout_keep_alive_handler(self) -> None:
            self.transport.abort()

        def wait(self) -> None:
            self.stop_waiting()
            self.deadline = self.loop.call_later(limits.seconds, self.transport.abort)

        def stop_waiting(self) -> None:
            if self.deadline is not None:
                self.deadline.cancel()
                self.deadline = None

    return Bounded
