"""One page for several runs: their results side by side, and the settings that differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from difformer.blocks import (
    Note,
    Plot,
    Section,
    Table,
    axis,
    dots,
    mean_std,
    number,
)
from difformer.report.page import write_page
from difformer.runs.run import differing_settings, summary
from difformer.train.folder import Run


def write_runs(runs: Sequence[Run], path: Path | str) -> Path:
    """Write the list, a plot per metric that several runs share, and the settings that differ."""
    counts = Counter(run.headline for run in runs if run.headline is not None)
    plots: list[Any] = [_plot(runs, *pair) for pair, count in counts.items() if count > 1]
    none = "No two runs have a metric in common." if counts else "No run has a result yet."
    sections = [
        Section("runs", "Runs", [runs_table(runs)]),
        Section("results", "Results", plots or [Note(none, missing=not counts)]),
        Section("differing", "Settings that differ", [differing_table(runs)]),
    ]
    return write_page(path, f"{len(runs)} runs", sections)


def runs_table(runs: Sequence[Run]) -> Table:
    """One line per run: what it is, its figure and what it cost."""
    rows: list[list[str]] = []
    for i, run in enumerate(runs, 1):
        line = summary(run)
        what = "–" if line["metric"] is None else f"{line['part']} {line['metric']}"
        figure = mean_std(line["mean"], line["std"])
        cost = (number(line["fits"]), number(line["seconds"], 3), str(line["date"]))
        about = (line["kind"], line["title"], line["state"], what, figure)
        rows.append([f"{i}: {line['run']}", *about, *cost])
    header = ["run", "kind", "what", "state", "metric", "mean ± deviation", "fits", "s", "date"]
    return Table("Every run that was found; the deviation is over its fits.", header, rows)


def _plot(runs: Sequence[Run], part: str, metric: str) -> Plot:
    shown = [(i, run) for i, run in enumerate(runs, 1) if run.headline == (part, metric)]
    words = [f"run {i}: {mean_std(*run.mean_std(part, metric))}" for i, run in shown]
    name = f"{part} {metric}".replace("_", " ")
    values = {f"{i}: {run.title}": run.values(part, metric) for i, run in shown}
    fits = {title: [(f"fit {k}", v) for k, v in enumerate(m, 1)] for title, m in values.items()}
    return Plot(
        name=f"runs-{part}-{metric}",
        caption=f"{name.capitalize()}: one point per fit.",
        alt=f"Dot plot of {name}; {'; '.join(words)}.",
        data=dots(fits),
        layout={"xaxis": axis(name)},
    )


def differing_table(runs: Sequence[Run]) -> Table | Note:
    """The settings that differ: one line per setting, one column per run."""
    found = differing_settings(runs)
    if not found:
        return Note("The runs have the same settings.")
    rows = [[k, *("–" if v is None else str(v) for v in values)] for k, values in found.items()]
    header = ["setting", *(f"run {i}" for i in range(1, len(runs) + 1))]
    caption = "Settings that differ; a dash is a setting that a run does not have."
    return Table(caption, header, rows)
