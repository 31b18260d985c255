"""Train on a user's own table and predict new rows of it: a run folder each way.

config.toml            what was asked for; a resumed run must ask for the same
fits                   where each fit stands, to go on from; gone once the run has finished
table.json             how each column becomes numbers, and the ids of the known rows
estimator.safetensors  the fitted estimator: weights and what is frozen
split.json             the rows that trained and validated
metrics.csv            a row an epoch
predictions.csv        the rows whose label was empty: label, probability, influential rows
result.json            metrics and cost, written last: a folder without it is not a finished run
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from difformer.core.graph import Graph
from difformer.data.dataset import Dataset
from difformer.data.download import sha256_of
from difformer.data.rawtable import CHUNK, read_chunks
from difformer.data.split import Split
from difformer.data.tables import OwnData, Source, TableEncoder, read_edges, read_table
from difformer.errors import DataError, RunError
from difformer.estimators.classifier import DIFFormerClassifier
from difformer.estimators.regressor import DIFFormerRegressor
from difformer.nn.model import DIFFormer
from difformer.train.files import write_atomic
from difformer.train.run import agree_config, csv_text, read_config

__all__ = ["OpenOwn", "OwnRun", "OwnSettings", "open_own", "predict_own", "train_own"]

Array = NDArray[Any]
Estimator = DIFFormerClassifier | DIFFormerRegressor

CLASSES: dict[str, type[Estimator]] = {
    "multiclass": DIFFormerClassifier,
    "regression": DIFFormerRegressor,
}
GRAPHS = ("auto", "knn", "none")
FILES = ("table.json", "estimator.safetensors")  # whose digests result.json keeps


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, kw_only=True)
class OwnSettings:
    """How a model for one's own table is trained."""

    graph: str = _option("auto", "without edges: knn, none, or auto: the one that validates better")
    kernel: str = _option("simple", "diffusivity: simple, sigmoid, or auto by validation")
    recipe: str = _option("auto", "form of the model, see nn.recipes; auto: by the graph")
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of the model
    neighbours: int = _option(7, "of the knn graph")
    hidden: int = _option(64, "width of the states")
    lr: float = _option(0.01, "learning rate")
    weight_decay: float = _option(5e-4, "L2 weight decay")
    consistency: float = _option(0.0, "weight of the agreement of two dropout passes")
    epochs: int = _option(300, "the most epochs to train for")
    patience: int = _option(50, "stop after this many epochs without a better validation")
    validation: float = _option(0.2, "share of the labelled rows that picks the epoch")
    seed: int = _option(0, "seed of everything random")
    influential: int = _option(3, "known rows named for each prediction")
    device: str = _option("auto", "cpu, cuda, ...; auto: cuda where there is one")

    def __post_init__(self) -> None:
        if self.graph not in GRAPHS:
            raise ValueError(f"graph must be one of {', '.join(GRAPHS)}, got {self.graph!r}")
        if self.influential < 0:
            raise ValueError(f"influential must be 0 or more, got {self.influential!r}")


def train_own(
    own: OwnData,
    folder: str | Path,
    settings: OwnSettings | None = None,
    *,
    resume: bool = False,
    quiet: bool = True,
) -> dict[str, Any]:
    """Fit, and leave a run folder; returns what result.json holds.

    A run that was killed goes on with `resume`, to the same bits. Ctrl-C leaves it ready for that:
    the result then says `interrupted`, and nothing else is written.
    """
    settings = settings or OwnSettings()
    folder = Path(folder)
    if (folder / "config.toml").exists() and not resume:
        raise RunError(f"{folder} holds a run already: resume it, or give another folder")
    agree_config(folder, _config(own, settings))
    if (folder / "result.json").exists():
        return _read_result(folder)
    data = own.dataset
    y: Any = data.y.numpy()[:, 0] if data.task == "regression" else _names(own)
    fits: dict[str, Estimator] = {}
    for graph in _graphs(own, settings):
        fits[graph] = _fit(own, y, graph, settings, folder / "fits" / graph, quiet)
        if fits[graph].result_.interrupted:
            return {"interrupted": True}
    chosen = max(fits, key=lambda name: _score(fits[name]))
    estimator = fits[chosen]
    result = {
        "task": data.task,
        "rows": data.num_rows,
        "labelled": sum(v is not None for v in own.labels),
        "features": data.num_features,
        "graph": chosen,
        "kernel": str(estimator.kernel_),
        "validation": estimator.validation_,
        "tried": {name: fit.validation_ for name, fit in fits.items()},
        **estimator.result_.to_json(),
        "seconds": sum(fit.result_.seconds for fit in fits.values()),
    }
    _write(folder, own, estimator, settings, result)
    return _read_result(folder)


def _read_result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def _config(own: OwnData, settings: OwnSettings) -> dict[str, Any]:
    """What was asked for, and of which rows; the source is the table's path as it was given."""
    source = own.dataset.source
    data = {"nodes": source, "label": own.encoder.label, "id": own.encoder.id, "edges": own.edges}
    return {
        "system": "difformer",
        "dataset": Path(source).name,
        "data": {**data, "fingerprint": own.dataset.fingerprint},
        "own": settings,
    }


def _fit(
    own: OwnData, y: Any, graph: str, settings: OwnSettings, folder: Path, quiet: bool
) -> Estimator:
    estimator = CLASSES[own.dataset.task](
        graph="knn" if graph == "knn" else None,
        hidden_channels=settings.hidden,
        kernel=settings.kernel,
        recipe=settings.recipe,
        options=dict(settings.options) or None,
        n_neighbors=settings.neighbours,
        lr=settings.lr,
        weight_decay=settings.weight_decay,
        consistency=settings.consistency,
        epochs=settings.epochs,
        early_stopping=True,
        patience=settings.patience,
        validation_fraction=settings.validation,
        scale=False,  # the table's columns are scaled already
        checkpoint=folder,
        random_state=settings.seed,
        device=settings.device,
        verbose=int(not quiet),
    )
    return estimator.fit(own.features, y, _given(own.dataset))


def _graphs(own: OwnData, settings: OwnSettings) -> list[str]:
    if own.dataset.edge_index is not None:
        return ["edges"]
    return ["none", "knn"] if settings.graph == "auto" else [settings.graph]


def _score(estimator: Estimator) -> tuple[float, float]:
    found = estimator.validation_
    if not found:
        return (0.0, 0.0)
    first = found["accuracy"] if "accuracy" in found else -found["mse"]
    return (first, -found["loss"])


def _names(own: OwnData) -> Array:
    y = own.dataset.y.tolist()
    return np.array([None if c < 0 else own.dataset.class_names[c] for c in y], object)


def _given(data: Dataset) -> Any:
    """The table's own edges as the estimators take them; None where it has none."""
    if data.edge_index is None or data.edge_weight is None:
        return data.edge_index
    from scipy.sparse import coo_matrix

    source, target = data.edge_index.numpy()
    n = data.num_rows
    return coo_matrix((data.edge_weight.numpy(), (source, target)), shape=(n, n))


def _write(
    folder: Path,
    own: OwnData,
    estimator: Estimator,
    settings: OwnSettings,
    result: Mapping[str, Any],
) -> None:
    table = {"encoder": json.loads(own.encoder.to_json()), "ids": list(own.ids)}
    write_atomic(folder / "table.json", json.dumps(table).encode())
    write_atomic(folder / "metrics.csv", csv_text(estimator.history_).encode())
    write_atomic(folder / "split.json", (estimator.split_.to_json() + "\n").encode())
    estimator.save(folder / "estimator.safetensors")
    run = OwnRun(estimator, own.encoder, own.ids, settings.influential)
    empty = [row for row, label in enumerate(own.labels) if label is None]
    if empty:
        with (folder / "predictions.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(run.header)
            for start in range(0, len(empty), CHUNK):
                part = empty[start : start + CHUNK]
                names = [own.ids[row] for row in part]
                writer.writerows(run.lines(own.features[part], names))
    files = {name: sha256_of(folder / name) for name in FILES}
    text = json.dumps({**result, "files": files}, indent=2) + "\n"
    write_atomic(folder / "result.json", text.encode())
    shutil.rmtree(folder / "fits", ignore_errors=True)


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
            result = _read_result(folder)
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


@dataclass(frozen=True)
class OpenOwn:
    """A finished run's model with the rows it was trained on."""

    model: DIFFormer
    dataset: Dataset
    split: Split
    graph: Graph | None


def open_own(folder: str | Path, *, dataset: Dataset | None = None) -> OpenOwn:
    """Read a run back for a look inside; the table is read again where it is not at hand."""
    folder = Path(folder)
    run = OwnRun.load(folder)
    asked = read_config(folder / "config.toml")["data"]
    if dataset is None:
        dataset = read_table(
            asked["nodes"], asked["label"], id=asked.get("id"), edges=asked.get("edges")
        ).dataset
    if dataset.fingerprint != asked["fingerprint"]:
        raise RunError(f"{asked['nodes']} has changed since {folder} was trained on it")
    model = run.estimator.frozen_.model.float()
    split = Split.load(folder / "split.json").check(dataset.num_rows)
    graph = run.estimator.graph_of(_rows(dataset.x), _given(dataset))
    return OpenOwn(model, dataset, split, graph)


def _rows(x: Tensor) -> Any:
    """Features as the estimators take them."""
    if x.layout == torch.strided:
        return x.numpy()
    from scipy.sparse import csr_matrix

    parts = (x.values().numpy(), x.col_indices().numpy(), x.crow_indices().numpy())
    return csr_matrix(parts, shape=tuple(x.shape))


def predict_own(
    folder: str | Path, source: Source, out: str | Path, *, edges: Source | None = None
) -> int:
    """Predict a table, chunk by chunk, into a CSV file; returns how many rows.

    Args:
        edges: known id, new id (and weight): what joins the new rows to known ones.
    """
    run = OwnRun.load(folder)
    out = Path(out)
    part = out.with_name(f".new-{out.name}")
    try:
        with part.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(run.header)
            count = 0
            for lines in _lines(run, source, edges):
                writer.writerows(lines)
                count += len(lines)
        part.replace(out)
    except OSError as error:
        raise RunError(f"cannot write {out}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
    return count


def _lines(run: OwnRun, source: Source, edges: Source | None) -> Iterator[list[list[Any]]]:
    names = _new_names(run, source)
    graph = None if edges is None else _between(run, names, edges)
    start = 0
    for chunk in read_chunks(source):
        features = run.encoder.encode_chunk(chunk, start + 1, source)
        stop = start + features.shape[0]
        mine = None if graph is None else graph[start:stop]
        yield run.lines(features, names[start:stop], mine)
        start = stop


def _new_names(run: OwnRun, source: Source) -> list[str]:
    column = run.encoder.id
    names: list[str] = []
    for chunk in read_chunks(source):
        size = len(next(iter(chunk.values()), []))
        if column is not None and column not in chunk:
            raise DataError(f"{source}: the id column {column!r} of training is missing")
        if column is None:
            names += [str(len(names) + i) for i in range(size)]
        else:
            names += [str(v).strip() for v in chunk[column]]
    seen: set[str] = set()
    for row, name in enumerate(names, 1):
        if name in seen:
            raise DataError(
                f"{source}: row {row}, column {column!r}: the id {name!r} is there twice"
            )
        seen.add(name)
    return names


def _between(run: OwnRun, names: Sequence[str], edges: Source) -> Any:
    """A (new rows, known rows) matrix of the edges that a file brings."""
    from scipy.sparse import coo_matrix

    known = {name: row for row, name in enumerate(run.ids)}
    new = {name: len(known) + row for row, name in enumerate(names)}
    # An id that is both is a known row: a new row of that name is found by its values.
    pairs, weight = read_edges(edges, {**new, **known})
    n = len(known)
    rows: list[int] = []
    columns: list[int] = []
    for a, b in pairs.T.tolist():
        if (a < n) == (b < n):
            raise DataError(f"{edges}: an edge must join a known row and a new one")
        rows.append(max(a, b) - n)
        columns.append(min(a, b))
    values = np.ones(len(rows)) if weight is None else weight.numpy()
    return coo_matrix((values, (rows, columns)), shape=(len(names), n)).tocsr()
