"""Pages of what stands side by side: a comparison of systems on the same splits, several runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from difformer.blocks import (
    Note,
    Plot,
    Section,
    Table,
    axis,
    colour,
    mean_std,
    number,
    plain,
    scatter,
)
from difformer.compare.comparison import Comparison, Row, read_comparison, verdict
from difformer.files import counted
from difformer.machine import commit_of
from difformer.report.page import write_page
from difformer.runs.run import COMPARISON, differing_settings, summary
from difformer.train.folder import Run

JOIN = "\N{NO-BREAK SPACE}"  # keeps a figure with its deviation or interval on one line


def write_comparison(folder: Path | str, out: Path | str | None = None) -> Path:
    """Write the page of the comparison.json that `difformer compare --out FOLDER` left."""
    folder = Path(folder)
    result, record = read_comparison(folder / COMPARISON)
    rows = result.listed()
    ran = [row for row in rows if row.values("test")]
    remarks = [f"{row.title}: {remark}." for row in rows if (remark := result.remark(row))]
    results: list[Any] = [_scores(result, rows), *(Note(text, missing=True) for text in remarks)]
    if ran:
        results += [_points(result, ran), _differences(result, ran)]
    sections = [
        Section("verdict", "Which is enough", [Note(line) for line in verdict(result)]),
        Section("results", "Results", results),
        Section("splits", "Every split", [_splits(result, ran)]),
        Section("cost", "What it cost", [_cost(rows)]),
        Section("settings", "How it was run", [_how(record)]),
    ]
    subtitle = (
        f"{_metric(result)}, {counted(len(result.splits), 'split')}, the same for every system."
    )
    title = f"Comparison on {result.dataset}"
    return write_page(out or folder / "report.html", title, sections, subtitle=subtitle)


def _metric(result: Comparison) -> str:
    unit = ", %" if result.unit[0] == 100 else ""
    return f"Test {result.metric.replace('_', ' ')}{unit}"


def _scores(result: Comparison, rows: Sequence[Row]) -> Table:
    cells: list[list[str]] = []
    for row in rows:
        figure = result.figure(row).replace(" ", JOIN)
        behind = result.behind_text(row).replace(", ", f",{JOIN}")
        cells.append([row.title, figure, behind, number(len(row.runs))])
    header = ["system", _metric(result).lower(), "paired difference to the best", "splits"]
    caption = "Mean ± sample deviation over splits; differences on the same splits, 95 % interval."
    return Table(caption, header, cells)


def _points(result: Comparison, rows: Sequence[Row]) -> Plot:
    scale, _ = result.unit
    alt = f"Dot plot of every system's runs; the best is {rows[0].title}, {result.figure(rows[0])}."
    tests = {row.title: [(s, v * scale) for s, v in row.values("test").items()] for row in rows}
    return _dots("every-run", f"{_metric(result)}: one point per split.", alt, tests)


def _dots(
    name: str, caption: str, alt: str, groups: Mapping[str, Sequence[tuple[str, float]]]
) -> Plot:
    """One row of named dots per system or run, the first at the top.

    The caption begins with what they measure.
    """
    data = [
        scatter(
            [value for _, value in named],
            [plain(title)] * len(named),
            "markers",
            text=[plain(name) for name, _ in named],
            showlegend=False,
            marker={"color": colour(i), "size": 9, "opacity": 0.7},
            hovertemplate="%{y}, %{text}: %{x:.4g}<extra></extra>",
        )
        for i, (title, named) in enumerate(reversed(list(groups.items())))
    ]
    return Plot(name, caption, alt, data, {"xaxis": axis(caption.partition(":")[0].lower())})


def _differences(result: Comparison, rows: Sequence[Row]) -> Plot:
    scale, _ = result.unit
    known = [(row, gap) for row in reversed(rows) if (gap := result.behind(row)) is not None]
    low = [0.0 if gap.low is None else (gap.mean - gap.low) * scale for _, gap in known]
    high = [0.0 if gap.high is None else (gap.high - gap.mean) * scale for _, gap in known]
    data = scatter(
        [gap.mean * scale for _, gap in known],
        [plain(row.title) for row, _ in known],
        "markers",
        error_x={"type": "data", "array": high, "arrayminus": low, "symmetric": False},
        marker={"color": colour(0), "size": 9},
        hovertemplate="%{y}: %{x:.3g}<extra></extra>",
    )
    words = [f"{row.title} {result.behind_text(row)}" for row, _ in reversed(known)]
    return Plot(
        name="differences",
        caption="Paired difference to the best, with its 95 % interval: left of zero is worse.",
        alt=f"Dot plot of paired differences: {'; '.join(words)}",
        data=[data],
        layout={"xaxis": axis("difference to the best", zeroline=True)},
    )


def _splits(result: Comparison, rows: Sequence[Row]) -> Table:
    scale, digits = result.unit
    cells: list[list[str]] = []
    for split in result.splits:
        values = [row.values("test").get(split) for row in rows]
        cells.append([split, *("–" if v is None else f"{v * scale:.{digits}f}" for v in values)])
    return Table(f"{_metric(result)} of every run.", ["split", *(r.title for r in rows)], cells)


def _cost(rows: Sequence[Row]) -> Table:
    sizes = [None if row.memory is None else row.memory / 2**20 for row in rows]
    caption = "Mean training time of a run, and the most memory above an idle process."
    times = [(row.title, number(row.seconds, 3)) for row in rows]
    cells = [[*each, number(size, 3)] for each, size in zip(times, sizes, strict=True)]
    return Table(caption, ["system", "seconds per run", "MB"], cells)


def _how(record: Mapping[str, Any]) -> Table:
    machine = record.get("machine") or {}
    rows = [
        ["command", str(record.get("command", "–"))],
        ["date", str(record.get("date", "–"))],
        ["commit", commit_of(record).removeprefix("commit ")],
        ["settings tried per system and split", number(record.get("trials"))],
        *([str(key), str(value)] for key, value in machine.items()),
    ]
    return Table("The command and the machine.", ["what", "value"], rows)


def write_runs(runs: Sequence[Run], path: Path | str) -> Path:
    """Write the list, a plot per metric that several runs share, and the settings that differ."""
    counts = Counter(run.headline for run in runs if run.headline is not None)
    plots: list[Any] = [_fits(runs, *pair) for pair, count in counts.items() if count > 1]
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


def _fits(runs: Sequence[Run], part: str, metric: str) -> Plot:
    shown = [(i, run) for i, run in enumerate(runs, 1) if run.headline == (part, metric)]
    words = [f"run {i}: {mean_std(*run.mean_std(part, metric))}" for i, run in shown]
    name = f"{part} {metric}".replace("_", " ")
    values = {f"{i}: {run.title}": run.values(part, metric) for i, run in shown}
    fits = {title: [(f"fit {k}", v) for k, v in enumerate(m, 1)] for title, m in values.items()}
    caption = f"{name.capitalize()}: one point per fit."
    return _dots(f"runs-{part}-{metric}", caption, f"Dot plot of {name}; {'; '.join(words)}.", fits)


def differing_table(runs: Sequence[Run]) -> Table | Note:
    """The settings that differ: one line per setting, one column per run."""
    found = differing_settings(runs)
    if not found:
        return Note("The runs have the same settings.")
    rows = [[k, *("–" if v is None else str(v) for v in values)] for k, values in found.items()]
    header = ["setting", *(f"run {i}" for i in range(1, len(runs) + 1))]
    caption = "Settings that differ; a dash is a setting that a run does not have."
    return Table(caption, header, rows)
