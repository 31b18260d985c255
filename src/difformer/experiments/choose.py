"""Pick the settings of a table of forecasts by validation alone; the test rows are never looked at.

python -m difformer.experiments.choose table5 --columns covid --seeds 3

writes results/choices/table5/CELL.json for every cell whose variant says what it chooses, and
prints the rules for the spec: that of the lowest error and that of one standard error, each for the
variant that takes it.

Few validation snapshots cannot tell settings apart whose errors differ by less than they vary from
snapshot to snapshot. So the rule is that of one standard error (Breiman et al., 1984): of all
settings within one standard error of the lowest validation error, the most regularised, here by
ridge, dropout, then weight decay, then the smaller learning rate. The lowest is kept beside it.
Structure (any other setting) is that of the lowest error: no value is a stronger form of another.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

import torch

from difformer.baselines.registry import get_system
from difformer.data.registry import load_dataset
from difformer.data.snapshots import TemporalDataset
from difformer.data.split import Split
from difformer.experiments.experiment import Experiment
from difformer.experiments.machine import describe_machine
from difformer.experiments.run import load_run, run_experiment
from difformer.experiments.specs import Cell, load_spec
from difformer.experiments.tune import changed
from difformer.files import write_atomic
from difformer.train.snapshots import Snapshots

__all__ = ["Tried", "lowest", "one_standard_error", "rules", "try_settings"]

LOOP = ("lr", "weight_decay")  # of the training; the others are of the model
MORE = ("ridge", "dropout", "weight_decay")  # the larger, the more regularised
FIRST_SEED = 100  # those of the table start at 0
OUT = Path("results/choices")


@dataclass(frozen=True)
class Tried:
    """One point of the grid and what validation says of it, averaged over seeds.

    Args:
        val: the mean squared error of the validation snapshots.
        error: the standard error of that mean over snapshots.
    """

    settings: dict[str, float]
    val: float
    error: float
    seeds: int


def try_settings(
    experiment: Experiment,
    dataset: TemporalDataset,
    grid: Mapping[str, Sequence[float]],
    *,
    seeds: Sequence[int] = (FIRST_SEED,),
    done: Path | None = None,
) -> list[Tried]:
    """Train at every point of the grid; `done` keeps the points so far, so a search can go on."""
    found = _read(done)
    rows = dataset.split("time")
    blind = replace(rows, test=rows.test[:0])
    for values in product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        if any(tried.settings == point for tried in found):
            continue
        tried = changed(experiment, *_parts(point))
        each = [_validate(replace(tried, seeds=(seed,)), dataset, blind) for seed in seeds]
        errors = mean(error for _, error in each)
        found.append(Tried(point, mean(val for val, _ in each), errors, len(seeds)))
        _write(done, found)
    return found


def _validate(
    experiment: Experiment, dataset: TemporalDataset, split: Split
) -> tuple[float, float]:
    """The validation error of one run, and its standard error over snapshots."""
    with TemporaryDirectory() as folder:
        run_experiment(experiment, dataset=dataset, split=split, folder=folder)
        run = load_run(folder, dataset=dataset)
    assert isinstance(run.dataset, TemporalDataset)
    with torch.no_grad():
        output = Snapshots(run.dataset, split).evaluate_rows(run.model, split.val)
    miss = (output - dataset.y)[split.val].double()
    each = miss.square().reshape(-1, dataset.num_nodes).mean(1)
    return float(each.mean()), float(each.std() / len(each) ** 0.5)


def _parts(settings: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Settings of the model, and of the training."""
    loop = {name: value for name, value in settings.items() if name in LOOP}
    return {name: value for name, value in settings.items() if name not in LOOP}, loop


def lowest(tried: Sequence[Tried]) -> Tried:
    """The point of lowest validation error."""
    return min(tried, key=lambda t: t.val)


def one_standard_error(tried: Sequence[Tried]) -> Tried:
    """The most regularised point whose validation error is within one standard error of the best.

    >>> best = Tried({"lr": 0.05, "weight_decay": 0.0, "dropout": 0.0}, 0.70, 0.03, 3)
    >>> near = Tried({"lr": 0.01, "weight_decay": 0.0, "dropout": 0.2}, 0.72, 0.03, 3)
    >>> far = Tried({"lr": 0.01, "weight_decay": 0.0, "dropout": 0.5}, 0.80, 0.05, 3)
    >>> one_standard_error([best, near, far]) is near
    True
    """
    best = lowest(tried)

    def order(t: Tried) -> tuple[float, ...]:
        return (*(-t.settings.get(name, 0.0) for name in MORE), t.settings.get("lr", 0.0))

    def structure(t: Tried) -> dict[str, float]:
        return {name: v for name, v in t.settings.items() if name not in (*MORE, "lr")}

    alike = [t for t in tried if structure(t) == structure(best)]
    return min((t for t in alike if t.val <= best.val + best.error), key=order)


def _read(done: Path | None) -> list[Tried]:
    if done is None or not done.exists():
        return []
    return [Tried(**item) for item in json.loads(done.read_text(encoding="utf-8"))["tried"]]


def _write(done: Path | None, found: Sequence[Tried]) -> None:
    if done is None:
        return
    content = {
        "command": "python -m difformer.experiments.choose " + done.parent.name,
        "date": time.strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "lowest": asdict(lowest(found)),
        "one_standard_error": asdict(one_standard_error(found)),
        "tried": [asdict(t) for t in found],
    }
    write_atomic(done, json.dumps(content, indent=1) + "\n")


def rules(cell: Cell, tried: Sequence[Tried]) -> str:
    """What was chosen as rules of a spec, a comment before each.

    The lowest error is for the variant that the spec names for it; where that is the cell's own,
    there is no other rule.
    """
    own, best = cell.variant.name, lowest(tried)
    found: list[str] = []
    if cell.variant.lowest is not None:
        found.append(f"# lowest validation error, {best.val:.3f} ± {best.error:.3f}")
        found.append(_rule(cell, cell.variant.lowest, best.settings))
    if cell.variant.lowest != own:
        chosen = one_standard_error(tried)
        found.append(f"# within one standard error of {best.val:.3f}: {chosen.val:.3f}")
        found.append(_rule(cell, own, chosen.settings))
    return "\n".join(found)


def _rule(cell: Cell, variant: str, settings: Mapping[str, float]) -> str:
    own, loop = _parts(settings)
    lines = [
        "[[cells]]",
        f'columns = ["{cell.column.name}"]',
        f'systems = ["{cell.system}"]',
        f'variants = ["{variant}"]',
        *([f"model = {_inline(own)}"] if own else []),
        *([f"train = {_inline(loop)}"] if loop else []),
    ]
    return "\n".join(lines)


def _inline(values: Mapping[str, float]) -> str:
    return "{ " + ", ".join(f"{k} = {float(v)}" for k, v in values.items()) + " }"


def main() -> None:
    """Try every cell that is asked for, going on where an earlier call stopped."""
    parser = argparse.ArgumentParser(prog="python -m difformer.experiments.choose")
    parser.add_argument("spec")
    for name in ("--columns", "--systems", "--variants"):
        parser.add_argument(name, nargs="+")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    spec = load_spec(given.spec)
    cells = spec.cells(systems=given.systems, columns=given.columns, variants=given.variants)
    seeds = range(FIRST_SEED, FIRST_SEED + given.seeds)
    for cell in cells:
        if not cell.variant.choose or not get_system(cell.system).space:
            continue  # the spec leaves nothing to choose, or nothing of the system can be
        data = load_dataset(cell.column.dataset)
        assert isinstance(data, TemporalDataset)
        (experiment,) = cell.experiments()
        done = OUT / spec.name / f"{cell.name}.json"
        tried = try_settings(experiment, data, cell.variant.choose, seeds=seeds, done=done)
        print(rules(cell, tried), flush=True)


if __name__ == "__main__":
    main()
