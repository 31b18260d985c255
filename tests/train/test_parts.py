"""Mini-batches: every row once an epoch, the edges inside each batch, the same batches again."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from spread import case, model_of, problem, write_parts

from difformer.core.graph import Graph
from difformer.data.dataset import Dataset
from difformer.data.split import Split
from difformer.train.parts import Parts, background_worker, layout
from difformer.train.processes import Comm

N = 53


def make(size=20, weighted=False, directed=False, sparse=False, train=range(0, N, 2), **options):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 5, generator=generator)
    y = (x[:, 0] > 0).long()
    edges = torch.randint(N, (2, 300), generator=generator)
    weight = torch.rand(300, generator=generator) if weighted else None
    graph = Graph.from_edges(edges, N, weight, undirected=not directed, self_loops=True)
    split = Split("s", list(train), list(range(1, N, 4)), list(range(3, N, 4)))
    dataset = Dataset("toy", x.to_sparse_csr() if sparse else x, y, edge_index=edges)
    return dataset, split, graph, Parts.of(dataset, split, graph, batch_size=size, **options)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("size", [1, 7, 20, N])
def test_a_batch_holds_its_rows_and_exactly_the_edges_inside_it(weighted, directed, size):
    dataset, split, graph, source = make(size, weighted, directed)
    seen = []
    for rows, batch in source._batches(1):
        seen += rows.tolist()
        assert batch.x.equal(dataset.x[rows])
        assert (batch.y >= 0).nonzero().squeeze(1).equal(batch.rows)
        assert batch.rows.equal(torch.isin(rows, split.train).nonzero().squeeze(1))
        keep = torch.isin(graph.edge_index, rows).all(0)
        edges = torch.searchsorted(rows, graph.edge_index[:, keep])
        weight = None if graph.edge_weight is None else graph.edge_weight[keep]
        expected = Graph.from_edges(edges, rows.numel(), weight)
        torch.testing.assert_close(batch.graph.dense(), expected.dense())
        gradients = []
        for each in (batch.graph, expected):
            value = torch.arange(3.0 * rows.numel()).view(-1, 3).requires_grad_()
            each.propagate(value).square().sum().backward()
            gradients.append(value.grad)
        torch.testing.assert_close(*gradients)
    assert sorted(seen) == list(range(N))


def test_epochs_differ_and_come_again_by_number():
    def first(number, seed=3, source=None):
        return next(iter((source or make(seed=seed)[3]).epoch(number))).x

    source = make(seed=3)[3]
    one, two = first(1, source=source), first(2, source=source)
    assert not one.equal(two)
    assert two.equal(first(2))
    assert one.equal(first(1))
    assert one.equal(first(1, source=make(seed=3, sparse=True)[3]).to_dense())
    assert not one.equal(first(1, seed=4))


def test_batches_without_a_training_row_are_left_out():
    assert [batch.rows.numel() for batch in make(5, train=[4])[3].epoch(1)] == [1]


def test_batches_are_made_in_another_thread_and_its_errors_come_through(monkeypatch):
    source, seen = make()[3], []
    original = source._read

    def watched(plan, index):
        seen.append(threading.current_thread())
        if index == 2:
            raise OSError("the disk is gone")
        return original(plan, index)

    monkeypatch.setattr(source, "_read", watched)
    batches = source.epoch(1)
    next(batches), next(batches)
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)
    assert all(thread is not threading.main_thread() for thread in seen)


def test_what_does_not_fit_is_named():
    for size in (0, N + 1):
        with pytest.raises(ValueError, match=f"batch_size must lie in 1 to {N}, .* got {size}"):
            make(size)
    dataset, split, _, _ = make()
    graph = Graph.from_edges(torch.zeros(2, 0, dtype=torch.int64), 3)
    with pytest.raises(ValueError, match="graph must have the dataset's 53 rows, it has 3"):
        Parts.of(dataset, split, graph, batch_size=5)
    crowd = Comm()
    crowd.size = 5
    with pytest.raises(ValueError, match="rows must be at least one per process, got 3 for 5"):
        layout(graph, 3, crowd)


def test_the_runs_of_three_rows_that_are_drawn_make_whole_batches(tmp_path):
    dataset, split, graph = problem(case("graph"))
    shards = write_parts(tmp_path, dataset, split, graph)
    source = Parts.on_disk(
        shards, model_of(case()), Comm(), batch_size=12, runs=14
    )  # runs of 3 rows
    dense = graph.dense() > 0
    seen = []
    for rows, batch in source._batches(3):
        seen += rows.tolist()
        assert rows.numel() <= 12
        for row in rows.tolist():  # its run is whole
            first = row - row % 3
            assert set(range(first, min(first + 3, 41))) <= set(rows.tolist())
        torch.testing.assert_close(batch.x, dataset.x[rows])
        assert batch.size == int(torch.isin(rows, split.train).sum())
        assert torch.equal(batch.graph.dense() > 0, dense[rows][:, rows])
    assert sorted(seen) == list(range(41))
    assert [row for rows, _ in source._batches(3) for row in rows.tolist()] == seen


def test_only_the_worker_of_batches_computes_alone():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with background_worker() as worker, ThreadPoolExecutor(1) as other:
            assert worker.submit(torch.get_num_threads).result() == 1
            assert torch.get_num_threads() == 3
            assert other.submit(torch.get_num_threads).result() == 3
    finally:
        torch.set_num_threads(before)
