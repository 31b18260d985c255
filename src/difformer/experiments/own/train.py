"""Train on a person's own table, and leave a run folder."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from difformer.data.download import sha256_of
from difformer.data.rawtable import CHUNK
from difformer.data.tables import OwnData
from difformer.errors import RunError
from difformer.experiments.own.inputs import given_graph
from difformer.experiments.own.run import CLASSES, Estimator, OwnRun, read_result
from difformer.train.files import write_atomic
from difformer.train.run import agree_config, csv_text

__all__ = ["OwnSettings", "train_own"]

GRAPHS = ("auto", "knn", "none")
NAMED_UP_TO = 5000  # rows; naming the influential ones costs rows × rows
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
    influential: int | None = _option(
        None, f"known rows named for each prediction; none: 3 up to {NAMED_UP_TO} rows, else 0"
    )
    device: str = _option("auto", "cpu, cuda, ...; auto: cuda where there is one")

    def named(self, rows: int) -> int:
        """How many influential rows are named for each prediction."""
        if self.influential is not None:
            return self.influential
        return 3 if rows <= NAMED_UP_TO else 0

    def __post_init__(self) -> None:
        if self.graph not in GRAPHS:
            raise ValueError(f"graph must be one of {', '.join(GRAPHS)}, got {self.graph!r}")
        if self.influential is not None and self.influential < 0:
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
        return read_result(folder)
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
        "influential": settings.named(data.num_rows),
    }
    _write(folder, own, estimator, result)
    return read_result(folder)


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
    ids = own.ids if own.encoder.id is not None else None
    return estimator.fit(own.features, y, given_graph(own.dataset), ids=ids)


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


def _names(own: OwnData) -> NDArray[Any]:
    y = own.dataset.y.tolist()
    return np.array([None if c < 0 else own.dataset.class_names[c] for c in y], object)


def _write(
    folder: Path,
    own: OwnData,
    estimator: Estimator,
    result: Mapping[str, Any],
) -> None:
    table = {"encoder": json.loads(own.encoder.to_json()), "ids": list(own.ids)}
    write_atomic(folder / "table.json", json.dumps(table).encode())
    write_atomic(folder / "metrics.csv", csv_text(estimator.history_).encode())
    write_atomic(folder / "split.json", (estimator.split_.to_json() + "\n").encode())
    estimator.save(folder / "estimator.safetensors")
    run = OwnRun(estimator, own.encoder, own.ids, result["influential"])
    empty = [row for row, label in enumerate(own.labels) if label is None]
    if empty:
        with (folder / "predictions.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(run.header)
            for start in range(0, len(empty), CHUNK):
                part = empty[start : start + CHUNK]
                names = [own.ids[row] for row in part]
                writer.writerows(run.lines(names, run.fitted(part)))
    files = {name: sha256_of(folder / name) for name in FILES}
    text = json.dumps({**result, "files": files}, indent=2) + "\n"
    write_atomic(folder / "result.json", text.encode())
    shutil.rmtree(folder / "fits", ignore_errors=True)
