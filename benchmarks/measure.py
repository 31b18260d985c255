"""Measuring: two things alternately in one process, memory in processes of their own."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from difformer.files import write_atomic
from difformer.train.memory import keep_freed_memory


@dataclass(frozen=True)
class Ratio:
    """How much faster `ours` is than `theirs`: the median over pairs of neighbouring runs."""

    name: str
    ours_ms: float
    theirs_ms: float
    speed_up: float
    spread: tuple[float, float]  # the quartiles of the speed-up
    pairs: int
    largest_difference: float  # of the outputs, relative to their size


def machine() -> dict[str, Any]:
    """What a figure depends on; no names of hosts or folders."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 2**30, 1),
        "processor": platform.processor() or platform.machine(),
        "vector": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
    }


def alternate(
    name: str,
    ours: Callable[[], Tensor],
    theirs: Callable[[], Tensor],
    *,
    tolerance: float | None = 1e-3,
    seconds: float = 6.0,
    least: int = 5,
) -> Ratio:
    """Run both in turn for some seconds; refuses where their outputs differ.

    `tolerance=None` says that the two compute different things, and only their cost is compared.
    """
    a, b = ours(), theirs()  # also the warm-up
    difference = float("nan")
    if tolerance is not None:
        difference = float((a - b).abs().max() / b.abs().max().clamp_min(1e-12))
        if not difference <= tolerance:
            raise ValueError(f"{name}: outputs differ by {difference:.1e}, no speed-up is reported")
    del a, b
    mine: list[float] = []
    other: list[float] = []
    start = time.perf_counter()
    while len(mine) < least or time.perf_counter() - start < seconds:
        for times, function in ((mine, ours), (other, theirs)):
            gc.disable()
            times.append(_seconds(function))
            gc.enable()
        if len(mine) >= 200 or time.perf_counter() - start > 10 * seconds:
            break
    ratios = sorted(b / a for a, b in zip(mine, other, strict=True))
    return Ratio(
        name=name,
        ours_ms=1e3 * statistics.median(mine),
        theirs_ms=1e3 * statistics.median(other),
        speed_up=statistics.median(ratios),
        spread=(ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]),
        pairs=len(ratios),
        largest_difference=difference,
    )


class Measured(NamedTuple):
    """What a call took, and what it took to prepare it."""

    megabytes: float  # at the peak, beyond what was held before the call
    seconds: float
    prepared_megabytes: float  # at the peak of the preparation, all in all
    prepared_seconds: float


def measured(prepare: Callable[[], Callable[[], Any]], *, patience: float = 0.0) -> Measured:
    """Memory and time of the call that `prepare` returns.

    In a fresh process: what one call leaves behind would hide what the next one takes. Where it
    takes less than `patience` seconds, the time is that of a later call, as most steps are: on
    memory that the first ones left.
    """
    return in_fresh_process(_measure, prepare, patience)


def extra_memory(prepare: Callable[[], Callable[[], Any]]) -> tuple[float, float]:
    """Peak megabytes a call needs beyond what was held before it, and its seconds."""
    return measured(prepare)[:2]


def in_fresh_process(target: Callable[..., None], *arguments: Any, method: str = "spawn") -> Any:
    """What `target(*arguments, sender)` sends from a process of its own.

    By `method` "fork" it has what this one has imported: for a process that has not computed yet.
    """
    context: Any = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(*arguments, sender))
    process.start()
    sender.close()
    try:
        result = receiver.recv()
    except EOFError:
        process.join()
        raise MemoryError(f"the measured process ended with code {process.exitcode}") from None
    process.join()
    return result


def _measure(prepare: Callable[[], Callable[[], Any]], patience: float, sender: Any) -> None:
    begin = time.perf_counter()
    function = prepare()
    prepared = status("VmHWM"), time.perf_counter() - begin
    gc.collect()
    before = status("VmRSS")
    peak_from_here()
    seconds = _seconds(function)
    megabytes = status("VmHWM") - before
    if seconds < patience:
        keep_freed_memory()
        function()
        seconds = _seconds(function)
    sender.send(Measured(megabytes, seconds, *prepared))


def _seconds(function: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def peak_from_here() -> None:
    """Forget this process's peak memory so far."""
    Path("/proc/self/clear_refs").write_text("5")


def status(key: str) -> float:
    """A line of /proc/self/status, in megabytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1000
    raise OSError(f"{key} is not in /proc/self/status: memory is measured on Linux only")


def write(path: Path, command: str, results: dict[str, Any]) -> None:
    """The result file: what was measured, by which command, on what."""
    plain = {k: asdict(v) if isinstance(v, Ratio) else v for k, v in results.items()}
    content = {
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "results": plain,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
