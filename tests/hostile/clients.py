"""Ask one run with many clients or threads; prints one line of JSON.

python clients.py RUN CLIENTS SECONDS PORT     a third of the requests are bad, and connections are
                                               held open; the service listens already
python clients.py RUN THREADS ANSWERS          threads that share one frozen model
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import torch
from mutate import damage_bytes, damage_json, tell
from samples import make_rows

from difformer.jobs.own import OwnRun

IDLE = 20  # connections that say nothing, and as many whose header never ends
CROWD = 600  # idle connections of one address, more than the service has


async def request(
    port: int, body: bytes, keep: Any = None, host: str = "localhost"
) -> tuple[int, bytes, Any]:
    """One POST over a connection that may be kept; status, body and the connection."""
    reader, writer = keep or await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /predict HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
    found = await reader.readexactly(int(fields.get("content-length", 0)))
    status = int(lines[0].split()[1])
    if status == 503:
        assert "retry-after" in fields, "a 503 that does not say when to come back"
    if fields.get("connection") == "close":
        writer.close()
        return status, found, None
    return status, found, (reader, writer)


async def client(
    number: int, port: int, until: float, right: list[tuple[bytes, Any]], tally: dict[str, Any]
) -> None:
    draw, keep = Random(number), None
    while time.monotonic() < until:
        body, answer = draw.choice(right)
        bad = draw.random() < 1 / 3
        if bad:
            body = (damage_bytes if draw.random() < 0.5 else damage_json)(body, draw)
        begin = time.perf_counter()
        try:
            status, found, keep = await request(port, body, keep)
        except (OSError, asyncio.IncompleteReadError):
            tally["dropped"] += 1
            keep = None
            continue
        tally["waits"].append(time.perf_counter() - begin)
        tally["statuses"][str(status)] = tally["statuses"].get(str(status), 0) + 1
        if not bad and status == 200 and json.loads(found)["predictions"] != answer:
            tally["wrong"] += 1
        if not bad and status not in (200, 503):
            tally["wrong"] += 1


async def held(port: int, first: bytes, tally: dict[str, Any]) -> None:
    """A connection that never asks; counted when the service closes it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(first)
    with contextlib.suppress(OSError):
        await reader.read()
    tally["closed"] += 1
    writer.close()


async def attacks(port: int, body: bytes) -> dict[str, int]:
    """What is answered to each of these, and to a right request while another client has many."""
    asked = {
        "large": request(port, bytes(100_000_000)),
        "doubled": request(port, b'{"rows": [], ' + body[1:]),
        "rebound": request(port, body, host="evil.example"),
    }
    found = {name: (await answer)[0] for name, answer in asked.items()}
    other = ("127.0.0.2", 0)
    held = [
        await asyncio.open_connection("127.0.0.1", port, local_addr=other) for _ in range(CROWD)
    ]
    found["crowded"] = (await request(port, body))[0]
    for _, writer in held:
        writer.close()
    return found


def rows_of(loaded: OwnRun) -> list[tuple[dict[str, Any], Any]]:
    """Rows as a client sends them, and as the model takes them."""
    columns = [column.name for column in loaded.encoder.columns]
    rows = [{name: row[name] for name in columns} for row in make_rows(40)]
    encode = loaded.encoder.encode_chunk
    return [(row, encode({name: [value] for name, value in row.items()})) for row in rows]


def share(run: Path, number: int, answers: int) -> dict[str, Any]:
    """Answers of threads that share one model, and how many were not those of one alone."""
    torch.set_num_threads(1)
    loaded = OwnRun.load(run)
    rows = [features for _, features in rows_of(loaded)]
    right = [loaded.answer(row) for row in rows]
    start = threading.Barrier(number)

    def work(mine: int) -> int:
        draw, wrong = Random(mine), 0
        start.wait()
        for _ in range(answers // number):
            which = draw.randrange(len(rows))
            with torch.inference_mode() if draw.random() < 0.5 else torch.no_grad():
                wrong += loaded.answer(rows[which]) != right[which]
        return wrong

    with ThreadPoolExecutor(number) as pool:
        wrong = sum(pool.map(work, range(number)))
    return {"threads": number, "answers": answers // number * number, "wrong": wrong}


async def ask(run: Path, clients: int, seconds: float, port: int) -> dict[str, Any]:
    loaded = OwnRun.load(run)
    right = [
        (json.dumps({"rows": [row]}).encode(), json.loads(json.dumps(loaded.answer(features))))
        for row, features in rows_of(loaded)
    ]
    tally: dict[str, Any] = {"waits": [], "statuses": {}, "wrong": 0, "dropped": 0, "closed": 0}
    holding = [
        asyncio.create_task(held(port, first, tally))
        for first in [b"", b"POST /predict HTTP/1.1\r\nx: "] * IDLE
    ]
    until = time.monotonic() + seconds
    await asyncio.gather(*(client(i, port, until, right, tally) for i in range(clients)))
    await asyncio.wait(holding, timeout=120)
    tally["attacks"] = await attacks(port, right[0][0])
    waits = sorted(tally.pop("waits"))
    return {
        "clients": clients,
        "seconds": seconds,
        "requests": len(waits),
        **tally,
        "held": 2 * IDLE,
        "median_seconds": waits[len(waits) // 2],
        "p99_seconds": waits[int(0.99 * len(waits))],
    }


if __name__ == "__main__":
    folder, many, *rest = sys.argv[1:]
    if len(rest) == 1:
        tell(**share(Path(folder), int(many), int(rest[0])))
    else:
        tell(**asyncio.run(ask(Path(folder), int(many), float(rest[0]), int(rest[1]))))
