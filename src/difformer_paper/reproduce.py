"""difformer reproduce: measure a published table or figure again, and write it into the pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

from difformer.app.options import DataDir, Json, Quiet, argument, flag, parse_names, parse_seeds
from difformer.app.output import interrupted, print_json, print_table, say
from difformer.blocks import mean_std
from difformer.errors import RunError
from difformer.files import write_atomic
from difformer_paper import demo
from difformer_paper.figures import FIGURES, make_figure
from difformer_paper.measure import CellResult, measure_cell, read_cell, run_path
from difformer_paper.specs import Cell, Spec, list_specs, load_spec
from difformer_paper.tables import View, figures_table, fill_page

if TYPE_CHECKING:
    from difformer.data.dataset import Dataset
    from difformer.jobs.job import Experiment


PAGES = ("README.md", "docs/reproduce.md", "docs/temporal.md", "docs/scale.md")
DEMO = f"src/difformer_paper/{demo.MEASURED}"


def write_pages(root: Path, results: Path) -> list[str]:
    """Fill the marked tables of the pages, and the demo's; the names of those that changed."""
    written: list[str] = []
    for name in (*PAGES, DEMO):
        page = root / name
        if not page.exists():
            raise ValueError(f"{page} must be there: run it in the project's folder")
        before = page.read_text(encoding="utf-8")
        after = demo.measured(results) if name == DEMO else fill_page(before, results)
        if after != before:
            write_atomic(page, after)
            written.append(name)
    return written


KNOWN = tuple(dict.fromkeys([*list_specs(), *FIGURES]))


def command(
    table: Annotated[str | None, argument("TABLE", f"One of {', '.join(KNOWN)}.")] = None,
    models: Annotated[str | None, flag("A,B,...", "Only these rows. [all]")] = None,
    datasets: Annotated[str | None, flag("A,B,...", "Only these columns. [all]")] = None,
    variants: Annotated[str | None, flag("A,B,...", "Only these settings. [all]")] = None,
    protocols: Annotated[str | None, flag("A,B,...", "Only these kinds of split. [all]")] = None,
    splits: Annotated[
        str | None, flag("A,B,...", "Only these of the spec's splits: random:0,random:1")
    ] = None,
    seeds: Annotated[
        str | None, flag("A,B,...", "How many seeds, or which, in place of the spec's.")
    ] = None,
    out: Annotated[Path, flag("FOLDER", "Where results are kept.", "--out", "-o")] = Path(
        "results"
    ),
    runs: Annotated[
        Path | None,
        flag("FOLDER", "Also keep the run folders here, so that an interrupted run is resumed."),
    ] = None,
    fresh: Annotated[bool, flag("", "Measure again what exists.", "--fresh")] = False,
    show: Annotated[bool, flag("", "Run nothing, show what exists.", "--show")] = False,
    readme: Annotated[
        bool,
        flag("", f"Write the tables in {' and '.join(PAGES)} anew; no TABLE.", "--readme"),
    ] = False,
    data_dir: DataDir = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure a published table or figure again, beside what was published.

    Example: difformer reproduce table2 --models difformer-s,difformer-a --datasets cora

    Every run is stored when it ends, in results/TABLE/*.json with its settings, splits, seeds and
    machine: the same command resumes where it stopped, and shows the table once it is complete.
    """
    if readme:
        written = write_pages(Path(), out)
        return print_json({"written": written}) if json else print("\n".join(written))
    if table is None:
        raise ValueError(f"TABLE must be given: one of {', '.join(KNOWN)}")
    if table in FIGURES and table not in list_specs():
        if show and not (out / table).is_dir():
            raise RunError(f"{out / table} is not there: leave --show out to draw {table}")
        return _figure(table, out, [], data_dir, json=json)
    spec = load_spec(table)
    systems, columns = parse_names(models), parse_names(datasets)
    others = {"variants": parse_names(variants), "protocols": parse_names(protocols)}
    cells = spec.cells(systems=systems, columns=columns, **others)
    cells = _narrowed(cells, parse_names(splits), parse_seeds(seeds, 0))
    with ExitStack() as stack:
        if runs is None and table in FIGURES and FIGURES[table].looks:
            runs = Path(stack.enter_context(TemporaryDirectory()))
        if show:
            results = (read_cell(spec, cell, out) for cell in cells)
            found, stopped = [result for result in results if result is not None], False
        else:
            how: Any = {"dataset": _loader(data_dir), "fresh": fresh, "quiet": quiet or json}
            found, stopped = _measure_all(spec, cells, out, runs, **how)
        if drawn := table in FIGURES and not stopped and any(result.runs for result in found):
            made = [run_path(runs, cell, *pair) for cell in cells for pair in cell.runs if runs]
            folders = [folder for folder in made if folder.is_dir()]
            _figure(table, out, folders, data_dir, json=json)
    if drawn:
        return
    if json:
        print_json(_records(spec, found))
    else:
        view = View(spec, found, systems=systems, columns=columns)
        print_table(figures_table(view), spec.title)
    if stopped:
        raise interrupted("what is measured is kept; the same command measures the rest")


def _figure(
    name: str, out: Path, runs: Sequence[Path], data_dir: str | None, *, json: bool
) -> None:
    """Draw a figure; its own README.md says what it shows."""
    files = [str(path) for path in make_figure(name, out, runs=runs, data_dir=data_dir)]
    if json:
        print_json({"figure": name, "files": files})
    else:
        print("\n".join(files))


def _measure_all(
    spec: Spec, cells: list[Cell], out: Path, runs: Path | None, **how: Any
) -> tuple[list[CellResult], bool]:
    """What the cells measure, one after the other, and whether Ctrl-C ended it."""
    tell = partial(say, quiet=how["quiet"])
    found: list[CellResult] = []
    stopped = False
    for cell in cells:
        result, stopped = measure_cell(spec, cell, out, runs=runs, say=tell, **how)
        found.append(result)
        if result.runs:
            figure = mean_std(*result.spread(spec.metric_of(result.column)), "{:.4f}".format)
            tell(f"{cell.name}: {figure} ({len(result.runs)} runs)")
        elif result.cannot:
            tell(f"{cell.name}: {result.cannot}")
        if stopped:
            break
    return found, stopped


def _narrowed(cells: list[Cell], splits: list[str] | None, seeds: list[int] | None) -> list[Cell]:
    """The cells with only these splits and these seeds; cells without a split are dropped."""
    known = dict.fromkeys(split for cell in cells for split in cell.splits)
    for split in splits or ():
        if split not in known:
            raise ValueError(f"--splits must be among {', '.join(known)}, got {split!r}")
    narrowed: list[Cell] = []
    for cell in cells:
        left = tuple(split for split in cell.splits if splits is None or split in splits)
        if left:
            narrowed.append(replace(cell, splits=left, seeds=tuple(seeds or cell.seeds)))
    return narrowed


def _loader(data_dir: str | None) -> Callable[[Experiment], Dataset]:
    """A function that loads a dataset once and keeps it."""
    kept: dict[str, Dataset] = {}

    def load(experiment: Experiment) -> Dataset:
        from difformer.jobs.rows import load_data

        key = f"{experiment.dataset} {dict(experiment.data)}"
        if key not in kept:
            kept.clear()  # one at a time: cells come column by column
            kept[key] = load_data(experiment, data_dir)
        return kept[key]

    return load


def _records(spec: Spec, results: list[CellResult]) -> dict[str, Any]:
    def record(result: CellResult) -> dict[str, Any]:
        figures = result.spread(spec.metric_of(result.column)) if result.runs else (None, None)
        return {
            "cell": result.cell,
            "mean": figures[0],
            "std": figures[1],
            "runs": len(result.runs),
            "missing": len(result.missing),
            "cannot": result.cannot,
            "published": spec.published.get(result.system, {}).get(result.column),
        }

    return {"table": spec.name, "metric": spec.metric, "cells": list(map(record, results))}
