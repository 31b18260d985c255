"""difformer demo: real data, few labels, a table and a page, in about a minute."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from difformer.commands.output import (
    DataDir,
    Json,
    Quiet,
    interrupted,
    print_json,
    print_table,
    write_page,
)
from difformer.experiments.experiment import Experiment
from difformer.experiments.tables import Table

if TYPE_CHECKING:
    from difformer.data.dataset import Dataset
    from difformer.data.split import Split
    from difformer.train.callbacks import Callback

NEIGHBOURS = 7
METRIC = "euclidean"
LABELS = 10  # a class
TRAIN = {"epochs": 100, "lr": 0.01, "weight_decay": 5e-4}
# Digits have 64 dense features: dropping half of them, as of a bag of words, costs accuracy.
DIGITS = {"num_layers": 4, "input_dropout": 0.0}
CORA = {**TRAIN, "epochs": 60, "weight_decay": 0.01}


@dataclass(frozen=True)
class Plan:
    """A run of the demo: a method by the name people read, and what it is trained with.

    Args:
        page: whether a page is written of it; `difformer report` writes those of the others.
    """

    method: str
    experiment: Experiment
    page: bool = False


@dataclass(frozen=True)
class Row:
    """A line of the demo's table."""

    dataset: str
    method: str
    accuracy: float
    seconds: float
    page: Path | None = None


def command(
    data_dir: DataDir = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where the runs are kept.")
    ] = Path("runs/demo"),
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """See DIFFormer learn from few labels, in about a minute.

    Example: difformer demo

    Trains on scikit-learn's handwritten digits with ten labels a class, without a graph and with
    one of nearest neighbours, and on Cora where it is at hand; beside an MLP, logistic regression
    and label spreading on the same rows. Each run is kept in a folder, two with a report.html.
    """
    _check_place(out)
    begin = time.monotonic()
    rows = _digits(out, quiet=quiet or json) + _cora(out, data_dir, quiet=quiet or json)
    taken = time.monotonic() - begin
    pages = [row.page for row in rows if row.page]
    if json:
        print_json({"rows": [vars(row) for row in rows], "seconds": taken, "pages": pages})
        return
    cells = [(r.dataset, r.method, f"{100 * r.accuracy:.1f}", f"{r.seconds:.1f}") for r in rows]
    header = ("Data", "Method", "Test accuracy (%)", "Seconds")
    print_table(Table(header, tuple(cells)), "Few labels, and all the rows")
    print(f"{taken:.0f} s in all. Open {' and '.join(map(str, pages))} in a browser.\n\nNext:")
    print("  difformer train cora --seeds 5      your own settings: --help shows every option")
    print("  difformer datasets                  what else there is")
    print("  difformer reproduce table2 --show   the published figures, and ours")


def _digits(out: Path, *, quiet: bool) -> list[Row]:
    from difformer.data.registry import load_dataset
    from difformer.data.split import random_split
    from difformer.experiments.run import with_neighbours

    data = load_dataset("digits")
    split = random_split(data.y, 0, per_class=LABELS, num_val=500, num_test=1000)
    joined = with_neighbours(data, NEIGHBOURS, METRIC)
    said = f"digits, {split.train.numel()} labels"
    rows = _classical(said, data, split)
    make = partial(Experiment.make, "digits", train=TRAIN)
    edges = {"neighbours": NEIGHBOURS, "metric": METRIC}
    near = partial(make, data=edges, model=DIGITS)
    plans: list[tuple[Plan, Dataset]] = [
        (Plan("MLP", make(system="mlp")), data),
        (Plan("DIFFormer-s, no graph", make(system="difformer-s", recipe="alone")), data),
        (Plan("DIFFormer-s, neighbours", near(system="difformer-s"), page=True), joined),
        (Plan("DIFFormer-a, neighbours", near(system="difformer-a")), joined),
    ]
    return rows + [_run(plan, said, given, split, out, quiet=quiet) for plan, given in plans]


def _cora(out: Path, data_dir: str | None, *, quiet: bool) -> list[Row]:
    """Cora's rows."""
    from difformer.data.registry import load_dataset

    data = load_dataset("cora", data_dir)
    split = data.split("public")
    said = f"Cora, {split.train.numel()} labels"
    make = partial(Experiment.make, "cora", split="public", train=CORA)
    plans = [
        Plan("MLP", make(system="mlp")),
        Plan("DIFFormer-s, citations", make(system="difformer-s"), page=True),
    ]
    return [_run(plan, said, data, split, out, quiet=quiet) for plan in plans]


def _run(plan: Plan, said: str, data: Dataset, split: Split, out: Path, *, quiet: bool) -> Row:
    from difformer.experiments.run import run_experiment
    from difformer.train.callbacks import Progress

    method, experiment = plan.method, plan.experiment
    folder = out / f"{experiment.dataset}-{_name(method)}"

    def look(seed: int) -> list[Callback]:
        return [Progress(f"{method} on {experiment.dataset}", quiet=quiet)]

    result = run_experiment(experiment, dataset=data, split=split, folder=folder, callbacks=look)
    if result.interrupted:
        raise interrupted(f"what was trained is kept in {out}; the same command goes on")
    (fit,) = result.results.values()
    page = write_page(folder, data) if plan.page else None
    return Row(said, method, fit.metrics["test"]["accuracy"], fit.seconds, page)


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
    rows = [Row(said, "logistic regression", score, time.monotonic() - begin)]
    begin = time.monotonic()
    spread = LabelSpreading(kernel="knn", n_neighbors=NEIGHBOURS, max_iter=200).fit(x, hidden)
    score = float((spread.transduction_[test] == y[test]).mean())
    return [*rows, Row(said, "label spreading, neighbours", score, time.monotonic() - begin)]


def _check_place(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out must be a folder, {out} is a file")


def _name(method: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in method.lower()).split())
