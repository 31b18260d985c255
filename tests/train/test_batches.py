"""A full batch hides every label that is not for training."""

from __future__ import annotations

import pytest
import torch

from difformer import DIFFormer
from difformer.data.dataset import Dataset
from difformer.data.split import Split
from difformer.jobs.rows import given_graph
from difformer.train.batches import FullBatch


@pytest.mark.parametrize("task", ["multiclass", "multilabel", "regression"])
def test_only_training_labels_are_visible(toy_dataset, task):
    dataset = toy_dataset(task)
    split = Split("s", [1, 4], [2], [3])
    source = FullBatch(dataset, split)
    for batch in (source.observed(), *source.epoch(1)):
        known = ~batch.y.isnan() if batch.y.is_floating_point() else batch.y >= 0
        rows = known if known.ndim == 1 else known.any(1)
        assert rows.nonzero().flatten().tolist() == [1, 4]
        assert batch.y[[1, 4]].equal(source.y[[1, 4]])
        assert batch.rows.tolist() == [1, 4]
    assert source.y.equal(dataset.y)  # hiding leaves the original alone


def test_one_target_is_a_column_so_that_nothing_broadcasts():
    dataset = Dataset("d", torch.zeros(4, 1), torch.arange(4.0), "regression")
    assert FullBatch(dataset, Split("s", [0], [1], [2])).y.shape == (4, 1)


def test_bad_input_is_named(toy_dataset):
    dataset = toy_dataset()
    split = Split("s", [1, 4], [2], [3])
    with pytest.raises(ValueError, match=r"weight must be \(90,\), one per row, got \(3,\)"):
        FullBatch(dataset, split, weight=torch.ones(3))
    unlabelled = Dataset("d", dataset.x, torch.full((90,), -1), class_names=("a", "b"))
    with pytest.raises(ValueError, match="split 's' must have labelled training rows"):
        FullBatch(unlabelled, split)
    with pytest.raises(ValueError, match="names row 500"):
        FullBatch(dataset, Split("s", [500], [2], [3]))


def test_a_source_moves_with_all_it_holds(problem):
    source = FullBatch(problem.dataset, problem.split, weight=torch.ones(90))
    assert source.to(torch.device("cpu")) is source
    moved = source.to(torch.device("meta"))
    batch = moved.observed()
    assert {t.device.type for t in (moved.y, batch.x, batch.y, batch.rows, batch.weight)} == {
        "meta"
    }


def test_a_model_called_with_the_edge_list_answers_as_in_the_run_that_trained_it(problem):
    edges = torch.randint(90, (2, 300), generator=torch.Generator().manual_seed(0))
    object.__setattr__(problem.dataset, "edge_index", edges)
    source = FullBatch(problem.dataset, problem.split, given_graph(problem.dataset))
    model, _ = problem.fit(source=source, model=lambda: DIFFormer(5, 8, 3, num_layers=3))
    with torch.no_grad():
        trained = source.evaluate(model.eval())
        torch.testing.assert_close(model(problem.dataset.x, edges), trained)
