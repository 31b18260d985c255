"""Ctrl-C ends training after the current epoch, not in the middle of it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

__all__ = ["interruptible"]


@contextmanager
def interruptible() -> Generator[threading.Event, None, None]:
    """The first Ctrl-C in the block sets the event, the next one interrupts as usual."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event  # Python delivers signals to the main thread only
        return
    before = signal.getsignal(signal.SIGINT)
    outer = getattr(before, "event", None)
    if before in (None, signal.SIG_IGN) or outer is not None:
        yield outer or event  # ignored on purpose (nohup), or a block around this one listens
        return

    def request(signum: int, frame: Any) -> None:
        event.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if sys.stderr.isatty():
            # Not print: it may be the very thing that was interrupted.
            os.write(2, b"\nfinishing this epoch; Ctrl-C again to stop at once\n")

    request.event = event  # pyright: ignore[reportFunctionMemberAccess]
    signal.signal(signal.SIGINT, request)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)
