"""How the cost of a training step grows with the number of rows, and a figure of it.

python -m benchmarks.growth [KERNEL ...]

writes results/benchmarks/growth.json and docs/images/growth.svg; kernels that are not named keep
their figures. One layer, width 64, forward and backward, no graph; every size in a process of its
own, so that the peak memory is its own. Landmarks and the sharp form among near rows compare input
features of the same width, whose rows come in groups of about a hundred with as much spread within
a group as between groups: 26 partners per row, where digits, CIFAR-10 features, 20News and Pubmed
have 17 to 22. Their weights are made once, and what that takes stands beside the step.
The time is that of the third step; where the first takes more than half a minute, as the largest of
-a does, that of the first.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import measured, write

WIDTH = 64
ROWS = {
    "simple": (1_000, 10_000, 100_000, 1_000_000, 10_000_000),
    "sigmoid": (1_000, 5_000, 20_000, 80_000, 200_000),
    "landmarks": (1_000, 10_000, 100_000, 1_000_000),
    "near": (1_000, 10_000, 100_000, 1_000_000),
}
PATIENCE = 30.0  # seconds
TITLES = {
    "simple": "DIFFormer-s",
    "sigmoid": "DIFFormer-a",
    "landmarks": "landmarks",
    "near": "sharp, near rows",
}
LANDMARKS = 400
GROUP = 100  # rows of a group, in the features that are compared
ONCE = ("landmarks", "near")  # weights made before the first step
NEAR = {"kernel": "sharp", "exact_rows": 0}
RESULTS = Path("results/benchmarks/growth.json")


def prepare(kernel: str, rows: int) -> Callable[[], None]:
    """A layer's step, ready to run; large ones once, small ones often enough to be timed."""
    import torch

    from difformer.core.diffusivity import make_diffusivity
    from difformer.core.diffusivity.landmarks import landmark_sample, make_landmarks

    torch.manual_seed(0)
    z = torch.randn(rows, WIDTH, requires_grad=True)
    diffusivity = make_diffusivity(**(NEAR if kernel == "near" else {"kernel": kernel}))
    fixed = None
    if diffusivity.prepares:
        centres = torch.randn(-(-rows // GROUP), WIDTH)
        features = centres[torch.randint(len(centres), (rows,))] + torch.randn(rows, WIDTH)
        sample = features[landmark_sample(rows, WIDTH, LANDMARKS)]
        known = make_landmarks(sample, LANDMARKS) if diffusivity.anchored else None
        fixed = diffusivity.fixed(features, known)

    def step() -> None:
        if fixed is not None:
            fixed.average(z).sum().backward()
        else:
            diffusivity.of_states(z, None, None, None, 1).sum().backward()

    if rows <= 1_000:
        step()
    return step


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """The slope between the last two sizes in logarithms: 1 is linear, 2 is quadratic."""
    return math.log(seconds[-1] / seconds[-2]) / math.log(sizes[-1] / sizes[-2])


def main(names: Sequence[str] = ()) -> None:
    """Measure every size, write the figures and the picture."""
    results: dict[str, Any] = {}
    if names:
        results = json.loads(RESULTS.read_text(encoding="utf-8"))["results"]
    for kernel in names or ROWS:
        if kernel not in ROWS:
            raise SystemExit(f"error: KERNEL must be one of {', '.join(ROWS)}, got {kernel!r}")
        sizes, found = ROWS[kernel], {}
        for rows in sizes:
            took = measured(partial(prepare, kernel, rows), patience=PATIENCE)
            found[str(rows)] = {
                "seconds": round(took.seconds, 4),
                "extra_mb": round(took.megabytes, 1),
            }
            if kernel in ONCE:
                found[str(rows)] |= {
                    "made_seconds": round(took.prepared_seconds, 1),
                    "made_mb": round(took.prepared_megabytes),
                }
            print(
                f"{kernel:8} {rows:12,} rows {took.seconds:9.3f} s {took.megabytes:9,.0f} MB, "
                f"prepared in {took.prepared_seconds:.1f} s, {took.prepared_megabytes:,.0f} MB",
                flush=True,
            )
        times = [f["seconds"] for f in found.values()]
        results[TITLES[kernel]] = {
            "rows": found,
            "exponent": round(exponent(list(sizes), times), 2),
        }
    write(RESULTS, "python -m benchmarks.growth", results)
    draw(results, Path("docs/images/growth.svg"))


def draw(results: dict[str, Any], path: Path) -> None:
    """Time and memory against rows, both axes logarithmic."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    for axis, key, label in zip(
        axes, ("seconds", "extra_mb"), ("seconds per step", "extra megabytes"), strict=True
    ):
        for (name, found), marker in zip(results.items(), "os^D", strict=False):
            rows = [int(n) for n in found["rows"]]
            axis.loglog(rows, [f[key] for f in found["rows"].values()], marker=marker, label=name)
        axis.set_xlabel("rows")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    main(sys.argv[1:])
