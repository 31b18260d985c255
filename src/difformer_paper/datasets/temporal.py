"""chickenpox, covid, wikimath: counts of nodes over time, from PyTorch Geometric Temporal's files.

Source: https://github.com/benedekrozemberczki/pytorch_geometric_temporal (MIT; Rozemberczki et al.,
2021). They are standardised as that library does it: chickenpox comes standardised, the other two
get zero mean and unit variance per node **over all steps, including the test steps**; compare
figures with each other, not with real forecasts. `DIFFormerForecaster` never uses the future.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from difformer.data.fetch import Source, Web, obtain
from difformer.data.snapshots import Edges, TemporalDataset, from_windows
from difformer.errors import DataError
from difformer.files import MISREAD, read_json, reason_of

COMMIT = "adefe44"
REPOSITORY = Web(
    "https://raw.githubusercontent.com/benedekrozemberczki/pytorch_geometric_temporal/"
    f"{COMMIT}/dataset"
)
FILES = {
    "chickenpox": "chickenpox.json",
    "covid": "england_covid.json",
    "wikimath": "wikivital_mathematics.json",
}
# WikiMath by its git id, the only checksum known without fetching it.
CHECKSUMS = {
    "chickenpox": "724b48cfb274b2ecbb855bdb99b970b5ef9dd3671694fa477435dc1e08293735",
    "covid": "497056cc4585b58951fd5cd17554fe0c535f68ea0c907a5b5727ae30e3913450",
    "wikimath": "git:28aefd607de34627e194f40a80fb50cf549904f4",
}
LAGS = {"chickenpox": 4, "covid": 8, "wikimath": 14}
# The authors' code takes one step per snapshot of WikiMath, and one per epoch of the others.
PER_STEP = {"wikimath": 1}
ORIGIN = "PyTorch Geometric Temporal (MIT)"


def sources(name: str) -> tuple[Source, ...]:
    """Where a dataset comes from."""
    return (Source(REPOSITORY, "temporal", {FILES[name]: CHECKSUMS[name]}),)


def load(name: str, root: Path | None = None, *, lags: int | None = None) -> TemporalDataset:
    """The dataset's snapshots, with the split "time"; `lags` is 4, 8 or 14 as in the paper."""
    folder = obtain(name, sources(name), root)
    return read_file(folder / FILES[name], name, lags=LAGS[name] if lags is None else lags)


def read_file(path: Path, name: str, *, lags: int) -> TemporalDataset:
    """Read one file in the layout of the dataset `name`; DataError if it is not."""
    reader = {"chickenpox": _chickenpox, "covid": _covid, "wikimath": _wikimath}[name]
    try:
        series, edges, names = reader(read_json(path))
        if not bool(torch.isfinite(series).all()):
            raise ValueError("a value is not a finite number, or a node never changes")
    except MISREAD as error:
        raise DataError(f"{path} is not a {name} file: {reason_of(error)}") from error
    if len(edges) > 1:  # one graph per step; a snapshot has that of its oldest value
        edges = edges[: max(0, series.shape[0] - lags)]
    found = from_windows(name, series, lags, edges, node_names=names, source=ORIGIN)
    return replace(found, per_step=PER_STEP.get(name))


Parsed = tuple[Tensor, tuple[Edges, ...], tuple[str, ...]]


def _chickenpox(content: dict[str, Any]) -> Parsed:
    edges, names = _edges(content["edges"], None), _names(content["node_ids"])
    return torch.from_numpy(_matrix(content["FX"])).float(), (edges,), names


def _covid(content: dict[str, Any]) -> Parsed:
    steps, mapping = int(content["time_periods"]), content["edge_mapping"]
    edges = tuple(
        _edges(mapping["edge_index"][str(t)], mapping["edge_weight"][str(t)]) for t in range(steps)
    )
    return _standardised(_matrix(content["y"])[:steps], 1e-10), edges, ()


def _wikimath(content: dict[str, Any]) -> Parsed:
    steps = int(content["time_periods"])
    series = _matrix([content[str(t)]["y"] for t in range(steps)])
    edges = _edges(content["edges"], content["weights"])
    return _standardised(series, 0.0), (edges,), _names(content.get("node_ids", {}))


def _matrix(rows: Any) -> np.ndarray:
    series = np.asarray(rows, dtype=np.float64)  # rows of unequal length are a ValueError
    if series.ndim != 2:
        raise ValueError(f"its series must be (steps, nodes), not of shape {series.shape}")
    return series


def _standardised(series: np.ndarray, floor: float) -> Tensor:
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = (series - series.mean(axis=0)) / (series.std(axis=0) + floor)
    return torch.from_numpy(scaled).float()


def _edges(pairs: Any, weights: Any) -> Edges:
    index = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T.contiguous()
    return index, None if weights is None else torch.tensor(weights, dtype=torch.float32)


def _names(ids: dict[str, int]) -> tuple[str, ...]:
    return tuple(sorted(ids, key=lambda name: ids[name]))
