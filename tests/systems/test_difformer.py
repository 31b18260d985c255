"""The estimators' default as a system: what it learns from, and what a run keeps of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from difformer.data.dataset import Dataset
from difformer.estimators.classifier import DIFFormerClassifier
from difformer.jobs.job import Experiment
from difformer.jobs.rows import run_experiment
from difformer.report.run_page import write_report
from difformer.runs.open import load_run


def rows(n: int = 160) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 3
    x = torch.randn(n, 4, generator=generator)
    x[:, 0] += 1.5 * y
    alike = torch.stack([torch.arange(n), (torch.arange(n) + 3) % n])
    return Dataset("rows", x, y, edge_index=torch.cat([alike, alike.flip(0)], 1))


def test_it_is_the_estimator_with_the_validation_rows_to_judge_by(tmp_path: Path) -> None:
    """A run is read back without being fitted again, and its page looks into a member."""
    data = rows()
    split = data.split("ratio:0.3/0.3/0.4:0")
    experiment = Experiment.make("rows", system="difformer", train={"seed": 1})
    result = run_experiment(experiment, dataset=data, split=split, folder=tmp_path / "run")
    assert result.mean("test", "accuracy") > 0.6
    run = load_run(tmp_path / "run", dataset=data)
    fitted = run.model.fitted
    assert isinstance(fitted, DIFFormerClassifier)
    assert set(fitted.split_.val.tolist()) == set(split.val.tolist())
    seen = np.full(data.num_rows, -1)
    both = torch.cat([split.train, split.val])
    seen[both] = data.y[both]
    seed = fitted.random_state
    alone = DIFFormerClassifier(random_state=seed).fit(
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


def test_numbers_are_learned_too() -> None:
    data = rows()
    numbers = Dataset("rows", data.x, data.x[:, :1] * 3 + 7, "regression", data.edge_index)
    split = numbers.split("ratio:0.3/0.3/0.4:0")
    experiment = Experiment.make("rows", system="difformer")
    result = run_experiment(experiment, dataset=numbers, split=split)
    assert result.mean("test", "mse") < 0.5 * float(numbers.y.var())
