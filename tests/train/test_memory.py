"""Memory that is freed and taken again."""

from __future__ import annotations

import subprocess
import sys

import pytest

from difformer.train.memory import (
    available_memory,
    keep_freed_memory,
    peak_memory,
    resident_memory,
)

FAULTS = """
import resource, sys, torch
from difformer.train.memory import keep_freed_memory
if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit()
for turn in range(40):
    if turn == 30:  # by then the freed blocks have grown together
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def run(code: str, *words: str) -> list[int]:
    """The numbers that a process of its own prints; without any the test is skipped."""
    line = [sys.executable, "-c", code, *words]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    return list(map(int, done.stdout.split())) or pytest.skip("not the GNU C library")


def test_kept_memory_is_taken_again_without_fresh_pages() -> None:
    assert 10 * run(FAULTS, "keep")[0] < run(FAULTS, "plain")[0]


FORGOTTEN = """
import torch
from difformer.train.memory import forget_peak_memory, keep_freed_memory
from difformer.train.memory import memory_from_here, peak_memory
if keep_freed_memory():
    block = torch.ones(2**26)
    held = torch.ones(8)  # above the block on the heap
    before = peak_memory()
    del block
    forget_peak_memory()
    after = peak_memory()
    taken = memory_from_here()
    torch.ones(2**26)
    print(before - after, taken())
"""


def test_a_forgotten_peak_does_not_count_what_was_freed_before() -> None:
    assert min(run(FORGOTTEN)) > 2**27


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    assert keep_freed_memory() is False


STARTED = """
import subprocess, sys
held = bytearray(b"1") * 2**30
tell = "from difformer.train.memory import peak_memory; print(peak_memory())"
subprocess.run([sys.executable, "-c", tell], check=True)
"""


def test_the_peak_is_not_that_of_the_process_that_started_this_one() -> None:
    assert 2**20 < run(STARTED)[0] < 2**30


def test_without_the_resource_module_the_peak_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has no `resource` and no /proc: what measures memory says None, nothing fails."""

    def missing(key: str) -> int:
        raise FileNotFoundError(key)

    monkeypatch.setattr("difformer.train.memory._status", missing)
    monkeypatch.setitem(sys.modules, "resource", None)
    assert peak_memory() is None
    assert resident_memory() >= 0
    assert (available_memory() or 2**30) > 2**20


def test_comparing_systems_needs_no_resource_module() -> None:
    code = "import sys; sys.modules['resource'] = None; import difformer.compare.compare"
    subprocess.run([sys.executable, "-c", code], check=True)
