"""report.html of one run: settings, curves, results, and sections about the trained model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from difformer.errors import DifformerError
from difformer.files import natural, one_line
from difformer.machine import commit_of
from difformer.report.page import write_page
from difformer.runs.run import read_run
from difformer.systems.registry import SYSTEMS
from difformer.train.checkpoint import Row
from difformer.train.folder import Run

if TYPE_CHECKING:
    from difformer.data.dataset import Dataset
    from difformer.report.states import Drawing
    from difformer.runs.open import LoadedRun

PARTS = ("train", "val", "test")
PART_NAMES = {"train": "training", "val": "validation", "test": "test"}


def write_report(
    run_folder: Path | str,
    *,
    loaded: LoadedRun | None = None,
    dataset: Dataset | None = None,
    data_dir: Path | str | None = None,
    projection: str = "auto",
    max_points: int = 20_000,
    out: Path | str | None = None,
) -> Path:
    """Write report.html into a run folder; the page says what the folder does not have.

    For a folder of `difformer compare` it is the page of the comparison.

    Args:
        loaded: the run's model with its data, if they are in memory; else they are loaded.
        dataset: the data if it is already loaded; else it is loaded by name.
        projection: "pca", "tsne", or "auto", which takes t-SNE for few rows.
        max_points: rows drawn; more are sampled, and the page says so.
        out: another path for the page.
    """
    from difformer.report.states import Drawing

    run = read_run(run_folder)
    if run.kind == "comparison":
        from difformer.report.compare_page import write_comparison

        return write_comparison(run_folder, out)
    path = run.folder / "report.html" if run.folder.is_dir() else run.folder.with_suffix(".html")
    drawing = Drawing(projection=projection, max_points=max_points, data_dir=data_dir)
    sections = _sections(run, loaded, dataset, drawing)
    title, subtitle = run.title, headline(run)
    if run.kind == "table":
        from difformer.report.table_page import titles

        title, subtitle = titles(run)
    elif run.kind == "series":
        subtitle = "A DIFFormer learned to forecast every node from its own past and the others'."
    return write_page(out or path, title, sections, subtitle=subtitle)


def _sections(
    run: Run, loaded: LoadedRun | None, dataset: Dataset | None, drawing: Drawing
) -> list[Section]:
    """Every section that the run has something for."""
    own, inside = _of_model(run, loaded, dataset, drawing)
    curves, below = curves_section(run), [cost_section(run), settings_section(run)]
    if own:
        # An average of several forms has no single curve.
        logged = [curves] if any(fit.history for fit in run.fits.values()) else []
        sections = [*own, *(replace(s, folded=True) for s in (*logged, *inside, *below))]
    else:
        sections = [results_section(run), curves, *inside, *below]
    notes = [Note(text, missing=True) for text in run.missing]
    return [s for s in (Section("missing", "What is missing", notes), *sections) if s.blocks]


def _of_model(
    run: Run,
    loaded: LoadedRun | None,
    dataset: Dataset | None,
    drawing: Drawing,
) -> tuple[list[Section], list[Section]]:
    """The sections about a table's or a series' own rows, and those about the model."""
    from difformer.nn.model import DIFFormer
    from difformer.report.energy import energy_section
    from difformer.report.inside import diffusivity_section, layer_weights
    from difformer.report.states import states_section
    from difformer.runs.open import load_run

    own: list[Section] = []
    label, folder = _shown(run)
    try:
        if loaded is None:
            loaded = load_run(folder, dataset=dataset, data_dir=drawing.data_dir)
        found: list[Section] = []
        inside = loaded.look_inside()
        if loaded.own:
            from difformer.report.table_page import table_sections

            own = table_sections(run, loaded)
        elif loaded.record:
            from difformer.report.series_page import series_sections

            own = series_sections(loaded)
        else:
            from difformer.report.predictions import prediction_section

            found = [prediction_section(loaded)]
    except (DifformerError, ValueError, OSError, RuntimeError, KeyError) as error:
        text = (
            "What needs the trained model on its data is left out "
            f"(predictions, energies, states, diffusivities): {one_line(error)}"
        )
        return [], [Section("model", "The trained model", [Note(text, missing=True)])]
    if found and len(run.fits) > 1:
        intro = Note(f"Of {label}, the first with a model.")
        found = [replace(found[0], blocks=[intro, *found[0].blocks])]
    model, seen = inside.model, inside.dataset
    known = isinstance(model, DIFFormer)
    weights = layer_weights(model, seen.x, inside.graph) if known else []
    about = [energy_section(inside), diffusivity_section(inside, weights)]
    return own, [*found, *about, states_section(inside, weights, drawing)]


def _shown(run: Run) -> tuple[str, Path]:
    """The name and the folder of the fit that represents the run: the first that has a model."""
    places = [(label, fit.folder or run.folder) for label, fit in run.fits.items()]
    return next((p for p in places if (p[1] / "model.safetensors").exists()), places[0])


def headline(run: Run) -> str:
    """The main metric and the split, in a sentence or two."""
    told = _split(run)
    if run.headline is not None:
        part, metric = run.headline
        value, count = mean_std(*run.mean_std(part, metric)), len(run.values(part, metric))
        over = f" over {count} seeds" if count > 1 else ""
        told = [f"{PART_NAMES[part].capitalize()} {_words(metric)} {value}{over}.", *told]
    return " ".join(told)


def results_section(run: Run) -> Section:
    """Mean ± deviation of every metric, and every seed's own values."""
    names, seeds = run.metrics(), len(run.fits)
    if not names:
        return Section("results", "Results", [Note("No result was written yet.", missing=True)])
    rows = [[_words(n), *(mean_std(*run.mean_std(part, n)) for part in PARTS)] for n in names]
    caption = "One seed, so there is no deviation."
    if seeds > 1:
        caption = f"Mean ± sample standard deviation over {seeds} seeds."
    header = list(PART_NAMES.values())
    blocks: list[Any] = [Table(caption, ["metric", *header], rows)]
    if run.interrupted:
        blocks.insert(0, Note("The run was interrupted; it can be resumed.", missing=True))
    if seeds > 1 and run.headline is not None:
        _, metric = run.headline
        cells: list[list[str]] = []
        for label, fit in run.fits.items():
            values = [number(fit.metrics.get(part, {}).get(metric)) for part in PARTS]
            cells.append([label, *values, number(fit.best_epoch)])
        caption = f"{_words(metric).capitalize()} of each seed."
        blocks.append(Table(caption, ["seed", *header, "best epoch"], cells))
    return Section("results", "Results", blocks)


def _words(metric: str) -> str:
    return metric.replace("_", " ")


def curves_section(run: Run) -> Section:
    """Metrics by epoch, one plot per metric, one line per seed and part."""
    logged = {label: fit.history for label, fit in run.fits.items() if fit.history}
    columns = dict.fromkeys(column for rows in logged.values() for column in rows[0])
    split = [column.partition("_") for column in columns]
    metrics = dict.fromkeys(name for part, _, name in split if part in PARTS and name)
    blocks: list[Any] = [_curve(run, logged, metric) for metric in metrics]
    energies = sorted((c for c in columns if c.startswith("energy_")), key=natural)
    if energies:
        blocks.append(_energy_curve(*next(iter(logged.items())), energies))
    if not blocks:
        blocks = [Note("There is no metrics.csv with rows: no curves.", missing=True)]
    return Section("curves", "Learning curves", blocks)


def _curve(run: Run, logged: dict[str, list[Row]], metric: str) -> Plot:
    data: list[dict[str, Any]] = []
    first, history = next(iter(logged.items()))
    several, title, last = len(run.fits) > 1, _words(metric), history[-1]
    columns = {part: f"{part}_{metric}" for part in ("train", "val")}
    for index, (part, column) in enumerate(columns.items()):
        for label, logs in logged.items():
            rows = [r for r in logs if column in r]
            trace = scatter(
                [r["epoch"] for r in rows],
                [r[column] for r in rows],
                "lines" if len(rows) > 1 else "markers",
                name=PART_NAMES[part],
                legendgroup=PART_NAMES[part],
                showlegend=label == first,
                opacity=0.6 if several else 1.0,
                line={"color": colour(index), "dash": "dot" if index else "solid"},
                hovertemplate=plain(f"{label}, epoch %{{x}}: %{{y:.4g}}") + "<extra></extra>",
            )
            data.append(trace)
    ends = [f"{PART_NAMES[p]} {number(last[c])}" for p, c in columns.items() if c in last]
    epochs = [fit.best_epoch for fit in run.fits.values() if fit.best_epoch is not None]
    kept = ", ".join(map(number, epochs))
    lines = "one line per seed" if several else "training and validation"
    return Plot(
        name=f"curve-{metric}",
        caption=f"{title.capitalize()} by epoch, {lines}"
        + (f"; the weights of epoch {kept} were kept." if kept else "."),
        alt=f"Line plot of training and validation {title} by epoch. "
        f"At the last epoch: {', '.join(ends)}.",
        data=data,
        layout={"xaxis": axis("epoch"), "yaxis": axis(title)},
        table=_curve_table(first, history, list(columns.values())),
    )


def _energy_curve(label: str, history: list[Row], columns: list[str]) -> Plot:
    epochs = [r["epoch"] for r in history]
    data = [
        scatter(
            epochs,
            [r.get(column) for r in history],
            name=f"layer {column.removeprefix('energy_')}",
            line={"color": colour(i)},
        )
        for i, column in enumerate(columns)
    ]
    return Plot(
        name="curve-energy",
        caption=f"Energy of each layer's state as training goes ({label}).",
        alt="Line plot of the energy of each layer by epoch.",
        data=data,
        layout={"xaxis": axis("epoch"), "yaxis": axis("energy")},
        table=_curve_table(label, history, columns),
    )


def _curve_table(label: str, rows: list[Row], columns: list[str]) -> Table:
    """Twenty evenly spaced epochs of a fit: a plot's content for screen readers."""
    count = len(rows)
    chosen = sorted({round(i * (count - 1) / 19) for i in range(20)})
    cells = [[number(rows[i].get(column)) for column in ("epoch", *columns)] for i in chosen]
    caption = f"{len(cells)} of {count} evaluated epochs, {label}."
    return Table(caption, ["epoch", *map(_words, columns)], cells)


def cost_section(run: Run) -> Section:
    """Time, epochs, memory and parameters, as far as the run recorded them."""
    rows: list[list[str]] = []
    for label, fit in run.fits.items():
        seconds, epochs, memory = fit.seconds, fit.epochs, fit.peak_memory
        each = 1000 * seconds / epochs if seconds and epochs else None
        cells = [number(epochs), number(fit.best_epoch), str(fit.stopped or "–")]
        cells += [number(seconds, 3), number(each, 3), number(memory / 2**20) if memory else "–"]
        rows.append([label, *cells])
    header = ["run", "epochs", "best epoch", "stopped by", "seconds", "ms per epoch"]
    blocks: list[Any] = [Table("What the run cost.", [*header, "peak memory, MB"], rows)]
    files = [_shown(run)[1] / f"{name}.safetensors" for name in ("model", "estimator")]
    weights = next((path for path in files if path.exists()), None)
    if weights is not None:
        text = f"The saved model takes {number(weights.stat().st_size / 2**20, 3)} MB"
        count = _parameters(weights)
        blocks.append(Note(f"{text} ({number(count)} numbers)." if count else f"{text}."))
    if not any(fit.peak_memory for fit in run.fits.values()):
        blocks.append(Note("The run did not record its memory."))
    return Section("cost", "What it cost", blocks)


def _parameters(weights: Path) -> int | None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(weights, framework="pt") as file:
            names = list(file.keys())
            return sum(math.prod(file.get_slice(name).get_shape()) for name in names)
    except (SafetensorError, OSError, ValueError):
        return None


def settings_section(run: Run) -> Section:
    """Everything that was asked for, and how the rows were split."""
    blocks: list[Any] = [Note(text) for text in _split(run)]
    top = {name: value for name, value in run.config.items() if not isinstance(value, dict)}
    records = [fit.record for fit in run.fits.values() if fit.record]
    made = {commit_of(record).removeprefix("commit ") for record in records}
    if top:
        more = {"commit": sorted(made)} if made else {}
        blocks.append(_settings("The experiment.", {**top, **more}))
    system = SYSTEMS.get(str(run.config.get("system")))
    for name, section in run.config.items():
        if isinstance(section, dict) and section:
            uses = system.uses if system is not None and name == "train" else None
            shown = {k: v for k, v in section.items() if uses is None or uses(k)}
            blocks.append(_settings(f"Settings of [{name}].", shown))
    if not run.config:
        blocks.append(Note("The settings are not known: there is no config.toml.", missing=True))
    return Section("settings", "Settings and split", blocks)


def _split(run: Run) -> list[str]:
    """How the rows were split, if it is known."""
    splits = [fit.split for fit in run.fits.values() if fit.split is not None]
    return [f"Split {split.describe()}." for split in splits[:1]]


def _settings(caption: str, settings: Mapping[str, Any]) -> Table:
    rows: list[list[str]] = []
    for name, value in settings.items():
        if isinstance(value, bool):
            value = "yes" if value else "no"
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        rows.append([name, text])
    return Table(caption, ["setting", "value"], rows)
