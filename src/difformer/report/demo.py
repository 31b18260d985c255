"""The demo: Cora and digits with few labels, a table and a page, in about a minute."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.resources import files
from json import dumps, loads
from pathlib import Path
from typing import TYPE_CHECKING, Any

from difformer.baselines.registry import get_system
from difformer.data.registry import load_dataset
from difformer.experiments.reproduce import read_cell
from difformer.experiments.specs import Cell, load_spec
from difformer.experiments.tables import measured_text, published_text

if TYPE_CHECKING:
    from difformer.data.dataset import Dataset
    from difformer.data.split import Split
    from difformer.experiments.experiment import Experiment
    from difformer.report.poster import Poster
    from difformer.train.callbacks import Callback

__all__ = ["ABOUT", "HEADER", "Row", "cells", "measured", "run_demo"]

# The cells of Table 2 that are run, with the table's own settings and split.
CELLS = {"gcn": "default", "difformer-s": "stable", "difformer-a": "stable"}
SEED = 0
# All pairs of Cora's rows, eight layers: its other epochs would take another minute.
FEWER_EPOCHS = {"difformer-a": 60}
# Means over five seeds, from results/; written by `difformer reproduce --readme`.
MEASURED = "demo_measured.json"
LABELS = 10  # digits that are labelled, per class


HEADER = ("Method", "Data", "Published (%)", "Measured (%)", "This run (%)", "Seconds")
ABOUT = (
    "Test accuracy. Published and measured: mean ± standard deviation of five seeds. This run: one "
    "seed, so it may well be a point above or below the mean."
)


@dataclass(frozen=True)
class Row:
    """One line of the demo's table; "" where a figure does not exist."""

    dataset: str
    method: str
    published: str
    measured: str
    accuracy: float
    seconds: float

    def cells(self) -> tuple[str, ...]:
        """The line as text."""
        stated = self.published or "–", self.measured or "–"
        return (
            self.method,
            self.dataset,
            *stated,
            f"{100 * self.accuracy:.1f}",
            f"{self.seconds:.1f}",
        )


def run_demo(
    out: Path, *, picture: Path | None = None, quiet: bool, tell: Callable[[str], None]
) -> tuple[list[Row], Path]:
    """Train everything and write the page; the lines of its table, and where it is.

    Args:
        out: each run on Cora is kept in a folder below it, and read back where it is there.
        picture: an svg or png file that states and energy are also drawn to.
        tell: called with what is being done.
    """
    from difformer.report.poster import draw_poster, poster_of

    rows = _cora(out, quiet=quiet) + _digits(tell)
    tell("Looking at the states before and after diffusion")
    poster = poster_of(out / "cora-difformer-s", load_dataset("cora"))
    if picture is not None:
        draw_poster(poster, picture)
    return rows, _write_page(out, rows, poster)


def cells() -> list[Cell]:
    """The cells of Table 2 that the demo runs."""
    spec = load_spec("table2")
    found: list[Cell] = []
    for system, variant in CELLS.items():
        chosen = {"systems": [system], "variants": [variant]}
        found += spec.cells(columns=["cora"], protocols=["released"], **chosen)
    return found


def measured(results: Path) -> str:
    """The text of MEASURED: mean and deviation of those cells in a folder of results."""
    spec = load_spec("table2")
    found = {cell.name: measured_text(spec, read_cell(spec, cell, results), []) for cell in cells()}
    return dumps(found, indent=1, ensure_ascii=False) + "\n"


def _cora(out: Path, *, quiet: bool) -> list[Row]:
    data = load_dataset("cora")
    published = load_spec("table2").published
    known = loads(files("difformer.report").joinpath(MEASURED).read_text(encoding="utf-8"))
    rows: list[Row] = []
    for cell in cells():
        (experiment,) = cell.experiments()
        epochs = FEWER_EPOCHS.get(cell.system, experiment.train.epochs)
        train = replace(experiment.train, epochs=epochs, seed=SEED)
        experiment = replace(experiment, train=train, seeds=(SEED,))
        title = get_system(cell.system).title
        split = data.split(experiment.split)
        folder = out / f"cora-{cell.system}"
        accuracy, seconds = _run(experiment, title, data, split, folder, quiet=quiet)
        rows.append(
            Row(
                dataset=f"Cora, {split.train.numel()} labels, citations",
                method=title,
                published=published_text(published[cell.system]["cora"]),
                measured=known[cell.name],
                accuracy=accuracy,
                seconds=seconds,
            )
        )
    return rows


def _digits(tell: Callable[[str], None]) -> list[Row]:
    """DIFFormerClassifier by default, and scikit-learn's answers for the same rows."""
    import numpy as np
    from sklearn.linear_model import LogisticRegression
    from sklearn.semi_supervised import LabelSpreading

    from difformer.data.split import random_split
    from difformer.estimators import DIFFormerClassifier

    data = load_dataset("digits")
    split = random_split(data.y, SEED, per_class=LABELS, num_val=500, num_test=1000)
    x, y = data.x.numpy(), data.y.numpy()
    train, test = split.train.numpy(), split.test.numpy()
    few = np.full_like(y, -1)
    few[train] = y[train]
    linear = LogisticRegression(max_iter=1000)  # its default of 100 does not converge
    spreading = LabelSpreading(kernel="knn", max_iter=200)  # the default kernel fails on digits
    ours = DIFFormerClassifier(random_state=SEED)
    plans: dict[str, Callable[[], Any]] = {
        "logistic regression": lambda: linear.fit(x[train], y[train]).predict(x),
        "label spreading": lambda: spreading.fit(x, few).transduction_,
        "DIFFormerClassifier()": lambda: ours.fit(x, few).transduction_,
    }
    rows: list[Row] = []
    for method, answers in plans.items():
        tell(f"{method} on digits")
        begin = time.monotonic()
        accuracy = float((answers()[test] == y[test]).mean())
        seconds = time.monotonic() - begin
        said = f"digits, {len(train)} labels, no graph"
        rows.append(Row(said, method, "", "", accuracy, seconds))
    return rows


def _run(
    experiment: Experiment, method: str, data: Dataset, split: Split, folder: Path, *, quiet: bool
) -> tuple[float, float]:
    """Train, or read back what was trained: test accuracy and seconds.

    KeyboardInterrupt where Ctrl-C ended it: what was trained is kept.
    """
    from difformer.experiments.run import run_experiment
    from difformer.train.callbacks import Progress

    def look(seed: int) -> list[Callback]:
        return [Progress(f"{method} on {experiment.dataset}", quiet=quiet)]

    result = run_experiment(experiment, dataset=data, split=split, folder=folder, callbacks=look)
    if result.interrupted:
        raise KeyboardInterrupt
    (fit,) = result.results.values()
    return fit.metrics["test"]["accuracy"], fit.seconds


def _write_page(out: Path, rows: list[Row], poster: Poster) -> Path:
    from difformer.report.blocks import Note, Section
    from difformer.report.blocks import Table as Shown
    from difformer.report.page import write_page
    from difformer.report.poster import poster_section

    table = Shown(ABOUT, list(HEADER), [row.cells() for row in rows])
    limits = [f"{get_system(s).title} stops after {n} epochs" for s, n in FEWER_EPOCHS.items()]
    more = Note(
        "Cora: the settings of Table 2 (difformer reproduce table2 --show), GCN's from its own "
        "paper and DIFFormer's recipe stable, on the split of the published figures; "
        f"{', '.join(limits)} here. Digits: DIFFormerClassifier and logistic regression with their "
        "default settings, label spreading with the kernel knn."
    )
    sections = [
        Section("accuracy", "Few labels, and all the rows", [table, more]),
        poster_section(poster),
    ]
    subtitle = "Every row moves towards an average of all rows: diffusion that descends an energy."
    return write_page(out / "report.html", "DIFFormer in a minute", sections, subtitle=subtitle)
