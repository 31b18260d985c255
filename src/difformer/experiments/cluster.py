"""Training from shards on a Ray cluster: Ray Train starts the workers, and restarts them.

Each worker does what a process of torchrun does. A restart resumes from the checkpoint in the run's
folder; all machines must see that folder and the parts.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from difformer.data.shards.cluster import connect, enough, lacking
from difformer.data.shards.remote import is_url
from difformer.errors import DifformerError, RunError
from difformer.experiments.experiment import Experiment
from difformer.experiments.values import NONE
from difformer.files import counted, one_line
from difformer.train.run import read_result
from difformer.train.seeds import SeedsResult

__all__ = ["train_on_ray"]

RESTARTS = 3  # how often workers are restarted before the run ends with an error
WAITS = 4  # how often Ray waits another minute for processors
TOO_LATE = "WorkerGroupStartupTimeoutError"  # Ray's error after the last wait


def train_on_ray(
    experiment: Experiment, folder: Path, *, workers: int, address: str | None = None
) -> SeedsResult:
    """Train on the shards that an experiment names, on a Ray cluster.

    Args:
        workers: how many workers, with one processor each, on different machines if there are.
        address: of the cluster; None starts one on this machine.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    ray = connect(address)
    asked = f"training with {counted(workers, 'worker')}"
    enough(ray, workers, asked)
    api, of_torch = import_module("ray.train"), import_module("ray.train.torch")
    trainer: Any = of_torch.TorchTrainer(
        _worker,
        train_loop_config=_plain(experiment, folder),
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
    return SeedsResult({experiment.seeds[0]: result}, result.interrupted, folder)


def _plain(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """What a worker needs, as plain data with absolute paths."""
    dataset = experiment.dataset
    if not is_url(dataset):
        dataset = str(Path(dataset).resolve())
    settings = {k: NONE if v is None else v for k, v in asdict(experiment.train).items()}
    config = {**replace(experiment, dataset=dataset).config(), "train": settings}
    return {"config": {**config, "seeds": list(experiment.seeds)}, "folder": str(folder.resolve())}


def _worker(given: dict[str, Any]) -> None:
    """One process of the job."""
    from difformer.experiments.sharded import run_shards

    run_shards(Experiment.from_config(given["config"]), folder=Path(given["folder"]))


def _first(error: BaseException) -> str:
    """The cause in one line: that of a worker whose error a person can act on, if there is one."""
    failed: dict[int, Any] = getattr(error, "worker_failures", {})
    causes = {rank: getattr(each, "_base_exc", each) for rank, each in failed.items()}
    told = {r: e for r, e in causes.items() if isinstance(e, DifformerError | ValueError)} or causes
    if not told:
        return f"training on the cluster failed: {one_line(error)}"
    rank = min(told)
    return f"rank {rank} of the cluster: {one_line(told[rank])}"
