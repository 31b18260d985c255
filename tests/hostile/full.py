"""Every command where it cannot write: python full.py FOLDER COMMAND:CONDITION ...

The conditions: a number of bytes that no file may exceed, which is a disk that fills; `read-only`,
a folder that is not ours; `homeless`, a home and a cache that are not ours; `taken`, a folder that
another run writes to. The command must end with exit code 2 and one line, leave nothing
half-written, and go on once there is room.

One line of JSON per case.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import shutil
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from kills import begin, commands, in_child, prepared, stand_in

STAGES = ".work"  # finished stages of `shard`, from which the same command goes on


def small_disk(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def not_ours(*folders: Path) -> None:
    """Folders without permission to write; root has it everywhere, and gives that up."""
    for folder in folders:
        folder.chmod(0o555)
    libc, header = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable capabilities, twice
    assert libc.capget(header, sets) == 0
    sets[0] &= ~0b1110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER
    assert libc.capset(header, sets) == 0
    for folder in folders:
        assert not os.access(folder, os.W_OK, effective_ids=True), "root can write everywhere"


def taken(out: Path) -> None:
    """Locked, as by another process, until this one ends."""
    out.mkdir(exist_ok=True)
    fcntl.flock(os.open(out, os.O_RDONLY), fcntl.LOCK_EX)


def homeless(home: Path, out: Path) -> None:
    os.environ.update(HOME=str(home), XDG_CACHE_HOME=str(home / "cache"))
    out.mkdir(exist_ok=True)
    not_ours(home)


def main() -> None:
    import torch

    folder = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    root, place = prepared(folder), folder / "place"
    asked = [word.rsplit(":", 1) for word in sys.argv[2:]]
    stand_in({name for name, _ in asked})
    for name, condition in asked:
        os.chdir(folder)
        shutil.rmtree(place, ignore_errors=True)
        (place / "home").mkdir(parents=True)
        out = place / "deep" / "out" if condition == "read-only" else place / "out"
        out.parent.mkdir(exist_ok=True)
        words = commands(root, out)[name]
        begin(name, out)
        closed = out if out.exists() else out.parent
        setup: Callable[[], Any] = {
            "read-only": partial(not_ours, closed),
            "taken": partial(taken, out),
            "homeless": partial(homeless, place / "home", out),
        }.get(condition) or partial(small_disk, int(condition))
        status, _, said = in_child(words, setup)
        _tell(command=name, condition=condition, fault=_fault(status, said, out, condition))
    _tell(done=True)


def _fault(status: int, said: str, out: Path, condition: str) -> str | None:
    code = os.waitstatus_to_exitcode(status)
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    if (
        condition not in ("read-only", "taken") and code == 0
    ):  # all of it was small enough, or needs no home
        return None
    if code != 2 or len(errors) != 1 or "fault of difformer" in said or "Traceback" in said:
        return f"exit code {code}: {said[-600:]}"
    for path in out.rglob("*") if out.exists() else ():
        if STAGES in (path.name, path.parent.name):
            continue
        if path.name.endswith((".part", ".tmp")) or path.name.startswith("."):
            return f"{path.name} is left"
        if path.suffix == ".json":
            json.loads(path.read_text())
        if path.suffix == ".html" and not path.read_text().rstrip().endswith("</html>"):
            return f"half of {path.name} is left"
    return None


def _tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
