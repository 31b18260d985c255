"""The tables and pictures of docs/all_pair.md, from results/benchmarks/all_pair.json."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.all_pair import FORMS, LABELS, MIDDLE, NETWORKS, REMOVED, SHARPNESS
from benchmarks.all_pair_trained import (
    COMPARED,
    GRAPH_FORM,
    HIDDEN_FORM,
    JOINED_FORM,
    MAPPED,
    MAPS,
    sharp_cell,
)
from benchmarks.measure import percent
from difformer.blocks import COLOURS
from difformer.files import write_atomic
from difformer.statistics import paired_difference
from difformer_paper.figures.drawing import (
    DASHES,
    MARKERS,
    axes,
    style,
)
from difformer_paper.measure import read_cell
from difformer_paper.specs import load_spec

Results = Mapping[str, Any]
EMPTY = "—"
TITLES = {
    "digits": "Digits",
    "cifar10": "CIFAR-10 features",
    "20news": "20News",
    "cora": "Cora",
    "citeseer": "Citeseer",
    "pubmed": "Pubmed",
}
JOINED = ("graph and sharp", "graph alone", "GCN")


def _cell(results: Results, part: str, name: str, varies: Any, form: str) -> Mapping[str, Any]:
    return results.get(part, {}).get(name, {}).get(str(varies), {}).get(form, {})


def _figure(cell: Mapping[str, Any]) -> str:
    return percent(cell["mean"], cell["std"]) if cell else EMPTY


def _gap(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    if not ours or not theirs:
        return EMPTY
    both = min(len(ours["test"]), len(theirs["test"]))
    return paired_difference(ours["test"][:both], theirs["test"][:both]).shown(100)


def all_pair_sharpness(results: Results) -> list[list[str]]:
    """Accuracy at each sharpness, the plain mean and ten neighbours; one column per dataset."""
    sharp = [f"sharp, s = {s:g}" for s in SHARPNESS]
    columns = [["form", "alone", "mean", *sharp, "kNN graph", "sharp, s = 40, minus mean"]]
    for name, labels in MIDDLE.items():
        part = results.get("sharpness", {}).get(name, {})
        fixed = {form: part.get("", {}).get(form, {}) for form in ("alone", "mean", "kNN graph")}
        found = [part.get(f"{s:g}", {}).get("sharp", {}) for s in SHARPNESS]
        graph = " without its graph" if name in NETWORKS else ""
        columns.append(
            [
                f"{TITLES[name]}{graph}, {labels} labels per class",
                *map(_figure, (fixed["alone"], fixed["mean"], *found, fixed["kNN graph"])),
                _gap(part.get("40", {}).get("sharp", {}), fixed["mean"]),
            ]
        )
    return [list(row) for row in zip(*columns, strict=True)]


Cells = Mapping[str, Mapping[str, Any]]  # by form


def _by_labels(results: Results) -> Iterator[tuple[str, Cells]]:
    for name, counts in LABELS.items():
        for labels in counts:
            forms = (*FORMS, HIDDEN_FORM)
            cells = {form: _cell(results, "labels", name, labels, form) for form in forms}
            yield f"{TITLES[name]}, {labels}", cells


def _by_edges(results: Results) -> Iterator[tuple[str, Cells]]:
    for name in NETWORKS:
        for removed in REMOVED:
            forms = (*JOINED, JOINED_FORM, GRAPH_FORM)
            cells = {form: _cell(results, "edges", name, removed, form) for form in forms}
            yield f"{TITLES[name]}, {removed} %", cells


def _figures(first: str, rows: Iterator[tuple[str, Cells]]) -> list[list[str]]:
    """One column per form."""
    found = list(rows)
    shown = [[title, *map(_figure, cells.values())] for title, cells in found]
    return [[first, *found[0][1]], *shown]


def _paired(
    first: str, rows: Iterator[tuple[str, Cells]], pairs: Sequence[tuple[str, str]]
) -> list[list[str]]:
    """One column per pair of forms."""
    header = [first, *(f"{ours} minus {theirs}" for ours, theirs in pairs)]
    return [
        header,
        *([title, *(_gap(cells[a], cells[b]) for a, b in pairs)] for title, cells in rows),
    ]


def all_pair_labels(results: Results) -> list[list[str]]:
    """Accuracy of each form against the number of labels."""
    return _figures("labels per class", _by_labels(results))


def all_pair_labels_paired(results: Results) -> list[list[str]]:
    """The sharp form minus others, and what a hidden layer adds, against the number of labels."""
    others = ("alone", "mean", "kNN graph", "landmarks", "near")
    pairs = [*(("sharp", form) for form in others), (HIDDEN_FORM, "near")]
    return _paired("labels per class", _by_labels(results), pairs)


def all_pair_edges(results: Results) -> list[list[str]]:
    """Accuracy against the share of edges that is removed."""
    return _figures("edges removed", _by_edges(results))


def all_pair_edges_paired(results: Results) -> list[list[str]]:
    """The graph and the sharp form minus others, against the share of edges that is removed."""
    pairs = (
        (JOINED[0], JOINED[1]),
        (JOINED[0], "GCN"),
        (JOINED_FORM, GRAPH_FORM),
        (JOINED_FORM, "GCN"),
    )
    return _paired("edges removed", _by_edges(results), pairs)


def all_pair_released(results: Results) -> list[list[str]]:
    """Accuracy on the split of the released code, and the published accuracy."""
    spec = load_spec("table2")
    ours = {"difformer-s": "-s, near rows", "difformer-a": "-a, all pairs"}
    titles = [[f"{title}, hidden layer", f"published {title[:2]}"] for title in ours.values()]
    rows = [["", *JOINED[:2], *titles[0], *titles[1]]]
    for name in NETWORKS:
        cells = [_cell(results, "released", name, "", form) for form in JOINED[:2]]
        figures = [percent(cell["mean"]) if cell else EMPTY for cell in cells]
        for system in ours:
            seeds = read_cell(spec, sharp_cell(spec, name, system), Path("results"))
            if seeds is None:
                figures.append(EMPTY)
            else:
                figures.append(percent(*seeds.spread("accuracy")))
            mean, std = spec.published[system][name]
            figures.append(f"{mean} ± {std}")
        rows.append([TITLES[name], *figures])
    return rows


def all_pair_maps(results: Results) -> list[list[str]]:
    """Accuracy by what is compared, and through which maps, on development seeds."""
    rows = [["", "alone", "compared", *MAPS, "s and t learned minus calibrated"]]
    for name in MAPPED:
        alone = _figure(_cell(results, "maps", name, "", "alone"))
        for compared in COMPARED:
            cells = {title: _cell(results, "maps", name, compared, title) for title in MAPS}
            if any(cells.values()):
                gap = _gap(cells["none, s and t learned"], cells["none"])
                figures = map(_figure, cells.values())
                rows.append([TITLES[name], alone, compared, *figures, gap])
    return rows


MAKERS = (
    all_pair_sharpness,
    all_pair_labels,
    all_pair_labels_paired,
    all_pair_edges,
    all_pair_edges_paired,
    all_pair_released,
    all_pair_maps,
)


# --- pictures ----------------------------------------------------------------------------------


def draw(results: Results, folder: Path) -> list[Path]:
    """One picture per question."""
    return [
        _drawn(folder / "all_pair_sharpness.svg", list(MIDDLE), results, _sharpness),
        _drawn(folder / "all_pair_labels.svg", list(LABELS), results, _labels),
        _drawn(folder / "all_pair_edges.svg", list(NETWORKS), results, _edges),
    ]


def _drawn(
    path: Path, names: Sequence[str], results: Results, panel: Callable[[Any, str, Results], None]
) -> Path:
    with style() as new:
        figure = new(2.4 * len(names), 2.6)
        for ax, name in zip(axes(figure, 1, len(names)), names, strict=True):
            panel(ax, name, results)
            ax.set_title(TITLES[name])
        figure.axes[0].set_ylabel("test accuracy, %")
        lines, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(lines, labels, loc="outside lower center", ncols=min(5, len(labels)))
        image = io.BytesIO()
        figure.savefig(image, format="svg", metadata={"Date": None})
    write_atomic(path, image.getvalue())
    return path


def _sharpness(ax: Any, name: str, results: Results) -> None:
    cells = [(s, _cell(results, "sharpness", name, f"{s:g}", "sharp")) for s in SHARPNESS]
    _bars(ax, cells, "sharp, by its sharpness s", marker="o")
    for form, dash, title in (
        ("mean", "--", "mean of all"),
        ("alone", ":", "alone"),
        ("kNN graph", "-.", "ten neighbours"),
    ):
        if cell := _cell(results, "sharpness", name, "", form):
            ax.axhline(100 * cell["mean"], ls=dash, color="#666", lw=1, label=title)
    ax.set_xscale("log")
    ax.set_xlabel("sharpness s")


def _labels(ax: Any, name: str, results: Results) -> None:
    styles = zip(FORMS, MARKERS, cycle(DASHES), cycle(COLOURS), strict=False)
    for form, marker, dash, colour in styles:
        cells = [(c, _cell(results, "labels", name, c, form)) for c in LABELS[name]]
        _bars(ax, cells, form, marker=marker, ls=dash, color=colour, spread=False)
    ax.set_xscale("log")
    ax.set_xticks(LABELS[name], [str(c) for c in LABELS[name]])
    ax.minorticks_off()
    ax.set_xlabel("labels per class")


def _edges(ax: Any, name: str, results: Results) -> None:
    for form, marker, dash in zip((*JOINED, JOINED_FORM), MARKERS, cycle(DASHES), strict=False):
        cells = [(r, _cell(results, "edges", name, r, form)) for r in REMOVED]
        _bars(ax, cells, form, marker=marker, ls=dash)
    ax.set_xlabel("edges removed, %")


def _bars(
    ax: Any,
    cells: Sequence[tuple[float, Mapping[str, Any]]],
    label: str,
    *,
    spread: bool = True,
    **options: Any,
) -> None:
    """Means with their deviations, of the cells that are measured."""
    known = [(at, cell) for at, cell in cells if cell]
    if known:
        where, means = [at for at, _ in known], [100 * cell["mean"] for _, cell in known]
        bars = [100 * cell["std"] for _, cell in known] if spread else None
        ax.errorbar(where, means, bars, label=label, **options)
