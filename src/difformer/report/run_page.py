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
from difformer.runs.run import need_kind, read_run
from difformer.systems.registry import SYSTEMS
from difformer.train.checkpoint import Row
from difformer.train.folder import Run

if TYPE_CHECKING:
    from difformer.data.dataset import Dataset
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
    run = read_run(run_folder)
    if run.kind == "comparison":
        from difformer.report.compare_page import write_comparison

        return write_comparison(run_folder, out)
    try:
        if loaded is None:
            need_kind(run_folder, ("dataset", "table", "series"), "its model")
            from difformer.runs.open import load_run

            loaded = load_run(_shown(run)[1], dataset=dataset, data_dir=data_dir)
        rows, seen = _of_rows(run, loaded), loaded.look_inside()
    except (DifformerError, ValueError, OSError, RuntimeError, KeyError) as error:
        text = (
            "What needs the trained model on its data is left out "
            f"(predictions, energies, states, diffusivities): {one_line(error)}"
        )
        rows, inside = [], [Section("model", "The trained model", [Note(text, missing=True)])]
    else:
        inside = _of_model(seen, projection, max_points, data_dir)
    below = [*inside, cost_section(run), settings_section(run)]
    title, subtitle, curves = run.title, headline(run), curves_section(run)
    if run.kind == "table":
        from difformer.report.table_page import titles

        title, subtitle = titles(run)
    elif run.kind == "series":
        subtitle = "A DIFFormer learned to forecast every node from its own past and the others'."
    if rows and run.kind in ("table", "series"):
        # An average of several forms has no single curve.
        logged = [curves] if any(fit.history for fit in run.fits.values()) else []
        sections = [*rows, *(replace(s, folded=True) for s in (*logged, *below))]
    else:
        sections = [results_section(run), curves, *rows, *below]
    notes = [Note(text, missing=True) for text in run.missing]
    sections = [Section("missing", "What is missing", notes), *sections]
    path = run.folder / "report.html" if run.folder.is_dir() else run.folder.with_suffix(".html")
    return write_page(out or path, title, [s for s in sections if s.blocks], subtitle=subtitle)


def _shown(run: Run) -> tuple[str, Path]:
    """The name and the folder of the fit that represents the run: the first that has a model."""
    places = [(label, fit.folder or run.folder) for label, fit in run.fits.items()]
    return next((p for p in places if (p[1] / "model.safetensors").exists()), places[0])


def _of_rows(run: Run, loaded: LoadedRun) -> list[Section]:
    """What the run answers for its own rows."""
    if loaded.own:
        from difformer.report.table_page import table_sections

        return table_sections(run, loaded)
    if loaded.record:
        from difformer.report.series_page import series_sections

        return series_sections(loaded)
    from difformer.report.predictions import prediction_section

    found = prediction_section(loaded)
    if len(run.fits) > 1:
        intro = Note(f"Of {_shown(run)[0]}, the first with a model.")
        found = replace(found, blocks=[intro, *found.blocks])
    return [found]


def _of_model(
    run: LoadedRun, projection: str, most: int, data_dir: Path | str | None
) -> list[Section]:
    """What goes on inside the model."""
    from difformer.nn.model import DIFFormer
    from difformer.report.energy import energy_section
    from difformer.report.inside import diffusivity_section, layer_weights, states_section

    model, x = run.model, run.dataset.x
    weights = layer_weights(model, x, run.graph) if isinstance(model, DIFFormer) else []
    states = states_section(run, weights, projection, most, data_dir)
    return [energy_section(run), diffusivity_section(run, weights), states]


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
        names = {column: f"layer {column.removeprefix('energy_')}" for column in energies}
        first = next(iter(logged))
        told = f"Energy of each layer's state as training goes ({first})."
        alt = "Line plot of the energy of each layer by epoch."
        blocks.append(_lines("energy", told, alt, {first: logged[first]}, names, {}))
    if not blocks:
        blocks = [Note("There is no metrics.csv with rows: no curves.", missing=True)]
    return Section("curves", "Learning curves", blocks)


def _curve(run: Run, logged: Mapping[str, list[Row]], metric: str) -> Plot:
    several, title, last = len(run.fits) > 1, _words(metric), next(iter(logged.values()))[-1]
    columns = {f"{part}_{metric}": PART_NAMES[part] for part in ("train", "val")}
    ends = [f"{name} {number(last[c])}" for c, name in columns.items() if c in last]
    epochs = [fit.best_epoch for fit in run.fits.values() if fit.best_epoch is not None]
    kept = ", ".join(map(number, epochs))
    lines = "one line per seed" if several else "training and validation"
    caption = f"{title.capitalize()} by epoch, {lines}"
    caption += f"; the weights of epoch {kept} were kept." if kept else "."
    alt = f"Line plot of training and validation {title} by epoch. "
    alt += f"At the last epoch: {', '.join(ends)}."
    return _lines(metric, caption, alt, logged, columns, {"opacity": 0.6 if several else 1.0})


def _lines(
    name: str,
    caption: str,
    alt: str,
    logged: Mapping[str, list[Row]],
    columns: Mapping[str, str],
    look: Mapping[str, Any],
) -> Plot:
    """Columns of metrics.csv by epoch, with twenty evenly spaced epochs of a fit in numbers."""
    first, history = next(iter(logged.items()))
    data: list[dict[str, Any]] = []
    for index, (column, title) in enumerate(columns.items()):
        for label, epochs in logged.items():
            rows = [row for row in epochs if column in row]
            hover = plain(f"{label}, epoch %{{x}}: %{{y:.4g}}")
            trace = scatter(
                [row["epoch"] for row in rows],
                [row[column] for row in rows],
                "lines" if len(rows) > 1 else "markers",
                name=title,
                legendgroup=title,
                showlegend=label == first,
                line={"color": colour(index), "dash": "dot" if index else "solid"},
                hovertemplate=f"{hover}<extra></extra>",
                **look,
            )
            data.append(trace)
    count = len(history)
    chosen = sorted({round(i * (count - 1) / 19) for i in range(20)})
    cells = [[number(history[i].get(column)) for column in ("epoch", *columns)] for i in chosen]
    told = f"{len(cells)} of {count} evaluated epochs, {first}."
    return Plot(
        name=f"curve-{name}",
        caption=caption,
        alt=alt,
        data=data,
        layout={"xaxis": axis("epoch"), "yaxis": axis(_words(name))},
        table=Table(told, ["epoch", *map(_words, columns)], cells),
    )


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
    config = run.config
    top = {name: value for name, value in config.items() if not isinstance(value, dict)}
    records = [fit.record for fit in run.fits.values() if fit.record]
    made = {commit_of(record).removeprefix("commit ") for record in records}
    if top:
        top |= {"commit": sorted(made)} if made else {}
        blocks.append(_settings("The experiment.", top))
    system = SYSTEMS.get(str(config.get("system")))
    for name, section in config.items():
        if isinstance(section, dict) and section:
            uses = system.uses if system is not None and name == "train" else None
            shown = {k: v for k, v in section.items() if uses is None or uses(k)}
            blocks.append(_settings(f"Settings of [{name}].", shown))
    if not config:
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
