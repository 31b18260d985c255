"""Mini-batches: every row once an epoch, the edges inside each batch, the same batches again."""

from __future__ import annotations

import threading

import pytest
import torch

from difformer.core.graph import Graph
from difformer.data.dataset import Dataset
from difformer.data.split import Split
from difformer.nn.model import DIFFormer
from difformer.train.loop import fit
from difformer.train.objective import objective_for
from difformer.train.partition import Epoch, Partitions
from difformer.train.seeding import seeded
from difformer.train.settings import TrainSettings

N = 53


def make(edges: int = 300, weighted: bool = False, directed: bool = False):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 5, generator=generator)
    y = (x[:, 0] > 0).long()
    edge_index = torch.randint(N, (2, edges), generator=generator)
    weight = torch.rand(edges, generator=generator) if weighted else None
    graph = Graph.from_edges(edge_index, N, weight, undirected=not directed, self_loops=True)
    split = Split("s", list(range(0, N, 2)), list(range(1, N, 4)), list(range(3, N, 4)))
    return Dataset("toy", x, y, edge_index=edge_index), split, graph


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("size", [1, 7, 20, N])
def test_a_batch_holds_its_rows_and_exactly_the_edges_inside_it(weighted, directed, size):
    dataset, split, graph = make(weighted=weighted, directed=directed)
    dense = torch.zeros(N, N, dtype=torch.bool)
    dense[graph.edge_index[1], graph.edge_index[0]] = True
    plan = Epoch.draw(N, size, [0, 1], graph)
    assert torch.cat(plan.rows).sort().values.equal(torch.arange(N))
    source = Partitions(dataset, split, graph, batch_size=size)
    for index, rows in enumerate(plan.rows):
        batch = source._batch(plan, index)
        inside = dense[rows][:, rows]
        expected = torch.zeros_like(inside)
        expected[batch.graph.edge_index[1], batch.graph.edge_index[0]] = True
        assert expected.equal(inside)
        assert batch.x.equal(dataset.x[rows])
        weight = batch.graph.edge_weight
        again = Graph.from_edges(batch.graph.edge_index, rows.numel(), weight)
        torch.testing.assert_close(batch.graph.dense(), again.dense())
        value = torch.randn(rows.numel(), 3, requires_grad=True)
        batch.graph.propagate(value).square().sum().backward()
        other = value.detach().clone().requires_grad_()
        again.propagate(other).square().sum().backward()
        torch.testing.assert_close(value.grad, other.grad)


def test_epochs_differ_and_come_again_by_number():
    dataset, split, graph = make()
    source = Partitions(dataset, split, graph, batch_size=20, seed=3)
    first = [batch.x for batch in source.epoch(1)]
    second = [batch.x for batch in source.epoch(2)]
    assert not first[0].equal(second[0])
    fresh = Partitions(dataset, split, graph, batch_size=20, seed=3)
    assert all(a.equal(b.x) for a, b in zip(second, fresh.epoch(2), strict=True))
    assert all(a.equal(b.x) for a, b in zip(first, fresh.epoch(1), strict=True))
    other = Partitions(dataset, split, graph, batch_size=20, seed=4)
    assert not first[0].equal(next(iter(other.epoch(1))).x)


def test_labels_outside_training_are_hidden_and_rows_are_the_training_rows():
    dataset, split, graph = make()
    source = Partitions(dataset, split, graph, batch_size=11)
    total = 0
    for batch in source.epoch(1):
        assert (batch.y >= 0).nonzero().squeeze(1).equal(batch.rows)
        total += batch.rows.numel()
    assert total == split.train.numel()


def test_batches_without_a_training_row_are_left_out():
    dataset, _, graph = make()
    source = Partitions(dataset, Split("s", [4], [5], [6]), graph, batch_size=5)
    assert [batch.rows.numel() for batch in source.epoch(1)] == [1]


def test_batches_are_made_in_another_thread_and_its_errors_come_through(monkeypatch):
    dataset, split, graph = make()
    source = Partitions(dataset, split, graph, batch_size=20)
    seen = []
    original = source._batch

    def watched(plan, index):
        seen.append(threading.current_thread())
        if index == 2:
            raise OSError("the disk is gone")
        return original(plan, index)

    monkeypatch.setattr(source, "_batch", watched)
    batches = source.epoch(1)
    next(batches), next(batches)
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)
    assert all(thread is not threading.main_thread() for thread in seen)


def test_sparse_features_give_the_same_rows():
    dataset, split, graph = make()
    sparse = Dataset("toy", dataset.x.to_sparse_csr(), dataset.y, edge_index=dataset.edge_index)
    ours = Partitions(sparse, split, graph, batch_size=20).epoch(1)
    for a, b in zip(ours, Partitions(dataset, split, graph, batch_size=20).epoch(1), strict=True):
        assert a.x.to_dense().equal(b.x)


def test_a_model_trains_on_partitions_as_it_does_again():
    dataset, split, graph = make()

    def run():
        with seeded(0):
            model = DIFFormer(5, 8, 2)
        source = Partitions(dataset, split, graph, batch_size=20)
        settings = TrainSettings(epochs=6, lr=0.02)
        return fit(model, source, objective_for("multiclass"), split, settings)

    one, two = run(), run()
    assert one.history == two.history
    assert one.history[-1]["loss"] < one.history[0]["loss"]


@pytest.mark.parametrize("size", [0, N + 1])
def test_a_batch_size_beyond_the_rows_is_named(size):
    dataset, split, graph = make()
    with pytest.raises(ValueError, match=f"batch_size must lie in 1 to {N}, .* got {size}"):
        Partitions(dataset, split, graph, batch_size=size)


def test_a_graph_of_other_rows_is_named():
    dataset, split, _ = make()
    graph = Graph.from_edges(torch.zeros(2, 0, dtype=torch.int64), 3)
    with pytest.raises(ValueError, match="graph must have the dataset's 53 rows, it has 3"):
        Partitions(dataset, split, graph, batch_size=5)
