"""A finished run on a table: it answers for rows it has not seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from difformer.core.graph import Graph
from difformer.data.fetch import sha256_of
from difformer.data.graphs import read_edges
from difformer.data.table.cells import cell_text
from difformer.data.table.columns import Away
from difformer.data.table.encoder import Drift, TableEncoder
from difformer.data.table.files import (
    CHUNK,
    Source,
    name_of,
    naming,
    numbered_chunks,
    read_chunks,
    rows_of,
)
from difformer.errors import DataError, RunError
from difformer.estimators.classifier import DIFFormerClassifier
from difformer.estimators.regressor import DIFFormerRegressor
from difformer.estimators.rows import Rows
from difformer.files import counted, number_text
from difformer.train.folder import RESULT, read_record

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
            result = read_record(folder / RESULT)
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
        run = cls(estimator, influential, level)
        run.describe(np.zeros((0, 1)))  # raises now if the level is not available
        return run

    @property
    def encoder(self) -> TableEncoder:
        """How the table's columns become features."""
        assert self.estimator.encoder_ is not None
        return self.estimator.encoder_

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The id of each row of fit; its number if the table has no column of ids."""
        return tuple(self.estimator.ids_ or map(str, range(len(self.estimator.embedding_))))

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns that are predicted."""
        return self.encoder.labels or ("label",)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, or of the yes-or-no labels; none for numbers."""
        if not isinstance(self.estimator, DIFFormerClassifier):
            return ()
        return self.labels if len(self.labels) > 1 else tuple(map(str, self.estimator.classes_))

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
        found = self.outputs(rows, graph)
        return self.describe(found, partial(self.estimator.influence, rows, graph))

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
        return self.describe(kept[where], partial(model.influence_in_fit, where))

    def describe(
        self, found: Array, weigh: Callable[..., tuple[Array, Array]] | None = None
    ) -> list[dict[str, Any]]:
        """Answers as records, from probabilities (m, classes) or numbers (m,) or (m, targets).

        `weigh` gives the weights and the positions of the `top_k` rows of fit for each.
        """
        found = found.reshape(len(found), len(self.classes or self.labels))
        model: Any = self.estimator
        records = [self._record(row) for row in found.tolist()]
        if self.level is not None and self.classes:
            for record, own in zip(records, model.sets_around(found, self.level), strict=True):
                record["set"] = list(compress(self.classes, own))
        elif self.level is not None:
            ends = model.interval_around(found, self.level).tolist()
            for record, own in zip(records, ends, strict=True):
                record["intervals"] = dict(zip(self.labels, own, strict=True))
        if self.influential and weigh is not None:
            for record, weights, rows in zip(records, *weigh(top_k=self.influential), strict=True):
                near = zip(weights.tolist(), rows.tolist(), strict=True)
                record["influential"] = [{"id": self.ids[j], "weight": v} for v, j in near if v > 0]
        return records

    def _record(self, row: list[float]) -> dict[str, Any]:
        if not self.classes:
            return dict(zip(self.labels, row, strict=True))
        chances, (label, *others) = dict(zip(self.classes, row, strict=True)), self.labels
        if others:
            return {**{k: int(p > 0.5) for k, p in chances.items()}, "probabilities": chances}
        best = max(chances, key=chances.__getitem__)
        return {label: best, "probability": chances[best], "probabilities": chances}

    def truth(self, labels: Any) -> list[str]:
        """The true labels of one row as cells of a CSV file; empty where unknown."""
        values = labels.reshape(-1).tolist()
        if isinstance(values[0], int):
            return [self.classes[values[0]] if values[0] >= 0 else ""]
        return list(map(number_text, values))

    def lines(self, names: Sequence[str], answers: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
        """Answers as lines of a CSV file under `header`."""
        return [
            [name, *(cell for value in answer.values() for cell in _cells(value))]
            for name, answer in zip(names, answers, strict=True)
        ]


def _cells(value: Any) -> list[Any]:
    """A value of an answer as cells of a CSV file."""
    if isinstance(value, dict):
        return [cell for each in value.values() for cell in _cells(each)]
    if not isinstance(value, list):
        return [number_text(value) if isinstance(value, float) else value]
    if any(isinstance(each, float) for each in value):
        return [number_text(each) for each in value]
    named = (v if isinstance(v, str) else f"{v['id']} ({v['weight']:.4f})" for v in value)
    return ["; ".join(named)]


def table_lines(
    run: OwnRun,
    source: Source,
    edges: Source | None,
    tell: Callable[[str], None],
    drift: Drift,
) -> Iterator[list[list[Any]]]:
    """The answers for a table as lines of a CSV file, some at a time; first the header.

    A few cells that cannot be read are named, and taken as empty. See `predict_run` for the
    arguments.
    """
    names, where = _new_names(run, source), name_of(source)
    graph = None if edges is None else edges_of(run, names, edges, tell)
    among = graph is not None and graph[:, len(run.ids) :].nnz > 0
    yield [run.header]
    for start, chunk in numbered_chunks(source, max(len(names), 1) if among else CHUNK):
        extra = run.encoder.extra(chunk)
        if extra and start == 1:
            tell(f"{where}: ignored, because not in training: {', '.join(extra)}")
        known = [column for column in run.encoder.columns if column.name in chunk]
        with naming(source):
            bad = [cell for c in known for cell in c.unreadable(chunk[c.name], start)]
        if bad:
            told = f"{counted(len(bad), 'cell')} taken as empty, because not as in training"
            tell(f"{where}: {told}: {', '.join(bad[:3])}")
        away: Away = {}
        features = run.encoder.encode_chunk(chunk, start, source, strict=False, away=away)
        rows = slice(start - 1, start - 1 + features.shape[0])
        mine = None if graph is None else graph[rows]
        ids = None if run.encoder.id is None else names[rows]
        drift.add(run.encoder, chunk, away, features.shape[0], start=start, names=ids)
        yield run.lines(names[rows], run.answer(features, mine, ids=ids))
    if drift:
        tell(f"{where}: {drift.line}")


def _new_names(run: OwnRun, source: Source) -> list[str]:
    """The ids of the rows: their numbers if the table of training has no column of ids."""
    column, where = run.encoder.id, name_of(source)
    if column is None:
        return [str(row) for row in range(sum(map(rows_of, read_chunks(source))))]
    names: dict[str, int] = {}
    for chunk in read_chunks(source):
        if column not in chunk:
            raise DataError(f"{where}: the id column {column!r} of training is missing")
        for name in map(cell_text, chunk[column]):
            row = len(names) + 1
            if names.setdefault(name, row) != row:
                place = f"{where}: row {row}, column {column!r}"
                raise DataError(f"{place}: the id {name!r} comes twice")
    return list(names)


def edges_of(run: OwnRun, names: Sequence[str], edges: Source, tell: Callable[[str], None]) -> Any:
    """A (new rows, known and new rows) matrix of the edges that a file or a mapping brings."""
    known = {name: row for row, name in enumerate(run.ids)}
    n, m = len(known), len(names)
    # An id that is in the new table names its row there: the edge is one that this row brings.
    pairs, weight = read_edges(edges, known | {name: n + row for row, name in enumerate(names)})
    old = int((pairs < n).all(0).sum())
    if old:
        where = edges if isinstance(edges, str | Path) else "edges"
        tell(f"{where}: ignored, because between known rows: {counted(old, 'edge')}")
    return edges_into(
        Graph.from_edges(pairs, n + m, weight, undirected=not run.estimator.directed),
        slice(n, None),
    )


def edges_into(graph: Graph, rows: Any) -> Any:
    """A (some rows, all rows) matrix of the edges that end in some rows, without loops."""
    source, target = graph.edge_index.numpy()
    weight = np.ones(len(source)) if graph.edge_weight is None else graph.edge_weight.numpy()
    other, size = source != target, graph.num_nodes
    ends = target[other], source[other]
    return sparse.csr_matrix((weight[other], ends), shape=(size, size))[rows]
