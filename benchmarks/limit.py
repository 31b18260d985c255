"""How much of what this machine can do the large cases reach.

python -m benchmarks.limit             writes results/benchmarks/limit.json

First the machine: the rate of a large matrix product, of one as thin as ours (a tall matrix times a
small square one), and the bandwidth of reading two arrays and writing a third. Then the flops and
bytes that a layer cannot avoid, and from both the shortest time it could take:

    limit = max(flops / rate, bytes / bandwidth)

A layer of -s reads the states and writes the average, forward; backward reads states and gradient
and writes a gradient: five tall arrays. It needs five products with the states under the
whole-tensor norm, twelve with queries and keys of their own, six where the states are both.
-a needs two products over all pairs forward and five backward (scores are made again); with the
states as queries and keys a score serves both sides: one and a half, and three and a half.
Sigmoids are not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import write
from difformer.core.diffusivity import Diffusivity, Sigmoid, Simple, WholeTensorSimple

WIDTH = 64
# Name: kernel, rows, whether queries and keys are maps of the states, products forward, backward;
# the unit is a tall product, 2 n d², or one over all pairs, 2 n² d.
CASES: dict[str, tuple[Diffusivity, int, bool, float, float]] = {
    "-s, whole-tensor norm, 1,000,000 rows": (WholeTensorSimple(), 1_000_000, True, 2, 3),
    "-s, row norm, 1,000,000 rows": (Simple(), 1_000_000, True, 4, 8),
    "-s, row norm, states as queries and keys, 1,000,000 rows": (Simple(), 1_000_000, False, 2, 4),
    "-a, 16,000 rows": (Sigmoid(), 16_000, True, 2, 5),
    "-a, states as queries and keys, 16,000 rows": (Sigmoid(), 16_000, False, 1.5, 3.5),
}


def seconds(function: Callable[[], Any], repeats: int = 5) -> float:
    """The shortest of some runs: a limit is what can be reached at all."""
    function()
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - begin)
    return best


def machine_limits() -> dict[str, float]:
    """Flops and bytes a second."""
    square = torch.randn(1536, 1536)
    tall, small = torch.randn(4096, WIDTH), torch.randn(WIDTH, WIDTH)
    out = torch.empty(4096, WIDTH)
    a, b, c = (torch.randn(2**25) for _ in range(3))
    return {
        "square_flops": 2 * 1536**3 / seconds(lambda: square @ square),
        "thin_flops": 200
        * (2 * 4096 * WIDTH**2)
        / seconds(lambda: [torch.mm(tall, small, out=out) for _ in range(200)]),
        "bytes": 3 * 4 * 2**25 / seconds(lambda: torch.add(a, b, out=c)),
    }


def reached(case: str, limits: dict[str, float]) -> dict[str, float]:
    """Measured and shortest possible seconds of one all-pair average, forward and backward."""
    kernel, rows, maps, forward, backward = CASES[case]
    torch.manual_seed(0)
    z = torch.randn(rows, WIDTH, requires_grad=True)
    made = [
        (torch.randn(WIDTH, WIDTH, requires_grad=True), torch.zeros(WIDTH, requires_grad=True))
        if maps
        else None
        for _ in range(2)
    ]
    unit = 2 * rows * WIDTH**2 if kernel.separable else 2 * rows**2 * WIDTH
    array = 4 * rows * WIDTH
    found: dict[str, float] = {}

    def run() -> torch.Tensor:
        return kernel.of_states(z, made[0], made[1], None, 1)

    with torch.no_grad():
        found["forward_seconds"] = seconds(run, 3)
    grad = torch.ones(rows, WIDTH)

    def both() -> None:
        z.grad = None
        run().backward(grad)

    found["step_seconds"] = seconds(both, 3)
    for name, products, arrays in (
        ("forward", forward, 2),
        ("step", forward + backward, 5),
    ):
        limit = max(products * unit / limits["square_flops"], arrays * array / limits["bytes"])
        found[f"{name}_limit"] = limit
        found[f"{name}_share"] = limit / found[f"{name}_seconds"]
    return found


def main() -> None:
    """Measure the machine, then every case."""
    limits = machine_limits()
    print(
        f"square product {limits['square_flops'] / 1e9:.0f} Gflop/s, thin "
        f"{limits['thin_flops'] / 1e9:.0f}, memory {limits['bytes'] / 1e9:.1f} GB/s",
        flush=True,
    )
    results: dict[str, Any] = {"machine": limits}
    for case in CASES:
        found = results[case] = reached(case, limits)
        print(
            f"{case:58} forward {found['forward_seconds']:7.3f} s = "
            f"{100 * found['forward_share']:3.0f} % of the limit, with backward "
            f"{found['step_seconds']:7.3f} s = {100 * found['step_share']:3.0f} %",
            flush=True,
        )
    write(Path("results/benchmarks/limit.json"), "python -m benchmarks.limit", results)


if __name__ == "__main__":
    main()
