"""scikit-learn's estimators as systems: they learn, by the seed, from the training labels alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from difformer.data.dataset import Dataset
from difformer.data.registry import load_dataset
from difformer.data.split import Split
from difformer.jobs.rows import graph_for
from difformer.systems import fitted
from difformer.systems.registry import SYSTEMS, get_system
from difformer.train.batches import FullBatch
from difformer.train.folder import FitResult
from difformer.train.loop import fit
from difformer.train.objective import objective_for
from difformer.train.seeding import seeded
from difformer.train.settings import TrainSettings

FITTED = [name for name, system in SYSTEMS.items() if system.module.endswith("fitted")]
PEERS = [*FITTED, "graphsage", "appnp", "correct-smooth"]
QUICK: dict[str, dict[str, Any]] = {"boosting": {"iterations": 30}, "forest": {"trees": 60}}


def run(
    name: str, data: Dataset, split: Split, *, seed: int = 0, **options: Any
) -> tuple[nn.Module, FitResult, Tensor]:
    """The model, its result and its output for all rows."""
    system = get_system(name)
    config = system.configure(**{**QUICK.get(name, {}), **options})
    with seeded(seed):
        model = system.build(config, data.num_features, data.num_outputs)
    source = FullBatch(data, split, graph_for(system, config, data))
    settings = TrainSettings(**{**system.train, "epochs": 30, "seed": seed})
    result = fit(model, source, objective_for(data.task), split, settings)
    with torch.no_grad():
        return model, result, source.evaluate(model.eval())


def halves(n: int) -> Split:
    rows = torch.arange(n)
    return Split("thirds", rows[: n // 3], rows[n // 3 : n // 2], rows[n // 2 :])


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


@pytest.mark.parametrize("name", PEERS)
def test_equal_seeds_and_training_labels_give_equal_bits(name: str, small: Dataset) -> None:
    """Whatever the labels of the other rows; validation rows would pick the epoch."""
    split = replace(halves(small.num_rows), val=torch.zeros(0, dtype=torch.int64))
    _, result, first = run(name, small, split, seed=4)
    assert result.metrics["test"]["accuracy"] >= 0.8
    flipped = 1 - small.y
    flipped[split.train] = small.y[split.train]
    other = run(name, replace(small, y=flipped), split, seed=4)[2]
    assert torch.equal(first, other)


@pytest.mark.parametrize("name", [n for n in FITTED if "regression" in SYSTEMS[n].tasks])
@pytest.mark.parametrize("targets", [1, 2])
def test_numbers_are_learned_where_there_is_a_regressor(name: str, targets: int) -> None:
    x = torch.randn(150, 3, generator=torch.Generator().manual_seed(0))
    y = torch.stack([x @ torch.tensor([2.0, -1.0, 0.0]), x[:, 2]], 1)[:, :targets]
    y[5] = float("nan")
    _, result, output = run(name, Dataset("line", x, y, task="regression"), halves(150))
    assert output.shape == (150, targets)
    assert result.metrics["test"]["r2"] > 0.5


def test_the_answer_is_the_librarys_own_on_standardised_columns(digits: Dataset) -> None:
    split = digits.split("random:1")
    _, _, output = run("logistic", digits, split, C=0.3)
    x = StandardScaler().fit_transform(digits.x.double().numpy())
    rows = np.sort(split.train.numpy())
    model = LogisticRegression(C=0.3, max_iter=1000).fit(x[rows], digits.y.numpy()[rows])
    expected = torch.from_numpy(model.predict_proba(x)).clamp_min(fitted.LEAST).float()
    torch.testing.assert_close(output.exp(), expected, atol=1e-6, rtol=1e-5)


def test_units_of_the_columns_do_not_matter_where_rows_are_compared(small: Dataset) -> None:
    split, units = halves(small.num_rows), torch.tensor([1e-3, 1.0, 1e3, 1.0, 50.0, 1e5])
    other = replace(small, x=small.x * units + 7 * units)
    for name in ("logistic", "knn", "label-spreading", "self-training"):
        first, scaled = (run(name, data, split)[2] for data in (small, other))
        torch.testing.assert_close(first, scaled, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", ["mlp", "appnp", "correct-smooth", "manireg"])
def test_a_standardised_perceptron_does_not_see_the_units_of_columns(
    name: str, small: Dataset
) -> None:
    split, units = halves(small.num_rows), torch.tensor([1e-3, 1.0, 1e3, 1.0, 50.0, 1e5])
    other = replace(small, x=small.x * units + 7 * units)
    outputs = [run(name, data, split, standardise=True)[2] for data in (small, other)]
    torch.testing.assert_close(*outputs, atol=1e-2, rtol=1e-2)
    plain = [run(name, data, split)[2] for data in (small, other)]
    assert not torch.allclose(*plain, atol=1e-2, rtol=1e-2)


def test_a_class_without_a_training_row_has_the_least_probability(small: Dataset) -> None:
    three = replace(small, y=small.y.clone(), class_names=("a", "b", "c"))
    three.y[-1] = 2
    output = run("logistic", three, halves(small.num_rows))[2]
    assert output.shape[1] == 3
    assert float(output[:, 2].exp().max()) == pytest.approx(fitted.LEAST, rel=1e-3)


def test_rows_that_were_not_there_are_answered(small: Dataset) -> None:
    for name in FITTED:
        model, _, output = run(name, small, halves(small.num_rows))
        new = model(small.x[:5].clone())
        assert new.shape == (5, 2)
        assert torch.equal(new.argmax(1), output[:5].argmax(1)), name  # labelled rows


def test_the_fit_is_within_the_run_that_is_timed(
    small: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    real = fitted.Fitted._fit
    monkeypatch.setattr(fitted.Fitted, "_fit", lambda *a: (calls.append("fit"), real(*a))[1])
    system = get_system("logistic")
    model = system.build(system.configure(), small.num_features, 2)
    source = FullBatch(small, halves(small.num_rows))
    model.observe(source.observed())  # type: ignore[operator]
    assert calls == []
    source.evaluate(model)
    source.evaluate(model)
    assert calls == ["fit"]


@pytest.mark.parametrize("name", [n for n in FITTED if n != "boosting"])
def test_six_rows_are_enough(name: str) -> None:
    """Fewer than the neighbours that are asked for."""
    x = torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.2, 2.1], [2.2, 0.9], [1.1, 1.9], [2.1, 1.1]])
    data = Dataset("tiny", x, torch.tensor([0, 1, 0, 1, 0, 1]))
    split = Split("first", torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([4, 5]))
    _, _, output = run(name, data, split)
    assert output.isfinite().all()
    assert (output.argmax(1) == data.y)[:2].all()
