"""Ctrl-C, or SIGTERM to a command, ends training after the current epoch, not in its middle."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

from difformer.train.settings import launched

_last: int = signal.SIGINT


def exit_code() -> int:
    """The exit code of a command that was interrupted: 130 by Ctrl-C, 143 by SIGTERM."""
    return 128 + _last


def listen_to_sigterm() -> None:
    """From now on SIGTERM ends this process as Ctrl-C does.

    Not a process of torchrun, which must die at once: the others wait for it.
    """
    with suppress(ValueError):  # Python sets handlers in the main thread only
        if not launched():
            signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(signum: int, frame: Any) -> None:
    global _last
    _last = signum
    raise KeyboardInterrupt


@contextmanager
def interruptible() -> Generator[threading.Event, None, None]:
    """The first Ctrl-C in the block sets the event, the next one interrupts as usual.

    So does SIGTERM where `listen_to_sigterm` was called.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event  # Python delivers signals to the main thread only
        return
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    outer = next(filter(None, (getattr(each, "event", None) for each in before.values())), None)
    if outer is not None:
        yield outer  # a block around this one listens
        return

    def request(signum: int, frame: Any) -> None:
        global _last
        _last = signum
        event.set()
        for each in listened:
            signal.signal(each, _interrupt)
        if sys.stderr.isatty():
            # Not print: it may be the very thing that was interrupted.
            os.write(2, b"\nfinishing this epoch; Ctrl-C again to stop at once\n")

    request.event = event  # pyright: ignore[reportFunctionMemberAccess]
    # Not a Ctrl-C that is ignored on purpose (nohup), and no SIGTERM that ends the process.
    none = (None, signal.SIG_IGN, signal.SIG_DFL)
    listened = {each: handler for each, handler in before.items() if handler not in none}
    for each in listened:
        signal.signal(each, request)
    try:
        yield event
    finally:
        for each, handler in listened.items():
            signal.signal(each, handler)
