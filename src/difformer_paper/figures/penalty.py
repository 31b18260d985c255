"""Figure 3: δ and f, the flow of ten random points, and the energy of one more point.

Beside the paper's two rows, the sharp form at two sharpnesses: it cuts off far pairs, so the energy
has a basin per cluster where the paper's has one for all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from difformer.blocks import COLOURS
from difformer.core.diffusivity import Diffusivity, Sharp, Sigmoid, Simple
from difformer.core.rows import squared_distances
from difformer_paper.figures.drawing import Drawn, Tables, Work, axes, style, table

# An offset at which a state half a unit away has half the largest weight.
OFFSET = 1 - 0.5**2 / 2
KINDS: dict[str, Diffusivity] = {
    "DIFFormer-s": Simple(),
    "DIFFormer-a": Sigmoid(),
    "sharp, s = 20": Sharp(20.0, offset=OFFSET),
    "sharp, s = 80": Sharp(80.0, offset=OFFSET),
}
POINTS, GRID, SEED = 10, 41, 0


def draw(_: Work) -> Drawn:
    """No training: everything follows from the diffusivities."""
    points = random_points()
    side = torch.linspace(-1, 1, GRID, dtype=torch.float64)
    y, x = torch.meshgrid(side, side, indexing="ij")
    grid = torch.stack([x.flatten(), y.flatten()], 1)  # (GRID², 2)
    z2 = torch.linspace(0, 4, 81, dtype=torch.float64)
    fields = {name: field_of(kind, grid, points) for name, kind in KINDS.items()}
    with style() as new:
        figure = new(7.0, 2.2 * len(KINDS))
        every = axes(figure, len(KINDS), 3)
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
    ax.set(title=name, xlabel="z², squared distance of two states", xlim=(0, 4), ylim=(0, None))
    ax.legend()


def _flow(ax: Any, side: Tensor, field: dict[str, Tensor], points: Tensor) -> None:
    u, v = (field["flow"][:, i].reshape(GRID, GRID).numpy() for i in (0, 1))
    speed = field["flow"].norm(dim=1).reshape(GRID, GRID).numpy()
    s = side.numpy()
    ax.streamplot(
        s, s, u, v, color=speed, cmap="cividis", density=0.6, linewidth=0.7, arrowsize=0.6
    )
    _stars(ax, points)
    ax.set_title("flow of ten random states")


def _energy(ax: Any, side: Tensor, field: dict[str, Tensor], points: Tensor) -> None:
    s = side.numpy()
    values = field["energy"].reshape(GRID, GRID).numpy()
    shown = ax.contourf(s, s, values, levels=9, cmap="Blues_r")
    ax.contour(s, s, values, levels=9, colors="#333", linewidths=0.3)
    _stars(ax, points)
    ax.set_title("energy of one more state")
    ax.figure.colorbar(shown, ax=ax, shrink=0.85)


def _stars(ax: Any, points: Tensor) -> None:
    ax.plot(points[:, 0], points[:, 1], "*", color=COLOURS[1], ms=7, mec="white", mew=0.4)
    ax.set(aspect="equal", xlim=(-1, 1), ylim=(-1, 1))
    ax.grid(False)


def basins(field: dict[str, Tensor]) -> int:
    """The number of places of the grid whose energy is below that of all their neighbours."""
    energy = field["energy"].reshape(1, 1, GRID, GRID)
    lowest = -torch.nn.functional.max_pool2d(-energy, 3, stride=1, padding=1)
    return int((energy == lowest)[..., 1:-1, 1:-1].sum())


def _says(fields: dict[str, dict[str, Tensor]]) -> list[str]:
    spread = [float(f["energy"].max() / f["energy"].min()) for f in fields.values()]
    wells = [basins(field) for field in fields.values()]
    return [
        "All penalties δ grow and flatten with distance, so f, the diffusivity, falls: near states "
        "pull harder than far ones, as in the paper. For -s f falls along a straight line to 0 at "
        "z² = 4 (unit vectors reach 4, not 2 as the text says); for -a it stays above "
        f"{float(Sigmoid().f(torch.tensor(4.0))):.2f} and bends most near z² = 2.",
        f"The energy of -s has {wells[0]} basin and that of -a {wells[1]}, among the ten states: "
        f"its rim is {spread[0]:.1f} times as high as its floor for -s and {spread[1]:.1f} times "
        "for -a, so the flow of both leads to the middle.",
        f"The sharp form has {wells[2]} basins at s = 20 and {wells[3]} at s = 80, one for each "
        "cluster of states: what is further away than half a unit is cut off, and a state flows "
        "to its own cluster.",
    ]


def _tables(
    z2: Tensor, grid: Tensor, fields: dict[str, dict[str, Tensor]], points: Tensor
) -> Tables:
    curves, field = {"z2": z2}, _places(grid)
    for name, kind in KINDS.items():
        curves |= {f"f {name}": kind.f(z2), f"delta {name}": kind.delta(z2)}
        flow = fields[name]["flow"]
        field |= {f"flow x {name}": flow[:, 0], f"flow y {name}": flow[:, 1]}
        field[f"energy {name}"] = fields[name]["energy"]
    columns = {"curves": curves, "field": field, "points": _places(points)}
    return {
        name: table({title: column.tolist() for title, column in each.items()}, digits=6)
        for name, each in columns.items()
    }


def _places(points: Tensor) -> dict[str, Tensor]:
    return {"x": points[:, 0], "y": points[:, 1]}
