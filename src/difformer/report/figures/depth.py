"""Figures 2b and 5: accuracy by depth K for several step sizes τ, graph networks beside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from difformer.report.figures.drawing import DASHES, MARKERS, Drawn, Work, axes, style
from difformer.report.figures.studies import Cell, Row, measure, summary

DATASETS = {"fig2b": ("cora",), "fig5": ("citeseer", "pubmed")}
TITLES = {"cora": "Cora", "citeseer": "Citeseer", "pubmed": "Pubmed"}
BESIDE = {"gcn": "GCN", "gat": "GAT", "densegat": "DenseGAT"}


@dataclass(frozen=True)
class Plan:
    """What is run on one dataset: an epoch of 32 layers on Pubmed costs fifty of two on Cora."""

    depths: tuple[int, ...] = (2, 4, 8, 16, 32)
    taus: tuple[float, ...] = (0.1, 0.5, 0.9)
    epochs: int = 60
    epochs_beside: int = 100
    seeds: tuple[int, ...] = (0, 1, 2)


PLANS = {
    "cora": Plan(),
    "citeseer": Plan(seeds=(0, 1)),
    "pubmed": Plan(epochs=40, epochs_beside=60, seeds=(0,)),
}


def make(work: Work) -> Drawn:
    """Train every depth with every step size, and the graph networks of the same depths."""
    names = DATASETS[work.name]
    rows, missing = measure(work, [cell for name in names for cell in _cells(name)])
    found = summary(rows, ["dataset", "system", "tau", "layers"])
    shown = [name for name in names if any(r["dataset"] == name for r in found)]
    with style() as new:
        figure = new(3.6 * max(1, len(shown)), 2.8)
        for ax, name in zip(axes(figure, 1, max(1, len(shown))), shown, strict=False):
            _lines(ax, name, [r for r in found if r["dataset"] == name])
    says = [s for name in shown for s in _says(name, [r for r in found if r["dataset"] == name])]
    notes = (
        "The stable recipe with its depth and step size changed, learning rate 0.01, weight decay "
        "0.0005, width 64, 20 labels a class (split random:0); "
        + "; ".join(_how(name) for name in names)
        + ". "
        + " ".join(missing)
    )
    return Drawn(figure, says, {"runs": rows, "summary": found}, [notes.strip()])


def _how(name: str) -> str:
    plan = PLANS[name]
    return (
        f"{TITLES[name]}: {len(plan.seeds)} initialisation(s), {plan.epochs} epochs "
        f"({plan.epochs_beside} for the graph networks, which learn more slowly)"
    )


def _cells(name: str) -> list[Cell]:
    plan = PLANS[name]
    train = {"epochs": plan.epochs, "lr": 0.01, "weight_decay": 5e-4, "eval_every": 5}
    ours = [
        Cell(
            name,
            key={"system": "DIFFormer-s", "tau": tau, "layers": layers},
            recipe="stable",
            model={"num_layers": layers, "tau": tau, "hidden_channels": 64},
            train=train,
            seed=seed,
        )
        for seed in plan.seeds
        for layers in plan.depths
        for tau in plan.taus
    ]
    beside = [
        Cell(
            name,
            key={"system": title, "tau": "", "layers": layers},
            system=system,
            model={"num_layers": layers},
            train={"epochs": plan.epochs_beside, "eval_every": 5},
            seed=seed,
        )
        for system, title in BESIDE.items()
        for seed in plan.seeds
        for layers in plan.depths
    ]
    return sorted([*ours, *beside], key=lambda cell: cell.seed)


def _lines(ax: Any, name: str, rows: list[Row]) -> None:
    series: dict[str, list[Row]] = {}
    for row in rows:
        label = f"{row['system']}, τ = {row['tau']}" if row["tau"] else row["system"]
        series.setdefault(label, []).append(row)
    for i, (label, points) in enumerate(sorted(series.items())):
        points.sort(key=lambda r: int(r["layers"]))
        x = [int(r["layers"]) for r in points]
        y = [100 * r["mean"] for r in points]
        error = [100 * (r["std"] or 0) for r in points]
        ours = label.startswith("DIFFormer")
        ax.errorbar(
            x,
            y,
            yerr=error,
            label=label,
            marker=MARKERS[i],
            linestyle=DASHES[i % 4] if ours else ":",
            elinewidth=0.6,
            alpha=1.0 if ours else 0.8,
        )
    ax.set_xscale("log", base=2)
    depths = PLANS[name].depths
    ax.set_xticks(depths, [str(k) for k in depths])
    ax.minorticks_off()
    ax.set_xlabel("layers K")
    ax.set_ylabel("test accuracy, %")
    ax.set_title(TITLES[name])
    ax.legend(loc="best")


def _says(name: str, rows: list[Row]) -> list[str]:
    """The paper's three observations, each held against what was measured."""
    ours = {(r["tau"], int(r["layers"])): 100 * r["mean"] for r in rows if r["tau"]}
    if not ours:
        return []
    shallow, deep = min(k for _, k in ours), max(k for _, k in ours)
    taus = sorted({tau for tau, _ in ours}, key=float)
    (best_tau, best_k), best = max(ours.items(), key=lambda item: item[1])
    text = [
        f"{TITLES[name]}: the best is {best:.1f} % at K = {best_k}, τ = {best_tau}.",
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
    for system in ("GCN", "GAT"):
        beside = {int(r["layers"]): 100 * r["mean"] for r in rows if r["system"] == system}
        if len(beside) > 1:
            first, last = min(beside), max(beside)
            text.append(
                f"{system} goes from {beside[first]:.1f} % at K = {first} to "
                f"{beside[last]:.1f} % at K = {last}."
            )
    return [" ".join(text)]
