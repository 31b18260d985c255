"""Data larger than memory: generated, sharded and trained for an epoch under a memory limit.

python -m benchmarks.outofcore --rows 20000000 --edges 200000000 --features 100 --memory 4GB \\
    --processes 1 2 4 --folder DIR          the full size: 11 GB of parts, 30 GB of disk, hours
python -m benchmarks.outofcore              a small size; writes results/benchmarks/outofcore.json
python -m benchmarks.outofcore --weak 1 2 4 rows and edges grow with the number of processes

Every step runs in its own process, which is limited by a control group or, if none can be made, by
`ulimit -d`. A process that needs more memory is killed, and there is no figure. Peak memory is the
largest resident size, including mapped pages. The network has communities of neighbouring rows with
60 % of the edges, so that a partition can find them.

Sharding is compared with DuckDB's own sort of the same edges in the same memory. Sharding sorts
every edge in both directions and a self-loop per row, more than twice as many. Training uses the
stable recipe with three layers, in batches streamed from disk: one epoch, and two evaluations of
all rows. Processes are compared in two ways: each on its own core with one thread, and with threads
on all cores. All cases run in turn, `--rounds` times, and the fastest round of each is kept,
because other load only adds time. The result file is written after each step.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
import torch.multiprocessing as processes

from benchmarks.measure import given_words, in_fresh_process, result_file, status, write_results
from difformer.shards.partition import memory_bytes

COMMUNITY, WITHIN = 4_000, 0.6
ROWS_TOGETHER, EDGES_TOGETHER = 200_000, 2_000_000
LAYERS, WIDTH = 3, 64
WAYS = ("a core each", "all cores")  # that processes are given
GROUPS = Path("/sys/fs/cgroup/memory")


def generate(folder: Path, rows: int, features: int, edges: int) -> None:
    """nodes.parquet and edges.parquet, chunk by chunk; the same for the same sizes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def nodes() -> Iterator[Any]:
        weight = np.random.default_rng(1).normal(size=features).astype(np.float32)
        for number, first in enumerate(range(0, rows, ROWS_TOGETHER)):
            rng = np.random.default_rng([2, number])
            n = min(ROWS_TOGETHER, rows - first)
            x = rng.standard_normal((n, features), dtype=np.float32)
            community = (np.arange(first, first + n) // COMMUNITY) % 7
            score = x @ weight / np.sqrt(features) + 0.3 * (community - 3)
            y = (score + rng.normal(0, 0.5, n) > 0).astype(np.int8)
            columns = {f"f{j}": x[:, j] for j in range(features)}
            yield pa.table({"id": np.arange(first, first + n) * 7 + 3, **columns, "y": y})

    def pairs() -> Iterator[Any]:
        for number, first in enumerate(range(0, edges, EDGES_TOGETHER)):
            rng = np.random.default_rng([3, number])
            m = min(EDGES_TOGETHER, edges - first)
            source = rng.integers(rows, size=m)
            start = source // COMMUNITY * COMMUNITY
            near = start + rng.integers(np.minimum(COMMUNITY, rows - start))
            target = np.where(rng.random(m) < WITHIN, near, rng.integers(rows, size=m))
            yield pa.table({"source": source * 7 + 3, "target": target * 7 + 3})

    for name, tables in (("nodes", nodes()), ("edges", pairs())):
        first = next(tables)
        with pq.ParquetWriter(folder / f"{name}.parquet", first.schema) as file:
            file.write_table(first)
            for table in tables:
                file.write_table(table)


def made(folder: Path, rows: int, features: int, edges: int, sender: Any) -> None:
    """`generate`, in a process of its own."""
    generate(folder, rows, features, edges)
    sender.send(None)


def limited(memory: int) -> str:
    """Limit the memory of this process; how it is limited.

    A control group counts resident memory, including pages of files, as in containers. If none can
    be made, the data segment is limited.
    """
    group = GROUPS / f"outofcore-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(memory))
        (group / "cgroup.procs").write_text(str(os.getpid()))
        return "control group"
    except OSError:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
        return "data segment"


def forget_groups() -> None:
    """Remove the control groups of processes that have ended."""
    for group in GROUPS.glob("outofcore-*"):
        with suppress(OSError):
            group.rmdir()


def spent(begin: float, processor: float) -> dict[str, float]:
    own, children = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, -1))
    used = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    return {
        "seconds": time.perf_counter() - begin,
        "processor_seconds": used - processor,
        "peak_mb": round(status("VmHWM")),
    }


def bytes_read() -> int:
    """Bytes that this process has requested from files, without those of mapped files."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar")).split()[1])


def duckdb_sort(folder: Path, memory: int, sender: Any) -> None:
    """DuckDB alone sorts the same edges by target and source, into a Parquet file."""
    import duckdb

    held = limited(memory)
    begin, processor = time.perf_counter(), time.process_time()
    settings: Any = {"memory_limit": f"{memory * 2 // 3 // 10**6}MB"}
    settings["temp_directory"] = str(folder / "spilled")
    connection: Any = duckdb.connect(config=settings)
    files = [str(folder / name) for name in ("edges.parquet", "sorted.parquet")]
    order = f"SELECT * FROM read_parquet('{files[0]}') ORDER BY target, source"
    connection.execute(f"COPY ({order}) TO '{files[1]}'").fetchall()
    sender.send({**spent(begin, processor), "limit": held})


def shard(folder: Path, partition: str, parts: int, memory: int, sender: Any) -> None:
    """`make_shards`, and the processor seconds of each of its stages."""
    from difformer.shards.build import make_shards
    from difformer.shards.partition import ShardSettings
    from difformer.train.memory import resident_memory

    limited(memory)
    begin, processor = time.perf_counter(), time.process_time()
    stages: dict[str, float] = {}
    last: list[Any] = ["starting", processor]

    def tell(stage: str, share: float | None) -> None:
        now = time.process_time()
        stages[last[0]] = stages.get(last[0], 0.0) + now - last[1]
        last[:] = [stage, now]

    settings = ShardSettings(
        nodes=[str(folder / "nodes.parquet")],
        edges=[str(folder / "edges.parquet")],
        label=["y"],
        id="id",
        parts=parts,
        partition=partition,
        split="ratio:0.1/0.1/0.8:0",
        memory=f"{memory // 10**6}MB",
    )
    manifest = make_shards(settings, folder / partition, tell=tell, held=resident_memory())
    tell("end", None)
    found = spent(begin, processor)
    sizes = (f.stat().st_size for f in (folder / partition).glob("part-*/*.npy"))
    figures = {"cut": manifest.cut, "edges": manifest.edges, "bytes_on_disk": sum(sizes)}
    sender.send({**found, **figures, **dict(manifest.found), "stages": stages})


class Messages:
    """Seconds spent in collectives: of the clock, and of the processor by the thread that waits."""

    def __init__(self) -> None:
        self.seconds = self.processor_seconds = 0.0
        for name in ("all_to_all_single", "all_reduce"):
            setattr(dist, name, self._timed(getattr(dist, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            begin, processor = time.perf_counter(), time.thread_time()
            try:
                return call(*arguments, **options)
            finally:
                self.seconds += time.perf_counter() - begin
                self.processor_seconds += time.thread_time() - processor

        return timed


def _rank(
    rank: int, folder: str, world: int, batch: int, memory: int, own: bool, place: str
) -> None:
    import torch

    from difformer import DIFFormer
    from difformer.nn.config import RECIPES, DIFFormerConfig
    from difformer.shards.folder import ShardFolder
    from difformer.train.distributed import fit_from_parts
    from difformer.train.memory import keep_freed_memory
    from difformer.train.processes import Comm
    from difformer.train.seeding import seeded
    from difformer.train.settings import TrainSettings

    limited(memory)
    keep_freed_memory()  # as `difformer train` does
    cores = sorted(os.sched_getaffinity(0))
    threads = 1 if own else max(1, len(cores) // world)
    if own:
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(threads)
    if world > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{place}/store", rank=rank, world_size=world
        )
    messages, comm, shards = Messages(), Comm(), ShardFolder(folder)
    known = set(DIFFormerConfig.names())
    options = {name: value for name, value in RECIPES["stable"].items() if name in known}
    sizes = shards.manifest.features, WIDTH, shards.manifest.outputs
    with seeded(0):
        model = DIFFormer(*sizes, **{**options, "num_layers": LAYERS})
    # What torch imports at the first step is no part of an epoch.
    torch.optim.Adam([torch.zeros(1, requires_grad=True)]).step()
    begin, processor, read = time.perf_counter(), time.process_time(), bytes_read()
    settings = TrainSettings(epochs=1, lr=0.01, batch_size=batch, threads=threads)
    result, _, _ = fit_from_parts(model, shards, settings, comm)
    found: dict[str, Any] = spent(begin, processor)
    found["processor_seconds"] = time.process_time() - processor
    found |= {"read": bytes_read() - read, "sent": sum(comm.sent.values())}
    found["message_seconds"] = messages.seconds
    found["message_processor_seconds"] = messages.processor_seconds
    found["test_accuracy"] = result.metrics["test"]["accuracy"]
    torch.save(found, f"{place}/{rank}")
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


SUMS = ("processor_seconds", "read", "sent", "message_seconds", "message_processor_seconds")


def train(folder: Path, world: int, batch: int, memory: int, own: bool) -> dict[str, Any]:
    """An epoch from parts on some processes: the slowest, the largest, and sums."""
    import torch

    with tempfile.TemporaryDirectory() as place:
        given = (str(folder), world, batch, memory, own, place)
        processes.start_processes(_rank, given, nprocs=world, start_method="fork")
        each = [torch.load(f"{place}/{rank}") for rank in range(world)]
    return {
        "seconds": max(r["seconds"] for r in each),
        "peak_mb": max(r["peak_mb"] for r in each),
        **{name: sum(r[name] for r in each) for name in SUMS},
        "test_accuracy": each[0]["test_accuracy"],
    }


def least(before: dict[str, Any] | None, now: dict[str, Any]) -> dict[str, Any]:
    """The round with the least time so far, and the least processor seconds of all rounds."""
    rounds = [now] if before is None else [before, now]
    best = dict(min(rounds, key=lambda r: r["seconds"]))
    return best | {"processor_seconds": min(r["processor_seconds"] for r in rounds)}


def main() -> None:
    """Make, shard and train; write the result file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--edges", type=int, default=1_000_000, help="in the file, each one way")
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--memory", default="1.5GB", help="of each process")
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--partitions", nargs="*", default=["range", "streaming", "metis", "hash"])
    parser.add_argument("--processes", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--weak", nargs="*", type=int, default=[], help="processes, see above")
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, help="where everything is put, and kept")
    parser.add_argument("--name", default="outofcore", help="of the result file")
    given = parser.parse_args()
    memory = memory_bytes(given.memory)
    with tempfile.TemporaryDirectory() as scratch:
        folder: Path = given.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        sizes = ("rows", "edges", "features", "memory", "parts", "batch_size")
        results: dict[str, Any] = {name: getattr(given, name) for name in sizes}
        results |= {"width": WIDTH, "layers": LAYERS}

        def keep(name: str, found: dict[str, Any]) -> None:
            results[name] = found
            print(name, found, flush=True)
            words, path = given_words(parser, given), result_file(given.name)
            write_results("outofcore", results, words=words, path=path)

        def fill(place: Path, times: int = 1) -> Path:
            place.mkdir(exist_ok=True)
            if not (place / "edges.parquet").exists():
                rows, edges = times * given.rows, times * given.edges
                in_fresh_process(made, place, rows, given.features, edges, method="fork")
            return place

        def sharded(partition: str, place: Path) -> dict[str, Any]:
            shutil.rmtree(place / partition, ignore_errors=True)
            return in_fresh_process(shard, place, partition, given.parts, memory, method="fork")

        def trained(name: str, *arguments: Any) -> None:
            keep(name, least(results.get(name), train(*arguments)))

        if given.weak:
            places = {world: fill(folder / str(world), world) for world in given.weak}
            for place in places.values():
                sharded("range", place)
            for _ in range(given.rounds):
                for world, place in places.items():
                    for of_all in (True, False):
                        batch = given.batch_size * (1 if of_all else world)
                        name = f"weak {world} {'one batch' if of_all else 'a batch each'}"
                        trained(name, place / "range", world, batch, memory, True)
        else:
            fill(folder)
            keep("duckdb_sort", in_fresh_process(duckdb_sort, folder, memory, method="fork"))
            first, *others = given.partitions
            keep(f"shard {first}", sharded(first, folder))
            for _ in range(given.rounds):
                for world in given.processes:
                    for way in given.ways:
                        asked = (world, given.batch_size, memory, way == WAYS[0])
                        trained(f"train {world} {way}", folder / first, *asked)
            for partition in others:
                keep(f"shard {partition}", sharded(partition, folder))
        forget_groups()


if __name__ == "__main__":
    main()
