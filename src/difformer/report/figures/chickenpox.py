"""Figure 8: the diffusivities that DIFFormer-s and -a find between the counties of Chickenpox."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from difformer.data.registry import load_dataset
from difformer.data.snapshots import TemporalDataset
from difformer.experiments.experiment import Experiment
from difformer.experiments.run import load_run, run_experiment
from difformer.nn.layer import DiffusionLayer
from difformer.nn.model import DIFFormer
from difformer.report.diffusivity import LayerWeights
from difformer.report.figures.drawing import Drawn, Work, axes, style

KINDS = {"simple": "DIFFormer-s", "sigmoid": "DIFFormer-a"}
SNAPSHOTS = 5  # the first of the test weeks
MODEL: dict[str, Any] = {
    "num_layers": 2,
    "hidden_channels": 4,
    "use_weight": False,
    "use_graph": False,
    "dropout": 0.2,
}
TRAIN: dict[str, Any] = {"epochs": 200, "lr": 0.01, "weight_decay": 0.0, "patience": 40, "seed": 0}


def make(work: Work) -> Drawn:
    """Train both without a graph (seconds), and average Ŝ of both layers over five test weeks."""
    data = load_dataset("chickenpox", work.data_dir)
    assert isinstance(data, TemporalDataset)
    found: dict[tuple[str, int], Tensor] = {}
    says: list[str] = []
    layers: list[dict[str, Any]] = []
    for kernel, title in KINDS.items():
        model, mse, first = _train(data, kernel)
        for layer in range(2):
            weights, agree = _weights(model, data, first, layer)
            found[title, layer] = weights
            top = weights.flatten().topk(20).values.sum() / weights.sum()
            layers.append(
                {
                    "system": title,
                    "layer": layer + 1,
                    "test_mse": round(mse, 4),
                    "effective_neighbours": round(float((1 / weights.square().sum(1)).mean()), 3),
                    "largest_over_uniform": round(float(weights.max() * data.num_nodes), 3),
                    "share_of_20_strongest": round(float(top), 4),
                    "correlation_with_closeness_of_targets": round(agree, 3),
                }
            )
    with style() as new:
        figure = new(6.4, 5.4)
        every = axes(figure, 2, 2)
        for ax, ((title, layer), weights) in zip(every, found.items(), strict=True):
            shown = ax.imshow((weights * data.num_nodes).numpy(), cmap="Blues")
            ax.set_title(f"{title}, layer {layer + 1}")
            ax.grid(False)
            ax.set_xticks(range(0, data.num_nodes, 5))
            ax.set_yticks(range(0, data.num_nodes, 5))
            ax.set_xlabel("from county")
            ax.set_ylabel("to county")
            figure.colorbar(shown, ax=ax, shrink=0.8, label="times uniform")
    says += [_says(row, data.num_nodes) for row in layers]
    closer = all(row["correlation_with_closeness_of_targets"] > 0 for row in layers)
    says.append(
        "Large diffusivities go with close targets in every layer, as the paper says."
        if closer
        else "The paper's finding that large diffusivities go with similar targets does not hold "
        "in every layer here."
    )
    names = data.node_names or tuple(map(str, range(data.num_nodes)))
    pairs = [
        {"system": t, "layer": k + 1, "to": names[i], "from": names[j], "weight": round(w, 6)}
        for (t, k), weights in found.items()
        for i, row in enumerate(weights.tolist())
        for j, w in enumerate(row)
    ]
    note = (
        "Width 4, two layers, no graph, no layer-wise transformation, learning rate 0.01, seed 0, "
        f"2:2:6 in time order; Ŝ averaged over the first {SNAPSHOTS} test weeks. Squared error, "
        "not the released code's broadcast cost."
    )
    return Drawn(figure, says, {"layers": layers, "weights": pairs}, [note])


def _train(data: TemporalDataset, kernel: str) -> tuple[DIFFormer, float, int]:
    """The model, its test error, and the first test week."""
    experiment = Experiment.make(
        data.name, recipe="paper", split="time", model={**MODEL, "kernel": kernel}, train=TRAIN
    )
    with TemporaryDirectory() as folder:
        run_experiment(experiment, dataset=data, folder=folder)
        run = load_run(folder, dataset=data)
    assert isinstance(run.model, DIFFormer)
    return run.model, run.result.metrics["test"]["mse"], int(run.split.test[0]) // data.num_nodes


def _weights(
    model: DIFFormer, data: TemporalDataset, first: int, layer: int
) -> tuple[Tensor, float]:
    """Mean Ŝ (n, n), and how it goes with the closeness of the counties' targets."""
    n = data.num_nodes
    total, scores = torch.zeros(n, n), []
    for week in range(first, first + SNAPSHOTS):
        rows = slice(week * n, (week + 1) * n)
        with torch.no_grad():
            state = model.states(data.x[rows])[layer]
        module = model.layers[layer]
        assert isinstance(module, DiffusionLayer)
        weights = LayerWeights(module, state).rows(torch.arange(n))
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
