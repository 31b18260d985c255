"""Figure 3: δ and f, the flow of ten random points, and the energy of one more point."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from difformer.core.diffusivity import Diffusivity, Sigmoid, Simple
from difformer.core.pairs import squared_distances
from difformer.report.blocks import COLOURS
from difformer.report.figures.drawing import Drawn, Work, axes, style

KINDS: dict[str, Diffusivity] = {"DIFFormer-s": Simple(), "DIFFormer-a": Sigmoid()}
POINTS, GRID, SEED = 10, 41, 0


def make(work: Work) -> Drawn:
    """No training: everything follows from the two diffusivities."""
    points = random_points()
    side = torch.linspace(-1, 1, GRID, dtype=torch.float64)
    y, x = torch.meshgrid(side, side, indexing="ij")
    grid = torch.stack([x.flatten(), y.flatten()], 1)  # (GRID², 2)
    z2 = torch.linspace(0, 4, 81, dtype=torch.float64)
    fields = {name: field_of(kind, grid, points) for name, kind in KINDS.items()}
    with style() as new:
        figure = new(7.0, 4.4)
        every = axes(figure, 2, 3)
        for row, (name, kind) in enumerate(KINDS.items()):
            _curves(every[3 * row], name, kind, z2)
            _flow(every[3 * row + 1], side, fields[name], points)
            _energy(every[3 * row + 2], side, fields[name], points)
    return Drawn(figure, _says(fields), _tables(z2, grid, fields, points))


def random_points() -> Tensor:
    """Ten points of the unit disc: close enough to each other that f is non-negative."""
    generator = torch.Generator().manual_seed(SEED)
    angle = 2 * torch.pi * torch.rand(POINTS, generator=generator, dtype=torch.float64)
    radius = torch.rand(POINTS, generator=generator, dtype=torch.float64).sqrt() * 0.9
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1)


def field_of(kind: Diffusivity, grid: Tensor, points: Tensor) -> dict[str, Tensor]:
    """At each place: the flow Σ_j ω_j (z_j − z) / Σ_j ω_j, the energy Σ_j δ(‖z − z_j‖²) − δ(0)."""
    z2 = squared_distances(grid, points)
    omega = kind.f(z2).clamp_min(0)
    flow = omega @ points / omega.sum(1, keepdim=True) - grid
    return {"flow": flow, "energy": (kind.delta(z2) - kind.delta(z2.new_zeros(()))).sum(1)}


def _curves(ax: Any, name: str, kind: Diffusivity, z2: Tensor) -> None:
    ax.plot(z2, kind.delta(z2) - kind.delta(torch.zeros_like(z2[:1])), label="δ(z²) − δ(0)")
    ax.plot(z2, kind.f(z2), "--", label="f(z²) = δ′(z²)")
    ax.set_title(name)
    ax.set_xlabel("z², squared distance of two states")
    ax.set_xlim(0, 4)
    ax.set_ylim(bottom=0)
    ax.legend()


def _flow(ax: Any, side: Tensor, field: dict[str, Tensor], points: Tensor) -> None:
    u, v = (field["flow"][:, i].reshape(GRID, GRID).numpy() for i in (0, 1))
    speed = field["flow"].norm(dim=1).reshape(GRID, GRID).numpy()
    s = side.numpy()
    ax.streamplot(
        s, s, u, v, color=speed, cmap="cividis", density=0.9, linewidth=0.7, arrowsize=0.6
    )
    _stars(ax, points)
    ax.set_title("flow of ten random states")


def _energy(ax: Any, side: Tensor, field: dict[str, Tensor], points: Tensor) -> None:
    s = side.numpy()
    values = field["energy"].reshape(GRID, GRID).numpy()
    shown = ax.contourf(s, s, values, levels=14, cmap="Blues_r")
    ax.contour(s, s, values, levels=14, colors="#333", linewidths=0.3)
    _stars(ax, points)
    ax.set_title("energy of one more state")
    ax.figure.colorbar(shown, ax=ax, shrink=0.85)


def _stars(ax: Any, points: Tensor) -> None:
    ax.plot(points[:, 0], points[:, 1], "*", color=COLOURS[1], ms=7, mec="white", mew=0.4)
    ax.set_aspect("equal")
    ax.set_xlim(-1, 1)
    ax.set_ylim(-1, 1)
    ax.grid(False)


def _says(fields: dict[str, dict[str, Tensor]]) -> list[str]:
    spread = {
        name: float(field["energy"].max() / field["energy"].min()) for name, field in fields.items()
    }
    s, a = spread.values()
    return [
        "Both penalties δ grow and flatten with distance, so f, the diffusivity, falls: near states"
        " pull harder than far ones, as in the paper. For -s f falls along a straight line to 0 at "
        "z² = 4 (unit vectors reach 4, not 2 as the text says); for -a it stays above "
        f"{float(Sigmoid().f(torch.tensor(4.0))):.2f} and bends most near z² = 2.",
        f"The energy has one valley, among the ten states: its rim is {s:.1f} times as high as its "
        f"floor for -s and {a:.1f} times for -a, so the flow of both leads to the middle.",
    ]


def _tables(
    z2: Tensor, grid: Tensor, fields: dict[str, dict[str, Tensor]], points: Tensor
) -> dict[str, list[dict[str, Any]]]:
    curves: list[dict[str, Any]] = []
    for value in z2:
        row: dict[str, Any] = {"z2": _round(value)}
        for name, kind in KINDS.items():
            row |= {f"f {name}": _round(kind.f(value)), f"delta {name}": _round(kind.delta(value))}
        curves.append(row)
    field: list[dict[str, Any]] = []
    for i in range(grid.shape[0]):
        row = {"x": _round(grid[i, 0]), "y": _round(grid[i, 1])}
        for name, found in fields.items():
            row |= {
                f"flow x {name}": _round(found["flow"][i, 0]),
                f"flow y {name}": _round(found["flow"][i, 1]),
                f"energy {name}": _round(found["energy"][i]),
            }
        field.append(row)
    stars = [{"x": _round(p[0]), "y": _round(p[1])} for p in points]
    return {"curves": curves, "field": field, "points": stars}


def _round(value: Any) -> float:
    return float(f"{float(value):.6g}")
