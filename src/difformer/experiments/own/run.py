"""A finished run on a table: it answers for rows it has not seen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from difformer.data.download import sha256_of
from difformer.data.tables import TableEncoder
from difformer.errors import RunError
from difformer.estimators.classifier import DIFFormerClassifier
from difformer.estimators.regressor import DIFFormerRegressor
from difformer.estimators.rows import Rows

__all__ = ["CLASSES", "Estimator", "OwnRun", "read_result"]

Estimator = DIFFormerClassifier | DIFFormerRegressor

CLASSES: dict[str, type[Estimator]] = {
    "multiclass": DIFFormerClassifier,
    "regression": DIFFormerRegressor,
}
"""The estimator of each task."""


@dataclass(frozen=True)
class OwnRun:
    """A finished run, ready to answer for rows it has not seen."""

    estimator: Estimator
    influential: int = 0  # rows of fit named for each answer

    @classmethod
    def load(cls, folder: str | Path) -> OwnRun:
        """Read a run folder, or say in one line why it is none."""
        folder = Path(folder)
        try:
            result = read_result(folder)
            for name, digest in result["files"].items():
                if sha256_of(folder / name) != digest:
                    raise ValueError(f"{name} is not the file that the run wrote")
            kind, influential = CLASSES[result["task"]], int(result["influential"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RunError(f"{folder} is not a finished run on a table ({error})") from error
        estimator = kind.load(folder / "estimator.safetensors")
        if estimator.encoder_ is None:
            raise RunError(f"{folder} is not a run on a table: its columns have no names")
        return cls(estimator, influential)

    @property
    def encoder(self) -> TableEncoder:
        """How the table's columns become features."""
        assert self.estimator.encoder_ is not None
        return self.estimator.encoder_

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The id of each row of fit: its number where the table has no column of ids."""
        rows = len(self.estimator.embedding_)
        return self.estimator.ids_ or tuple(str(row) for row in range(rows))

    @property
    def is_classifier(self) -> bool:
        return isinstance(self.estimator, DIFFormerClassifier)

    @property
    def header(self) -> list[str]:
        """The columns of a file of predictions."""
        label = self.encoder.label or "label"
        known = ["influential"] if self.influential else []
        return ["id", label, *(["probability"] if self.is_classifier else []), *known]

    def answer(
        self, features: Any, graph: Any = None, *, ids: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """For each encoded row its label, probability and influential rows [{"id", "weight"}].

        `ids` tell the rows of fit, which are answered as in fit while their values are the same;
        other rows are new.
        """
        model, rows = self.estimator, Rows(features, None if ids is None else tuple(ids))
        if isinstance(model, DIFFormerClassifier):
            columns = self._classes(model.predict_proba(rows, graph))
        else:
            columns = [model.predict(rows, graph).tolist()]
        if self.influential:
            columns.append(self._named(*model.influence(rows, graph, top_k=self.influential)))
        return self._records(columns)

    def fitted(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """The same for rows of fit by their position: what `transduction_` holds."""
        model, where = self.estimator, np.asarray(rows, np.int64)
        if isinstance(model, DIFFormerClassifier):
            columns = self._classes(model.label_distributions_[where])
        else:
            columns = [model.transduction_[where].tolist()]
        if self.influential:
            columns.append(self._named(*model.influence_in_fit(where, top_k=self.influential)))
        return self._records(columns)

    def lines(self, names: Sequence[str], answers: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
        """Answers as lines of a CSV file, numbers with six digits."""
        return [
            [name, *(_cell(value) for value in answer.values())]
            for name, answer in zip(names, answers, strict=True)
        ]

    def _classes(self, chances: Any) -> list[list[Any]]:
        assert isinstance(self.estimator, DIFFormerClassifier)
        labels = self.estimator.classes_[chances.argmax(1)].tolist()
        return [labels, chances.max(1).tolist()]

    def _records(self, columns: list[list[Any]]) -> list[dict[str, Any]]:
        return [dict(zip(self.header[1:], row, strict=True)) for row in zip(*columns, strict=True)]

    def _named(self, weights: Any, rows: Any) -> list[list[dict[str, Any]]]:
        """The rows of fit by id with their weights, heaviest first."""
        return [
            [{"id": self.ids[j], "weight": v} for v, j in zip(w, r, strict=True) if v > 0]
            for w, r in zip(weights.tolist(), rows.tolist(), strict=True)
        ]


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return "; ".join(f"{known['id']} ({known['weight']:.4f})" for known in value)
    return value


def read_result(folder: Path) -> dict[str, Any]:
    """What result.json holds."""
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))
