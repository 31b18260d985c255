"""Pick the settings of the cells of a spec by validation; the test rows play no part in it.

python -m difformer_paper.choose table5 --columns covid --seeds 3

searches every cell for which the spec says what to choose, writes results/choices/table5/CELL.json,
and prints the rules for the spec: the settings of the lowest error and those of the
one-standard-error rule (`TuneResult.simplest`), each for the variant that takes them. It tries the
whole grid, or, where the cell has a budget, that many settings: the cell as it stands, then points
of the grid in random order. One run per setting can mislead, so with a budget the choice is
compared once more with the cell as it stands, by the runs of the table and validation alone.
The better one's runs become the table's result. If that is the choice, add the printed rule to
the spec, or `reproduce` reports a result with other settings.
"""

from __future__ import annotations

import argparse
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from difformer.compare.tune import Grid, Trial, TuneResult, tune
from difformer.files import json_text, write_json
from difformer.jobs.rows import load_data
from difformer.machine import commit, describe_machine
from difformer.systems.registry import get_system
from difformer.train.settings import TrainSettings
from difformer_paper.measure import measure_cell, result_path
from difformer_paper.specs import SELECTORS, Cell, Spec, load_spec

FIRST_SEED = 100  # those of the table start at 0
MEASURED = Path("results")
OUT = MEASURED / "choices"


def choose(
    spec: Spec, cell: Cell, *, seeds: int, out: Path = OUT, measured: Path = MEASURED
) -> TuneResult:
    """Search the grid of a cell, resuming an interrupted search, and store the result.

    With a budget, returns the comparison of the choice with the cell as it stands.

    Args:
        measured: where the results of the tables are; gets the runs of the comparison.
    """
    (experiment,) = cell.experiments()
    experiment = replace(experiment, seeds=tuple(range(FIRST_SEED, FIRST_SEED + seeds)))
    path = out / spec.name / f"{cell.name}.json"
    storage, beside = path.with_suffix(".sqlite"), path.with_suffix(".runs")
    loop = TrainSettings.__dataclass_fields__
    grid: Grid = {f"{'train' if n in loop else 'model'}.{n}": v for n, v in cell.choose.items()}
    result = tune(experiment, trials=cell.budget, search=grid, storage=storage)
    words = ["python -m difformer_paper.choose", spec.name, "--systems", cell.system, "--columns"]
    words += [cell.column, "--variants", cell.variant, "--protocols", cell.protocol]
    content = {
        "command": " ".join([*words, "--seeds", str(seeds)]),
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "machine": describe_machine(),
        "lowest": _record(result.best, seeds),
        "one_standard_error": _record(result.simplest, seeds),
        "tried": [_record(trial, seeds) for trial in result.trials],
    }
    if cell.budget is None or not result.simplest.settings:
        write_json(path, content, indent=1)
    else:
        result = _confirmed(spec, cell, result, measured, beside)
        content["confirmed"] = [_record(trial, len(cell.seeds)) for trial in result.trials]
        write_json(path, content, indent=1)
        # Only now: a process killed before this line can go on from what it kept.
        if result.simplest.settings:
            result_path(beside, spec, cell).replace(result_path(measured, spec, cell))
        shutil.rmtree(beside)
    storage.unlink()
    return result


def _confirmed(
    spec: Spec, cell: Cell, result: TuneResult, measured: Path, beside: Path
) -> TuneResult:
    """Compare the choice with the cell as it stands, each by the runs that the table asks for.

    The runs of the choice are kept in `beside`.
    """
    choice, data = result.simplest, load_data(result.experiment)
    changed = replace(
        cell, model={**cell.model, **choice.model}, train={**cell.train, **choice.train}
    )
    trials: list[Trial] = []
    for one, out, trial in [(cell, measured, Trial(-1, {}, {}, None)), (changed, beside, choice)]:
        table, interrupted = measure_cell(spec, one, out, dataset=lambda _: data)
        if interrupted:
            raise KeyboardInterrupt
        value = round(table.mean(result.metric, "val"), 6)
        trials.append(replace(trial, value=value, standard_error=None))
    return replace(result, trials=tuple(trials))


def _record(trial: Trial, seeds: int) -> dict[str, Any]:
    settings = {**trial.model, **trial.train}
    error = trial.standard_error
    return {"settings": settings, "val": trial.value, "error": error, "seeds": seeds}


def rules(cell: Cell, result: TuneResult) -> str:
    """The chosen settings as rules of a spec, each after a comment.

    The lowest error is for the variant that the spec names for it; where that is the cell's own,
    there is no other rule.
    """
    best, chosen = result.best, result.simplest
    found: list[str] = []
    if cell.lowest is not None:
        found.append(f"# lowest validation error, {best.value:.3f} ± {best.standard_error:.3f}")
        found += _rule(cell, cell.lowest, best)
    if cell.lowest != cell.variant and chosen.settings:
        found.append(f"# within one standard error of {best.value:.3f}: {chosen.value:.3f}")
        found += _rule(cell, cell.variant, chosen)
    return "\n".join(found)


def _rule(cell: Cell, variant: str, trial: Trial) -> list[str]:
    names = {"columns": cell.column, "systems": cell.system, "variants": variant}
    lines = ["[[cells]]", *(f'{key} = ["{name}"]' for key, name in names.items())]
    for key, values in (("model", trial.model), ("train", trial.train)):
        if values:
            told = ", ".join(f"{k} = {json_text(v)}" for k, v in values.items())
            lines.append(f"{key} = {{ {told} }}")
    return lines


def main() -> None:
    """Search every cell that is asked for and print its rules."""
    parser = argparse.ArgumentParser(prog="python -m difformer_paper.choose")
    parser.add_argument("spec")
    for name in SELECTORS:
        parser.add_argument(f"--{name}", nargs="+")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    spec = load_spec(given.spec)
    for cell in spec.cells(**{name: getattr(given, name) for name in SELECTORS}):
        if cell.choose and get_system(cell.system).space:
            print(rules(cell, choose(spec, cell, seeds=given.seeds)), flush=True)


if __name__ == "__main__":
    main()
