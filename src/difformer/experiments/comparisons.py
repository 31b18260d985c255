"""A comparison as a table, from a run of it or from the file it left. No torch here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from difformer.errors import RunError
from difformer.experiments.compare import Comparison, Row
from difformer.experiments.statistics import spread
from difformer.experiments.tables import EMPTY, Table, markdown
from difformer.experiments.verdict import verdict

__all__ = ["comparison_block", "comparison_table", "read_comparison"]


ALSO = {"log_loss": "Log loss", "ece": "Calibration error"}  # of classes only


def comparison_table(result: Comparison) -> Table:
    """The systems, best first; those that did not run on every split below, with the reason."""
    ranked = result.ranked()
    rest = [row for row in result.rows if row not in ranked]
    percent = result.metric in ("accuracy", "roc_auc", "macro_f1")
    scale, digits = (100.0, 1) if percent else (1.0, 4)
    also = [key for key in ALSO if any(row.values(key) for row in result.rows)]
    rows: list[tuple[str, ...]] = []
    for row in [*ranked, *rest]:
        test = list(row.values("test").values())
        figure = EMPTY
        if test:
            mean, std = spread(test)
            figure = f"{mean * scale:.{digits}f}"
            figure += "" if std is None else f" ± {std * scale:.{digits}f}"
        behind = "best" if ranked and row is ranked[0] else EMPTY
        if test and ranked and row is not ranked[0]:
            behind = result.difference(row, ranked[0]).shown(scale, digits)
        seconds = EMPTY if row.seconds is None else f"{row.seconds:.1f}"
        memory = EMPTY if row.memory is None else f"{row.memory / 2**20:.0f}"
        more = (_mean(row, key) for key in also)
        rows.append((row.title, figure, behind, *more, seconds, memory, _remark(result, row)))
    titles = (ALSO[key] for key in also)
    header = ("Model", "Test", "Paired difference to the best", *titles, "s per run", "MB", "")
    notes = (
        "Differences are over the same splits, with a 95 % interval; MB is the most memory "
        "above an idle process.",
    )
    return Table(header, tuple(rows), notes)


def comparison_block(path: Path) -> str:
    """What a page shows of a comparison.json: its table, its verdict, and how it was made."""
    result, record = read_comparison(path)
    machine = record["machine"]
    how = (
        f"`{record['command']}`: {len(result.splits)} splits, the same for all systems, "
        f"{machine['cores']} cores, {machine['memory_gb']} GB, torch {machine['torch']}, "
        f"{record['date']}."
    )
    told = "\n".join(f"- {line}" for line in verdict(result))
    return f"{markdown(comparison_table(result))}\n\n{told}\n\n{how}"


def read_comparison(path: Path) -> tuple[Comparison, Mapping[str, Any]]:
    """The comparison in a comparison.json, and all that the file says."""
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        known = [f.name for f in fields(Row)]
        rows = tuple(Row(**{k: row[k] for k in known}) for row in record["rows"])
        result = Comparison(
            dataset=record["dataset"],
            metric=record["metric"],
            direction=record["direction"],
            splits=tuple(record["splits"]),
            trials=record["trials"],
            rows=rows,
            has_graph=record["has_graph"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"cannot read the comparison {path}: {error}") from error
    return result, record


def _mean(row: Row, key: str) -> str:
    values = list(row.values(key).values())
    return f"{spread(values)[0]:.3f}" if values else EMPTY


def _remark(result: Comparison, row: Row) -> str:
    if row.cannot is not None:
        return row.cannot
    if not row.errors:
        return ""
    split, what = next(iter(row.errors.items()))
    return f"failed on {len(row.errors)} of {len(result.splits)} splits; {split}: {what}"
