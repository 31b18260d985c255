"""One page for several runs: their results side by side, and the settings that differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from difformer.experiments.runs import Run, differing_settings
from difformer.report.blocks import COLOURS, Note, Plot, Section, Table, mean_std, number, plain
from difformer.report.page import write_page

__all__ = ["runs_sections", "write_runs"]


def write_runs(runs: Sequence[Run], path: Path | str) -> Path:
    """Write the page of a list of runs."""
    return write_page(path, f"{len(runs)} runs", runs_sections(runs))


def runs_sections(runs: Sequence[Run]) -> list[Section]:
    """The list, one plot per metric that several runs share, and the settings that differ."""
    counts = Counter(run.headline for run in runs if run.headline is not None)
    plots: list[Any] = [_plot(runs, *pair) for pair, count in counts.items() if count > 1]
    none = "No two runs have a metric in common." if counts else "No run has a result yet."
    return [
        Section("runs", "Runs", [_list(runs)]),
        Section("results", "Results", plots or [Note(none, missing=not counts)]),
        Section("differing", "Settings that differ", [_settings(runs)]),
    ]


def _list(runs: Sequence[Run]) -> Table:
    rows: list[list[str]] = []
    for i, run in enumerate(runs, 1):
        line = run.summary()
        what = "–" if line["metric"] is None else f"{line['part']} {line['metric']}"
        figure = mean_std(line["mean"], line["std"])
        cost = (number(line["fits"]), number(line["seconds"], 3), str(line["date"]))
        about = (line["kind"], line["title"], line["state"], what, figure)
        rows.append([f"{i}: {line['run']}", *about, *cost])
    header = ["run", "kind", "what", "state", "metric", "mean ± deviation", "fits", "s", "date"]
    return Table("Every run that was found; the deviation is over its fits.", header, rows)


def _plot(runs: Sequence[Run], part: str, metric: str) -> Plot:
    data: list[dict[str, Any]] = []
    words: list[str] = []
    for i, run in enumerate(runs, 1):
        values = run.values(part, metric)
        if run.headline == (part, metric):
            words.append(f"run {i}: {mean_std(*run.mean_std(part, metric))}")
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "x": values,
                    "y": [plain(f"{i}: {run.title}")] * len(values),
                    "showlegend": False,
                    "marker": {"color": COLOURS[i % len(COLOURS)], "size": 9, "opacity": 0.7},
                }
            )
    name = f"{part} {metric}".replace("_", " ")
    return Plot(
        name=f"runs-{part}-{metric}",
        caption=f"{name.capitalize()}: one point per fit.",
        alt=f"Dot plot of {name}; {'; '.join(words)}.",
        data=data,
        layout={"xaxis": {"title": {"text": plain(name)}}},
    )


def _settings(runs: Sequence[Run]) -> Table | Note:
    found = differing_settings(runs)
    if not found:
        return Note("The runs have the same settings.")
    rows = [[k, *("–" if v is None else str(v) for v in values)] for k, values in found.items()]
    header = ["setting", *(f"run {i}" for i in range(1, len(runs) + 1))]
    return Table("A dash is a setting that a run does not have.", header, rows)
