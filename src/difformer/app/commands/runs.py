"""difformer runs: list runs, and the settings in which they differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from difformer.app import options as shared
from difformer.app.options import argument
from difformer.app.output import print_blocks, print_json

MOST_COMPARED = 8  # runs whose settings fit side by side in a terminal


def command(
    paths: Annotated[
        list[Path] | None, argument("[PATH]...", "Run folders, or folders of runs. [runs]")
    ] = None,
    out: Annotated[Path | None, shared.out("FILE.html", "Also write a page.")] = None,
    json: shared.Json = False,
) -> None:
    """List runs of every kind, and compare them: results, cost, and the settings that differ.

    Example: difformer runs runs/cora-difformer-s-1 runs/cora-gcn-1 --out runs.html

    A run is a folder of train or compare, or a result file of reproduce.
    """
    from difformer.report.runs_page import differing_table, runs_table, write_runs
    from difformer.runs.run import differing_settings, find_runs, summary

    found = [run for path in paths or [Path("runs")] for run in find_runs(path)]
    if not found:
        raise ValueError(
            f"PATH must hold a run, none is in {', '.join(map(str, paths or ['runs']))}"
        )
    if out is not None:
        write_runs(found, out)
    if json:
        listed = [summary(run) for run in found]
        return print_json({"runs": listed, "differing": differing_settings(found)})
    print_blocks([runs_table(found)])
    if paths is not None and 1 < len(found) <= MOST_COMPARED:
        print_blocks([differing_table(found)])
    return None if out is None else print(f"look at {out}")
