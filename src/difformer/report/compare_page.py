"""report.html of a comparison: who is best, by how much on the same splits, and at what cost."""

from __future__ import annotations

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
    dots,
    number,
    plain,
    scatter,
)
from difformer.compare.comparison import (
    Comparison,
    Row,
    read_comparison,
    verdict,
)
from difformer.files import counted
from difformer.machine import commit_of
from difformer.report.page import write_page
from difformer.runs.run import COMPARISON

JOIN = "\N{NO-BREAK SPACE}"  # keeps a figure with its deviation or interval on one line


def write_comparison(folder: Path | str, out: Path | str | None = None) -> Path:
    """Write the page of the comparison.json that `difformer compare --out FOLDER` left."""
    folder = Path(folder)
    result, record = read_comparison(folder / COMPARISON)
    rows = result.listed()
    ran = [row for row in rows if row.values("test")]
    remarks = [f"{row.title}: {remark}." for row in rows if (remark := result.remark(row))]
    results: list[Any] = [_table(result, rows), *(Note(text, missing=True) for text in remarks)]
    if ran:
        results += [_plot(result, ran), _differences(result, ran)]
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


def _table(result: Comparison, rows: Sequence[Row]) -> Table:
    cells: list[list[str]] = []
    for row in rows:
        figure = result.figure(row).replace(" ", JOIN)
        behind = result.behind_text(row).replace(", ", f",{JOIN}")
        cells.append([row.title, figure, behind, number(len(row.runs))])
    header = ["system", _metric(result).lower(), "paired difference to the best", "splits"]
    caption = "Mean ± sample deviation over splits; differences on the same splits, 95 % interval."
    return Table(caption, header, cells)


def _plot(result: Comparison, rows: Sequence[Row]) -> Plot:
    scale, _ = result.unit
    tests = {row.title: row.values("test").items() for row in rows}
    return Plot(
        name="every-run",
        caption=f"{_metric(result)}: one point per split.",
        alt=f"Dot plot of every system's runs; the best is {rows[0].title}, "
        f"{result.figure(rows[0])}.",
        data=dots({title: [(s, v * scale) for s, v in each] for title, each in tests.items()}),
        layout={"xaxis": axis(_metric(result).lower())},
    )


def _differences(result: Comparison, rows: Sequence[Row]) -> Plot:
    scale, _ = result.unit
    known = [(row, gap) for row in reversed(rows) if (gap := result.behind(row)) is not None]
    low = [0.0 if gap.low is None else (gap.mean - gap.low) * scale for _, gap in known]
    high = [0.0 if gap.high is None else (gap.high - gap.mean) * scale for _, gap in known]
    return Plot(
        name="differences",
        caption="Paired difference to the best, with its 95 % interval: left of zero is worse.",
        alt="Dot plot of paired differences: "
        + "; ".join(f"{row.title} {result.behind_text(row)}" for row, _ in reversed(known)),
        data=[
            scatter(
                [gap.mean * scale for _, gap in known],
                [plain(row.title) for row, _ in known],
                "markers",
                error_x={"type": "data", "array": high, "arrayminus": low, "symmetric": False},
                marker={"color": colour(0), "size": 9},
                hovertemplate="%{y}: %{x:.3g}<extra></extra>",
            )
        ],
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
    return Table(
        "Mean training time of a run, and the most memory above an idle process.",
        ["system", "seconds per run", "MB"],
        [[r.title, number(r.seconds, 3), number(mb, 3)] for r, mb in zip(rows, sizes, strict=True)],
    )


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
