"""Training over processes and machines: `torchrun --nproc-per-node P -m difformer train …`.

torchrun starts P copies of the command and restarts them when one dies; each reads its rank from
the environment. Rank 0 keeps the run folder, which must be on a disk that all can read; a restarted
job resumes from its last checkpoint and ends with the same result.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.rendezvous import rendezvous

from difformer import __version__
from difformer.core.graph import Graph
from difformer.core.sparse import SparseMatrix
from difformer.data.dataset import fingerprint
from difformer.errors import DifformerError
from difformer.files import one_line
from difformer.nn.model import DIFFormer
from difformer.shards.folder import ShardFolder
from difformer.train.callbacks import Callback
from difformer.train.folder import FitResult
from difformer.train.loop import fit, pick_device
from difformer.train.objective import objective_for
from difformer.train.parts import Parts
from difformer.train.processes import Comm
from difformer.train.settings import TrainSettings, launched
from difformer.train.sharded import ShardedDIFFormer

if TYPE_CHECKING:
    from difformer.data.dataset import Dataset
    from difformer.data.split import Split

# Rows and edges compared to check that all processes have the same data.
SKETCH = 4096

# A process that waits this long for another gives up; torchrun then stops the job, or restarts it.
TIMEOUT = timedelta(minutes=10)


@contextmanager
def processes(*, timeout: timedelta = TIMEOUT) -> Generator[Comm, None, None]:
    """Join the job that torchrun started, by NCCL on GPUs and gloo elsewhere.

    Without torchrun it is a job of one process. An error in the block is reported on stderr with
    its rank, so that the first cause can be told from the lost connections of the others.
    """
    if not launched() or dist.is_initialized():  # Ray Train joins the job itself
        yield Comm()
        return
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        # Plans consist of indices in main memory, even if the rows are on GPUs.
        backend = "cpu:gloo,cuda:nccl"
    # Imported later, as optimizers do, its functions would keep the job as their default, and with
    # it threads that abort the process if they outlive Python.
    import_module("torch.distributed.nn.functional")
    store, rank, size = next(rendezvous("env://", timeout=timeout))
    own = PrefixStore(meet(store, rank, size, timeout=timeout), store)
    dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=timeout)
    comm = Comm()
    # All connect before any can leave, so that an error seen by all is not reported as a lost
    # connection.
    dist.barrier()
    try:
        yield comm
    except (Exception, KeyboardInterrupt) as error:
        print(fault(error, comm), file=sys.stderr, flush=True)
        # Not destroyed: that would wait for the others, which wait for this one.
        os._exit(2 if isinstance(error, DifformerError | ValueError) else 1)
    else:
        dist.destroy_process_group()


def meet(store: Any, rank: int, size: int, *, timeout: timedelta = TIMEOUT) -> str:
    """A name shared by exactly the processes that are alive now, however often the job restarted.

    torchrun keeps one store for all restarts of a job, so a restarted process could find the
    addresses of dead peers there. Here rank 0 answers each process's greeting with a random number,
    and only an answer to a greeting of this start is accepted.
    """
    if rank:
        greeting = uuid.uuid4().hex
        store.set(f"difformer/greeting/{rank}", greeting)
        name = store.get(f"difformer/answer/{greeting}").decode()  # waits for it
        store.set(f"{name}/{rank}", "here")
        return name
    name = f"difformer/{uuid.uuid4().hex}"
    missing, answered = set(range(1, size)), set[str]()
    deadline = time.monotonic() + timeout.total_seconds()
    while missing:
        for other in sorted(missing):
            key = f"difformer/greeting/{other}"
            greeting = store.get(key).decode() if store.check([key]) else ""
            if greeting and greeting not in answered:
                store.set(f"difformer/answer/{greeting}", name)
                answered.add(greeting)
            if store.check([f"{name}/{other}"]):
                missing.discard(other)
        if time.monotonic() > deadline:
            raise DifformerError(f"ranks {sorted(missing)} must join within {timeout}")
        time.sleep(0.01)
    return name


def fault(error: BaseException, comm: Comm) -> str:
    """One line that says which process failed, why, and what happens next."""
    reason = one_line(error, 2000)
    lost = ("Connection", "closed by peer", "timed out", "Timed out", "Broken pipe", "NCCL")
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate" in reason:
        reason = f"out of memory ({reason[:120]}): use more processes, a batch size, or recompute"
    elif isinstance(error, RuntimeError) and any(word in reason for word in lost):
        reason = f"lost the other processes ({reason[:120]}): see which rank failed first"
    return f"difformer: {comm}: {reason}; the last checkpoint is kept"


def fit_distributed(
    model: DIFFormer,
    dataset: Dataset,
    split: Split,
    settings: TrainSettings,
    comm: Comm,
    *,
    graph: Graph | None = None,
    **written: Any,
) -> FitResult:
    """`fit` with the rows spread over the processes of `comm`; each returns the same result.

    Args:
        settings: a batch is one of all processes together; `partition` is that of `layout`.
        graph: the whole graph; each process keeps the edges that enter its rows.
        written: `folder`, `config` and `callbacks` of `fit`.
    """
    _agree(comm, settings, model, _sketch(dataset, split, graph))
    batches = {"batch_size": settings.batch_size, "seed": settings.seed}
    partition = settings.partition or "range"
    source = Parts.of(dataset, split, graph, model, comm, partition=partition, **batches)
    return _fit(model, source, dataset.task, settings, **written)[0]


def fit_from_parts(
    model: DIFFormer,
    shards: ShardFolder,
    settings: TrainSettings,
    comm: Comm,
    *,
    chunk: int | None = None,
    **written: Any,
) -> tuple[FitResult, Parts, nn.Module]:
    """`fit` on a sharded dataset, spread over the processes of `comm`; each gets the same result.

    Also returns the source, whose `outputs` are those of the best weights for the rows held here,
    and the trained model.
    """
    _agree(comm, settings, model, shards.manifest.checksum)
    if settings.partition is not None:
        raise ValueError("partition must be left out with shards: their parts say what goes where")
    batches = {"batch_size": settings.batch_size, "seed": settings.seed}
    source = Parts.on_disk(shards, model, comm, chunk=chunk, **batches)
    result, trained = _fit(model, source, shards.manifest.task, settings, **written)
    return result, source, trained


def _fit(
    model: DIFFormer,
    source: Parts,
    task: str,
    settings: TrainSettings,
    *,
    callbacks: Sequence[Callback] = (),
    **written: Any,
) -> tuple[FitResult, nn.Module]:
    """`fit` on the rows that each process holds, and what was trained.

    Rank 0 writes the folder, from which the others read a checkpoint, and calls the callbacks,
    which must not call the model.
    """
    model.to(pick_device(settings.device))
    comm = source.comm
    lead, trained = comm.rank == 0, model if comm.size == 1 else ShardedDIFFormer(model, comm)
    objective = objective_for(task, comm=comm)
    written |= {"writes": lead, "callbacks": callbacks if lead else ()}
    return fit(trained, source, objective, source.split, settings, **written), trained


def _agree(comm: Comm, settings: TrainSettings, model: DIFFormer, data: Any) -> None:
    """Raise an error, on every process, if code, settings, model or data differ between them."""
    own = ("device", "threads", "checkpoint_every")  # of one machine
    asked = {name: value for name, value in asdict(settings).items() if name not in own}
    comm.agree(
        code=(__version__, torch.__version__),
        settings={**asked, "model": repr(model), "config": model.config},
        data=data,
    )
    for name in ("consistency", "pseudo_labels"):
        if comm.size > 1 and asked[name]:
            raise ValueError(f"{name} must be 0 over processes, got {asked[name]}")


def _sketch(dataset: Dataset, split: Split, graph: Graph | None) -> list[str]:
    """Labels, split, and some of the features and edges, so that no process reads all rows."""
    n = dataset.num_rows
    some = torch.arange(0, n, max(1, n // SKETCH))
    dense = dataset.x.layout == torch.strided
    x = dataset.x[some] if dense else SparseMatrix.from_csr(dataset.x)[some].csr
    parts = [fingerprint(x, dataset.y, split.train, split.val, split.test), f"{dataset.x.shape}"]
    if graph is not None:
        chosen = torch.arange(0, graph.num_edges, max(1, graph.num_edges // SKETCH))
        parts += [fingerprint(*graph.chosen(chosen)), f"{graph.num_edges}"]
    return parts
