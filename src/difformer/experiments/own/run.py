"""A finished run on a table: it answers for rows it has not seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from difformer.data.download import sha256_of
from difformer.data.encoder import TableEncoder
from difformer.errors import RunError
from difformer.estimators.classifier import DIFFormerClassifier
from difformer.estimators.conformal import conformal_set
from difformer.estimators.regressor import DIFFormerRegressor
from difformer.estimators.rows import Rows
from difformer.files import number_text, read_json, reading

__all__ = ["CLASSES", "Estimator", "OwnRun", "read_result"]

Estimator = DIFFormerClassifier | DIFFormerRegressor
Array = NDArray[Any]

CLASSES: dict[str, type[Estimator]] = {
    "multiclass": DIFFormerClassifier,
    "multilabel": DIFFormerClassifier,
    "regression": DIFFormerRegressor,
}
"""The estimator of each task."""


@dataclass(frozen=True)
class OwnRun:
    """A finished run on a table, ready to answer for rows it has not seen.

    Args:
        influential: rows of fit named for each answer.
        level: the share of answers whose interval (of numbers) or set (of classes) must hold the
            truth; None for no intervals and sets.
    """

    estimator: Estimator
    influential: int = 0
    level: float | None = None

    @classmethod
    def load(cls, folder: str | Path, *, level: float | None = None) -> OwnRun:
        """Read a run folder; RunError if it is not a finished run, or has no such level."""
        folder = Path(folder)
        try:
            result = read_result(folder)
            for name, digest in result["files"].items():
                if sha256_of(folder / name) != digest:
                    raise ValueError(f"{name} is not the file that the run wrote")
            kind, influential = CLASSES[result["task"]], result["influential"]
            if type(influential) is not int or influential < 0:
                raise ValueError(f"influential must be a whole number, it is {influential!r:.50}")
        except (RunError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{folder} is not a finished run on a table ({error})") from error
        estimator = kind.load(folder / "estimator.safetensors")
        if estimator.encoder_ is None:
            raise RunError(f"{folder} is not a run on a table: its columns have no names")
        if level is not None:
            cls(estimator, 0, level).fitted(())  # raises now if the level is not available
        return cls(estimator, influential, level)

    @property
    def encoder(self) -> TableEncoder:
        """How the table's columns become features."""
        assert self.estimator.encoder_ is not None
        return self.estimator.encoder_

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The id of each row of fit; its number if the table has no column of ids."""
        rows = len(self.estimator.embedding_)
        return tuple(self.estimator.ids_ or map(str, range(rows)))

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns that are predicted."""
        return self.encoder.labels or ("label",)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, or of the yes-or-no labels; none for numbers."""
        if not isinstance(self.estimator, DIFFormerClassifier):
            return ()
        if len(self.labels) > 1:
            return self.labels
        return tuple(str(name) for name in self.estimator.classes_)

    @property
    def header(self) -> list[str]:
        """The columns of a file of predictions: the table's own id and labels first."""
        names = [self.encoder.id or "id", *self.labels]
        if self.classes and len(self.labels) == 1:
            names.append("probability")
        names += [f"probability of {name}" for name in self.classes]
        if self.level is not None:
            share = f"{100 * self.level:g} %"
            ends = [f"{name} {end} {share}" for name in self.labels for end in ("from", "to")]
            names += [f"{share} set"] if self.classes else ends
        return [*names, *(["influential"] if self.influential else [])]

    def answer(
        self, features: Any, graph: Any = None, *, ids: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """For each encoded row its labels, probabilities and influential rows [{"id", "weight"}].

        A row with the id and the values of a row of fit is answered as in fit; others are new.
        """
        rows = Rows(features, None if ids is None else tuple(ids))
        records = self.describe(self.outputs(rows, graph))
        if self.influential:
            self._name(records, *self.estimator.influence(rows, graph, top_k=self.influential))
        return records

    def outputs(self, rows: Rows, graph: Any = None) -> Array:
        """The estimator's answers: probabilities (m, classes), or numbers (m, targets)."""
        model = self.estimator
        if isinstance(model, DIFFormerClassifier):
            return model.predict_proba(rows, graph)
        return model.predict(rows, graph).reshape(len(rows), -1)

    def fitted(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """The same for rows of fit, by their positions, as fit left them."""
        model, where = self.estimator, np.asarray(rows, np.int64)
        classes = isinstance(model, DIFFormerClassifier)
        kept = model.label_distributions_ if classes else model.transduction_
        records = self.describe(kept[where])
        if self.influential:
            self._name(records, *model.influence_in_fit(where, top_k=self.influential))
        return records

    def describe(self, found: Array) -> list[dict[str, Any]]:
        """Answers as records, from probabilities (m, classes) or numbers (m,) or (m, targets)."""
        if not self.classes:
            return self._numbers(found.reshape(len(found), len(self.labels)))
        several = len(self.labels) > 1
        records: list[dict[str, Any]] = []
        for row in found.tolist():
            if several:
                record: dict[str, Any] = {
                    k: int(p > 0.5) for k, p in zip(self.labels, row, strict=True)
                }
            else:
                best = int(np.argmax(row))
                record = {self.labels[0]: self.classes[best], "probability": row[best]}
            record["probabilities"] = dict(zip(self.classes, row, strict=True))
            records.append(record)
        if self.level is not None:
            sets = conformal_set(self.estimator, found, self.level)
            for record, own in zip(records, sets.tolist(), strict=True):
                record["set"] = [
                    name for name, in_it in zip(self.classes, own, strict=True) if in_it
                ]
        return records

    def _numbers(self, found: Array) -> list[dict[str, Any]]:
        records = [dict(zip(self.labels, row, strict=True)) for row in found.tolist()]
        if self.level is not None:
            model: Any = self.estimator
            ends = model.interval_around(found, self.level)
            for record, own in zip(records, ends.tolist(), strict=True):
                record["intervals"] = dict(zip(self.labels, own, strict=True))
        return records

    def lines(self, names: Sequence[str], answers: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
        """Answers as lines of a CSV file under `header`."""
        return [
            [name, *(cell for value in answer.values() for cell in _cells(value))]
            for name, answer in zip(names, answers, strict=True)
        ]

    def _name(self, records: list[dict[str, Any]], weights: Any, rows: Any) -> None:
        """Add the rows of fit by id with their weights, heaviest first."""
        pairs = zip(weights.tolist(), rows.tolist(), strict=True)
        for record, (own, where) in zip(records, pairs, strict=True):
            known = zip(own, where, strict=True)
            record["influential"] = [{"id": self.ids[j], "weight": v} for v, j in known if v > 0]


def _cells(value: Any) -> list[Any]:
    """A value of an answer as cells of a CSV file."""
    if isinstance(value, float):
        return [number_text(value)]
    if isinstance(value, dict):
        return [cell for each in value.values() for cell in _cells(each)]
    if not isinstance(value, list):
        return [value]
    if any(isinstance(each, float) for each in value):
        return [number_text(each) for each in value]
    named = (v if isinstance(v, str) else f"{v['id']} ({v['weight']:.4f})" for v in value)
    return ["; ".join(named)]


def read_result(folder: Path) -> dict[str, Any]:
    """What result.json holds."""
    with reading(folder / "result.json"):
        return read_json(folder / "result.json")
