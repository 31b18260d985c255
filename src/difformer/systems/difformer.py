"""DIFFormer as a system to compare: its named forms, and the estimators' default."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from difformer.data.dataset import Batch, Dataset, fingerprint
from difformer.files import write_atomic
from difformer.nn.model import DIFFormer
from difformer.systems.fitted import Fitted

if TYPE_CHECKING:
    from difformer.estimators.base import BaseDIFFormer


def build(in_channels: int, out_channels: int, config: Any) -> DIFFormer:
    """Build a DIFFormer; its kernel decides whether it is -s or -a."""
    options = asdict(config)
    return DIFFormer(in_channels, options.pop("hidden_channels"), out_channels, **options)


class Auto(Fitted):
    """The estimators with no option set: an average of the forms of DIFFormer that validate best.

    `choose_by` takes the validation labels, which compare the forms and are not trained on; without
    them, folds of the training labels are used. The fitted estimator is the module's state.
    """

    verbose = False

    @property
    def choice(self) -> str:
        """One line: the forms that were tried, the one chosen and its margin."""
        return "" if self._fitted is None else self._fitted.choice_

    def choose_by(self, rows: Tensor, y: Tensor) -> None:
        """Take the validation rows and their labels."""
        self._judges = rows.cpu(), y.cpu()

    def observe(self, batch: Batch) -> None:
        super().observe(batch)
        self._judges: tuple[Tensor, Tensor] | None = None

    @property
    def fitted(self) -> BaseDIFFormer | None:
        """The estimator, once it is fitted."""
        return self._fitted

    def _answer(self, x: Tensor, batch: Batch) -> Any:
        model, numbers = self._fitted, batch.y.is_floating_point()
        if x is batch.x or fingerprint(x) == fingerprint(batch.x):
            return model.transduction_ if numbers else model.label_distributions_
        rows = self._features(x)
        return model.predict(rows) if numbers else model.predict_proba(rows)

    @torch.enable_grad()  # the first prediction is an evaluation
    def _fit(self, batch: Batch) -> BaseDIFFormer:
        y, judges = batch.y.detach().cpu().clone(), None
        if self._judges is not None:
            judges, labels = self._judges
            known = labels >= 0 if not labels.is_floating_point() else ~labels.isnan()
            known = known.reshape(len(judges), -1).all(1)
            judges = judges[known]
            y[judges] = labels[known].reshape(-1, *y.shape[1:])
        graph: Any = batch.graph
        edges = weight = None
        if graph is not None:
            edges, weight = graph.edge_index, graph.edge_weight
            keep = edges[0] != edges[1]  # the estimator adds a loop per row
            edges, weight = edges[:, keep].cpu(), None if weight is None else weight[keep].cpu()
        numbers = y.is_floating_point()
        task = "regression" if numbers else "multiclass"
        data = Dataset("rows", batch.x.cpu(), y, task, edges, weight)
        model = _estimator(numbers)(
            random_state=self.seed,
            time_budget=self.config.time_budget,
            verbose=int(self.verbose),
        )
        return model.fit(data, validation=None if judges is None else judges.numpy())

    def get_extra_state(self) -> Tensor:
        """The bytes of the estimator's file; none before it is fitted."""
        if self._fitted is None:
            return torch.empty(0, dtype=torch.uint8)
        with TemporaryDirectory() as folder:
            path = Path(folder) / "estimator.safetensors"
            self._fitted.save(path)
            return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Read the estimator back."""
        if self._batch is None or state.numel() == 0:
            return
        kind = _estimator(self._batch.y.is_floating_point())
        with TemporaryDirectory() as folder:
            path = Path(folder) / "estimator.safetensors"
            write_atomic(path, state.cpu().numpy().tobytes())
            self._fitted = kind.load(path)


def _estimator(numbers: bool) -> Any:
    """The estimator of numbers or of classes, imported where one is fitted or read."""
    from difformer.estimators.classifier import DIFFormerClassifier
    from difformer.estimators.regressor import DIFFormerRegressor

    return DIFFormerRegressor if numbers else DIFFormerClassifier
