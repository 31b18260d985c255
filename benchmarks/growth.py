"""How the cost of a training step grows with the number of rows, with a figure.

python -m benchmarks.growth [CASE ...]

Writes results/benchmarks/growth.json and docs/images/growth.svg; cases that are not given are kept.
One layer, width 64, forward and backward, no graph. Every size runs in its own process, because of
the peak memory. Landmarks and the sharp form among near rows compare input features of the same
width. Their weights are computed once, and this cost is reported separately.

The cost of a step among near rows depends on the number of partners per row. Rows in groups of
about a hundred, with as much variance within a group as between groups, have 26 (digits, CIFAR-10
features, 20News and Pubmed: 17 to 22). Pure noise without groups has 38; the maximum is 40.

The time is that of the third step, or of the first if that takes more than half a minute.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import all_pair_average, measured, read_results, result_file, write_results

WIDTH = 64
LANDMARKS = 400
PATIENCE = 30.0  # seconds


@dataclass(frozen=True)
class Case:
    """A diffusivity, and how many rows it is given."""

    title: str
    rows: tuple[int, ...]
    options: Mapping[str, Any]
    group: int | None = None  # rows of a group of the features; None: states are compared


UP_TO_A_MILLION = (1_000, 10_000, 100_000, 1_000_000)
NEAR = {"kernel": "sharp", "exact_rows": 0}
CASES = {
    "simple": Case("DIFFormer-s", (*UP_TO_A_MILLION, 10_000_000), {"kernel": "simple"}),
    "sigmoid": Case("DIFFormer-a", (1_000, 5_000, 20_000, 80_000, 200_000), {"kernel": "sigmoid"}),
    "landmarks": Case("landmarks", UP_TO_A_MILLION, {"kernel": "landmarks"}, group=100),
    "near": Case("sharp, near rows", UP_TO_A_MILLION, NEAR, group=100),
    "groupless": Case("sharp, near rows, no groups", UP_TO_A_MILLION, NEAR, group=1),
}


def prepare(case: Case, rows: int) -> Callable[[], None]:
    """A layer's step, ready to run; large ones once, small ones often enough to be timed."""
    import torch

    from difformer.core.diffusivity import make_diffusivity
    from difformer.core.rows import landmark_sample, make_landmarks

    torch.manual_seed(0)
    z = torch.randn(rows, WIDTH, requires_grad=True)
    diffusivity = make_diffusivity(**case.options)
    fixed = None
    if case.group is not None:
        centres = torch.randn(-(-rows // case.group), WIDTH)
        features = centres[torch.randint(len(centres), (rows,))] + torch.randn(rows, WIDTH)
        sample = features[landmark_sample(rows, WIDTH, LANDMARKS)]
        known = make_landmarks(sample, LANDMARKS) if diffusivity.anchored else None
        fixed = diffusivity.fixed(features, known)

    def step() -> None:
        if fixed is not None:
            fixed.average(z).sum().backward()
        else:
            all_pair_average(diffusivity, z).sum().backward()

    if rows <= 1_000:
        step()
    return step


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """The slope between the last two sizes in logarithms: 1 is linear, 2 is quadratic."""
    return math.log(seconds[-1] / seconds[-2]) / math.log(sizes[-1] / sizes[-2])


def main(names: Sequence[str] = ()) -> None:
    """Measure every size, write the figures and the picture."""
    results = read_results(result_file("growth")) if names else {}
    for name in names or CASES:
        if name not in CASES:
            raise SystemExit(f"error: CASE must be one of {', '.join(CASES)}, got {name!r}")
        case, found = CASES[name], {}
        for rows in case.rows:
            took = measured(partial(prepare, case, rows), patience=PATIENCE)
            found[str(rows)] = {
                "seconds": round(took.seconds, 4),
                "extra_mb": round(took.megabytes, 1),
            }
            if case.group is not None:
                found[str(rows)] |= {
                    "made_seconds": round(took.prepared_seconds, 1),
                    "made_mb": round(took.prepared_megabytes),
                }
            print(
                f"{name:9} {rows:12,} rows {took.seconds:9.3f} s {took.megabytes:9,.0f} MB, "
                f"prepared in {took.prepared_seconds:.1f} s, {took.prepared_megabytes:,.0f} MB",
                flush=True,
            )
        times = [f["seconds"] for f in found.values()]
        results[case.title] = {
            "rows": found,
            "exponent": round(exponent(list(case.rows), times), 2),
        }
    write_results("growth", results)
    draw(results, Path("docs/images/growth.svg"))


def draw(results: dict[str, Any], path: Path) -> None:
    """Time and memory against rows, both axes logarithmic."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for axis, key, label in zip(
        axes, ("seconds", "extra_mb"), ("seconds per step", "extra megabytes"), strict=True
    ):
        for (name, found), marker in zip(results.items(), "os^Dv", strict=False):
            rows = [int(n) for n in found["rows"]]
            axis.loglog(rows, [f[key] for f in found["rows"].values()], marker=marker, label=name)
        axis.set_xlabel("rows")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    main(sys.argv[1:])
