"""Fits of one seed are equal in any thread, and leave the global generators alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from difformer import DIFFormer, DIFFormerClassifier
from difformer.train.batches import FullBatch
from difformer.train.chunks import recompute_layers
from difformer.train.loop import fit
from difformer.train.objective import objective_for
from difformer.train.seeding import seeded


class Dropping(nn.Sequential):
    """A model that draws from torch's global generator."""

    def forward(self, x: Any, *_: Any) -> Any:
        return super().forward(x)


def build(kind: str) -> nn.Module:
    if kind == "torch":
        return Dropping(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    model = DIFFormer(5, 8, 3, dropout=0.3, input_dropout=0.2)
    return recompute_layers(model) if kind == "recomputed" else model


@pytest.mark.parametrize("kind", ["difformer", "recomputed", "pseudo", "torch"])
def test_fits_with_equal_seeds_are_equal_in_two_threads(problem, kind):
    settings = {"pseudo_labels": 1.0, "pseudo_warmup": 2} if kind == "pseudo" else {}
    problem = problem.with_settings(**settings)

    def train() -> list[Any]:
        with seeded(0, own=kind != "torch"):
            model = build(kind)
        source = FullBatch(problem.dataset, problem.split)
        fit(model, source, objective_for("multiclass"), problem.split, problem.settings)
        return [p.detach().clone() for p in model.parameters()]

    alone = train()
    with ThreadPoolExecutor(2) as pool:
        for other in [pool.submit(train) for _ in range(2)]:
            assert all(torch.equal(a, b) for a, b in zip(alone, other.result(), strict=True))


def test_a_generator_of_its_own_gives_the_bits_of_the_global_one(problem):
    weights = []
    for own in (False, True):
        with seeded(3, own=own):
            model = build("difformer")
            model.train()
            out = model(problem.dataset.x)
        weights.append([out.detach(), *(p.detach() for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_fit_does_not_touch_the_global_generators(monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)), rng.integers(0, 2, 40)

    def refuse(*_: Any) -> None:
        raise AssertionError("the global generator was seeded")

    monkeypatch.setattr(torch, "manual_seed", refuse)
    monkeypatch.setattr(torch, "set_rng_state", refuse)
    monkeypatch.setattr(np.random, "seed", refuse)
    before = torch.get_rng_state()
    model = DIFFormerClassifier(epochs=5, random_state=0).fit(x, y)
    model.predict(x)
    assert torch.equal(torch.get_rng_state(), before)
