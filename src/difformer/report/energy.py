"""Theorem 1 on the states of a trained model: where the energy falls, where it rises, and why.

The theorem is about the bare process: diffusivity f(‖z_i − z_j‖²) of the states themselves, values
that are the states, and no norm. A trained layer departs from it in a few places, and each is
measured on its own by adding one at a time:

    bare         (1 − τ) z_i + τ Σ_j Ŝ_ij z_j  with Ŝ from f on the states     the theorem's step
    scaled       the same, its rows scaled back to unit length
    attention    Ŝ from the learned queries and keys, the graph as the layer adds it
    values       … and the layer-wise transformation of the values
    layer        … and centring, LayerNorm and activation: the next state itself

All energies are E(·, k) of eq. 4 (eq. 19 with a graph) of states scaled to unit rows, where f and δ
live. The theorem: E(Z⁽ᵏ⁺¹⁾, k) ≤ E(Z⁽ᵏ⁾, k − 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.blocks import Note, Plot, Section, Table, axis, colour, number, scatter
from difformer.core.diffusion import Diffusion
from difformer.errors import DifformerError
from difformer.nn.model import DIFFormer
from difformer.nn.exchange import Passage
from difformer.runs.open import LoadedRun

SLACK = 1e-6  # share of the largest energy: the precision of float32 states


@dataclass(frozen=True)
class LayerEnergy:
    """The energies of one layer k, counted from 1."""

    layer: int
    start: float  # E(Z⁽ᵏ⁻¹⁾, k − 1): the state that enters, before any step
    bare: float  # after the theorem's step
    scaled: float  # … with its rows scaled back to unit length, as all below
    attention: float  # with the layer's queries, keys and graph weights
    values: float  # with the layer-wise transformation too
    end: float  # after the layer itself
    tau: float
    safe_tau: float  # the largest step for which the theorem promises descent
    bare_falls: bool  # bare ≤ start: what the theorem promises for tau ≤ safe_tau
    falls: bool | None  # end ≤ the previous layer's end; None for the first layer

    @property
    def causes(self) -> dict[str, float]:
        """How much each departure from the bare process adds to the energy."""
        return {
            "scaling of rows to unit length": self.scaled - self.bare,
            "queries, keys and graph weights of its own": self.attention - self.scaled,
            "layer-wise transformation": self.values - self.attention,
            "centring, norm and activation": self.end - self.values,
        }


@dataclass(frozen=True)
class EnergyCheck:
    """Theorem 1 layer by layer."""

    layers: tuple[LayerEnergy, ...]
    weight: float  # λ

    @property
    def holds(self) -> bool:
        """Whether no layer ends with more energy than the previous one."""
        return all(layer.falls is not False for layer in self.layers)

    @property
    def summary(self) -> str:
        """What Theorem 1 compares, the energies after each layer, in one sentence."""
        first, last = self.layers[0].end, self.layers[-1].end
        if len(self.layers) == 1:
            return f"The energy after the only layer is {number(last)}: nothing to compare it with."
        whole = f"from {number(first)} after the first layer to {number(last)} after the last"
        whole = f"{whole} ({_change(first, last)})"
        down = last <= first
        verb, other = ("falls", "rises") if down else ("rises", "falls")
        others = [str(layer.layer) for layer in self.layers[1:] if layer.falls is not down]
        if not others:
            return f"The energy {verb} at every layer, {whole}."
        at = f"layer{'s' if len(others) > 1 else ''} {', '.join(others)}"
        return f"The energy {verb} {whole}, and {other} at {at}."

    def sentences(self) -> list[str]:
        """Why, layer by layer: the parts that raise the energy, and the bare process."""
        found: list[str] = []
        for before, layer in pairwise(self.layers):
            text = f"falls ({_change(before.end, layer.end)})"
            if not layer.falls:
                cause, by = max(layer.causes.items(), key=lambda item: item[1])
                adds = f"the {cause} adds {by:.4g}, more than anything else"
                text = f"rises ({_change(before.end, layer.end)}); {adds}"
            found.append(f"Layer {layer.layer}: the energy {text}.")
        broken = ", ".join(str(layer.layer) for layer in self.layers if not layer.bare_falls)
        step = "A bare step from the state before"
        if not broken:
            return [*found, f"{step} any layer does not raise the energy."]
        why = "its τ is beyond the safe one"
        return [*found, f"{step} the layer raises the energy at layer {broken}: {why}."]

    def to_json(self) -> dict[str, Any]:
        """Plain values, for --json and for files."""
        return {
            "holds": self.holds,
            "lambda": self.weight,
            "layers": [{**vars(layer), "causes": layer.causes} for layer in self.layers],
            "summary": [self.summary, *self.sentences()],
        }


def check_energy(
    model: DIFFormer, x: Tensor, graph: Any = None, *, weight: float | None = None
) -> EnergyCheck:
    """Theorem 1 on the model's own states, at a few times the cost of its forward pass.

    Args:
        x, graph: as the model takes them.
        weight: λ, by default 1/n.
    """
    model.eval()
    layers: list[LayerEnergy] = []
    with torch.no_grad():
        passages = model.passages(x, graph)
        lam = 1.0 / passages[0].first.shape[0] if weight is None else weight
        try:
            for passage in passages:
                layers.append(_layer(passage, layers, lam, passages[0].source_weight))
        except NotImplementedError as error:
            raise DifformerError(f"the energy cannot be computed: {error}") from error
    return EnergyCheck(tuple(layers), lam)


def _layer(passage: Passage, above: list[LayerEnergy], lam: float, mu: float) -> LayerEnergy:
    """The energies of the layer after those above, relative to the state that enters it."""

    def energy(z: Tensor) -> float:
        return float(passage.energy(z, lam, mu))

    def moved(values: Tensor) -> Tensor:
        """The Euler step of the layer with these values, before its norm."""
        z, first, exchange = passage.before, passage.first, passage.exchange
        return _unit(passage.layer.meet(z, q, key, values, first, exchange))

    unit, tau = _unit(passage.before), float(passage.layer.tau)
    process = Diffusion(passage.pairs, tau=tau, graph=passage.exchange.graph, source_weight=mu)
    stepped = process.step(unit, _unit(passage.first))
    q, key, v = passage.project()
    own = passage.before.unsqueeze(0).expand(q.shape[0], -1, -1)
    start, bare, end = map(energy, (unit, stepped, _unit(passage.after)))
    slack = SLACK * max(abs(start), abs(bare), abs(end))
    return LayerEnergy(
        layer=len(above) + 1,
        start=start,
        bare=bare,
        scaled=energy(_unit(stepped)),
        attention=energy(moved(own)),
        values=energy(moved(v)),
        end=end,
        tau=tau,
        safe_tau=process.safe_tau(unit, lam),
        bare_falls=bare <= start + slack,
        falls=end <= above[-1].end + slack if above else None,
    )


def _unit(z: Tensor) -> Tensor:
    return F.normalize(z, dim=-1)


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


def energy_blocks(check: EnergyCheck) -> list[Any]:
    """One sentence on what the theorem compares, its chart, and what is behind it, folded.

    The chart has the energies after each layer; before it and after a bare step on a click.
    """
    layers = [layer.layer for layer in check.layers]
    lines = (
        ("after the layer", [layer.end for layer in check.layers], "circle"),
        ("before the layer", [layer.start for layer in check.layers], "square"),
        ("bare diffusion step", [layer.bare for layer in check.layers], "diamond"),
    )
    data = [
        scatter(
            layers,
            values,
            "lines+markers",
            name=name,
            marker={"symbol": symbol, "size": 9},
            line={"color": colour(i), "dash": "dot" if i else "solid"},
            visible="legendonly" if i else True,
        )
        for i, (name, values, symbol) in enumerate(lines)
    ]
    header = ["layer", "before", "bare step", "the layer", "falls", "τ", "safe τ"]
    header += [f"+ {name}" for name in check.layers[0].causes]
    rows: list[list[str]] = []
    for each in check.layers:
        falls = {None: "–", True: "yes", False: "no"}[each.falls]
        rest = [number(v, 3) for v in (each.tau, each.safe_tau, *each.causes.values())]
        ends = map(number, (each.start, each.bare, each.end))
        rows.append([str(each.layer), *ends, falls, *rest])
    plot = Plot(
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
        table=Table("Energies by layer, and what each part of a layer adds.", header, rows),
        notes=check.sentences(),
    )
    return [Note(check.summary), plot]
