"""The sections that need the trained model: predictions, energy, diffusivity, states."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from difformer.blocks import (
    Note,
    Plot,
    Section,
    Table,
    axis,
    colour,
    number,
    scatter,
)
from difformer.errors import DifformerError
from difformer.report.energy import EnergyCheck, check_energy
from difformer.report.inside import (
    MOST_PAIRS,
    Inspection,
    LayerWeights,
    flow_between,
    layer_weights,
    spread,
)
from difformer.report.predictions import calibration_block, confusion_blocks, regression_block
from difformer.report.states import Drawing, sample_rows, states_section

ROWS_SPREAD = 500  # rows whose effective number of neighbours is computed


def model_sections(found: Inspection, label: str, drawing: Drawing) -> list[Section]:
    """Predictions, energies, diffusivities and states of one seed's model."""
    intro = [Note(f"Of {label}, the first with a model.")] if label else []
    sections = [Section("predictions", "Predictions", [*intro, *_predictions(found)])]
    about = [Note(found.title)] if found.within is not None else []
    found = found.within or found
    model, seen = found.difformer, found.dataset
    weights = [] if model is None else layer_weights(model, seen.x, found.graph)
    sections.append(Section("energy", "Energy of each layer", [*about, *_energy_blocks(found)]))
    sections.append(Section("diffusivity", "Diffusivity", _diffusivity_blocks(found, weights)))
    sections.append(states_section(found, weights, drawing))
    return sections


def _predictions(found: Inspection) -> list[Any]:
    dataset, rows = found.dataset, found.split.test
    part = "test"
    if rows.numel() == 0:
        rows, part = (found.split.val, "validation")
    if rows.numel() == 0:
        return [Note("The split has neither test nor validation rows.", missing=True)]
    if dataset.task == "regression":
        return [regression_block(found.output[rows], dataset.y[rows], part)]
    if dataset.task == "multiclass":
        rows = rows[dataset.y[rows] >= 0]
        if rows.numel() == 0:
            return [Note(f"No {part} row has a known class.", missing=True)]
        blocks = confusion_blocks(found.output[rows], dataset.y[rows], found.class_names, part)
        return [*blocks, calibration_block(found.probability[rows], dataset.y[rows], part)]
    y = dataset.y.reshape(dataset.num_rows, -1)[rows]
    return [calibration_block(found.probability[rows], y, part)]


def _energy_blocks(found: Inspection) -> list[Any]:
    model = found.difformer
    if model is None:
        return [Note("The model is not a DIFFormer: it has no energy.")]
    try:
        check = check_energy(model, found.dataset.x, found.graph)
    except (DifformerError, ValueError) as error:
        return [Note(str(error), missing=True)]
    return energy_blocks(check)


def energy_blocks(check: EnergyCheck) -> list[Any]:
    """One sentence on what the theorem compares, its chart, and what is behind it, folded."""
    return [Note(check.summary), _energy_plot(check)]


def _energy_plot(check: EnergyCheck) -> Plot:
    """Energies after each layer; before it and after a bare step from there on a click."""
    layers = [layer.layer for layer in check.layers]
    series = {
        "after the layer": [layer.end for layer in check.layers],
        "before the layer": [layer.start for layer in check.layers],
        "bare diffusion step": [layer.bare for layer in check.layers],
    }
    symbols = ("circle", "square", "diamond")
    data = [
        scatter(
            layers,
            values,
            "lines+markers",
            name=name,
            marker={"symbol": symbols[i], "size": 9},
            line={"color": colour(i), "dash": "solid" if i == 0 else "dot"},
            visible=True if i == 0 else "legendonly",
        )
        for i, (name, values) in enumerate(series.items())
    ]
    header = ["layer", "before", "bare step", "the layer", "falls", "τ", "safe τ"]
    causes = list(check.layers[0].causes)
    rows = [
        [
            str(layer.layer),
            number(layer.start),
            number(layer.bare),
            number(layer.end),
            "–" if layer.falls is None else "yes" if layer.falls else "no",
            number(layer.tau, 3),
            number(layer.safe_tau, 3),
            *(number(layer.causes[name], 3) for name in causes),
        ]
        for layer in check.layers
    ]
    return Plot(
        name="energy-layers",
        caption="E(Z, k) of unit rows after each layer (λ = 1/n): how far rows are from where they "
        "were before it, and from each other. A click on the legend adds the energy before the "
        "layer, where nothing has moved yet, and after a bare diffusion step from there.",
        alt="Line plot of the energy after each layer. " + check.summary,
        data=data,
        layout={
            "xaxis": axis("layer", dtick=max(1, len(layers) // 12)),
            "yaxis": axis("energy", rangemode="tozero"),
        },
        table=Table(
            "Energies by layer, and what each part of a layer adds.",
            [*header, *(f"+ {name}" for name in causes)],
            rows,
        ),
        notes=check.sentences(),
    )


def _diffusivity_blocks(found: Inspection, weights: list[LayerWeights]) -> list[Any]:
    if not weights:
        return [Note("The model is not a DIFFormer: it has no diffusivity.")]
    n = found.dataset.num_rows
    budget = max(1, MOST_PAIRS // (n * len(weights) * weights[0].q.shape[0]))
    rows = sample_rows(n, min(ROWS_SPREAD, budget))
    spreads = [spread(w, rows) for w in weights]
    y = found.dataset.y if found.dataset.task == "multiclass" else None
    flows = [flow_between(w, y) for w in weights] if y is not None and bool((y >= 0).any()) else []
    header = ["layer", "effective neighbours (median)", "share of all rows"]
    header += ["within own class", "if all pairs were alike", "times more"] if flows else []
    cells: list[list[str]] = []
    for i, each in enumerate(spreads):
        row = [str(i + 1), number(each.median), f"{100 * each.share:.3g} %"]
        if flows:
            f = flows[i]
            row += [f"{100 * f.within:.3g} %", f"{100 * f.expected:.3g} %", number(f.lift, 3)]
        cells.append(row)
    looked = "" if rows.numel() == n else f" The neighbours: median of {rows.numel():,} rows."
    table = Table("How diffusivity spreads, layer by layer." + looked, header, cells)
    ends = sorted({0, len(weights) - 1})
    blocks: list[Any] = [table, *(Note(_advice(i, spreads[i], flows)) for i in ends)]
    if flows and 2 <= flows[0].flow.shape[0] <= 30:
        blocks += [_flow_table(flows[i].flow, i + 1, found.class_names) for i in ends]
    return blocks


def _advice(index: int, each: Any, flows: list[Any]) -> str:
    text = f"Layer {index + 1}: a row is influenced by {number(each.median)} of {each.n:,} rows"
    if each.share > 0.9:
        text += " in effect, nearly all alike: its all-pair term is close to the mean of all rows"
    elif each.median < 2:
        text += " in effect: by hardly more than one"
    else:
        text += " in effect"
    if flows:
        lift = flows[index].lift
        text += f"; its own class gets {number(lift, 3)} times what uniform weights would give it"
    return text + "."


def _flow_table(flow: Tensor, layer: int, names: list[str]) -> Table:
    # Shaded from the smallest to the largest share.
    low, high = float(flow.nan_to_num(1.0).min()), float(flow.nan_to_num(0.0).max())
    shades = ((flow - low) / ((high - low) or 1.0)).nan_to_num(0.0).tolist()
    rows = [
        [name, *("–" if v != v else f"{100 * v:.1f}" for v in shares)]
        for name, shares in zip(names, flow.tolist(), strict=False)
    ]
    return Table(
        f"Layer {layer}: of the diffusivity of a row of this class, per cent that comes from each "
        "class (– : a class without rows).",
        ["class", *names[: flow.shape[1]]],
        rows,
        shades,
    )
