"""Figures 2, 4 and 5: test accuracies by diffusivity, and by depth and step size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from difformer.systems.registry import get_system
from difformer_paper.figures.drawing import DASHES, MARKERS, Drawn, Row, Work, axes, style
from difformer_paper.measure import CellResult, read_results
from difformer_paper.specs import Spec, load_spec

# As the paper's ablation has them: no diffusion, constant, full attention, kernel, -s, -a; then
# those that cut off far pairs.
KINDS = {
    "identity": "identity",
    "constant": "constant",
    "softmax": "full attention",
    "gaussian": "kernel",
    "simple": "DIFFormer-s",
    "sigmoid": "DIFFormer-a",
    "sharp": "sharp",
    "landmarks": "landmarks",
}
OURS = ("simple", "sigmoid")
CUT = ("sharp", "landmarks")


def ablation(work: Work) -> Drawn:
    """The paper's six diffusivities, everything else equal, and two sharp ones: a bar for each."""

    def key(result: CellResult) -> Row:
        return {"system": result.system, "diffusivity": result.settings["model"]["kernel"]}

    return _panels(work, (3.4, 2.6), key, _bars, _compared)


def depth(work: Work) -> Drawn:
    """Accuracy by depth K: one line per step size τ, and one per graph network."""

    def key(result: CellResult) -> Row:
        model, title = result.settings["model"], get_system(result.system).title
        return {"system": title, "tau": model.get("tau", ""), "layers": model["num_layers"]}

    return _panels(work, (3.6, 2.8), key, _lines, _observed)


def _panels(
    work: Work,
    size: tuple[float, float],
    key: Callable[[CellResult], Row],
    draw: Callable[[Any, list[Row], list[Row]], None],
    says: Callable[[str, list[Row]], str],
) -> Drawn:
    """A panel, and sentences, for each dataset that was measured.

    Args:
        size: of one panel, in inches.
        key: the system of a cell, and what the figure varies.
        draw: called with the axes, the rows of a panel and those of all.
        says: called with the title and rows of each.
    """
    spec, results = load_spec(work.name), read_results(work.folder.parent, work.name)
    found: list[Row] = []  # test accuracy over the runs of each cell, by what is varied
    for result in sorted(results, key=lambda r: [str(v) for v in list(key(r).values())[1:]]):
        if result.runs:
            mean, std = result.spread("accuracy")
            row = {"dataset": result.column, **key(result), "mean": round(mean, 5)}
            found.append({**row, "std": _round(std), "seeds": len(result.runs)})
    rows = {
        column["title"]: [row for row in found if row["dataset"] == name]
        for name, column in spec.columns.items()
    }
    rows = {title: mine for title, mine in rows.items() if mine}
    count = max(1, len(rows))
    with style() as new:
        figure = new(size[0] * count, size[1])
        for ax, (title, mine) in zip(axes(figure, 1, count), rows.items(), strict=False):
            draw(ax, mine, found)
            ax.set(title=title, ylabel="test accuracy, %")
    said = [text for title, mine in rows.items() if (text := says(title, mine))]
    return Drawn(figure, said, {"summary": found}, _note(spec, results))


def _round(std: float | None) -> float | str:
    return "" if std is None else round(std, 5)


def _note(spec: Spec, results: Sequence[CellResult]) -> str:
    """How a figure was measured: the spec's note, runs and epochs, and what is left out."""
    found = [spec.note]
    for name, column in spec.columns.items():
        mine = [r for r in results if r.column == name and r.runs]
        if mine:
            runs, epochs = (
                " to ".join(map(str, sorted({min(values), max(values)})))
                for values in (
                    [len(r.runs) for r in mine],
                    [r.settings["train"]["epochs"] for r in mine],
                )
            )
            each = "1 run" if runs == "1" else f"{runs} runs"
            found.append(f"{column['title']}: {each} per point, {epochs} epochs.")
    absent = dict.fromkeys(r.dataset for r in results if r.absent)
    return " ".join([*found, *(f"{name} is left out: its data is not at hand." for name in absent)])


def _percents(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    """Means and deviations in per cent."""
    return [100 * r["mean"] for r in rows], [100 * (r["std"] or 0) for r in rows]


def _bars(ax: Any, rows: list[Row], _: list[Row]) -> None:
    by_kind = {r["diffusivity"]: r for r in rows}
    kinds = [kind for kind in KINDS if kind in by_kind]
    means, errors = _percents([by_kind[kind] for kind in kinds])
    bars = ax.bar(range(len(kinds)), means, yerr=errors, width=0.7, capsize=2)
    for bar, kind in zip(bars, kinds, strict=True):
        others = kind not in (*OURS, *CUT)
        bar.set(hatch="////" if others else "", edgecolor="white" if others else "#184d8c")
        bar.set_facecolor("#9db7d5" if others else "#b5541c" if kind in CUT else "#184d8c")
    ax.bar_label(bars, fmt="%.1f", padding=3, fontsize=7)
    low = min(m - e for m, e in zip(means, errors, strict=True))
    high = max(m + e for m, e in zip(means, errors, strict=True))
    ax.set_ylim(max(0, low - 8), min(100, high + 4))
    ax.set_xticks(range(len(kinds)), [KINDS[k] for k in kinds], rotation=30, ha="right")
    ax.grid(axis="x", visible=False)


def _compared(title: str, rows: list[Row]) -> str:
    """Which diffusivity is best, -s and -a beside the paper's others, and what cutting off adds."""
    by_kind = {r["diffusivity"]: r for r in rows}
    best = max(rows, key=lambda r: r["mean"])
    text = f"{title}: {KINDS[best['diffusivity']]} is best, {_percent(best)}"
    if not all(kind in by_kind for kind in (*OURS, "constant")):
        return f"{text}."
    ours = max(by_kind[kind]["mean"] for kind in OURS)
    others = [r for k, r in by_kind.items() if k not in (*OURS, *CUT)]
    other = max(others, key=lambda r: r["mean"])
    agrees = ours > other["mean"] + (other["std"] or 0.0)
    text += (
        f"; -s {_percent(by_kind['simple'])}, -a {_percent(by_kind['sigmoid'])}, the best of "
        f"the paper's others ({KINDS[other['diffusivity']]}) {_percent(other)}. "
    )
    text += (
        "This agrees with the paper's ablation."
        if agrees
        else "The paper's gap in favour of -s and -a is not seen here beyond the deviation."
    )
    uncut = max(ours, other["mean"])
    cut = "; ".join(
        f"{KINDS[k]} {_percent(by_kind[k])}, {100 * (by_kind[k]['mean'] - uncut):+.1f}"
        for k in CUT
        if k in by_kind
    )
    more = " Far pairs cut off, and points beside the best that does not: "
    return f"{text}{more}{cut}." if cut else text


def _percent(row: Row) -> str:
    std = f" ± {100 * row['std']:.1f}" if row["std"] != "" else ""
    return f"{100 * row['mean']:.1f}{std} %"


def _lines(ax: Any, rows: list[Row], found: list[Row]) -> None:
    def label_of(row: Row) -> str:
        return f"{row['system']}, τ = {row['tau']}" if row["tau"] else row["system"]

    # A line looks the same in every panel.
    for i, label in enumerate(sorted({label_of(row) for row in found})):
        points = sorted((r for r in rows if label_of(r) == label), key=lambda r: r["layers"])
        if not points:
            continue
        means, errors = _percents(points)
        ours = label.startswith("DIFFormer")
        ax.errorbar(
            [r["layers"] for r in points],
            means,
            yerr=errors,
            label=label,
            color=f"C{i}",
            marker=MARKERS[i],
            linestyle=DASHES[i % 4] if ours else ":",
            elinewidth=0.6,
            alpha=1.0 if ours else 0.8,
        )
    ax.set_xscale("log", base=2)
    depths = sorted({r["layers"] for r in rows})
    ax.set_xticks(depths, [str(k) for k in depths])
    ax.minorticks_off()
    ax.set_xlabel("layers K")
    ax.legend(loc="best", frameon=True, framealpha=0.85, edgecolor="none")


def _observed(title: str, rows: list[Row]) -> str:
    """The paper's three observations, each compared with what was measured."""
    ours = {(r["tau"], r["layers"]): 100 * r["mean"] for r in rows if r["tau"]}
    if not ours:
        return ""
    shallow, deep = min(k for _, k in ours), max(k for _, k in ours)
    taus = sorted({tau for tau, _ in ours}, key=float)
    (best_tau, best_k), best = max(ours.items(), key=lambda item: item[1])
    text = [
        f"{title}: the best is {best:.1f} % at K = {best_k}, τ = {best_tau}.",
        *(
            f"τ = {tau}: {ours[tau, shallow]:.1f} % at K = {shallow}, "
            f"{ours[tau, deep]:.1f} % at K = {deep}."
            for tau in taus
            if (tau, shallow) in ours and (tau, deep) in ours
        ),
    ]
    small, large = taus[0], taus[-1]
    if (small, deep) in ours and (large, deep) in ours:
        early = ours[large, shallow] > ours[small, shallow]
        needs = ours[small, deep] > ours[small, shallow]
        text.append(
            "As in the paper, a large step does well with few layers and a small one needs depth."
            if early and needs
            else "The paper's large step for few layers, small step for many, is not seen here."
        )
        drop = max(ours[large, k] for t, k in ours if t == large) - ours[large, deep]
        text.append(
            f"Its loss of the large step at depth is seen: {drop:.1f} points."
            if drop > 2
            else "Its loss of the large step at depth is not seen here."
        )
    for system in sorted({r["system"] for r in rows if not r["tau"]}):
        beside = {r["layers"]: 100 * r["mean"] for r in rows if r["system"] == system}
        if len(beside) > 1:
            first, last = min(beside), max(beside)
            text.append(
                f"{system} goes from {beside[first]:.1f} % at K = {first} to "
                f"{beside[last]:.1f} % at K = {last}."
            )
    return " ".join(text)
