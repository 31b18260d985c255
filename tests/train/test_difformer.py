"""The model itself through the loop: with a graph, resumed, saved and loaded."""

from __future__ import annotations

import hashlib

import pytest
import torch

from difformer import DIFFormer, Graph
from difformer.jobs.rows import given_graph
from difformer.train.batches import FullBatch
from difformer.train.callbacks import Callback
from difformer.train.loop import fit
from difformer.train.objective import objective_for
from difformer.train.seeding import seeded


class Cut(Callback):
    def on_epoch(self, fit):
        if fit.epoch == 6:
            raise ZeroDivisionError


@pytest.mark.parametrize("sparse", [False, True])
def test_difformer_resumes_to_the_same_bits(problem, tmp_path, sparse):
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(90, (2, 300), generator=generator)
    graph = Graph.from_edges(edges, 90, self_loops=True)
    dataset = problem.dataset
    if sparse:
        object.__setattr__(dataset, "x", dataset.x.relu().to_sparse_csr())

    def run(name, callbacks=()):
        with seeded(0):
            model = DIFFormer(5, 8, 3, num_layers=3, dropout=0.2)
        source = FullBatch(dataset, problem.split, graph)
        objective, folder = objective_for("multiclass"), tmp_path / name
        fit(model, source, objective, problem.split, problem.settings, folder=folder,
            callbacks=callbacks)  # fmt: skip
        return model

    with pytest.raises(ZeroDivisionError):
        run("cut", [Cut()])
    model, whole = run("cut"), run("whole")
    for name in ("model.safetensors", "metrics.csv"):
        digests = {
            hashlib.sha256((tmp_path / folder / name).read_bytes()).hexdigest()
            for folder in ("cut", "whole")
        }
        assert len(digests) == 1, name
    loaded = DIFFormer.load(tmp_path / "cut" / "model.safetensors")
    for other in (whole, loaded):
        for name, value in model.state_dict().items():
            assert value.equal(other.state_dict()[name])


def test_a_model_called_with_the_edge_list_answers_as_in_the_run_that_trained_it(problem):
    edges = torch.randint(90, (2, 300), generator=torch.Generator().manual_seed(0))
    object.__setattr__(problem.dataset, "edge_index", edges)
    source = FullBatch(problem.dataset, problem.split, given_graph(problem.dataset))
    with seeded(0):
        model = DIFFormer(5, 8, 3, num_layers=3)
    fit(model, source, objective_for("multiclass"), problem.split, problem.settings)
    with torch.no_grad():
        trained = source.evaluate(model.eval())
        torch.testing.assert_close(model(problem.dataset.x, edges), trained)
