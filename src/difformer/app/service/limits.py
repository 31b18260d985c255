"""The limits of the service. No torch here: the command shows these values in its help."""

from __future__ import annotations

from dataclasses import dataclass


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
