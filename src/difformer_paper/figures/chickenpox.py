"""Figure 8: the diffusivities that DIFFormer-s and -a find between the counties of Chickenpox."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from difformer.data.snapshots import TemporalDataset
from difformer.nn.model import DIFFormer
from difformer.report.inside import layer_weights
from difformer.runs.open import LoadedRun
from difformer_paper.figures.drawing import Drawn, Row, Work, axes, style

TITLES = {"simple": "DIFFormer-s", "sigmoid": "DIFFormer-a"}
SNAPSHOTS = 5  # the first of the test weeks
KINDS: dict[str, Any] = {
    "layers": {"system": str, "layer": int},
    "weights": {"system": str, "layer": int, "to": str, "from": str},
}


def make(work: Work) -> Drawn:
    """Draw the mean Ŝ of both layers of both models over five test weeks, (n, n) each."""
    tables = work.look(_look, KINDS)
    layers, found = tables["layers"], dict[tuple[str, int], Tensor]()
    for row in layers:
        key = row["system"], row["layer"]
        pairs = [r["weight"] for r in tables["weights"] if (r["system"], r["layer"]) == key]
        found[key] = torch.tensor(pairs).view(round(len(pairs) ** 0.5), -1)
    n = next(iter(found.values())).shape[0]
    with style() as new:
        figure = new(6.4, 5.4)
        every = axes(figure, 2, 2)
        for ax, ((title, layer), weights) in zip(every, found.items(), strict=True):
            shown = ax.imshow((weights * n).numpy(), cmap="Blues")
            ax.set_title(f"{title}, layer {layer}")
            ax.grid(False)
            ax.set_xticks(range(0, n, 5))
            ax.set_yticks(range(0, n, 5))
            ax.set_xlabel("from county")
            ax.set_ylabel("to county")
            figure.colorbar(shown, ax=ax, shrink=0.8, label="times uniform")
    says = [_says(row, n) for row in layers]
    closer = all(row["correlation_with_closeness_of_targets"] > 0 for row in layers)
    says.append(
        "Large diffusivities go with close targets in every layer, as the paper says."
        if closer
        else "The paper's finding that large diffusivities go with similar targets does not hold "
        "in every layer here."
    )
    note = (
        "Width 4, two layers, no graph, no layer-wise transformation, learning rate 0.01, seed 0, "
        f"2:2:6 in time order; Ŝ averaged over the first {SNAPSHOTS} test weeks. Squared error, "
        "not the released code's broadcast cost."
    )
    return Drawn(figure, says, tables, [note])


def _look(run: LoadedRun) -> dict[str, list[Row]]:
    model, data = run.model, run.dataset
    assert isinstance(model, DIFFormer)
    assert isinstance(data, TemporalDataset)
    title, first = TITLES[model.config.kernel], int(run.split.test[0]) // data.num_nodes
    names = data.node_names or tuple(map(str, range(data.num_nodes)))
    tables: dict[str, list[Row]] = {name: [] for name in KINDS}
    for layer in range(2):
        weights, agree = _weights(model, data, first, layer)
        top = weights.flatten().topk(20).values.sum() / weights.sum()
        tables["layers"].append(
            {
                "system": title,
                "layer": layer + 1,
                "test_mse": round(run.result.metrics["test"]["mse"], 4),
                "effective_neighbours": round(float((1 / weights.square().sum(1)).mean()), 3),
                "largest_over_uniform": round(float(weights.max() * data.num_nodes), 3),
                "share_of_20_strongest": round(float(top), 4),
                "correlation_with_closeness_of_targets": round(agree, 3),
            }
        )
        tables["weights"] += [
            {"system": title, "layer": layer + 1, "to": to, "from": source, "weight": round(w, 6)}
            for to, row in zip(names, weights.tolist(), strict=True)
            for source, w in zip(names, row, strict=True)
        ]
    return tables


def _weights(
    model: DIFFormer, data: TemporalDataset, first: int, layer: int
) -> tuple[Tensor, float]:
    """Mean Ŝ (n, n), and how it goes with the closeness of the counties' targets."""
    n = data.num_nodes
    total, scores = torch.zeros(n, n), []
    for week in range(first, first + SNAPSHOTS):
        rows = slice(week * n, (week + 1) * n)
        weights = layer_weights(model, data.x[rows])[layer].rows(torch.arange(n))
        y = data.y[rows].flatten()
        apart = (y.unsqueeze(0) - y.unsqueeze(1)).abs()
        off = ~torch.eye(n, dtype=torch.bool)
        pair = torch.stack([weights[off], -apart[off]])
        scores.append(float(torch.corrcoef(pair)[0, 1].nan_to_num()))
        total += weights / SNAPSHOTS
    return total, sum(scores) / len(scores)


def _says(row: dict[str, Any], n: int) -> str:
    return (
        f"{row['system']}, layer {row['layer']}: a county listens to "
        f"{row['effective_neighbours']:.1f} of {n} in effect, the largest weight is "
        f"{row['largest_over_uniform']:.2f} times uniform, and weights correlate with the "
        f"closeness of targets by {row['correlation_with_closeness_of_targets']:+.2f}."
    )
