"""Run an experiment on a sharded dataset: alone, or as one of the processes torchrun started."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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
from difformer.train.fromparts import fit_from_parts
from difformer.train.memory import keep_freed_memory
from difformer.train.seeding import seeded
from difformer.train.seeds import SeedsResult

__all__ = ["run_shards"]

WRITTEN = 65_536  # predictions written together


def run_shards(
    experiment: Experiment,
    *,
    folder: Path | str | None = None,
    callbacks: Callbacks | None = None,
) -> SeedsResult:
    """Train on the shards an experiment names; each process opens its own parts.

    With a folder the run is kept as `fit` keeps it, and each process writes the predictions of its
    rows to predictions-RANK-of-SIZE.parquet (.csv without pyarrow): id, split, prediction, and the
    probability of each class or label.
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
            path = _predictions(Path(folder), comm)
            missing = comm.sum_in_place(torch.tensor([0 if path.exists() else 1]), "plan")
            if int(missing):
                outputs = source.outputs
                if outputs is None:  # a finished run that was read back
                    trained.eval()
                    with torch.no_grad():
                        outputs = source.evaluate(trained)
                _write(path, outputs.cpu(), source.held)
            comm.barrier()
            if comm.rank == 0:
                _forget_others(path, comm)
    return SeedsResult({seed: result}, result.interrupted, None if folder is None else Path(folder))


def _predictions(folder: Path, comm: Comm) -> Path:
    kind = "parquet" if find_spec("pyarrow") else "csv"
    return folder / f"predictions-{comm.rank:05d}-of-{comm.size:05d}.{kind}"


def _forget_others(path: Path, comm: Comm) -> None:
    """Predictions of the same rows that another number of processes wrote."""
    for other in path.parent.glob("predictions-*-of-*"):
        if f"-of-{comm.size:05d}" not in other.name:
            other.unlink()


def _write(path: Path, outputs: Tensor, held: Held) -> None:
    """One line per row held, piece by piece."""
    with replacing(path, error=DataError) as part:
        if path.suffix == ".csv":
            with part.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                for number, columns in enumerate(_pieces(outputs, held)):
                    if number == 0:
                        writer.writerow(columns)
                    writer.writerows(zip(*columns.values(), strict=True))
            return
        import pyarrow
        import pyarrow.parquet as parquet

        opened: Any = None
        for columns in _pieces(outputs, held):
            table = pyarrow.table(columns)
            if opened is None:
                opened = parquet.ParquetWriter(part, table.schema)
            opened.write_table(table)
        if opened is not None:
            opened.close()


def _pieces(outputs: Tensor, held: Held) -> Iterator[dict[str, Sequence[Any]]]:
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
