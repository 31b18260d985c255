"""Run an experiment on a sharded dataset, in one process or in those that torchrun starts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from difformer.data.split import PARTS
from difformer.errors import DataError, DifformerError, RunError
from difformer.files import counted, csv_lines, one_line, replacing
from difformer.jobs.job import AUTO_SPLIT, FINGERPRINT, Experiment
from difformer.jobs.rows import Callbacks, CannotRunError, build_model
from difformer.nn.model import DIFFormer
from difformer.shards.folder import Held, ShardFolder
from difformer.shards.store import Manifest, is_url
from difformer.train.chunks import CHUNK_ROWS
from difformer.train.distributed import fit_from_parts, processes
from difformer.train.folder import Run, read_result
from difformer.train.memory import keep_freed_memory
from difformer.train.parts import Parts
from difformer.train.seeding import seeded

WRITTEN = 65_536  # predictions that are written together


def run_shards(experiment: Experiment, *, folder: Path, callbacks: Callbacks | None = None) -> Run:
    """Train on the shards that an experiment names; each process opens only its own parts.

    The run is saved in the folder as `fit` saves it, and each process writes the predictions for
    its rows to predictions-RANK-of-SIZE.parquet (.csv without pyarrow): id, split, prediction, and
    the probability of each class or label.
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
        if not result.interrupted:
            _write_predictions(folder, trained, source, manifest)
    return Run({f"seed {seed}": result}, result.interrupted, folder, config, kind="shards")


def _write_predictions(folder: Path, model: nn.Module, source: Parts, manifest: Manifest) -> None:
    """Write the predictions that are missing; delete those of another number of processes."""
    comm = source.comm
    kind = "parquet" if find_spec("pyarrow") else "csv"
    path = folder / f"predictions-{comm.rank:05d}-of-{comm.size:05d}.{kind}"
    missing = comm.sum(torch.tensor([0 if path.exists() else 1]), "plan")
    if int(missing):
        outputs = source.outputs
        if outputs is None:  # a finished run was read from its folder
            model.eval()
            with torch.no_grad():
                outputs = source.evaluate(model)
        _write(path, outputs.cpu(), source.held, manifest)
    comm.barrier()
    if comm.rank == 0:
        for other in folder.glob("predictions-*-of-*"):
            if f"-of-{comm.size:05d}" not in other.name:
                other.unlink()


def _write(path: Path, outputs: Tensor, held: Held, manifest: Manifest) -> None:
    """Write one line per row held, piece by piece."""
    pieces = _pieces(outputs, held, manifest)
    first = next(pieces)  # a part has at least one row
    with replacing(path, error=DataError) as part:
        if path.suffix == ".csv":
            with part.open("w", encoding="utf-8", newline="") as file:
                file.write(csv_lines([first]))
                for columns in chain([first], pieces):
                    file.write(csv_lines(zip(*columns.values(), strict=True)))
            return
        import pyarrow
        import pyarrow.parquet as parquet

        with parquet.ParquetWriter(part, pyarrow.table(first).schema) as table:
            for columns in chain([first], pieces):
                table.write_table(pyarrow.table(columns))


def _pieces(outputs: Tensor, held: Held, manifest: Manifest) -> Iterator[dict[str, Sequence[Any]]]:
    """The columns of the predictions, for some rows at a time."""
    ids, words, names = held.ids(), (*PARTS, ""), manifest.class_names
    for first in range(0, held.rows, WRITTEN):
        rows = slice(first, min(first + WRITTEN, held.rows))
        found = outputs[rows].float()
        marks = held.split[rows].tolist()
        columns: dict[str, Any] = {"id": ids[rows], "split": [words[mark] for mark in marks]}
        if manifest.task == "regression":
            several = found.shape[1] > 1
            for k, column in enumerate(found.T.tolist()):
                columns[f"prediction_{k}" if several else "prediction"] = column
        elif manifest.task == "multilabel":
            columns |= dict(zip(names, found.sigmoid().T.tolist(), strict=True))
        else:
            chance = found.softmax(1)
            columns["prediction"] = [names[k] for k in chance.argmax(1).tolist()]
            columns |= {f"p({n})": p for n, p in zip(names, chance.T.tolist(), strict=True)}
        yield columns


RESTARTS = 3  # how often workers are restarted before the run ends with an error
WAITS = 4  # how often Ray waits another minute for processors
TOO_LATE = "WorkerGroupStartupTimeoutError"  # Ray's error after the last wait


def train_on_ray(
    experiment: Experiment, folder: Path, *, workers: int, address: str | None = None
) -> Run:
    """Train on the shards that an experiment names, on a Ray cluster.

    Args:
        workers: how many workers, with one processor each, on different machines if there are.
        address: of the cluster; None starts one on this machine.
    """
    from difformer.shards.far import connect, enough, lacking

    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    ray = connect(address)
    asked = f"training with {counted(workers, 'worker')}"
    enough(ray, workers, asked)
    if not is_url(experiment.dataset):  # a worker runs in a folder of its own
        experiment = replace(experiment, dataset=str(Path(experiment.dataset).resolve()))
    api, of_torch = import_module("ray.train"), import_module("ray.train.torch")
    trainer: Any = of_torch.TorchTrainer(
        _worker,
        train_loop_config={"experiment": experiment, "folder": folder.resolve()},
        torch_config=of_torch.TorchConfig(backend="gloo"),
        scaling_config=api.ScalingConfig(num_workers=workers, placement_strategy="SPREAD"),
        run_config=api.RunConfig(
            name="ray",
            storage_path=str((folder / ".ray").resolve()),
            failure_config=api.FailureConfig(max_failures=RESTARTS, controller_failure_limit=WAITS),
        ),
    )
    try:
        trainer.fit()
    except api.TrainingFailedError as error:
        waited = type(getattr(error, "controller_failure", None)).__name__ == TOO_LATE
        reason = lacking(ray, workers, asked) if waited else _first(error)
        raise RunError(f"{reason}; the last checkpoint is kept in {folder}") from error
    finally:
        shutil.rmtree(folder / ".ray", ignore_errors=True)
    result = read_result(folder)
    if result is None:
        raise RunError(f"{folder} has no result: the workers must share this folder")
    fits = {f"seed {experiment.seeds[0]}": result}
    return Run(fits, result.interrupted, folder, experiment.config(), kind="shards")


def _worker(given: dict[str, Any]) -> None:
    """One process of the job."""
    from difformer.jobs.shards import run_shards

    run_shards(**given)


def _first(error: BaseException) -> str:
    """The cause in one line: that of a worker whose error a person can act on, if there is one."""
    failed: dict[int, Any] = getattr(error, "worker_failures", {})
    causes = {rank: getattr(each, "_base_exc", each) for rank, each in failed.items()}
    told = {r: e for r, e in causes.items() if isinstance(e, DifformerError | ValueError)} or causes
    if not told:
        return f"training on the cluster failed: {one_line(error)}"
    rank = min(told)
    return f"rank {rank} of the cluster: {one_line(told[rank])}"
