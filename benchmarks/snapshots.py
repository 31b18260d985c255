"""An epoch over Chickenpox's training weeks: all in one call, compared with a loop.

python -m benchmarks.snapshots        writes results/benchmarks/snapshots.json

Both compute the gradient of the mean over 103 weeks and take one step of Adam, with prepared graphs
and the same model (width 4, two layers). The outputs that are compared are the gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.measure import Ratio, alternate, write_results
from difformer import DIFFormer, Graph, load_dataset
from difformer.data.snapshots import TemporalDataset
from difformer.train.batches import Snapshots
from difformer.train.objective import SquaredError


def make_model(kernel: str) -> tuple[DIFFormer, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = DIFFormer(4, 4, 1, num_layers=2, use_weight=False, kernel=kernel)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def finish(model: DIFFormer, optimizer: torch.optim.Optimizer) -> Tensor:
    optimizer.step()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def measure(data: TemporalDataset, kernel: str) -> Ratio:
    split = data.split("time")
    (batch,) = Snapshots(data, split).epoch(1)
    objective = SquaredError()
    weeks = split.train.numel() // data.num_nodes
    x = data.x.reshape(-1, data.num_nodes, data.num_features)[:weeks].unbind()
    y = data.y.reshape(-1, data.num_nodes, 1)[:weeks].unbind()
    graph = Graph.from_edges(data.edges[0][0], data.num_nodes)
    together, step_together = make_model(kernel)
    apart, step_apart = make_model(kernel)

    def one_call() -> Tensor:
        step_together.zero_grad()
        output = together(batch.x, batch.graph, None, batch.segments)
        objective.loss(output, batch).backward()
        return finish(together, step_together)

    def loop() -> Tensor:
        step_apart.zero_grad()
        for week, target in zip(x, y, strict=True):
            ((apart(week, graph) - target).square().mean() / weeks).backward()
        return finish(apart, step_apart)

    return alternate(f"an epoch on chickenpox, {kernel}", one_call, loop, least=15)


def main() -> None:
    torch.set_num_threads(1)
    data = load_dataset("chickenpox")
    assert isinstance(data, TemporalDataset)
    results = {kernel: measure(data, kernel) for kernel in ("simple", "sigmoid")}
    for found in results.values():
        found.show("loop")
    write_results("snapshots", results)


if __name__ == "__main__":
    main()
