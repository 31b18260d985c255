"""A job whose ranks are killed is restarted by torchrun, and ends as if nobody had died."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
OFTEN = ("--max-restarts=2", "--monitor-interval=0.2")


def test_a_killed_rank_is_restarted_and_the_result_is_the_one_it_would_have_been(
    script: Callable[..., None], tmp_path: Path
) -> None:
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    script("restartable.py", "calm", calm)
    killed.mkdir()
    (killed / "data").symlink_to(calm / "data")
    script("restartable.py", "train", killed, launcher=(*TORCHRUN, *OFTEN))
    for data in ("memory", "parts"):
        assert (killed / f"{data}.dies").exists()
        ours, theirs = (
            json.loads((folder / data / "result.json").read_text()) for folder in (killed, calm)
        )
        assert ours["metrics"] == theirs["metrics"]
        assert ours["epochs"] == theirs["epochs"] == 12
        for file in ("metrics.csv", "model.safetensors"):
            again, whole = ((folder / data / file).read_bytes() for folder in (killed, calm))
            assert again == whole, (data, file)
