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
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

from difformer.app.service.limits import Limits
from difformer.app.service.requests import RETRY_AFTER
from difformer.errors import DifformerError, missing_extra

HEADER_BYTES = 16_384  # of one request's line and headers
BUSY = (
    f"HTTP/1.1 503 Service Unavailable\r\nretry-after: {RETRY_AFTER}\r\n"
    "content-length: 0\r\nconnection: close\r\n\r\n"
).encode()

logger = logging.getLogger("uvicorn.error")


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
