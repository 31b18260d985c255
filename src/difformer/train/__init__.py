"""The one training loop, its objectives, batches, stopping, checkpoints and run folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from difformer.lazy import lazy_names

if TYPE_CHECKING:
    from difformer.train.batches import FullBatch, Source, hide_labels, predict
    from difformer.train.callbacks import Callback, Energies, Progress, TensorBoard
    from difformer.train.chunks import predict_in_chunks, recompute_layers
    from difformer.train.loop import Fit, fit, pick_device
    from difformer.train.objective import Objective, objective_for
    from difformer.train.partition import Partitions
    from difformer.train.run import FitResult, read_config, read_result
    from difformer.train.seeding import seeded
    from difformer.train.seeds import SeedsResult, fit_seeds
    from difformer.train.settings import TrainSettings
    from difformer.train.snapshots import Snapshots


__all__ = [
    "Callback",
    "Energies",
    "Fit",
    "FitResult",
    "FullBatch",
    "Objective",
    "Partitions",
    "Progress",
    "SeedsResult",
    "Snapshots",
    "Source",
    "TensorBoard",
    "TrainSettings",
    "fit",
    "fit_seeds",
    "hide_labels",
    "objective_for",
    "pick_device",
    "predict",
    "predict_in_chunks",
    "read_config",
    "read_result",
    "recompute_layers",
    "seeded",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "batches": ("FullBatch", "Source", "hide_labels", "predict"),
        "callbacks": ("Callback", "Energies", "Progress", "TensorBoard"),
        "chunks": ("predict_in_chunks", "recompute_layers"),
        "loop": ("Fit", "fit", "pick_device"),
        "objective": ("Objective", "objective_for"),
        "partition": ("Partitions",),
        "run": ("FitResult", "read_config", "read_result"),
        "seeding": ("seeded",),
        "seeds": ("SeedsResult", "fit_seeds"),
        "settings": ("TrainSettings",),
        "snapshots": ("Snapshots",),
    },
)
