"""Theorem 1 on the states of a trained model: where the energy falls, where it rises, and why.

The theorem is about the bare process: diffusivity f(‖z_i − z_j‖²) of the states themselves, values
that are the states, and no norm. A trained layer departs from it in a few places, and each is
measured on its own by adding one at a time:

    start        the state that enters the layer, before any step
    bare         (1 − τ) z_i + τ Σ_j Ŝ_ij z_j  with Ŝ from f on the states     the theorem's step
    scaled       the same, its rows scaled back to unit length
    attention    Ŝ from the learned queries and keys, the graph as the layer adds it
    values       … and the layer-wise transformation of the values
    end          … and centring, LayerNorm and activation: the next state itself

All energies are E(·, k) of eq. 4 (eq. 19 with a graph) of states scaled to unit rows, where f and δ
live. The theorem: E(Z⁽ᵏ⁺¹⁾, k) ≤ E(Z⁽ᵏ⁾, k − 1).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from difformer.blocks import Note, Plot, Section, Table, axis, colour, number, scatter
from difformer.core.diffusion import Diffusion
from difformer.errors import DifformerError
from difformer.nn.exchange import Passage
from difformer.nn.model import DIFFormer
from difformer.runs.open import LoadedRun

SLACK = 1e-6  # share of the largest energy: the precision of float32 states
# What each departure from the bare step adds, in the order of the list above.
CAUSES = (
    "scaling of rows to unit length",
    "queries, keys and graph weights of its own",
    "layer-wise transformation",
    "centring, norm and activation",
)

Layer = dict[str, Any]


def check_energy(
    model: DIFFormer, x: Tensor, graph: Any = None, *, weight: float | None = None
) -> dict[str, Any]:
    """Theorem 1 on the model's own states, at a few times the cost of its forward pass.

    Args:
        x, graph: as the model takes them.
        weight: λ, by default 1/n.

    Returns:
        Plain values: "layers" with the energies above of each layer, counted from 1, its τ and the
        largest τ for which the theorem promises descent; whether the bare step and the layer lower
        the energy ("falls" is None for the first layer); "holds" if no layer ends with more energy
        than the one before; "lambda"; and the sentences of "summary".
    """
    model.eval()
    layers: list[Layer] = []
    with torch.no_grad():
        passages = model.passages(x, graph)
        lam = 1.0 / passages[0].first.shape[0] if weight is None else weight
        try:
            for passage in passages:
                layers.append(_layer(passage, layers, lam, passages[0].source_weight))
        except NotImplementedError as error:
            raise DifformerError(f"the energy cannot be computed: {error}") from error
    holds = all(layer["falls"] is not False for layer in layers)
    return {"holds": holds, "lambda": lam, "layers": layers, "summary": sentences(layers)}


def _layer(passage: Passage, above: list[Layer], lam: float, mu: float) -> Layer:
    """The energies of the layer after those above, relative to the state that enters it."""
    z, first, exchange = passage.before, passage.first, passage.exchange
    layer, (q, key, value) = passage.layer, passage.project()
    unit, tau, own = normalize(z, dim=-1), float(layer.tau), z.expand(q.shape[0], -1, -1)
    process = Diffusion(passage.pairs, tau=tau, graph=exchange.graph, source_weight=mu)
    bare = process.step(unit, normalize(first, dim=-1))
    rest = {
        "scaled": bare,
        "attention": layer.meet(z, q, key, own, first, exchange),  # before the layer's norm
        "values": layer.meet(z, q, key, value, first, exchange),
        "end": passage.after,
    }
    states = {"start": unit, "bare": bare}
    states |= {name: normalize(state, dim=-1) for name, state in rest.items()}
    found = {name: float(passage.energy(state, lam, mu)) for name, state in states.items()}
    slack = SLACK * max(abs(found[name]) for name in ("start", "bare", "end"))
    causes = zip(CAUSES, pairwise(list(found.values())[1:]), strict=True)
    return {
        "layer": len(above) + 1,
        **found,
        "tau": tau,
        "safe_tau": process.safe_tau(unit, lam),
        "bare_falls": found["bare"] <= found["start"] + slack,
        "falls": found["end"] <= above[-1]["end"] + slack if above else None,
        "causes": {cause: after - before for cause, (before, after) in causes},
    }


def sentences(layers: list[Layer]) -> list[str]:
    """What the theorem compares, the energies after each layer; then why, layer by layer."""
    found = [_whole(layers)]
    for before, layer in pairwise(layers):
        text = f"falls ({_change(before['end'], layer['end'])})"
        if not layer["falls"]:
            cause, by = max(layer["causes"].items(), key=lambda item: item[1])
            adds = f"the {cause} adds {by:.4g}, more than anything else"
            text = f"rises ({_change(before['end'], layer['end'])}); {adds}"
        found.append(f"Layer {layer['layer']}: the energy {text}.")
    broken = ", ".join(str(layer["layer"]) for layer in layers if not layer["bare_falls"])
    step = "A bare step from the state before"
    if not broken:
        return [*found, f"{step} any layer does not raise the energy."]
    why = "its τ is beyond the safe one"
    return [*found, f"{step} the layer raises the energy at layer {broken}: {why}."]


def _whole(layers: list[Layer]) -> str:
    first, last = layers[0]["end"], layers[-1]["end"]
    if len(layers) == 1:
        return f"The energy after the only layer is {number(last)}: nothing to compare it with."
    whole = f"from {number(first)} after the first layer to {number(last)} after the last"
    whole = f"{whole} ({_change(first, last)})"
    down = last <= first
    verb, other = ("falls", "rises") if down else ("rises", "falls")
    others = [str(layer["layer"]) for layer in layers[1:] if layer["falls"] is not down]
    if not others:
        return f"The energy {verb} at every layer, {whole}."
    at = f"layer{'s' if len(others) > 1 else ''} {', '.join(others)}"
    return f"The energy {verb} {whole}, and {other} at {at}."


def _change(before: float, after: float) -> str:
    """By how many per cent a number has changed."""
    share = 100 * (after - before) / abs(before) if before else float("nan")
    return f"{share:+,.0f} %" if abs(share) >= 10 else f"{share:+.2g} %"


def energy_section(run: LoadedRun) -> Section:
    """Theorem 1 on the states of a run, below what part of the run they are of."""
    blocks: list[Any] = [Note(run.note)] if run.note else []
    if not isinstance(run.model, DIFFormer):
        blocks.append(Note("The model is not a DIFFormer: it has no energy."))
    else:
        try:
            blocks += energy_blocks(check_energy(run.model, run.dataset.x, run.graph))
        except (DifformerError, ValueError) as error:
            blocks.append(Note(str(error), missing=True))
    return Section("energy", "Energy of each layer", blocks)


def energy_blocks(check: dict[str, Any]) -> list[Any]:
    """One sentence on what the theorem compares, its chart, and what is behind it, folded.

    The chart has the energies after each layer; before it and after a bare step on a click.
    """
    layers, (summary, *notes) = check["layers"], check["summary"]
    lines = (
        ("after the layer", "end", "circle"),
        ("before the layer", "start", "square"),
        ("bare diffusion step", "bare", "diamond"),
    )
    data = [
        scatter(
            [layer["layer"] for layer in layers],
            [layer[key] for layer in layers],
            "lines+markers",
            name=name,
            marker={"symbol": symbol, "size": 9},
            line={"color": colour(i), "dash": "dot" if i else "solid"},
            visible="legendonly" if i else True,
        )
        for i, (name, key, symbol) in enumerate(lines)
    ]
    header = ["layer", "before", "bare step", "the layer", "falls", "τ", "safe τ"]
    rows = [
        [
            *(number(each[key]) for key in ("layer", "start", "bare", "end")),
            {None: "–", True: "yes", False: "no"}[each["falls"]],
            *(number(v, 3) for v in (each["tau"], each["safe_tau"], *each["causes"].values())),
        ]
        for each in layers
    ]
    told = "Energies by layer, and what each part of a layer adds."
    plot = Plot(
        name="energy-layers",
        caption="E(Z, k) of unit rows after each layer (λ = 1/n): how far rows are from where they "
        "were before it, and from each other. A click on the legend adds the energy before the "
        "layer, where nothing has moved yet, and after a bare diffusion step from there.",
        alt="Line plot of the energy after each layer. " + summary,
        data=data,
        layout={
            "xaxis": axis("layer", dtick=max(1, len(layers) // 12)),
            "yaxis": axis("energy", rangemode="tozero"),
        },
        table=Table(told, [*header, *(f"+ {cause}" for cause in CAUSES)], rows),
        notes=notes,
    )
    return [Note(summary), plot]
