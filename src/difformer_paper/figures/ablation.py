"""Figures 2a and 4: the paper's six diffusivities, everything else equal, and two sharp ones."""

from __future__ import annotations

from typing import Any

from difformer_paper.figures.drawing import Drawn, Row, Work, notes, panels, summary
from difformer_paper.measure import read_results
from difformer_paper.specs import load_spec

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


def make(work: Work) -> Drawn:
    """Draw one bar per diffusivity for every dataset that was measured."""
    spec, results = load_spec(work.name), read_results(work.folder.parent, work.name)
    found = summary(results, lambda model: {"diffusivity": model["kernel"]})
    figure, rows = panels(spec, found, (3.4, 2.6), _bars)
    says = [_says(title, mine) for title, mine in rows.items()]
    return Drawn(figure, [*says, ""] if says else [], {"summary": found}, notes(spec, results))


def _bars(ax: Any, title: str, rows: list[Row]) -> None:
    by_kind = {r["diffusivity"]: r for r in rows}
    kinds = [k for k in KINDS if k in by_kind]
    means = [100 * by_kind[k]["mean"] for k in kinds]
    errors = [100 * (by_kind[k]["std"] or 0) for k in kinds]
    hatches = ["" if k in (*OURS, *CUT) else "////" for k in kinds]
    bars = ax.bar(range(len(kinds)), means, yerr=errors, width=0.7, capsize=2, color="#9db7d5")
    for bar, kind, hatch, error in zip(bars, kinds, hatches, errors, strict=True):
        bar.set_hatch(hatch)
        bar.set_edgecolor("white" if hatch else "#184d8c")
        bar.set_facecolor("#9db7d5" if hatch else "#b5541c" if kind in CUT else "#184d8c")
        ax.annotate(
            f"{100 * by_kind[kind]['mean']:.1f}",
            (bar.get_x() + bar.get_width() / 2, bar.get_height() + error),
            ha="center",
            va="bottom",
            xytext=(0, 3),
            textcoords="offset points",
            fontsize=7,
        )
    low = min(m - e for m, e in zip(means, errors, strict=True))
    high = max(m + e for m, e in zip(means, errors, strict=True))
    ax.set_ylim(max(0, low - 8), min(100, high + 4))
    ax.set_xticks(range(len(kinds)), [KINDS[k] for k in kinds], rotation=30, ha="right")
    ax.set_title(title)
    ax.set_ylabel("test accuracy, %")
    ax.grid(axis="x", visible=False)


def _says(title: str, rows: list[Row]) -> str:
    by_kind = {r["diffusivity"]: r for r in rows}
    best = max(rows, key=lambda r: r["mean"])
    text = f"{title}: {KINDS[best['diffusivity']]} is best, {_percent(best)}"
    if all(kind in by_kind for kind in (*OURS, "constant")):
        ours = max(by_kind[kind]["mean"] for kind in OURS)
        others = [r for k, r in by_kind.items() if k not in (*OURS, *CUT)]
        other = max(others, key=lambda r: r["mean"])
        agrees = ours > other["mean"] + max(other["std"] or 0, 0.0)
        text += (
            f"; -s {_percent(by_kind['simple'])}, -a {_percent(by_kind['sigmoid'])}, the best of "
            f"the paper's others ({KINDS[other['diffusivity']]}) {_percent(other)}. "
        )
        text += (
            "This agrees with the paper's ablation."
            if agrees
            else "The paper's gap in favour of -s and -a is not seen here beyond the deviation."
        )
        return text + _cut(by_kind, max(ours, other["mean"]))
    return text + "."


def _cut(by_kind: dict[str, Row], best: float) -> str:
    """How far those that cut off far pairs are from the best that does not."""
    told = [
        f"{KINDS[kind]} {_percent(by_kind[kind])}, {100 * (by_kind[kind]['mean'] - best):+.1f}"
        for kind in CUT
        if kind in by_kind
    ]
    return (
        f" Far pairs cut off, and points beside the best that does not: {'; '.join(told)}."
        * bool(told)
    )


def _percent(row: Row) -> str:
    std = f" ± {100 * row['std']:.1f}" if row["std"] != "" else ""
    return f"{100 * row['mean']:.1f}{std} %"
