"""Fuzz formats in this process, which must survive: python fuzz.py FOLDER FORMAT:FIRST:LAST ...

One line of JSON before and after each case; the parent reads them and knows, whatever happens to
this process, which case it was. A case may end with a right answer or be refused in one line.
"""

from __future__ import annotations

import contextlib
import io
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from mutate import tell

SECONDS = 10
BYTES = 2 << 30  # of address space beyond what the libraries take


def main() -> None:
    folder = Path(sys.argv[1])
    import torch
    from cases import FORMATS

    from difformer.errors import DifformerError
    from difformer.train.memory import peak_memory

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    wanted = [word.split(":") for word in sys.argv[2:]]
    roots: dict[Any, Path] = {}
    for name, *_ in wanted:
        prepare = FORMATS[name][0]
        if prepare not in roots:
            roots[prepare] = (folder / prepare.__name__).resolve()
            if not roots[prepare].exists():  # an earlier process may have made them
                roots[prepare].mkdir()
                prepare(roots[prepare])
    place = folder / "case"
    for name, *_ in wanted:  # so that no case waits for an import, or has its memory counted
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
            FORMATS[name][1](roots[FORMATS[name][0]], place, Random("warm"))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, used + BYTES))
    for name, first, last in wanted:
        prepare, case = FORMATS[name]
        for seed in range(int(first), int(last)):
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            tell(begin=[name, seed])
            started = own_seconds()
            signal.signal(signal.SIGALRM, partial(_too_long, started + SECONDS))
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            said = io.StringIO()
            try:
                with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                    case(roots[prepare], place, Random(f"{name} {seed}"))
                end = {"outcome": "answered"}
            except DifformerError as error:
                reason = str(error).strip()
                end = {"outcome": "refused"}
                if not reason or len(reason.splitlines()) > 1:
                    end = {"outcome": "fault", "why": f"not one line: {reason!r:.200}"}
            except BaseException as error:
                lines = traceback.format_exc().strip().splitlines()
                at = [line.strip() for line in lines if "difformer" in line and "File" in line]
                end = {
                    "outcome": "fault",
                    "why": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}",
                    "at": at[-3:],
                }
            signal.setitimer(signal.ITIMER_REAL, 0)
            if "Traceback" in said.getvalue():
                end = {"outcome": "fault", "why": f"printed {said.getvalue()[-300:]!r}"}
            tell(end=[name, seed], seconds=round(own_seconds() - started, 3), **end)
    tell(done=True, peak_mb=(peak_memory() or 0) // 2**20)


def own_seconds() -> float:
    """The clock, less what this process has waited for a processor that others had."""
    waited = int(Path("/proc/self/schedstat").read_text().split()[1])
    return time.monotonic() - waited / 1e9


def _too_long(deadline: float, *_: Any) -> None:
    left = deadline - own_seconds()
    if left <= 0:
        raise TimeoutError(f"longer than {SECONDS} s")
    signal.setitimer(signal.ITIMER_REAL, left)


if __name__ == "__main__":
    main()
