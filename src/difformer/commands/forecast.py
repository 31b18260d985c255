"""What `difformer train --series` does: a forecaster for a series in a file."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from difformer.commands.asked import KERNELS, Asked, check_files, chosen
from difformer.commands.options import Given, parse_set
from difformer.commands.output import finish_run, run_folder, stopped
from difformer.experiments.forecast import SeriesSettings
from difformer.experiments.forecast import train_series as train
from difformer.experiments.values import options_of

__all__ = ["train_series"]


def train_series(series: Path, asked: Asked, given: Given) -> None:
    """Train, test from rolling origins, forecast, and say where the run is."""
    settings = _settings(asked, given)
    check_files(series, asked.edges, asked.known, asked.places)
    with run_folder(f"{series.stem}-forecast", asked.out, resume=asked.resume) as folder:
        record = train(
            series, asked.edges, folder, settings, known=asked.known, places=asked.places
        )
        if record["interrupted"]:
            raise stopped(folder)
        ahead = "step" if settings.steps == 1 else f"{settings.steps} steps"
        from difformer.report.series_page import learned_notes, result_blocks

        finish_run(
            folder,
            record,
            lambda: [*result_blocks(record), *learned_notes(record)],
            page=asked.report,
            json=asked.json,
            more=f", the next {ahead} in forecast.csv",
        )


def _settings(asked: Asked, given: Given) -> SeriesSettings:
    """The settings that the command line gives; ValueError for an option that is not for series."""
    names = {f.name for f in fields(SeriesSettings)}
    loop = {name: name for name in names}
    found = chosen(asked, given, "--series", systems=KERNELS, loop=loop)
    found |= {k: v for k, v in given.model.items() if k in names}
    found["options"] = {k: v for k, v in given.model.items() if k not in names}
    known = {k: v for k, v in options_of(SeriesSettings).items() if k != "options"}
    return SeriesSettings(**{**found, **parse_set(asked.set, known)})
