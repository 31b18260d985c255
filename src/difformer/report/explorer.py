"""The states of a model in two dimensions, with the strongest diffusivities between rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from difformer.report.blocks import COLOURS, Explorer, Note, Section, plain, rounded
from difformer.report.diffusivity import MOST_PAIRS, LayerWeights, strongest
from difformer.report.embedding import project, sample_rows, wanted_projections
from difformer.report.images import row_images
from difformer.report.inspection import Inspection

__all__ = ["states_section"]

MOST_EDGES = 1500  # drawn at the lowest setting of the slider
MOST_INFLUENCED = 2000  # rows whose strongest influences are on the page
NEIGHBOURS = 8  # of each of them


def states_section(
    found: Inspection,
    weights: list[LayerWeights],
    *,
    projection: str,
    max_points: int,
    data_dir: Any = None,
) -> Section:
    """The states after the first and the last layer, and which rows moved which."""
    rows = sample_rows(found.output, max_points)
    blocks: list[Any] = []
    if rows.numel() < found.dataset.num_rows:
        blocks.append(Note(_sampled(found, rows)))
    blocks.append(Note(_how_to_read(found, weights)))
    blocks.append(Explorer(_explorer(found, rows, weights, projection, data_dir)))
    return Section("states", "States and strongest diffusivities", blocks)


def _sampled(found: Inspection, rows: Tensor) -> str:
    total = found.dataset.num_rows
    return (
        f"{rows.numel():,} of {total:,} rows are drawn, sampled at random (seed 0). "
        "Edges are drawn between sampled rows only, with the diffusivities the model has for all "
        "rows."
    )


def _how_to_read(found: Inspection, weights: list[LayerWeights]) -> str:
    if found.difformer is None:
        return "The model keeps no layer states: its outputs are drawn."
    state = "Each point is a row: its state after the layer, in two dimensions."
    if all(layer.kernel.local for layer in weights):
        return f"{state} No row meets others but along the edges of the graph."
    return (
        f"{state} A line joins a row to one that moved it; its strength is the diffusivity, in "
        "multiples of what a pair would have if all pairs were alike. Point at a row to see it, "
        "click it (or give its number) to see which rows influenced it most."
    )


def _explorer(
    found: Inspection,
    rows: Tensor,
    weights: list[LayerWeights],
    projection: str,
    data_dir: Any,
) -> dict[str, Any]:
    dataset, shown = found.dataset, rows.tolist()
    part = torch.zeros(found.dataset.num_rows, dtype=torch.int64)
    for code, name in enumerate(("train", "val", "test"), start=1):
        part[getattr(found.split, name)] = code
    data: dict[str, Any] = {
        "total": found.dataset.num_rows,
        "rows": shown,
        "part": part[rows].tolist(),
        "colours": list(COLOURS),
        "projections": wanted_projections(projection, rows.numel()),
    }
    if dataset.task == "multiclass":
        names = found.class_names
        data |= {
            "classes": names,
            "y": dataset.y[rows].tolist(),
            "guess": found.output[rows].argmax(1).tolist(),
            "all_y": dataset.y.tolist() if found.dataset.num_rows <= 50_000 else None,
        }
    else:
        value = dataset.y.reshape(found.dataset.num_rows, -1).nan_to_num().mean(1)
        data["value"] = [round(v, 4) for v in value[rows].tolist()]
    data["panels"] = [
        _panel(found, rows, title, state, layer, data["projections"])
        for title, state, layer in _chosen_states(found, weights)
    ]
    # Rows whose influences are shown also get their image.
    known = {int(i) for panel in data["panels"] for i in panel.get("influences", ())}
    data["images"] = row_images(dataset, shown, data_dir, first=known)
    return data


def _chosen_states(
    found: Inspection, weights: list[LayerWeights]
) -> list[tuple[str, Tensor, LayerWeights | None]]:
    if not weights:
        return [("Outputs", found.states[-1], None)]
    last = len(weights)
    end = (f"After layer {last}, the last", found.states[last], weights[-1])
    if last == 1:
        return [("Before the layer", found.states[0], None), end]
    return [("After layer 1", found.states[1], weights[0]), end]


def _panel(
    found: Inspection,
    rows: Tensor,
    title: str,
    state: Tensor,
    weights: LayerWeights | None,
    projections: list[str],
) -> dict[str, Any]:
    points: dict[str, Any] = {}
    for how in projections:
        xy = project(state[rows], how)
        points[how] = [rounded(xy[:, 0].tolist()), rounded(xy[:, 1].tolist())]
    panel: dict[str, Any] = {"title": plain(title), "points": points}
    if weights is not None and rows.numel() > 1 and not weights.kernel.local:
        panel |= _edges(weights, rows)
        panel |= _influences(weights, rows)
    return panel


def _edges(weights: LayerWeights, rows: Tensor) -> dict[str, Any]:
    """The strongest pairs among the drawn rows, as positions in the list of drawn rows."""
    most = max(2, MOST_PAIRS // (weights.n * weights.q.shape[0]))
    within = rows if rows.numel() <= most else rows[sample_rows(rows, most, seed=1)]
    pairs = strongest(weights, k=MOST_EDGES, rows=within)
    place = {row: i for i, row in enumerate(rows.tolist())}
    strength = (pairs.weight / pairs.uniform).tolist()
    return {
        "edges": {
            "target": [place[r] for r in pairs.target.tolist()],
            "source": [place[r] for r in pairs.source.tolist()],
            "strength": rounded(strength),
        },
        "searched": within.numel(),
    }


def _influences(weights: LayerWeights, rows: Tensor) -> dict[str, Any]:
    """For each drawn row, the rows that influenced it most; for a bounded number of rows."""
    most = min(MOST_INFLUENCED, max(1, MOST_PAIRS // (weights.n * weights.q.shape[0])))
    places = sample_rows(rows, most, seed=2)
    found: dict[str, Any] = {}
    start = 0
    for part, block in weights.chunks(rows[places]):
        block[torch.arange(part.numel()), part] = -1.0
        top = block.topk(min(NEIGHBOURS, weights.n - 1), dim=1)
        strength = (top.values * weights.n).tolist()
        for i, place in enumerate(places[start : start + part.numel()].tolist()):
            found[str(place)] = [top.indices[i].tolist(), rounded(strength[i])]
        start += part.numel()
    return {"influences": found}
