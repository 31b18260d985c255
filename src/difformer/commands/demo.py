"""difformer demo: Cora and digits, few labels, a table and a page, in about a minute."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from difformer.commands.output import (
    Json,
    Quiet,
    interrupted,
    print_json,
    print_table,
    say,
)
from difformer.experiments.experiment import Experiment
from difformer.experiments.tables import Table

if TYPE_CHECKING:
    from difformer.data.dataset import Dataset
    from difformer.data.split import Split
    from difformer.report.poster import Poster
    from difformer.train.callbacks import Callback

NEIGHBOURS = 7
METRIC = "euclidean"
LABELS = 10  # per class
# Short enough for a minute on two cores; everything else is the default of its system.
CORA: dict[str, dict[str, Any]] = {
    "gcn": {"train": {"epochs": 100}},
    "difformer-s": {"train": {"epochs": 80, "eval_every": 2, "weight_decay": 0.01}},
    "difformer-a": {
        "train": {"epochs": 60, "eval_every": 3, "weight_decay": 0.01},
        "model": {"hidden_channels": 32, "num_layers": 4},
    },
}
TITLES = {"gcn": "GCN", "difformer-s": "DIFFormer-s", "difformer-a": "DIFFormer-a"}
DIGITS = {"epochs": 100, "lr": 0.01, "weight_decay": 5e-4}
# Digits have 64 dense features: dropping half of them, as of a bag of words, costs accuracy.
NEAR = {"num_layers": 4, "input_dropout": 0.0}


@dataclass(frozen=True)
class Row:
    """A line of the demo's table; the published figure is "" where there is none."""

    dataset: str
    method: str
    published: str
    accuracy: float
    seconds: float

    def cells(self) -> tuple[str, ...]:
        """As people read it."""
        shown = self.published or "–", f"{100 * self.accuracy:.1f}", f"{self.seconds:.1f}"
        return (self.dataset, self.method, *shown)


HEADER = ("Data", "Method", "Published (%)", "Here (%)", "Seconds")


def command(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where the runs are kept.")
    ] = Path("runs/demo"),
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also draw states and energy to this svg or png."),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """See DIFFormer learn from few labels, in about a minute.

    Example: difformer demo

    Trains GCN and both forms of DIFFormer on Cora, beside the published figures, then DIFFormer on
    handwritten digits that have no graph, beside scikit-learn's methods. Needs no network. Writes
    report.html, with the states before and after diffusion and the energy of each layer; each run
    is kept in a folder of its own.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out must be a folder, {out} is a file")
    if picture is not None and picture.suffix not in (".svg", ".png"):
        raise ValueError(f"--picture must end in .svg or .png, not {picture.name}")
    from difformer.data.registry import load_dataset
    from difformer.report.poster import draw_poster, poster_of

    begin = time.monotonic()
    rows = _cora(out, quiet=quiet or json) + _digits(out, quiet=quiet or json)
    say("Looking at the states before and after diffusion", quiet=quiet or json)
    poster = poster_of(out / "cora-difformer-s", load_dataset("cora"))
    page = _write_page(out, rows, poster)
    if picture is not None:
        draw_poster(poster, picture)
    taken = time.monotonic() - begin
    if json:
        print_json({"rows": [vars(row) for row in rows], "seconds": taken, "page": page})
        return
    print_table(Table(HEADER, tuple(row.cells() for row in rows)), "Few labels, and all the rows")
    print(f"{taken:.0f} s in all. Open {page} in a browser.\n\nNext:")
    print("  difformer train cora --seeds 5      your own settings: --help shows every option")
    print("  difformer datasets                  what else there is")
    print("  difformer reproduce table2 --show   the published figures, and ours")


def _cora(out: Path, *, quiet: bool) -> list[Row]:
    from difformer.data.registry import load_dataset
    from difformer.experiments.specs import load_spec

    data = load_dataset("cora")
    split = data.split("released")
    said = f"Cora, {split.train.numel()} labels"
    published = load_spec("table2").published
    rows: list[Row] = []
    for system, settings in CORA.items():
        experiment = Experiment.make("cora", system=system, split="released", **settings)
        folder = out / f"cora-{system}"
        accuracy, seconds = _run(experiment, TITLES[system], data, split, folder, quiet=quiet)
        figure: Any = published[system]["cora"]
        stated = f"{figure[0]} ± {figure[1]}"
        rows.append(Row(said, f"{TITLES[system]}, citations", stated, accuracy, seconds))
    return rows


def _digits(out: Path, *, quiet: bool) -> list[Row]:
    from difformer.data.registry import load_dataset
    from difformer.data.split import random_split
    from difformer.experiments.run import with_neighbours

    data = load_dataset("digits")
    split = random_split(data.y, 0, per_class=LABELS, num_val=500, num_test=1000)
    said = f"digits, {split.train.numel()} labels"
    make = partial(Experiment.make, "digits", system="difformer-s", train=DIGITS)
    edges = {"neighbours": NEIGHBOURS, "metric": METRIC}
    joined = with_neighbours(data, NEIGHBOURS, METRIC)
    plans: list[tuple[str, Experiment, Dataset]] = [
        ("no graph", make(recipe="alone"), data),
        ("neighbours", make(data=edges, model=NEAR), joined),
    ]
    rows = _classical(said, data, split)
    for kind, experiment, given in plans:
        method = f"DIFFormer-s, {kind}"
        folder = out / f"digits-difformer-s-{kind.replace(' ', '-')}"
        accuracy, seconds = _run(experiment, method, given, split, folder, quiet=quiet)
        rows.append(Row(said, method, "", accuracy, seconds))
    return rows


def _run(
    experiment: Experiment, method: str, data: Dataset, split: Split, folder: Path, *, quiet: bool
) -> tuple[float, float]:
    """Train, or read back what was trained: test accuracy and seconds."""
    from difformer.experiments.run import run_experiment
    from difformer.train.callbacks import Progress

    def look(seed: int) -> list[Callback]:
        return [Progress(f"{method} on {experiment.dataset}", quiet=quiet)]

    result = run_experiment(experiment, dataset=data, split=split, folder=folder, callbacks=look)
    if result.interrupted:
        kept = f"what was trained is kept in {folder.parent}; the same command goes on"
        raise interrupted(kept)
    (fit,) = result.results.values()
    return fit.metrics["test"]["accuracy"], fit.seconds


def _classical(said: str, data: Dataset, split: Split) -> list[Row]:
    """scikit-learn's own answers for the same rows."""
    import numpy as np
    from sklearn.linear_model import LogisticRegression
    from sklearn.semi_supervised import LabelSpreading

    x, y = data.x.numpy(), data.y.numpy()
    train, test = split.train.numpy(), split.test.numpy()
    hidden = np.full_like(y, -1)
    hidden[train] = y[train]
    begin = time.monotonic()
    linear = LogisticRegression(max_iter=1000).fit(x[train], y[train])
    score = float(linear.score(x[test], y[test]))
    rows = [Row(said, "logistic regression", "", score, time.monotonic() - begin)]
    begin = time.monotonic()
    spread = LabelSpreading(kernel="knn", n_neighbors=NEIGHBOURS, max_iter=200).fit(x, hidden)
    score = float((spread.transduction_[test] == y[test]).mean())
    seconds = time.monotonic() - begin
    return [*rows, Row(said, "label spreading, neighbours", "", score, seconds)]


def _write_page(out: Path, rows: list[Row], poster: Poster) -> Path:
    from difformer.report.blocks import Note, Section
    from difformer.report.blocks import Table as Shown
    from difformer.report.page import write_page
    from difformer.report.poster import poster_section

    caption = "Test accuracy of one run each; published: five initialisations on the same split."
    table = Shown(caption, [HEADER[1], HEADER[0], *HEADER[2:]], [_swapped(r) for r in rows])
    more = Note(
        "One run of few epochs, made while you waited; difformer reproduce table2 --show has all "
        "runs. The command difformer report FOLDER writes the page of a run, with its curves, its "
        "confusions and which rows influenced which."
    )
    sections = [
        Section("accuracy", "Few labels, and all the rows", [table, more]),
        poster_section(poster),
    ]
    subtitle = "Every row moves towards an average of all rows: diffusion that descends an energy."
    return write_page(out / "report.html", "DIFFormer in a minute", sections, subtitle=subtitle)


def _swapped(row: Row) -> tuple[str, ...]:
    data, method, *rest = row.cells()
    return (method, data, *rest)
