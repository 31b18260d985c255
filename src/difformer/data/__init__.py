"""What a dataset is, where it comes from, and how its rows are divided.

`load_dataset(name)` is the way in; a dataset's family is one file here, named in
`registry.DATASETS`. Names load on first use, so that listing the datasets does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_PUBLIC: dict[str, str] = {
    "Batch": "difformer.data.batch",
    "Dataset": "difformer.data.dataset",
    "Prediction": "difformer.data.batch",
    "Split": "difformer.data.split",
    "TemporalDataset": "difformer.data.snapshots",
    "fetch_dataset": "difformer.data.registry",
    "list_datasets": "difformer.data.registry",
    "load_dataset": "difformer.data.registry",
}

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


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'difformer.data' has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value
