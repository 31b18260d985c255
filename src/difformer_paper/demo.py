"""difformer demo: few labels, a table, and a page of what diffusion does to the rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from json import dumps, loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from difformer.app import options as shared
from difformer.app.options import flag
from difformer.app.output import interrupted, print_json, print_table, say
from difformer.blocks import (
    Note,
    Plot,
    Section,
    Table,
    axis,
    colour,
    number,
    plain,
    rounded,
    scatter,
)
from difformer.data.registry import load_dataset
from difformer.errors import DifformerError
from difformer.systems.registry import get_system
from difformer_paper.measure import read_cell
from difformer_paper.specs import Cell, load_spec
from difformer_paper.tables import measured_text, published_text

if TYPE_CHECKING:
    from difformer.data.dataset import Dataset


ROWS = 1000  # rows drawn: t-SNE of more would take longer than the training


def poster_of(folder: Path, dataset: Dataset) -> dict[str, Any]:
    """What the pictures show of a run's DIFFormer: places by class, and the energy by layer.

    "before" and "after" diffusion, each class has the x and y of its rows by t-SNE; "energies" has
    that of Z⁽⁰⁾, then after each layer.
    """
    from difformer.nn.model import DIFFormer
    from difformer.report.energy import check_energy
    from difformer.report.inside import project, sample_rows
    from difformer.runs.open import load_run

    run = load_run(folder, dataset=dataset)
    if not isinstance(run.model, DIFFormer):
        raise DifformerError(f"{folder} has no DIFFormer to look into")
    shown = sample_rows(dataset.num_rows, ROWS)
    states, y = run.model.states(dataset.x, run.graph), dataset.y[shown]
    poster: dict[str, Any] = {"rows": len(shown)}
    for name, state in (("before", states[0]), ("after", states[-1])):
        points = project(state[shown], "tsne")
        poster[name] = {
            title.replace("_", " "): [rounded(side) for side in points[y == label].T.tolist()]
            for label, title in enumerate(run.class_names)
        }
    layers = check_energy(run.model, dataset.x, run.graph)["layers"]
    return poster | {"energies": [layers[0]["start"], *(layer["end"] for layer in layers)]}


def poster_section(poster: dict[str, Any]) -> Section:
    """The three pictures for a page."""
    about = (
        "Every point is a row, coloured by its true class, which the model was told for few of "
        "them. Before diffusion its place comes from its own features. Each layer then moves every "
        "row towards a weighted average of all rows and of its neighbours, and the energy falls."
    )
    blocks = [
        Note(about),
        _states("before", "Before diffusion: each row by itself", poster),
        _states("after", "After diffusion: what the last layer sees", poster),
        _energy(poster["energies"]),
    ]
    return Section("diffusion", "What diffusion does", blocks)


def draw_poster(poster: dict[str, Any], path: Path) -> Path:
    """The three pictures side by side in one file; its suffix (svg, png) decides the format."""
    from difformer_paper.figures.drawing import axes, save_image, style

    with style() as make:
        figure = make(12.0, 3.8)
        shown = axes(figure, 1, 3)
        for axis, name in zip(shown, ("before", "after"), strict=False):
            for label, (title, (x, y)) in enumerate(poster[name].items()):
                axis.scatter(x, y, s=5, color=colour(label), label=title)
            axis.set(title=f"{name.capitalize()} diffusion", xticks=[], yticks=[])
        figure.legend(*shown[0].get_legend_handles_labels(), loc="outside lower left", ncols=7)
        shown[2].plot(poster["energies"], marker="o", color=colour(0))
        shown[2].set(title="The energy falls", xlabel="layer", ylim=(0, None))
        return save_image(figure, path)


def _states(name: str, caption: str, poster: dict[str, Any]) -> Plot:
    hidden = {"visible": False}
    return Plot(
        name=f"states-{name}",
        caption=f"{caption} ({poster['rows']:,} rows, t-SNE).",
        alt=f"Scatter plot of the rows' states {name} diffusion, one colour per class.",
        data=[
            scatter(
                x,
                y,
                "markers",
                name=plain(title),
                marker={"color": colour(label), "size": 5, "opacity": 0.8},
                hovertemplate=f"{plain(title)}<extra></extra>",
            )
            for label, (title, (x, y)) in enumerate(poster[name].items())
        ],
        layout={
            "xaxis": hidden,
            "yaxis": hidden,
            "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
            "legend": {"orientation": "h", "x": 0, "y": -0.02, "yanchor": "top"},
        },
    )


def _energy(energies: list[float]) -> Plot:
    layers, fall = list(range(len(energies))), 1 - energies[-1] / energies[0]
    rows = [[str(k), number(e)] for k, e in enumerate(energies)]
    return Plot(
        name="energy",
        caption=f"The energy of the states by layer: {100 * fall:.0f} % less at the end.",
        alt=f"Line plot of the energy, from {number(energies[0])} to {number(energies[-1])}.",
        data=[
            scatter(
                layers,
                rounded(energies),
                "lines+markers",
                line={"color": colour(0), "width": 3},
                marker={"size": 9},
                hovertemplate="layer %{x}: %{y:,.4g}<extra></extra>",
            )
        ],
        layout={
            "xaxis": axis("layer", dtick=1),
            "yaxis": axis("energy", rangemode="tozero"),
        },
        table=Table("Energy by layer.", ["layer", "energy"], rows),
    )


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


# One line of the demo's table; "" where a figure does not exist.
WORDS = ("method", "dataset", "published", "measured")
Row = dict[str, Any]


def _row(*words: str, accuracy: float, seconds: float) -> Row:
    return {**dict(zip(WORDS, words, strict=True)), "accuracy": accuracy, "seconds": seconds}


def _table(caption: str, rows: list[Row]) -> Table:
    cells = [
        (*(row[k] or "–" for k in WORDS), f"{100 * row['accuracy']:.1f}", f"{row['seconds']:.1f}")
        for row in rows
    ]
    return Table(caption, HEADER, cells)


def run_demo(
    out: Path, *, picture: Path | None = None, quiet: bool, tell: Callable[[str], None]
) -> tuple[list[Row], Path]:
    """Train everything and write the page; the lines of its table, and where it is.

    Args:
        out: each run on Cora is kept in a folder below it, and read back where it is there.
        picture: an svg or png file that states and energy are also drawn to.
        tell: called with what is being done.
    """
    rows = _cora(out, quiet=quiet) + _digits(tell)
    tell("Looking at the states before and after diffusion")
    poster = poster_of(out / "cora-difformer-s", load_dataset("cora"))
    if picture is not None:
        draw_poster(poster, picture)
    return rows, _write_page(out, rows, poster)


def cells() -> list[Cell]:
    """The cells of Table 2 that the demo runs."""
    spec, where = load_spec("table2"), {"columns": ["cora"], "protocols": ["released"]}
    return [
        cell
        for system, variant in CELLS.items()
        for cell in spec.cells(systems=[system], variants=[variant], **where)
    ]


def measured(results: Path) -> str:
    """The text of MEASURED: mean and deviation of those cells in a folder of results."""
    spec = load_spec("table2")
    found = {cell.name: measured_text(spec, read_cell(spec, cell, results), []) for cell in cells()}
    return dumps(found, indent=1, ensure_ascii=False) + "\n"


def _cora(out: Path, *, quiet: bool) -> list[Row]:
    """Each cell trained, or read back where it was; KeyboardInterrupt where Ctrl-C ended it."""
    from difformer.jobs.rows import run_experiment
    from difformer.train.callbacks import Progress

    data = load_dataset("cora")
    published = load_spec("table2").published
    known = loads(files("difformer_paper").joinpath(MEASURED).read_text(encoding="utf-8"))
    rows: list[Row] = []
    for cell in cells():
        (experiment,) = cell.experiments()
        epochs = FEWER_EPOCHS.get(cell.system, experiment.train.epochs)
        train = replace(experiment.train, epochs=epochs, seed=SEED)
        title, split = get_system(cell.system).title, data.split(experiment.split)
        progress = Progress(f"{title} on {experiment.dataset}", quiet=quiet)
        result = run_experiment(
            replace(experiment, train=train, seeds=(SEED,)),
            dataset=data,
            split=split,
            folder=out / f"cora-{cell.system}",
            callbacks=lambda _, progress=progress: [progress],
        )
        if result.interrupted:
            raise KeyboardInterrupt
        fit, figure = result.fits[f"seed {SEED}"], published_text(published[cell.system]["cora"])
        accuracy, seconds = fit.metrics["test"]["accuracy"], fit.seconds or 0.0
        where = f"Cora, {split.train.numel()} labels, citations"
        rows.append(
            _row(title, where, figure, known[cell.name], accuracy=accuracy, seconds=seconds)
        )
    return rows


def _digits(tell: Callable[[str], None]) -> list[Row]:
    """DIFFormerClassifier by default, and scikit-learn's answers for the same rows."""
    import numpy as np
    from sklearn.linear_model import LogisticRegression
    from sklearn.semi_supervised import LabelSpreading

    from difformer.data.split import random_split
    from difformer.estimators.classifier import DIFFormerClassifier

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
        seconds, where = time.monotonic() - begin, f"digits, {len(train)} labels, no graph"
        rows.append(_row(method, where, "", "", accuracy=accuracy, seconds=seconds))
    return rows


def _write_page(out: Path, rows: list[Row], poster: dict[str, Any]) -> Path:
    from difformer.report.page import write_page

    limits = [f"{get_system(s).title} stops after {n} epochs" for s, n in FEWER_EPOCHS.items()]
    more = Note(
        "Cora: the settings of Table 2 (difformer reproduce table2 --show), GCN's from its own "
        "paper and DIFFormer's recipe stable, on the split of the published figures; "
        f"{', '.join(limits)} here. Digits: DIFFormerClassifier and logistic regression with their "
        "default settings, label spreading with the kernel knn."
    )
    sections = [
        Section("accuracy", "Few labels, and all the rows", [_table(ABOUT, rows), more]),
        poster_section(poster),
    ]
    subtitle = "Every row moves towards an average of all rows: diffusion that descends an energy."
    return write_page(out / "report.html", "DIFFormer in a minute", sections, subtitle=subtitle)


def command(
    out: Annotated[
        Path, shared.out("FOLDER", "Where the runs are kept.", default="runs/demo")
    ] = Path("runs/demo"),
    picture: Annotated[
        Path | None,
        flag("FILE", "Also draw states and energy to this svg or png."),
    ] = None,
    json: shared.Json = False,
    quiet: shared.Quiet = False,
) -> None:
    """See DIFFormer learn from few labels, in about a minute.

    Example: difformer demo

    Trains GCN and both forms of DIFFormer on Cora and shows the published figures and our means
    over five seeds beside them; then trains DIFFormerClassifier and methods of scikit-learn on
    handwritten digits, which have no graph. Needs no network. Writes report.html, with the states
    before and after diffusion and the energy of each layer, and one folder per run on Cora.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out must be a folder, {out} is a file")
    if picture is not None and picture.suffix not in (".svg", ".png"):
        raise ValueError(f"--picture must end in .svg or .png, not {picture.name}")
    begin = time.monotonic()
    try:
        rows, page = run_demo(
            out,
            picture=picture,
            quiet=quiet or json,
            tell=lambda message: say(message, quiet=quiet or json),
        )
    except KeyboardInterrupt:
        raise interrupted(
            f"what was trained is kept in {out}; the same command resumes it"
        ) from None
    taken = time.monotonic() - begin
    if json:
        print_json({"rows": rows, "seconds": taken, "page": page})
        return
    print_table(_table("", rows), "Few labels, and all the rows")
    print(f"{ABOUT}\n{taken:.0f} s in all. Open {page} in a browser.\n\nNext:")
    print("  difformer train cora --seeds 5      your own settings: --help shows every option")
    print("  difformer datasets                  what else there is")
    print("  difformer reproduce table2 --show   the published figures, and ours")
