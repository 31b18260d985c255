"""A small problem that a linear model can learn, and the pieces to train on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from difformer.data.dataset import Dataset
from difformer.data.split import Split
from difformer.train.batches import FullBatch
from difformer.train.folder import FitResult
from difformer.train.loop import fit
from difformer.train.objective import objective_for
from difformer.train.seeding import seeded
from difformer.train.settings import TrainSettings

collect_ignore = ["shardable.py"]
sys.path.append(str(Path(__file__).parent))  # for spread.py, which scripts import too


class Linear(nn.Module):
    """Dropout and a linear layer, called as every model is."""

    def __init__(self, inputs: int, outputs: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(inputs, outputs)

    def forward(
        self, x: Tensor, edge_index: Any = None, edge_weight: Any = None, batch: Any = None
    ) -> Any:
        return self.linear(self.dropout(x))


def make_dataset(task: str = "multiclass", n: int = 90) -> Dataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 5, generator=generator)
    score = x @ torch.randn(5, 3, generator=generator)
    score += 0.5 * torch.randn(n, 3, generator=generator)
    y = {"multiclass": score.argmax(1), "multilabel": (score > 0).float(), "regression": score}
    return Dataset("toy", x, y[task], task)


@dataclass
class Problem:
    """Everything `fit` asks for; `replace` changes a part."""

    dataset: Dataset
    split: Split
    settings: TrainSettings
    model: Callable[[], nn.Module] = lambda: Linear(5, 3, dropout=0.3)

    def fit(self, folder: Path | None = None, **options: Any) -> tuple[nn.Module, FitResult]:
        with seeded(self.settings.seed):
            model = options.pop("model", self.model)()
        source = options.pop("source", None) or FullBatch(self.dataset, self.split)
        objective = objective_for(self.dataset.task)
        result = fit(model, source, objective, self.split, self.settings, folder=folder, **options)
        return model, result

    def with_settings(self, **changes: Any) -> Problem:
        return replace(self, settings=replace(self.settings, **changes))


@pytest.fixture
def problem() -> Problem:
    split = Split("toy", train=range(30), val=range(30, 60), test=range(60, 90))  # type: ignore[arg-type]
    return Problem(make_dataset(), split, TrainSettings(epochs=12, lr=0.05, checkpoint_every=0))


@pytest.fixture
def toy_dataset() -> Callable[..., Dataset]:
    return make_dataset


@pytest.fixture(scope="session")
def script() -> Callable[..., None]:
    """Runs a script of this folder in a process of its own, which must end without an error."""

    def run(name: str, *words: object, launcher: Sequence[str] = (), **environment: str) -> None:
        path = os.pathsep.join(p for p in sys.path if p)
        command = [sys.executable, *launcher, str(Path(__file__).with_name(name)), *map(str, words)]
        done = subprocess.run(
            command,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **environment},
            capture_output=True,
            text=True,
            timeout=1500,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    return run
