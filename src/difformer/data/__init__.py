"""What a dataset is, where it comes from, and how its rows are divided.

`load_dataset(name)` is the way in; a dataset's family is one file here, named in
`registry.DATASETS`. Names load on first use, so that listing the datasets does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from difformer.lazy import lazy_names

if TYPE_CHECKING:
    from difformer.data.batch import Batch, Prediction
    from difformer.data.dataset import Dataset
    from difformer.data.registry import fetch_dataset, list_datasets, load_dataset
    from difformer.data.snapshots import TemporalDataset
    from difformer.data.split import Split

__all__ = [
    "Batch",
    "Dataset",
    "Prediction",
    "Split",
    "TemporalDataset",
    "fetch_dataset",
    "list_datasets",
    "load_dataset",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "batch": ("Batch", "Prediction"),
        "dataset": ("Dataset",),
        "registry": ("fetch_dataset", "list_datasets", "load_dataset"),
        "snapshots": ("TemporalDataset",),
        "split": ("Split",),
    },
)
