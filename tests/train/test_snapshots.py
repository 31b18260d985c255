"""Training over snapshots: one call equals the loop, and no snapshot sees another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from difformer.core.graph import Graph
from difformer.data.snapshots import TemporalDataset, from_windows
from difformer.nn.model import DIFFormer
from difformer.train.batches import Snapshots
from difformer.train.objective import objective_for


def toy(dynamic: bool = False, dtype: torch.dtype = torch.float32) -> TemporalDataset:
    series = torch.randn(40, 7, generator=torch.Generator().manual_seed(0), dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    edges = [
        (torch.randint(0, 7, (2, 12), generator=generator), torch.rand(12, generator=generator))
        for _ in range(37 if dynamic else 1)
    ]
    return from_windows("toy", series, 3, tuple(edges))


def loop_gradients(model: DIFFormer, data: TemporalDataset, train: int) -> list[Tensor]:
    """Gradients accumulated over training snapshots one by one, as the released code does it."""
    model.zero_grad()
    x, y = data.x.reshape(-1, data.num_nodes, data.num_features), data.y.reshape(-1, data.num_nodes)
    for t in range(train):
        edges = data.edges_at(t)
        graph = None if edges is None else Graph.from_edges(edges[0], data.num_nodes, edges[1])
        loss = (model(x[t], graph).squeeze(-1) - y[t]).square().mean() / train
        loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("kernel", ["simple", "sigmoid"])
def test_one_call_has_the_gradient_of_the_loop(kernel: str, center: bool, dynamic: bool) -> None:
    data = toy(dynamic, torch.float64)
    torch.manual_seed(0)
    options: dict[str, Any] = {"kernel": kernel, "use_weight": False, "center": center}
    model = DIFFormer(data.num_features, 4, 1, **options).double()
    split = data.split("time")
    (batch,) = Snapshots(data, split).epoch(1)
    output = model(batch.x, batch.graph, None, batch.segments)
    objective_for("regression").loss(output, batch).backward()
    together = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    apart = loop_gradients(model, data, split.train.numel() // data.num_nodes)
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_evaluation_in_chunks_equals_evaluation_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data = toy(dynamic=True)
    model = DIFFormer(3, 4, 1).eval()
    whole = Snapshots(data, data.split("time"))
    monkeypatch.setattr("difformer.train.batches.CHUNK", 60)
    pieces = Snapshots(data, data.split("time"))
    torch.testing.assert_close(pieces.evaluate(model), whole.evaluate(model))
    assert [len(batches) for batches in pieces._run.values()] == [8]
    assert whole.evaluate(model).shape == data.y.shape
    assert pieces.observed().x.shape == data.x.shape


def test_rows_nobody_asks_for_are_not_run() -> None:
    data = toy()
    model = DIFFormer(3, 4, 1).eval()
    source = Snapshots(data, data.split("time"))
    rows = torch.cat([data.split("time").train, data.split("time").val])
    some, whole = source.evaluate(model, rows), source.evaluate(model)
    torch.testing.assert_close(some[rows], whole[rows])
    assert bool(some[data.split("time").test].isnan().all())
    every = torch.arange(data.num_rows)
    torch.testing.assert_close(source.evaluate(model, every), whole)


def test_a_step_a_snapshot_gives_each_training_snapshot_once_in_order() -> None:
    data = toy()
    steps = list(Snapshots(data, data.split("time"), per_step=1).epoch(3))
    assert len(steps) == 7
    torch.testing.assert_close(torch.cat([b.x for b in steps]), data.x[: 7 * 7])
    assert len({id(b.graph) for b in steps}) == 1
    (whole,) = Snapshots(data, data.split("time")).epoch(1)
    assert whole.rows.numel() == whole.x.shape[0] == 49
    seen = Snapshots(data, data.split("time")).observed().y
    assert bool(seen[7 * 7 :].isnan().all())  # no target but those of training rows
    with pytest.raises(ValueError, match="per_step must be None or at least 1, got 0"):
        Snapshots(data, data.split("time"), per_step=0)


def test_the_future_moves_no_earlier_prediction() -> None:
    data = toy()
    model = DIFFormer(3, 4, 1).eval()
    before = Snapshots(data, data.split("time")).evaluate(model)
    cut = 20  # from this step on everything is another
    series = torch.cat([data.x[:7, 0:3].T, data.y.reshape(-1, 7)])
    series[cut:] = 100 * torch.randn(20, 7)
    other = from_windows("toy", series, 3, data.edges)
    after = Snapshots(other, other.split("time")).evaluate(model)
    unmoved = (cut - 3 + 1) * 7  # snapshot t looks at steps t to t + 2
    torch.testing.assert_close(after[:unmoved], before[:unmoved], rtol=0, atol=0)
    assert not torch.allclose(after[unmoved:], before[unmoved:])
