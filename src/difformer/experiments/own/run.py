"""A finished run on a table: it answers for rows it has not seen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from difformer.data.download import sha256_of
from difformer.data.tables import TableEncoder
from difformer.errors import DataError, RunError
from difformer.estimators.classifier import DIFFormerClassifier
from difformer.estimators.regressor import DIFFormerRegressor

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
    encoder: TableEncoder
    ids: tuple[str, ...]
    influential: int = 3

    @classmethod
    def load(cls, folder: str | Path) -> OwnRun:
        """Read a run folder, or say in one line why it is none."""
        folder = Path(folder)
        try:
            result = read_result(folder)
            for name, digest in result["files"].items():
                if sha256_of(folder / name) != digest:
                    raise ValueError(f"{name} is not the file that the run wrote")
            table = json.loads((folder / "table.json").read_text(encoding="utf-8"))
            encoder = TableEncoder.from_json(json.dumps(table["encoder"]))
            ids = tuple(str(name) for name in table["ids"])
            kind = CLASSES[result["task"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, DataError) as error:
            raise RunError(f"{folder} is not a finished run on a table ({error})") from error
        estimator = kind.load(folder / "estimator.safetensors")
        width = estimator.frozen_.model.in_channels
        if width != encoder.width or len(ids) != len(estimator.embedding_):
            raise RunError(f"{folder}: table.json and estimator.safetensors are of different runs")
        return cls(estimator, encoder, ids)

    @property
    def is_classifier(self) -> bool:
        return isinstance(self.estimator, DIFFormerClassifier)

    @property
    def header(self) -> list[str]:
        """The columns of a file of predictions."""
        label = self.encoder.label or "label"
        known = ["influential"] if self.influential else []
        return ["id", label, *(["probability"] if self.is_classifier else []), *known]

    def answer(self, features: Any, graph: Any = None) -> list[dict[str, Any]]:
        """For each row its label, probability and [{"id", "weight"}] of the influential rows."""
        if isinstance(self.estimator, DIFFormerClassifier):
            chances = self.estimator.predict_proba(features, graph)
            labels = self.estimator.classes_[chances.argmax(1)].tolist()
            columns = [labels, chances.max(1).tolist()]
        else:
            columns = [self.estimator.predict(features, graph).tolist()]
        if self.influential:
            columns.append(self.influence(features, graph))
        return [dict(zip(self.header[1:], row, strict=True)) for row in zip(*columns, strict=True)]

    def lines(self, features: Any, names: Sequence[str], graph: Any = None) -> list[list[Any]]:
        """The same as lines of a CSV file, with six digits."""
        lines: list[list[Any]] = []
        for name, answer in zip(names, self.answer(features, graph), strict=True):
            line: list[Any] = [name]
            for value in answer.values():
                if isinstance(value, float):
                    value = f"{value:.6g}"
                elif isinstance(value, list):
                    value = "; ".join(f"{known['id']} ({known['weight']:.4f})" for known in value)
                line.append(value)
            lines.append(line)
        return lines

    def influence(self, features: Any, graph: Any = None) -> list[list[dict[str, Any]]]:
        """The known rows that weigh most in each row's last step, heaviest first."""
        found: list[list[dict[str, Any]]] = []
        for start in range(0, features.shape[0], 512):  # rows × known rows of weights at a time
            part = features[start : start + 512]
            mine = None if graph is None else graph[start : start + 512]
            weights, rows = self.estimator.influence(part, mine, top_k=self.influential)
            for w, r in zip(weights.tolist(), rows.tolist(), strict=True):
                pairs = zip(w, r, strict=True)
                found.append([{"id": self.ids[j], "weight": v} for v, j in pairs if v > 0])
        return found


def read_result(folder: Path) -> dict[str, Any]:
    """What result.json holds."""
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))
