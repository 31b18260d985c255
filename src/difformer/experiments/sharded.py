"""Run an experiment on a sharded dataset, in one process or in those that torchrun starts."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from difformer.data.shards.folder import Held, ShardFolder
from difformer.data.split import PARTS
from difformer.errors import DataError
from difformer.experiments.experiment import AUTO_SPLIT, FINGERPRINT, Experiment
from difformer.experiments.run import Callbacks, CannotRunError, build_model
from difformer.files import replacing
from difformer.nn.model import DIFFormer
from difformer.train.chunks import CHUNK_ROWS
from difformer.train.comm import Comm
from difformer.train.distributed import processes
from difformer.train.fromparts import FromParts, fit_from_parts
from difformer.train.memory import keep_freed_memory
from difformer.train.seeding import seeded
from difformer.train.seeds import SeedsResult

__all__ = ["run_shards"]

WRITTEN = 65_536  # predictions that are written together


def run_shards(
    experiment: Experiment,
    *,
    folder: Path | str | None = None,
    callbacks: Callbacks | None = None,
) -> SeedsResult:
    """Train on the shards that an experiment names; each process opens only its own parts.

    With a folder, the run is saved there as `fit` saves it, and each process writes the predictions
    for its rows to predictions-RANK-of-SIZE.parquet (.csv without pyarrow): id, split, prediction,
    and the probability of each class or label.
    """
    keep_freed_memory()
    shards = ShardFolder(experiment.dataset)
    if experiment.split not in (AUTO_SPLIT, "given"):
        raise ValueError("split must be left out with shards: it was made when they were")
    if experiment.data:
        raise ValueError(f"data must be left out with shards, got {', '.join(experiment.data)}")
    seed, *others = experiment.seeds
    if others:
        raise ValueError(f"seeds must be one with shards, got {len(experiment.seeds)}")
    if not shards.manifest.size("train"):
        raise DataError(f"{shards.path} has no row to train on: its split is empty")
    manifest, settings = shards.manifest, replace(experiment.train, seed=seed)
    with seeded(seed):
        model = build_model(experiment, manifest.features, manifest.outputs)
    if not isinstance(model, DIFFormer):
        raise CannotRunError(f"{experiment.system} cannot run on shards: only DIFFormer can")
    config = {**experiment.config(), FINGERPRINT: manifest.checksum}
    with processes() as comm:
        result, source, trained = fit_from_parts(
            model,
            shards,
            settings,
            comm,
            chunk=CHUNK_ROWS if settings.recompute else None,
            folder=folder,
            config=config,
            callbacks=() if callbacks is None else callbacks(seed),
        )
        if folder is not None and not result.interrupted:
            _write_predictions(Path(folder), trained, source, comm)
    return SeedsResult({seed: result}, result.interrupted, None if folder is None else Path(folder))


def _write_predictions(folder: Path, model: nn.Module, source: FromParts, comm: Comm) -> None:
    """Write the predictions that are missing; delete those of another number of processes."""
    kind = "parquet" if find_spec("pyarrow") else "csv"
    path = folder / f"predictions-{comm.rank:05d}-of-{comm.size:05d}.{kind}"
    missing = comm.sum_in_place(torch.tensor([0 if path.exists() else 1]), "plan")
    if int(missing):
        outputs = source.outputs
        if outputs is None:  # a finished run was read from its folder
            model.eval()
            with torch.no_grad():
                outputs = source.evaluate(model)
        _write(path, outputs.cpu(), source.held)
    comm.barrier()
    if comm.rank == 0:
        for other in folder.glob("predictions-*-of-*"):
            if f"-of-{comm.size:05d}" not in other.name:
                other.unlink()


def _write(path: Path, outputs: Tensor, held: Held) -> None:
    """Write one line per row held, piece by piece."""
    pieces = _pieces(outputs, held)
    first = next(pieces)  # a part has at least one row
    with replacing(path, error=DataError) as part:
        if path.suffix == ".csv":
            with part.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(first)
                for columns in chain([first], pieces):
                    writer.writerows(zip(*columns.values(), strict=True))
            return
        import pyarrow
        import pyarrow.parquet as parquet

        with parquet.ParquetWriter(part, pyarrow.table(first).schema) as file:
            for columns in chain([first], pieces):
                file.write_table(pyarrow.table(columns))


def _pieces(outputs: Tensor, held: Held) -> Iterator[dict[str, Sequence[Any]]]:
    """The columns of the predictions, for some rows at a time."""
    manifest, ids = held.manifest, held.ids()
    words = (*PARTS, "")
    for first in range(0, held.rows, WRITTEN):
        rows = slice(first, min(first + WRITTEN, held.rows))
        found = outputs[rows].float()
        columns: dict[str, Sequence[Any]] = {
            "id": ids[rows],
            "split": [words[mark] for mark in held.split[rows].tolist()],
        }
        if manifest.task == "regression":
            names = [f"prediction_{k}" for k in range(found.shape[1])]
            names = ["prediction"] if len(names) == 1 else names
            columns |= dict(zip(names, found.T.tolist(), strict=True))
        elif manifest.task == "multilabel":
            chances = found.sigmoid().T.tolist()
            columns |= dict(zip(manifest.class_names, chances, strict=True))
        else:
            chance = found.softmax(1)
            named = [manifest.class_names[k] for k in chance.argmax(1).tolist()]
            each = zip(manifest.class_names, chance.T.tolist(), strict=True)
            columns |= {"prediction": named, **{f"p({name})": column for name, column in each}}
        yield columns
