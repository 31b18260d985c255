"""The datasets of the suite: tables and graphs, each with its splits and its metric.

Tables: ten labels per class drawn by seed; all other rows are given without their labels and are
the test rows. Graphs: the splits that come with them, or random ones by seed, with validation rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.datasets
import torch
from numpy.typing import NDArray
from scipy import sparse

from difformer.data import npz
from difformer.data.dataset import Dataset, csr_tensor, scipy_csr, undirected
from difformer.data.fetch import search_path
from difformer.data.registry import load_dataset
from difformer.data.split import Split, mask_split, random_split
from difformer.data.table.encoder import TableEncoder
from difformer.data.table.read import read_table
from difformer.errors import DataError

PER_CLASS = 10
WORDS = 0.1  # features with a smaller share of nonzero numbers are kept sparse


@dataclass(frozen=True)
class SuiteSet:
    """One set: the rows as a person has them, and the same rows encoded for the peers.

    Args:
        kind: "table" or "graph".
        metric: "accuracy", or "roc_auc" for two classes of unlike size.
        X: (n, p) data frame, array or SciPy CSR matrix.
        data: the rows as numbers, standardised and one-hot where they are a table's.
        splits: the form of the splits: "per class", "given", or one that `Dataset.split` knows.
    """

    kind: str
    metric: str
    X: Any
    data: Dataset
    splits: str

    def split(self, number: int) -> Split:
        """The split of that number, the same for every system."""
        if self.splits == "per class":
            name = f"per class {PER_CLASS}:{number}"
            return random_split(
                self.data.y, number, per_class=PER_CLASS, num_val=0, num_test=None, name=name
            )
        return self.data.split(f"{self.splits}:{number}")

    def labels(self, split: Split) -> NDArray[Any]:
        """(n,) classes of the training and validation rows, -1 elsewhere."""
        few = np.full(self.data.num_rows, -1)
        known = torch.cat([split.train, split.val]).numpy()
        few[known] = self.data.y.numpy()[known]
        return few

    def describe(self) -> dict[str, Any]:
        """What the result file says of it."""
        data = self.data
        sizes = {"rows": data.num_rows, "features": data.num_features, "classes": data.num_outputs}
        edges = {} if data.edge_index is None else {"edges": data.num_edges // 2}
        return {"kind": self.kind, "metric": self.metric, "splits": self.splits, **sizes, **edges}


def read_csv(name: str, root: Path | None, *, label: str) -> SuiteSet:
    """A table of suite/tables; all columns but the label are features."""
    import pandas

    frame: Any = pandas.read_csv(_file(f"tables/{name}.csv", root))
    data = read_table(frame, label, task="multiclass")
    return SuiteSet("table", "accuracy", frame.drop(columns=label), data, "per class")


def read_bunch(name: str, root: Path | None) -> SuiteSet:
    """A table that comes with scikit-learn, as it comes."""
    X, y = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
    encoder = TableEncoder.of_numbers(X, [f"x{j}" for j in range(X.shape[1])])
    x = torch.from_numpy(encoder.encode_array(X))
    data = Dataset(name, x, torch.from_numpy(y).to(torch.int64))
    return SuiteSet("table", "accuracy", X, data, "per class")


def read_graph(
    name: str, root: Path | None, *, splits: str = "given", metric: str = "accuracy"
) -> SuiteSet:
    """A graph of suite/graphs, its edges made undirected."""
    path = _file(f"graphs/{name}.npz", root)
    try:
        arrays = npz.read_npz(path)
        features = arrays["x"].astype(np.float32)
        rows = sparse.csr_matrix(features) if (features != 0).mean() < WORDS else features
        data = Dataset(
            name,
            torch.from_numpy(features) if rows is features else csr_tensor(rows),
            torch.from_numpy(arrays["y"]).to(torch.int64),
            edge_index=undirected(arrays["edges"].T, len(features)),
            splits=_given(arrays) if splits == "given" else {},
        )
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path} is not a graph of the suite: {error}") from error
    return SuiteSet("graph", metric, rows, data, splits)


def read_citations(name: str, root: Path | None) -> SuiteSet:
    """A citation graph as `load_dataset` reads it: 20 labels per class, 500 rows to validate."""
    data = load_dataset(name, root)
    return SuiteSet("graph", "accuracy", scipy_csr(data.x), data, "random")


def _given(arrays: dict[str, NDArray[Any]]) -> dict[str, Split]:
    parts = [torch.from_numpy(arrays[f"{part}_masks"]) for part in ("train", "val", "test")]
    masks = enumerate(zip(*parts, strict=True))
    return {f"given:{i}": mask_split(*three, name=f"given:{i}") for i, three in masks}


def _file(name: str, root: Path | None) -> Path:
    places = [place / "suite" / name for place in search_path(root)]
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        raise DataError(f"suite/{name} is not in {', '.join(map(str, search_path(root)))}")
    return found


_HALVES = "ratio:0.5/0.25/0.25"
SETS: dict[str, Callable[[str, Path | None], SuiteSet]] = {
    "sonar": partial(read_csv, label="Class"),
    "ionosphere": partial(read_csv, label="Class"),
    "vehicle": partial(read_csv, label="Class"),
    "pimaindiansdiabetes": partial(read_csv, label="diabetes"),
    "housevotes84": partial(read_csv, label="Class"),
    "iris": read_bunch,
    "wine": read_bunch,
    "breast_cancer": read_bunch,
    "digits": read_bunch,
    "dna": partial(read_csv, label="Class"),
    "satellite": partial(read_csv, label="classes"),
    "wisconsin": read_graph,
    "twitch_ptbr": partial(read_graph, splits=_HALVES, metric="roc_auc"),
    "amherst41": partial(read_graph, splits=_HALVES),
    "cora": read_citations,
    "citeseer": read_citations,
    "minesweeper": partial(read_graph, metric="roc_auc"),
    "pubmed": read_citations,
}


def load_set(name: str, root: Path | None = None) -> SuiteSet:
    """The set of that name; ValueError lists the known ones."""
    if name not in SETS:
        raise ValueError(f"datasets must be among {', '.join(SETS)}, got {name!r}")
    return SETS[name](name, root)
