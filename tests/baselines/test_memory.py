"""A system's estimate of its memory against the bytes autograd keeps for its backward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from difformer.data.dataset import Dataset
from difformer.data.split import Split
from difformer.jobs.rows import graph_for
from difformer.systems.registry import SYSTEMS, get_system
from difformer.train.batches import FullBatch, predict
from difformer.train.objective import objective_for
from difformer.train.seeding import seeded

# Without a gradient step of the loop, or with work before the first step that is not kept.
ONCE = {"lp", "lp-knn", "lds", "sgc", "dgc", "gdc"}
NAMES = [n for n, s in SYSTEMS.items() if n not in ONCE and s.trained]
POKEC = {"n": 1_632_803, "e": 30_622_564 + 1_632_803, "p": 65, "c": 2}


def crowded(n: int = 1000, degree: int = 80) -> Dataset:
    """Many edges per row, so that what is kept per edge shows."""
    draw = torch.Generator().manual_seed(0)
    half = torch.randint(n, (2, n * degree // 2), generator=draw)
    edges = torch.cat([half, half.flip(0)], 1)
    x, y = torch.randn(n, 20, generator=draw), torch.arange(n) % 4
    return Dataset("crowded", x, y, edge_index=edges, class_names=tuple("abcd"))


def kept_bytes(name: str, dataset: Dataset) -> int:
    """Bytes of the tensors that one training step keeps for its backward pass, each once."""
    system = get_system(name)
    config = system.configure()
    with seeded(0):
        model = system.build(config, dataset.num_features, dataset.num_outputs).train()
    rows = torch.arange(dataset.num_rows)
    split = Split("all", rows[:100], rows[100:200], rows[200:])
    batch = FullBatch(dataset, split, graph_for(system, config, dataset)).observed()
    if hasattr(model, "observe"):
        model.observe(batch)  # type: ignore[operator]
    kept: dict[int, tuple[int, Tensor]] = {}  # the tensor too: its address must not be used again

    def pack(tensor: Tensor) -> Tensor:
        if tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes(), tensor
        return tensor

    def unpack(tensor: Any) -> Any:
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        prediction = predict(model, batch)
        objective_for("multiclass").loss(prediction.output, batch)
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize("name", NAMES)
def test_an_estimate_covers_what_a_step_keeps_and_is_not_far_above_it(name: str) -> None:
    data = crowded()
    system = get_system(name)
    estimate, kept = system.bytes_needed(data, system.configure()), kept_bytes(name, data)
    inputs = 4 * data.x.numel() + 20 * (data.num_edges + data.num_rows)
    assert kept <= estimate <= 4 * (kept + inputs)


def test_gat_fits_a_graph_of_pokecs_size() -> None:
    gat = get_system("gat")
    assert 4 * gat.configure().numbers(*POKEC.values()) < 16 * 2**30  # 35 GB if messages were made
