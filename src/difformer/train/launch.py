"""What torchrun tells the processes it starts, through the environment. No torch here."""

from __future__ import annotations

import os


def launched() -> bool:
    """Whether torchrun, or a similar launcher, started this process as one of several."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_lead() -> bool:
    """Whether this process prints and writes for all: rank 0, or the only one."""
    return not launched() or os.environ["RANK"] == "0"


def restarted() -> bool:
    """Whether torchrun has started this job again after a process died."""
    return launched() and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
