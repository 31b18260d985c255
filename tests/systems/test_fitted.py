"""What is fitted without gradients: by the seed, from the training labels alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from difformer.data.dataset import Dataset
from difformer.data.registry import load_dataset
from difformer.data.snapshots import from_windows
from difformer.data.split import Split
from difformer.estimators.classifier import DIFFormerClassifier
from difformer.jobs.job import Experiment
from difformer.jobs.rows import run_experiment
from difformer.report.run_page import write_report
from difformer.runs.open import load_run
from difformer.systems import fitted
from difformer.systems.registry import SYSTEMS
from difformer.train.batches import FullBatch, Snapshots
from difformer.train.loop import fit
from difformer.train.objective import SnapshotError, broadcast_mse
from difformer.train.settings import TrainSettings
from tests.systems.small import SMALL, THIRDS, X, build
from tests.systems.small import run as run_any

FITTED = [name for name, system in SYSTEMS.items() if system.module.endswith("fitted")]
QUICK: dict[str, dict[str, Any]] = {"boosting": {"iterations": 30}, "forest": {"trees": 60}}
UNITS = torch.tensor([1e-3, 1.0, 1e3, 1.0, 50.0, 1e5])
OTHER_UNITS = replace(SMALL, x=X * UNITS + 7 * UNITS)


def run(name: str, data: Dataset = SMALL, split: Split = THIRDS, **options: Any) -> Any:
    return run_any(name, data, split, **{**QUICK.get(name, {}), **options})


@pytest.mark.parametrize("name", [*FITTED, "graphsage", "appnp", "correct-smooth"])
def test_equal_seeds_and_training_labels_give_equal_bits(name: str) -> None:
    """Whatever the labels of the other rows; validation rows would pick the epoch."""
    split = replace(THIRDS, val=torch.zeros(0, dtype=torch.int64))
    _, result, first = run(name, split=split, seed=4)
    assert result.metrics["test"]["accuracy"] >= 0.8
    flipped = 1 - SMALL.y
    flipped[split.train] = SMALL.y[split.train]
    assert torch.equal(first, run(name, replace(SMALL, y=flipped), split, seed=4)[2])


@pytest.mark.parametrize("name", [n for n in FITTED if "regression" in SYSTEMS[n].tasks])
@pytest.mark.parametrize("targets", [1, 2])
def test_numbers_are_learned_where_there_is_a_regressor(name: str, targets: int) -> None:
    x = torch.randn(150, 3, generator=torch.Generator().manual_seed(0))
    y = torch.stack([x @ torch.tensor([2.0, -1.0, 0.0]), x[:, 2]], 1)[:, :targets]
    y[5] = float("nan")
    halves = Split("halves", *torch.arange(150).split([50, 25, 75]))
    _, result, output = run(name, Dataset("line", x, y, task="regression"), halves)
    assert output.shape == (150, targets)
    assert result.metrics["test"]["r2"] > 0.5


def test_the_answer_is_the_librarys_own_on_standardised_columns() -> None:
    digits = load_dataset("digits")
    split = digits.split("random:1")
    _, _, output = run("logistic", digits, split, C=0.3)
    x = StandardScaler().fit_transform(digits.x.double().numpy())
    rows = np.sort(split.train.numpy())
    model = LogisticRegression(C=0.3, max_iter=1000).fit(x[rows], digits.y.numpy()[rows])
    expected = torch.from_numpy(model.predict_proba(x)).clamp_min(fitted.LEAST).float()
    torch.testing.assert_close(output.exp(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["logistic", "knn", "label-spreading", "self-training"])
def test_units_of_the_columns_do_not_matter_where_rows_are_compared(name: str) -> None:
    first, scaled = (run(name, data)[2] for data in (SMALL, OTHER_UNITS))
    torch.testing.assert_close(first, scaled, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", ["mlp", "appnp", "correct-smooth", "manireg"])
def test_a_standardised_perceptron_does_not_see_the_units_of_columns(name: str) -> None:
    outputs = [run(name, data, standardise=True)[2] for data in (SMALL, OTHER_UNITS)]
    torch.testing.assert_close(*outputs, atol=1e-2, rtol=1e-2)
    plain = [run(name, data)[2] for data in (SMALL, OTHER_UNITS)]
    assert not torch.allclose(*plain, atol=1e-2, rtol=1e-2)


def test_a_class_without_a_training_row_has_the_least_probability() -> None:
    three = replace(SMALL, y=SMALL.y.clone(), class_names=("a", "b", "c"))
    three.y[-1] = 2
    output = run("logistic", three)[2]
    assert output.shape[1] == 3
    assert float(output[:, 2].exp().max()) == pytest.approx(fitted.LEAST, rel=1e-3)


@pytest.mark.parametrize("name", FITTED)
def test_rows_that_were_not_there_are_answered(name: str) -> None:
    model, _, output = run(name)
    new = model(X[:5].clone())
    assert new.shape == (5, 2)
    assert torch.equal(new.argmax(1), output[:5].argmax(1))  # labelled rows


def test_the_fit_is_within_the_run_that_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    real = fitted.Fitted._fit
    monkeypatch.setattr(fitted.Fitted, "_fit", lambda *a: (calls.append("fit"), real(*a))[1])
    model, source = build("logistic"), FullBatch(SMALL, THIRDS)
    model.observe(source.observed())
    assert calls == []
    source.evaluate(model)
    source.evaluate(model)
    assert calls == ["fit"]


@pytest.mark.parametrize("name", [n for n in FITTED if n != "boosting"])
def test_six_rows_are_enough(name: str) -> None:
    """Fewer than the neighbours that are asked for."""
    x = torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.2, 2.1], [2.2, 0.9], [1.1, 1.9], [2.1, 1.1]])
    data = Dataset("tiny", x, torch.tensor([0, 1, 0, 1, 0, 1]), class_names=("a", "b"))
    output = run(name, data, Split("first", *torch.arange(6).split(2)))[2]
    assert output.isfinite().all()
    assert (output.argmax(1) == data.y)[:2].all()


def rows(n: int = 160) -> Dataset:
    y = torch.arange(n) % 3
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    x[:, 0] += 1.5 * y
    alike = torch.stack([torch.arange(n), (torch.arange(n) + 3) % n])
    return Dataset("rows", x, y, edge_index=torch.cat([alike, alike.flip(0)], 1))


def test_the_default_is_the_estimator_with_the_validation_rows_to_judge_by(tmp_path: Path) -> None:
    """A run is read back without being fitted again, and its page looks into a member."""
    data = rows()
    split = data.split("ratio:0.3/0.3/0.4:0")
    experiment = Experiment.make("rows", system="difformer", train={"seed": 1})
    result = run_experiment(experiment, dataset=data, split=split, folder=tmp_path / "run")
    assert result.mean("test", "accuracy") > 0.6
    run = load_run(tmp_path / "run", dataset=data)
    ours = run.model.fitted
    assert isinstance(ours, DIFFormerClassifier)
    assert set(ours.split_.val.tolist()) == set(split.val.tolist())
    seen = np.full(data.num_rows, -1)
    both = torch.cat([split.train, split.val])
    seen[both] = data.y[both]
    alone = DIFFormerClassifier(random_state=ours.random_state).fit(
        Dataset("rows", data.x, torch.from_numpy(seen), edge_index=data.edge_index),
        validation=split.val.numpy(),
    )
    output = run.model(data.x, run.graph).exp()
    found = torch.from_numpy(alone.label_distributions_)
    torch.testing.assert_close(output.double(), found, rtol=1e-5, atol=2e-6)
    page = write_report(tmp_path / "run", dataset=data).read_text("utf-8")
    assert "Tried" in page
    assert "What follows is of" in page
    assert run.model.choice.startswith("tried ")


def test_the_default_learns_numbers_too() -> None:
    data = rows()
    numbers = Dataset("rows", data.x, data.x[:, :1] * 3 + 7, "regression", data.edge_index)
    split = numbers.split("ratio:0.3/0.3/0.4:0")
    result = run_experiment(
        Experiment.make("rows", system="difformer"), dataset=numbers, split=split
    )
    assert result.mean("test", "mse") < 0.5 * float(numbers.y.var())


def forecast(name: str, lags: int, **options: float) -> Any:
    data = Dataset("lags", torch.zeros(1, lags), torch.zeros(1, 1), task="regression")
    return build(name, data, **options)


def test_last_value_and_mean_of_lags() -> None:
    x = torch.tensor([[1.0, 2.0, 6.0], [0.0, 0.0, 3.0]])
    assert forecast("last-value", 3)(x).tolist() == [[6.0], [3.0]]
    assert forecast("mean-of-lags", 3)(x).tolist() == [[3.0], [1.0]]


@pytest.mark.parametrize("name", ["node-ar", "pooled-ar"])
@pytest.mark.parametrize("ridge", [0.0, 5.0])
def test_an_autoregression_is_least_squares_on_the_training_rows(name: str, ridge: float) -> None:
    series = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    data = from_windows("toy", series, 2)
    split, model = data.split("time"), forecast(name, 2, ridge=ridge)
    result = fit(model, Snapshots(data, split), SnapshotError(num_nodes=3), split, TrainSettings())
    train = split.train.numel() // 3
    x, y = data.x.reshape(-1, 3, 2).double().numpy(), data.y.reshape(-1, 3).double().numpy()
    expected = np.empty_like(y)
    for nodes in [[0], [1], [2]] if name == "node-ar" else [[0, 1, 2]]:
        a = x[:train, nodes].reshape(-1, 2)
        a = np.c_[a, np.ones(len(a))]
        gram = a.T @ a + ridge * np.diag([1, 1, 0])
        w = np.linalg.solve(gram, a.T @ y[:train, nodes].ravel())
        expected[:, nodes] = x[:, nodes] @ w[:-1] + w[-1]
    output = model(data.x).reshape(-1, 3).detach().numpy()
    np.testing.assert_allclose(output, expected, atol=1e-5)
    mse = np.square(expected - y).reshape(-1)[split.test.numpy()].mean()
    assert result.metrics["test"]["mse"] == pytest.approx(mse, rel=1e-4)


def test_the_released_cost_averages_over_all_pairs_of_a_snapshot() -> None:
    output, y = torch.randn(12, 1), torch.randn(12, 1)
    costs = [((output[s : s + 4] - y[s : s + 4].squeeze(1)) ** 2).mean() for s in (4, 8)]
    expected = float(torch.stack(costs).mean())  # (4, 1) − (4,)
    assert broadcast_mse(output, y, torch.arange(4, 12), 4) == pytest.approx(expected, rel=1e-5)
