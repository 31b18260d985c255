"""Graphs of PyTorch Geometric as datasets, in memory or from a .pt file."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, cast

import torch
from torch import Tensor

from difformer.data.dataset import Dataset
from difformer.data.rawtable import naming
from difformer.data.split import mask_split
from difformer.errors import DataError
from difformer.files import one_line, reading


def from_pyg(data: Any, name: str = "data") -> Dataset:
    """A torch_geometric Data as a Dataset, with its train, val and test masks as split "given"."""
    if data.x is None or data.y is None:
        raise DataError(f"{name}: must have x and y")
    y = data.y
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    task = "multiclass"
    if y.ndim == 2 and set(y[~y.isnan()].unique().tolist()) <= {0.0, 1.0}:
        y, task = y.float(), "multilabel"
    elif y.is_floating_point() or y.ndim == 2:
        y, task = y.double(), "regression"
    masks: list[Any] = [getattr(data, f"{part}_mask", None) for part in ("train", "val", "test")]
    whole = all(isinstance(m, Tensor) and m.ndim == 1 for m in masks)
    splits = {"given": mask_split(*masks)} if whole else {}
    weight = getattr(data, "edge_weight", None)
    return Dataset(
        name, data.x.float(), y, task, data.edge_index, weight, splits=splits, source="PyG Data"
    )


def read_pyg(path: str | Path) -> Dataset:
    """The one graph of a .pt file: a Data of PyG, a mapping of its tensors, or its saved dataset.

    Nothing in the file is executed: torch's safe loading may only build tensors, Data and the parts
    of Data.
    """
    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    path = Path(path)
    parts: list[Any] = [Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]
    with reading(path, error=DataError):
        found = _load(path, parts)
        if isinstance(found, tuple):  # the file of an InMemoryDataset: graphs, and their bounds
            whole = cast("tuple[Any, ...]", found)
            found = whole[0] if whole and whole[1:2] in ((), (None,)) else None
        if isinstance(found, Mapping):
            found = Data.from_dict(dict(cast("Mapping[str, Any]", found)))
        if not isinstance(found, Data):
            raise ValueError("it must hold one Data, or a mapping with x, y and edge_index")
        with naming(path):
            return from_pyg(found, path.stem)


def _load(path: Path, parts: list[Any]) -> Any:
    """What torch's safe loading makes of a file of tensors and these classes."""
    try:
        with torch.serialization.safe_globals(parts), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the protocol of a pickle
            return torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise DataError(
            f"{path} holds more than tensors and a Data, which is not loaded: it could execute "
            f"code ({one_line(error, 200)})"
        ) from error
