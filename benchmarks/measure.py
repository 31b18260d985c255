"""What benchmarks share: timing two things alternately, memory in a fresh process, result files."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import platform
import shlex
import socket
import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.core.diffusivity import Diffusivity
from difformer.core.euler import Affine, average_of_states
from difformer.files import write_json
from difformer.machine import commit
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

    def show(self, theirs: str = "theirs") -> None:
        """Print one line."""
        low, high = self.spread
        print(
            f"{self.name:55} ours {self.ours_ms:9.1f} ms   {theirs} {self.theirs_ms:9.1f} ms   "
            f"speed-up {self.speed_up:5.2f} ({low:.2f} to {high:.2f})",
            flush=True,
        )


def machine() -> dict[str, Any]:
    """The machine and the versions that a figure depends on, without names of hosts or folders."""
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
    """Run both in turn for some seconds.

    `tolerance=None` is for two functions that compute different things: only their cost is
    compared.

    Raises:
        ValueError: their outputs differ by more than the tolerance.
    """
    a, b = ours(), theirs()  # also the warm-up
    difference = float("nan") if tolerance is None else equal_outputs(name, a, b, tolerance)
    del a, b
    mine: list[float] = []
    other: list[float] = []
    start = time.perf_counter()
    while len(mine) < least or time.perf_counter() - start < seconds:
        for times, function in ((mine, ours), (other, theirs)):
            gc.disable()
            times.append(seconds_of(function))
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


def equal_outputs(name: str, a: Tensor, b: Tensor, tolerance: float = 1e-3) -> float:
    """The largest difference of two outputs relative to their size.

    Raises:
        ValueError: it is above the tolerance.
    """
    difference = float((a - b).abs().max() / b.abs().max().clamp_min(1e-12))
    if not difference <= tolerance:
        raise ValueError(f"{name}: outputs differ by {difference:.1e}, no speed-up is reported")
    return difference


class Measured(NamedTuple):
    """Memory and time of a call, and of its preparation."""

    megabytes: float  # at the peak, in addition to what was used before the call
    seconds: float
    processor_seconds: float  # of all threads, in the first call
    prepared_megabytes: float  # at the peak of the preparation, in total
    prepared_seconds: float


def measured(prepare: Callable[[], Callable[[], Any]], *, patience: float = 0.0) -> Measured:
    """Memory and time of the call that `prepare` returns, in a fresh process.

    In the same process, memory that one call leaves behind would hide what the next one needs. If
    the call takes less than `patience` seconds, the time is that of a later call, which reuses the
    memory of the first ones.
    """
    return in_fresh_process(_measure, prepare, patience)


def extra_memory(prepare: Callable[[], Callable[[], Any]]) -> tuple[float, float]:
    """Peak megabytes that a call needs in addition to those used before it, and its seconds."""
    return measured(prepare)[:2]


def in_fresh_process(target: Callable[..., None], *arguments: Any, method: str = "spawn") -> Any:
    """Run `target(*arguments, sender)` in a new process and return what it sends.

    With `method="fork"` the new process has the imports of this one; use it only before this
    process has computed anything.
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
    worked = time.process_time()
    seconds = seconds_of(function)
    worked = time.process_time() - worked
    megabytes = status("VmHWM") - before
    if seconds < patience:
        keep_freed_memory()
        function()
        seconds = seconds_of(function)
    sender.send(Measured(megabytes, seconds, worked, *prepared))


def all_pair_average(
    kernel: Diffusivity, z: Tensor, query: Affine = None, key: Affine = None
) -> Tensor:
    """The average of the states z (n, d) as a layer of one head makes it."""
    closed = kernel.closed_form(1)
    if closed is not None:
        return average_of_states(z, closed, (query, key, None))
    q, k = ((z if a is None else F.linear(z, *a)).unsqueeze(0) for a in (query, key))
    return kernel(q, k, z.unsqueeze(0))[0]


def seconds_of(function: Callable[[], Any]) -> float:
    """Seconds of one call."""
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def peak_from_here() -> None:
    """Reset the peak memory of this process."""
    Path("/proc/self/clear_refs").write_text("5")


def status(key: str) -> float:
    """A figure of /proc/self/status, in megabytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1000
    raise OSError(f"{key} is not in /proc/self/status: memory is measured on Linux only")


def timed_command(words: Sequence[str]) -> dict[str, float]:
    """Run a command; its seconds and processor seconds.

    Raises:
        RuntimeError: it fails.
    """
    before, begin = os.times(), time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    seconds, after = time.perf_counter() - begin, os.times()
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    user = after.children_user - before.children_user
    return {
        "seconds": seconds,
        "processor_seconds": user + after.children_system - before.children_system,
    }


@contextmanager
def service(run: Path, log: Path, *options: str) -> Iterator[tuple[int, int]]:
    """`difformer serve RUN` in a new process: its port and its process id once it listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "difformer", "serve", str(run), "--port", str(port), *options]
    with log.open("w") as file:
        server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=file)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if server.poll() is not None:
                    raise RuntimeError(log.read_text()) from None
                time.sleep(0.1)
        yield port, server.pid
    finally:
        server.terminate()
        server.wait()


def accuracies(values: Sequence[float]) -> dict[str, Any]:
    """Mean, standard deviation and values of an accuracy over splits."""
    return {
        "accuracy_mean": statistics.mean(values),
        "accuracy_std": statistics.stdev(values),
        "accuracy": list(values),
    }


def percent(mean: float, std: float | None = None) -> str:
    """A share in percent, with its standard deviation: '82.6 ± 0.2'."""
    return f"{100 * mean:.1f}" + ("" if std is None else f" ± {100 * std:.1f}")


def given_words(parser: ArgumentParser, given: Namespace) -> str:
    """The options of a command line that differ from their defaults, without --folder."""
    words = [
        f"--{name.replace('_', '-')} {shlex.join(map(str, v)) if isinstance(v, list) else v}"
        for name, v in vars(given).items()
        if v != parser.get_default(name) and name != "folder"
    ]
    return " ".join(words)


def result_file(name: str) -> Path:
    """The result file of a benchmark."""
    return Path("results/benchmarks") / f"{name}.json"


def read_results(path: Path) -> dict[str, Any]:
    """The results in a result file; empty if there is no file."""
    return json.loads(path.read_text("utf-8"))["results"] if path.exists() else {}


def write_results(
    name: str, results: Mapping[str, Any], *, words: str = "", path: Path | None = None
) -> None:
    """Write the result file of `python -m benchmarks.NAME WORDS`, with date, commit and machine."""
    plain = {k: asdict(v) if isinstance(v, Ratio) else v for k, v in results.items()}
    path = path or result_file(name)
    content = {
        "command": f"python -m benchmarks.{name} {words}".rstrip(),
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "machine": machine(),
        "results": plain,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content, indent=2, ensure_ascii=False)
