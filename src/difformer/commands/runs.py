"""difformer runs: a list of runs, and what tells them apart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from difformer.commands.output import print_json, print_table
from difformer.commands.shared import Json, argument, option
from difformer.experiments.tables import EMPTY, Table

if TYPE_CHECKING:
    from difformer.experiments.runs import Run

MOST_COMPARED = 8  # runs whose settings fit side by side in a terminal


def command(
    paths: Annotated[
        list[Path] | None, argument("[PATH]...", "Run folders, or folders of runs. [runs]")
    ] = None,
    out: Annotated[
        Path | None, option("--out", "-o", metavar="FILE.html", help="Also write a page.")
    ] = None,
    json: Json = False,
) -> None:
    """List runs of every kind, and compare them: results, cost, and the settings that differ.

    Example: difformer runs runs/cora-difformer-s-1 runs/cora-gcn-1 --out runs.html

    A run is a folder of train or compare, or a result file of reproduce.
    """
    from difformer.experiments.runs import differing_settings, find_runs

    found = [run for path in paths or [Path("runs")] for run in find_runs(path)]
    if not found:
        raise ValueError(
            f"PATH must hold a run, none is in {', '.join(map(str, paths or ['runs']))}"
        )
    if out is not None:
        from difformer.report import write_runs

        write_runs(found, out)
    if json:
        listed = [run.summary() for run in found]
        return print_json({"runs": listed, "differing": differing_settings(found)})
    print_table(_list(found))
    if paths is not None and 1 < len(found) <= MOST_COMPARED:
        print_table(_differing(differing_settings(found), found), "Settings that differ")
    return None if out is None else print(f"look at {out}")


def _list(runs: list[Run]) -> Table:
    rows: list[tuple[str, ...]] = []
    for number, run in enumerate(runs, 1):
        line = run.summary()
        figure = EMPTY if line["mean"] is None else f"{line['mean']:.4f}"
        figure += "" if line["std"] is None else f" ± {line['std']:.4f}"
        what = "" if line["metric"] is None else f"{line['part']} {line['metric']}"
        seconds = EMPTY if line["seconds"] is None else f"{line['seconds']:.1f}"
        cells = (line["run"], line["kind"], line["title"], line["state"], what, figure)
        rows.append((str(number), *cells, str(line["fits"]), seconds, str(line["date"])))
    header = ("", "Run", "Kind", "What", "State", "Metric", "Mean ± std", "Fits", "s", "Date")
    return Table(header, tuple(rows))


def _differing(settings: dict[str, list[Any]], runs: list[Run]) -> Table:
    rows = [
        (name, *(EMPTY if value is None else str(value) for value in values))
        for name, values in settings.items()
    ]
    return Table(("Setting", *(str(n) for n in range(1, len(runs) + 1))), tuple(rows))
