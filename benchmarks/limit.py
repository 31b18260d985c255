"""How close the large cases come to the limit of the machine.

python -m benchmarks.limit             writes results/benchmarks/limit.json

First the machine: the rate of a large matrix product, of products of the shapes that a layer has
(64 wide: a product of 64 columns keeps a core's units less busy than a large square one), and the
bandwidth of reading two arrays and writing a third. Then the flops and bytes that a layer cannot
avoid, and from both the shortest time it could take:

    limit = max(flops / rate, bytes / bandwidth)

once with the rate of the large product, once with that of the layer's own shapes.

A layer of -s reads the states and writes the average, forward; backward reads states and gradient
and writes a gradient: five tall arrays. It needs five products with the states under the
whole-tensor norm, twelve with queries and keys of their own, six where the states are both.
-a needs two products over all pairs forward and five backward (scores are made again); with the
states as queries and keys a score serves both sides: one and a half, and three and a half.
Sigmoids are not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.measure import all_pair_average, seconds_of, write_results
from difformer.core.diffusivity import Diffusivity, Sigmoid, Simple, WholeTensorSimple
from difformer.core.tiled import TILE, rows_at_once
from difformer.train.memory import keep_freed_memory

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
    """The shortest of several runs."""
    function()
    return min(seconds_of(function) for _ in range(repeats))


def machine_limits() -> dict[str, float]:
    """Flops and bytes per second."""
    square = torch.randn(1536, 1536)
    a, b, c = (torch.randn(2**25) for _ in range(3))
    tall, small = torch.randn(rows_at_once(torch.empty(1, WIDTH)), WIDTH), torch.randn(WIDTH, WIDTH)
    tile, side = torch.randn(TILE, TILE), torch.randn(TILE, WIDTH)
    return {
        "square_flops": 2 * 1536**3 / seconds(lambda: square @ square),
        # A tall matrix by a small one, and the Gram matrix of tall ones.
        "thin_flops": _rate((tall, small), (tall.T, tall)),
        # A tile of scores, and its product with values.
        "tile_flops": _rate((side, side.T), (tile, side)),
        "bytes": 3 * 4 * 2**25 / seconds(lambda: torch.add(a, b, out=c)),
    }


def _rate(*pairs: tuple[torch.Tensor, torch.Tensor], repeats: int = 100) -> float:
    """Flops per second of these products in turn, each written to the same output."""
    outs = [a @ b for a, b in pairs]
    flops = repeats * sum(2 * a.shape[0] * a.shape[1] * b.shape[1] for a, b in pairs)

    def run() -> None:
        for _ in range(repeats):
            for (a, b), out in zip(pairs, outs, strict=True):
                torch.mm(a, b, out=out)

    return flops / seconds(run)


def stepper(case: str) -> tuple[Callable[[], torch.Tensor], Callable[[], None]]:
    """One all-pair average, forward, and with backward."""
    kernel, rows, maps, _, _ = CASES[case]
    torch.manual_seed(0)
    z = torch.randn(rows, WIDTH, requires_grad=True)
    made = [
        (torch.randn(WIDTH, WIDTH, requires_grad=True), torch.zeros(WIDTH, requires_grad=True))
        if maps
        else None
        for _ in range(2)
    ]
    grad = torch.ones(rows, WIDTH)

    def run() -> torch.Tensor:
        return all_pair_average(kernel, z, *made)

    def both() -> None:
        z.grad = None
        run().backward(grad)

    return run, both


def reached(case: str, limits: dict[str, float]) -> dict[str, float]:
    """Measured and shortest possible seconds of one all-pair average, forward and backward."""
    kernel, rows, _, forward, backward = CASES[case]
    separable = isinstance(kernel, Simple)
    unit = 2 * rows * WIDTH**2 if separable else 2 * rows**2 * WIDTH
    own = "thin_flops" if separable else "tile_flops"
    array = 4 * rows * WIDTH
    found: dict[str, float] = {}
    run, both = stepper(case)
    with torch.no_grad():
        found["forward_seconds"] = seconds(run, 3)
    found["step_seconds"] = seconds(both, 3)
    for name, products, arrays in (
        ("forward", forward, 2),
        ("step", forward + backward, 5),
    ):
        for key, rate in (("", "square_flops"), ("_own", own)):
            limit = max(products * unit / limits[rate], arrays * array / limits["bytes"])
            found[f"{name}_limit{key}"] = limit
            found[f"{name}_share{key}"] = limit / found[f"{name}_seconds"]
    return found


def main() -> None:
    """Measure the machine, then every case, with freed memory kept as in commands that train."""
    keep_freed_memory()
    limits = machine_limits()
    print(
        f"square product {limits['square_flops'] / 1e9:.0f} Gflop/s, thin "
        f"{limits['thin_flops'] / 1e9:.0f}, "
        f"tile {limits['tile_flops'] / 1e9:.0f}, memory {limits['bytes'] / 1e9:.1f} GB/s",
        flush=True,
    )
    results: dict[str, Any] = {"machine": limits}
    for case in CASES:
        found = results[case] = reached(case, limits)
        print(
            f"{case:58} forward {found['forward_seconds']:7.3f} s = "
            f"{100 * found['forward_share']:3.0f} % of the limit "
            f"({100 * found['forward_share_own']:.0f} % with its own shapes), with backward "
            f"{found['step_seconds']:7.3f} s = {100 * found['step_share']:3.0f} % "
            f"({100 * found['step_share_own']:.0f} %)",
            flush=True,
        )
    write_results("limit", results)


if __name__ == "__main__":
    main()
