"""Figures 2b and 5: accuracy by depth K for several step sizes τ, graph networks beside."""

from __future__ import annotations

from functools import partial
from typing import Any

from difformer.systems.registry import get_system
from difformer_paper.figures.drawing import (
    DASHES,
    MARKERS,
    Drawn,
    Row,
    Work,
    notes,
    panels,
    summary,
)
from difformer_paper.measure import read_results
from difformer_paper.specs import load_spec


def make(work: Work) -> Drawn:
    """Draw one line per step size, and one per graph network, for every dataset measured."""
    spec, results = load_spec(work.name), read_results(work.folder.parent, work.name)
    found = summary(results, lambda m: {"tau": m.get("tau", ""), "layers": m["num_layers"]})
    for row in found:
        row["system"] = get_system(row["system"]).title
    labels = sorted({_label(row) for row in found})  # a line looks the same in every panel
    figure, rows = panels(spec, found, (3.6, 2.8), partial(_lines, labels=labels))
    says = [line for title, mine in rows.items() for line in _says(title, mine)]
    return Drawn(figure, says, {"summary": found}, notes(spec, results))


def _label(row: Row) -> str:
    return f"{row['system']}, τ = {row['tau']}" if row["tau"] else row["system"]


def _lines(ax: Any, title: str, rows: list[Row], *, labels: list[str]) -> None:
    for i, label in enumerate(labels):
        points = sorted((r for r in rows if _label(r) == label), key=lambda r: int(r["layers"]))
        if not points:
            continue
        x = [int(r["layers"]) for r in points]
        y = [100 * r["mean"] for r in points]
        error = [100 * (r["std"] or 0) for r in points]
        ours = label.startswith("DIFFormer")
        ax.errorbar(
            x,
            y,
            yerr=error,
            label=label,
            color=f"C{i}",
            marker=MARKERS[i],
            linestyle=DASHES[i % 4] if ours else ":",
            elinewidth=0.6,
            alpha=1.0 if ours else 0.8,
        )
    ax.set_xscale("log", base=2)
    depths = sorted({int(r["layers"]) for r in rows})
    ax.set_xticks(depths, [str(k) for k in depths])
    ax.minorticks_off()
    ax.set_xlabel("layers K")
    ax.set_ylabel("test accuracy, %")
    ax.set_title(title)
    ax.legend(loc="best", frameon=True, framealpha=0.85, edgecolor="none")


def _says(title: str, rows: list[Row]) -> list[str]:
    """The paper's three observations, each compared with what was measured."""
    ours = {(r["tau"], int(r["layers"])): 100 * r["mean"] for r in rows if r["tau"]}
    if not ours:
        return []
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
        beside = {int(r["layers"]): 100 * r["mean"] for r in rows if r["system"] == system}
        if len(beside) > 1:
            first, last = min(beside), max(beside)
            text.append(
                f"{system} goes from {beside[first]:.1f} % at K = {first} to "
                f"{beside[last]:.1f} % at K = {last}."
            )
    return [" ".join(text)]
