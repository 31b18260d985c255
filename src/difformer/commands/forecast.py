"""What `difformer train --series` does: a forecaster for one's own series."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from difformer.commands.asked import KERNELS, Asked, of_series
from difformer.commands.options import Given, parse_set
from difformer.commands.output import (
    print_json,
    print_table,
    run_folder,
    say,
    stopped,
    write_page,
)
from difformer.experiments.forecast import SeriesSettings, mixed_in
from difformer.experiments.forecast import train_series as train
from difformer.experiments.tables import Table
from difformer.experiments.values import options_of

__all__ = ["train_series"]

ERRORS = ("mse", "mae", "mase")


def train_series(series: Path, asked: Asked, given: Given) -> None:
    """Train, test from rolling origins, forecast, and say where the run is."""
    of_series(asked)
    settings = _settings(asked, given)
    for path in (series, asked.edges, asked.known, asked.places):
        if path is not None and not path.is_file():
            raise ValueError(f"{path}: no such file")
    folder = run_folder(f"{series.stem}-forecast", asked.out, resume=asked.resume)
    record = train(series, asked.edges, folder, settings, known=asked.known, places=asked.places)
    if record["interrupted"]:
        raise stopped(folder)
    page = write_page(folder) if asked.report else None
    if asked.json:
        print_json({**record, "folder": str(folder)})
        return
    for note in record["notes"]:
        say(f"note: {note}")
    print_table(_table(record), f"forecasts of {series.name}, in its units")
    print(f"kept in {folder}" + (f"; look at {page}" if page else ""))
    print(f"the next {settings.steps} steps are in {folder / 'forecast.csv'}")


def _settings(asked: Asked, given: Given) -> SeriesSettings:
    """The settings that the command line gives; ValueError for an option that is not for series."""
    names = {f.name for f in fields(SeriesSettings)}
    model = asked.model
    if model is not None and model not in KERNELS:
        raise ValueError(f"--model must be one of {', '.join(KERNELS)} with --series, got {model}")
    for name in given.train:
        if name not in names:
            raise ValueError(f"--{name.replace('_', '-')} must be left out with --series")
    found: dict[str, Any] = {"kernel": KERNELS[model]} if model else {}
    found |= {"recipe": asked.recipe} if asked.recipe else {}
    found |= given.train | {k: v for k, v in given.model.items() if k in names}
    found["options"] = {k: v for k, v in given.model.items() if k not in names}
    known = {k: v for k, v in options_of(SeriesSettings).items() if k != "options"}
    return SeriesSettings(**{**found, **parse_set(asked.set, known)})


def _table(record: Mapping[str, Any]) -> Table:
    tested = record.get("backtest")
    if tested is None:
        rows = (("validation", f"{record['validation']['mse']:.4f} (standardised)"),)
        return Table(("", "mean squared error"), rows)
    rows = tuple(
        (title, *(f"{told[key]:.4g}" if told[key] is not None else "–" for key in ERRORS))
        for title, told in sorted(tested["methods"].items(), key=lambda pair: pair[1]["mse"])
    )
    first, last, steps = tested["origins"][0], tested["origins"][-1], record["settings"]["steps"]
    notes = [
        f"{steps} steps ahead from every step {first} to {last}, none of which was learned from"
    ]
    share = tested["coverage"]["0.9"]["coverage"]
    if share is not None:
        notes.append(f"90 % intervals by earlier errors held {100 * share:.0f} % of the later half")
    others = mixed_in(record)
    if others:
        notes.append(f"mixed, as validation chose, with {others}")
    if tested["left_out"]:
        notes.append(tested["left_out"])
    if record["naive_nodes"]:
        left = record["naive_nodes"]
        named = ", ".join(left[:8]) + (" and others" if len(left) > 8 else "")
        notes.append(f"their last value is kept, because they hardly vary ({len(left)}): {named}")
    return Table(("", "mse", "mae", "mase"), rows, tuple(notes))
