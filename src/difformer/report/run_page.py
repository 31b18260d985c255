"""report.html of one run: settings, curves, results, and sections about the trained model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from difformer.blocks import Note, Section
from difformer.errors import DifformerError
from difformer.files import one_line
from difformer.report.compare_page import write_comparison
from difformer.report.page import write_page
from difformer.report.run_sections import (
    cost_section,
    curves_section,
    headline,
    results_section,
    settings_section,
)
from difformer.runs.run import Run, SeedRun, read_run

if TYPE_CHECKING:
    from difformer.data.dataset import Dataset
    from difformer.report.states import Drawing
    from difformer.runs.open import LoadedRun


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
        return write_comparison(run_folder, out)
    path = run.folder / "report.html" if run.folder.is_dir() else run.folder.with_suffix(".html")
    drawing = Drawing(projection=projection, max_points=max_points, data_dir=data_dir)
    sections = _sections(run, loaded, dataset, drawing)
    title, subtitle = run.title, headline(run)
    if run.kind == "table":
        from difformer.report.table_page import subtitle_of, title_of

        title, subtitle = title_of(run), subtitle_of(run)
    elif run.kind == "series":
        subtitle = "A DIFFormer learned to forecast every node from its own past and the others'."
    return write_page(out or path, title, sections, subtitle=subtitle)


def _sections(
    run: Run, loaded: LoadedRun | None, dataset: Dataset | None, drawing: Drawing
) -> list[Section]:
    # The first seed that has a model represents the run.
    shown = next((s for s in run.seeds if (s.folder / "model.safetensors").exists()), run.seeds[0])
    own, inside = _of_model(run, shown, loaded, dataset, drawing)
    curves = curves_section(run)
    below = [cost_section(run, shown), settings_section(run)]
    if own:
        # An average of several forms has no single curve.
        curves = [curves] if any(s.history for s in run.seeds) else []
        below = [replace(section, folded=True) for section in (*curves, *inside, *below)]
        sections = [*own, *below]
    else:
        sections = [results_section(run), curves, *inside, *below]
    if run.missing:
        notes = [Note(text, missing=True) for text in run.missing]
        sections.insert(0, Section("missing", "What is missing", notes))
    return [section for section in sections if section.blocks]


def _of_model(
    run: Run,
    shown: SeedRun,
    loaded: LoadedRun | None,
    dataset: Dataset | None,
    drawing: Drawing,
) -> tuple[list[Section], list[Section]]:
    """The sections about a table's or a series' own rows, and those about the model."""
    from difformer.report.inside import inspect_run
    from difformer.report.model_sections import model_sections
    from difformer.runs.open import load_run

    try:
        if loaded is None:
            loaded = load_run(shown.folder, dataset=dataset, data_dir=drawing.data_dir)
        found = inspect_run(loaded)
        own = _own_sections(run, loaded)
    except (DifformerError, ValueError, OSError, RuntimeError, KeyError) as error:
        text = (
            "What needs the trained model on its data is left out "
            f"(predictions, energies, states, diffusivities): {one_line(error)}"
        )
        return [], [Section("model", "The trained model", [Note(text, missing=True)])]
    inside = model_sections(found, shown.label if len(run.seeds) > 1 else "", drawing)
    # The sections of a table's or a series' own rows have their predictions.
    return own, [section for section in inside if not own or section.name != "predictions"]


def _own_sections(run: Run, loaded: LoadedRun) -> list[Section]:
    if run.kind == "table":
        from difformer.report.table_page import table_sections

        return table_sections(run, loaded)
    if run.kind == "series":
        from difformer.report.series_page import series_sections

        return series_sections(loaded)
    return []
