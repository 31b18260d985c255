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

from difformer.data.dataset import Edges
from difformer.data.fetch import Source, Web, obtain
from difformer.data.snapshots import TemporalDataset, from_windows
from difformer.errors import DataError
from difformer.files import read_json, reading

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
    """Read one file in the layout of the dataset `name`, as its checksum promises."""
    reader = {"chickenpox": _chickenpox, "covid": _covid, "wikimath": _wikimath}[name]
    with reading(path, error=DataError):
        series, graphs, ids = reader(read_json(path))
    if len(graphs) > 1:  # one graph per step; a snapshot has that of its oldest value
        graphs = graphs[: max(0, len(series) - lags)]
    edges = tuple(map(_edges, graphs))
    names = tuple(sorted(ids, key=lambda node: ids[node]))
    values = torch.from_numpy(series).float()
    found = from_windows(name, values, lags, edges, node_names=names, source=ORIGIN)
    return replace(found, per_step=PER_STEP.get(name))


# The series (steps, nodes), the pairs and weights of one graph or of each step's, and the nodes.
Parsed = tuple[np.ndarray, list[tuple[Any, Any]], dict[str, int]]


def _chickenpox(content: dict[str, Any]) -> Parsed:
    return np.array(content["FX"], float), [(content["edges"], None)], content["node_ids"]


def _covid(content: dict[str, Any]) -> Parsed:
    steps, edges = int(content["time_periods"]), content["edge_mapping"]
    graphs = [(edges["edge_index"][str(t)], edges["edge_weight"][str(t)]) for t in range(steps)]
    series = np.array(content["y"][:steps], float)
    return (series - series.mean(axis=0)) / (series.std(axis=0) + 1e-10), graphs, {}


def _wikimath(content: dict[str, Any]) -> Parsed:
    series = np.array([content[str(t)]["y"] for t in range(int(content["time_periods"]))], float)
    series = (series - series.mean(axis=0)) / series.std(axis=0)
    return series, [(content["edges"], content["weights"])], content["node_ids"]


def _edges(graph: tuple[Any, Any]) -> Edges:
    pairs, weights = graph
    index = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T.contiguous()
    return index, None if weights is None else torch.tensor(weights, dtype=torch.float32)
