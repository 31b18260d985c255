"""Training one diffusivity, or several to keep the one that pays by validation."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from difformer.core.diffusivity import Diffusivity
from difformer.core.graph import Graph
from difformer.data.dataset import Dataset, fingerprint
from difformer.data.split import Split
from difformer.nn.model import DIFFormer
from difformer.train.batches import FullBatch
from difformer.train.callbacks import Progress
from difformer.train.loop import fit
from difformer.train.memory import available_memory
from difformer.train.objective import Monitor, Objective
from difformer.train.run import FitResult
from difformer.train.seeding import seeded
from difformer.train.settings import TrainSettings

__all__ = ["Candidate", "Training", "pick_kernels"]

Kernel = str | Diffusivity

# Above this many rows an epoch of -a, quadratic in them, costs seconds on a CPU.
SLOW_ROWS = 4096


@dataclass(frozen=True)
class Candidate:
    """A trained model, and the validation of every kernel that was tried."""

    kernel: Kernel
    model: DIFFormer
    result: FitResult
    scores: Mapping[str, float] = field(default_factory=dict[str, float])

    def beats(self, other: Candidate, monitor: Monitor) -> bool:
        """Whether its validation metric is better; being as good does not pay."""
        sign = 1 if monitor.direction == "max" else -1
        mine, theirs = self.result.metrics["val"], other.result.metrics["val"]
        return sign * mine[monitor.name] > sign * theirs[monitor.name]


@dataclass(frozen=True)
class Training:
    """A problem and how to train on it; what is missing is the kernel and the split.

    Args:
        weight: of each row in the loss, or None.
        settings: `patience` counts where the split has validation rows.
        options: of the model, but for its kernel.
        folder: where fits are kept as they go, to go on from; one subfolder a kernel and split.
    """

    data: Dataset
    graph: Graph | None
    objective: Objective
    outputs: int
    weight: Tensor | None
    width: int
    options: Mapping[str, Any]
    settings: TrainSettings
    folder: Path | None = None
    verbose: bool = False

    def fit(self, kernel: Kernel, split: Split) -> Candidate:
        """Train with one kernel; without validation rows the last epoch is kept."""
        settings = self.settings
        judged = split.val.numel() > 0
        if not judged:
            settings = replace(settings, patience=None, eval_every=settings.epochs)
        with seeded(settings.seed):
            model = DIFFormer(
                self.data.num_features, self.width, self.outputs, kernel=kernel, **self.options
            )
        result = fit(
            model,
            FullBatch(self.data, split, self.graph, weight=self.weight),
            self.objective,
            split,
            settings,
            folder=self._folder(kernel, judged),
            config=None if self.folder is None else self._config(kernel),
            callbacks=[Progress(f"DIFFormer ({kernel})")] if self.verbose else [],
        )
        score = result.metrics.get("val", {}).get(self.objective.monitor.name, float("nan"))
        return Candidate(kernel, model, result, {str(kernel): score})

    def choose(self, kernels: Sequence[Kernel], split: Split) -> Candidate:
        """Train with each kernel and keep the first that no other beats by validation."""
        best = self.fit(kernels[0], split)
        scores = dict(best.scores)
        for kernel in kernels[1:]:
            if best.result.interrupted:
                break
            found = self.fit(kernel, split)
            scores |= found.scores
            if found.beats(best, self.objective.monitor) or found.result.interrupted:
                best = found
        return replace(best, scores=scores)

    def _folder(self, kernel: Kernel, judged: bool) -> Path | None:
        if self.folder is None:
            return None
        return self.folder / f"{kernel}-{'validated' if judged else 'whole'}"

    def _config(self, kernel: Kernel) -> dict[str, Any]:
        """What a fit that goes on must have in common with the one that was begun."""
        model = {"kernel": str(kernel), "width": self.width, "outputs": self.outputs}
        return {"model": {**model, **self.options}, "data": {"fingerprint": self._fingerprint()}}

    def _fingerprint(self) -> str:
        graph = self.graph
        edges = (None, None) if graph is None else (graph.edge_index, graph.edge_weight)
        return fingerprint(self.data.x, self.data.y, self.weight, *edges)


def pick_kernels(kernel: Kernel, num_rows: int, width: int, num_layers: int) -> list[Kernel]:
    """The kernels to train: the one asked for; for "auto" -s, and -a while it fits in memory.

    -a keeps keys, values, states and their gradients of every layer, and a tile of scores: about
    4 bytes · rows · (10 width · layers + 2 · 512) in training, of which half the free memory is
    taken at the most. Its time is quadratic in the rows; where that is felt, a warning says so.
    """
    if kernel != "auto":
        return [kernel]
    free, needed = available_memory(), 4 * num_rows * (10 * width * num_layers + 1024)
    if free is not None and needed > free / 2:
        return ["simple"]
    if num_rows > SLOW_ROWS:
        warnings.warn(
            f'kernel="auto" also trains DIFFormer-a, whose epochs cost {num_rows:,}² pairs: '
            'kernel="simple" does without it',
            UserWarning,
            stacklevel=2,
        )
    return ["simple", "sigmoid"]
