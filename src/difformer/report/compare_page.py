"""report.html of a comparison: who is best, by how much on the same splits, and at what cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from difformer.errors import RunError
from difformer.experiments.kinds import COMPARISON
from difformer.report.blocks import COLOURS, Note, Plot, Section, Table, number, plain
from difformer.report.page import write_page

__all__ = ["comparison_sections", "write_comparison"]

PERCENT = ("accuracy", "roc_auc", "macro_f1")
JOIN = "\N{NO-BREAK SPACE}"  # keeps a figure and its deviation on one line


def write_comparison(folder: Path | str, out: Path | str | None = None) -> Path:
    """Write the page of the comparison.json that `difformer compare --out FOLDER` left."""
    folder = Path(folder)
    try:
        record = json.loads((folder / COMPARISON).read_text(encoding="utf-8"))
        title = f"Comparison on {record['dataset']}"
        sections = comparison_sections(record)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{folder / COMPARISON} cannot be read ({error}): compare again") from error
    path = folder / "report.html" if out is None else Path(out)
    subtitle = f"{_metric(record)}, {len(record['splits'])} splits, the same for every system."
    return write_page(path, title, sections, subtitle=subtitle)


def comparison_sections(record: Mapping[str, Any]) -> list[Section]:
    """Verdict, results with paired differences, every split, cost, and how it was run."""
    # A difference to the best is at most zero, for metrics of either direction.
    rows = sorted(record["rows"], key=lambda r: (r["mean"] is None, -_lead(r)))
    ran = [r for r in rows if r["mean"] is not None]
    verdict = [Note(str(line)) for line in record.get("verdict", [])]
    remarks = [f"{r['title']}: {remark}." for r in rows if (remark := _remark(r))]
    results: list[Any] = [_table(record, rows), *(Note(text, missing=True) for text in remarks)]
    if ran:
        results += [_plot(record, ran), _differences(record, ran)]
    return [
        Section("verdict", "Which is enough", verdict or [Note("There is no verdict.")]),
        Section("results", "Results", results),
        Section("splits", "Every split", [_splits(record, ran)]),
        Section("cost", "What it cost", [_cost(rows)]),
        Section("settings", "How it was run", [_how(record)]),
    ]


def _scale(record: Mapping[str, Any]) -> float:
    return 100.0 if record["metric"] in PERCENT else 1.0


def _metric(record: Mapping[str, Any]) -> str:
    unit = ", %" if _scale(record) == 100 else ""
    return f"Test {str(record['metric']).replace('_', ' ')}{unit}"


def _value(record: Mapping[str, Any], value: float, sign: str = "") -> str:
    """A percentage with one decimal, so that columns of figures are easy to compare."""
    return f"{100 * value:{sign}.1f}" if _scale(record) == 100 else f"{value:{sign}.4g}"


def _figure(record: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    if row["mean"] is None:
        return "–"
    std = "" if row.get("std") is None else f"{JOIN}±{JOIN}{_value(record, row['std'])}"
    return _value(record, row["mean"]) + std


def _behind(record: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    found = row.get("behind_best")
    if not found or (found["mean"] == 0 and found["low"] in (0, None)):
        return "best" if found else "–"
    text = _value(record, found["mean"], "+")
    if found["low"] is None:
        return text
    return f"{text} [{_value(record, found['low'])},{JOIN}{_value(record, found['high'])}]"


def _table(record: Mapping[str, Any], rows: list[dict[str, Any]]) -> Table:
    cells = [
        [r["title"], _figure(record, r), _behind(record, r), number(len(r["runs"]))] for r in rows
    ]
    header = ["system", _metric(record).lower(), "paired difference to the best", "splits"]
    caption = "Mean ± sample deviation over splits; differences on the same splits, 95 % interval."
    return Table(caption, header, cells)


def _remark(row: Mapping[str, Any]) -> str:
    if row.get("cannot"):
        return str(row["cannot"])
    errors = row.get("errors") or {}
    return "; ".join(f"{split}: {what}" for split, what in list(errors.items())[:2])


def _plot(record: Mapping[str, Any], rows: list[dict[str, Any]]) -> Plot:
    scale = _scale(record)
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [
                run["test"] * scale for run in row["runs"].values() if run.get("test") is not None
            ],
            "y": [plain(row["title"])] * len(row["runs"]),
            "text": [plain(split) for split in row["runs"]],
            "name": plain(row["title"]),
            "showlegend": False,
            "marker": {"color": COLOURS[i % len(COLOURS)], "size": 9, "opacity": 0.7},
            "hovertemplate": "%{y}, %{text}: %{x:.4g}<extra></extra>",
        }
        for i, row in enumerate(reversed(rows))
    ]
    best = rows[0]
    return Plot(
        name="every-run",
        caption=f"{_metric(record)}: one point per split.",
        alt=f"Dot plot of every system's runs; the best is {best['title']}, "
        f"{_figure(record, best)}.",
        data=data,
        layout={"xaxis": {"title": {"text": plain(_metric(record).lower())}}},
    )


def _differences(record: Mapping[str, Any], rows: list[dict[str, Any]]) -> Plot:
    scale = _scale(record)
    known = [r for r in reversed(rows) if r.get("behind_best")]
    low = [(r["behind_best"]["mean"] - (_or(r, "low"))) * scale for r in known]
    high = [((_or(r, "high")) - r["behind_best"]["mean"]) * scale for r in known]
    return Plot(
        name="differences",
        caption="Paired difference to the best, with its 95 % interval: left of zero is worse.",
        alt="Dot plot of paired differences: "
        + "; ".join(f"{r['title']} {_behind(record, r)}" for r in reversed(known)),
        data=[
            {
                "type": "scatter",
                "mode": "markers",
                "x": [r["behind_best"]["mean"] * scale for r in known],
                "y": [plain(r["title"]) for r in known],
                "error_x": {"type": "data", "array": high, "arrayminus": low, "symmetric": False},
                "marker": {"color": COLOURS[0], "size": 9},
                "hovertemplate": "%{y}: %{x:.3g}<extra></extra>",
            }
        ],
        layout={"xaxis": {"title": {"text": "difference to the best"}, "zeroline": True}},
    )


def _lead(row: Mapping[str, Any]) -> float:
    found = row.get("behind_best")
    return found["mean"] if found else 0.0


def _or(row: Mapping[str, Any], end: str) -> float:
    found = row["behind_best"]
    return found["mean"] if found[end] is None else found[end]


def _splits(record: Mapping[str, Any], rows: list[dict[str, Any]]) -> Table:
    cells: list[list[str]] = []
    for split in record["splits"]:
        values = [r["runs"].get(split, {}).get("test") for r in rows]
        cells.append([split, *("–" if v is None else _value(record, v) for v in values)])
    return Table(f"{_metric(record)} of every run.", ["split", *(r["title"] for r in rows)], cells)


def _cost(rows: list[dict[str, Any]]) -> Table:
    cells = [
        [
            r["title"],
            number(r.get("seconds"), 3),
            number(r["memory"] / 2**20, 3) if r.get("memory") else "–",
        ]
        for r in rows
    ]
    return Table(
        "Mean training time of a run, and the most memory above an idle process.",
        ["system", "seconds per run", "MB"],
        cells,
    )


def _how(record: Mapping[str, Any]) -> Table:
    machine = record.get("machine") or {}
    rows = [
        ["command", str(record.get("command", "–"))],
        ["date", str(record.get("date", "–"))],
        ["settings tried per system and split", number(record.get("trials"))],
        *([str(key), str(value)] for key, value in machine.items()),
    ]
    return Table("The command and the machine.", ["what", "value"], rows)
