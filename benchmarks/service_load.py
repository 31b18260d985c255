"""Two hundred clients send requests to a run over HTTP: errors and response times.

python -m benchmarks.service_load      writes results/benchmarks/service_load.json
"""

from __future__ import annotations

import asyncio
import csv
import os
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import torch
from sklearn.datasets import load_wine

from benchmarks.measure import service, write_results
from difformer.data.table.read import read_table
from difformer.jobs.table import train_own

CLIENTS = 200
REQUESTS = 5  # of each client, one after another
SECONDS = 600.0  # the most the whole test may take


def train(folder: Path) -> tuple[Path, list[dict[str, Any]]]:
    wine: Any = load_wine()
    names = [str(n) for n in wine.feature_names]
    rows = [
        {n: float(v) for n, v in zip(names, row, strict=True)} | {"kind": f"k{label}"}
        for row, label in zip(wine.data, wine.target, strict=True)
    ]
    with (folder / "wine.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*names, "kind"])
        writer.writeheader()
        writer.writerows(rows)
    own = read_table(folder / "wine.csv", "kind")
    train_own(own, folder / "run", {"epochs": 30})
    return folder / "run", [{n: row[n] for n in names} for row in rows]


async def ask(url: str, rows: list[dict[str, Any]]) -> tuple[list[int], list[float]]:
    statuses: list[int] = []
    waits: list[float] = []
    limits = httpx.Limits(max_connections=CLIENTS, max_keepalive_connections=CLIENTS)
    async with httpx.AsyncClient(limits=limits, timeout=SECONDS) as client:

        async def one(number: int) -> None:
            for request in range(REQUESTS):
                row = rows[(number + request) % len(rows)]
                begin = time.perf_counter()
                answer = await client.post(url, json={"rows": [row]})
                waits.append(time.perf_counter() - begin)
                statuses.append(answer.status_code)

        await asyncio.wait_for(asyncio.gather(*(one(i) for i in range(CLIENTS))), SECONDS)
    return statuses, waits


def processor_seconds(process: int) -> float:
    """What a process has computed so far: hardly a matter of who else is on the machine."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    torch.set_num_threads(1)
    with TemporaryDirectory() as place:
        folder, rows = train(Path(place))
        with service(folder, Path(place) / "serve.log") as (port, process):
            worked, begin = processor_seconds(process), time.perf_counter()
            statuses, waits = asyncio.run(ask(f"http://127.0.0.1:{port}/predict", rows))
            seconds = time.perf_counter() - begin
            worked = processor_seconds(process) - worked
    waits.sort()
    result = {
        "clients": CLIENTS,
        "requests": len(statuses),
        "errors": sum(status != 200 for status in statuses),
        "requests_a_second": len(statuses) / seconds,
        "processor_ms_a_request": 1000 * worked / len(statuses),
        "seconds_median": statistics.median(waits),
        "seconds_95_percent": waits[int(0.95 * len(waits))],
        "seconds_longest": waits[-1],
        "note": "clients and server share the machine's cores; one row a request",
    }
    print(result)
    write_results("service_load", result)


if __name__ == "__main__":
    main()
