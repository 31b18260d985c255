"""Peak memory of a training step, forward and backward, of difformer and of the transcription.

python -m benchmarks.memory            writes results/benchmarks/memory.json
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.measure import extra_memory, write_results
from benchmarks.transcription import Transcription
from difformer import DIFFormer, Graph

WIDTH = 64
CASES: dict[str, dict[str, Any]] = {
    "-a, 13,000 rows, 2 layers": {"kernel": "sigmoid", "rows": 13_000, "layers": 2},
    "-a, 100,000 rows, 1 layer": {
        "kernel": "sigmoid",
        "rows": 100_000,
        "layers": 1,
        "plain": False,
    },
    "-s, 1,000,000 rows, 10 edges per row, 1 layer": {
        "kernel": "simple",
        "rows": 1_000_000,
        "layers": 1,
        "degree": 10,
    },
}


def prepare(kernel: str, rows: int, layers: int, degree: int, plain: bool) -> Callable[[], None]:
    """A training step ready to run: data made, graph prepared (ours) or given as a list (plain)."""
    torch.manual_seed(0)
    model: nn.Module = DIFFormer(
        WIDTH, WIDTH, 2, kernel=kernel, num_layers=layers, use_weight=False
    )
    x = torch.randn(rows, WIDTH)
    edges: Any = None
    if degree:
        half = torch.randint(rows, (2, rows * degree // 2))
        edges = torch.cat([half, half.flip(0)], dim=1)
        if not plain:
            edges = Graph.from_edges(edges, rows)
    if plain:
        model = Transcription(model)

    def step() -> None:
        model(x, edges).square().mean().backward()

    return step


def main() -> None:
    """Measure every case and write the result file."""
    results: dict[str, Any] = {}
    for name, case in CASES.items():
        case = {"degree": 0, **case}
        peers = (
            {"difformer": False, "transcription": True}
            if case.pop("plain", True)
            else {"difformer": False}
        )
        for peer, plain in peers.items():
            megabytes, seconds = extra_memory(partial(prepare, plain=plain, **case))
            results[f"{name}: {peer}"] = {
                "extra_mb": round(megabytes),
                "seconds": round(seconds, 2),
            }
            print(f"{name:50} {peer:14} {megabytes:9,.0f} MB {seconds:8.1f} s", flush=True)
    write_results("memory", results)


if __name__ == "__main__":
    sys.exit(main())
