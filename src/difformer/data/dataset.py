"""Dataset: rows, labels and, optionally, a graph between the rows; and batches of them."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from difformer.data.split import Split, parse_split, shape_and_type
from difformer.files import counted

if TYPE_CHECKING:
    from difformer.data.table.encoder import TableEncoder

Edges = tuple[Tensor, Tensor | None]
"""An edge_index (2, e) int64 and its edge_weight (e,), or None for ones."""


@dataclass(frozen=True)
class Batch:
    """Rows that go through a model in one call; it holds nothing but its tensors.

    Args:
        x: (n, p) features, dense or sparse CSR.
        y: (n,) int64 labels, -1 where unknown or hidden; or (n, t) floats, nan there.
        graph: a prepared ``difformer.core.Graph`` over the n rows, or None.
        rows: indices into this batch of the rows the loss counts.
        segments: (n,) graph id of each row where the batch holds separate graphs, or None.
        weight: (n,) weight of each row in the loss, or None for one each.
        counted: how many rows the loss counts in all processes together, where the batch is one
            process's part of a larger one; None for the length of ``rows``.
    """

    x: Tensor
    y: Tensor
    graph: Any | None
    rows: Tensor
    segments: Tensor | None = None
    weight: Tensor | None = None
    counted: int | None = None

    @property
    def size(self) -> int:
        """The number of rows that the loss averages over."""
        return self.rows.numel() if self.counted is None else self.counted

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device; a tensor already there is not copied."""
        parts = {name: part for name, part in vars(self).items() if isinstance(part, Tensor)}
        moved = {name: part.to(device) for name, part in parts.items()}
        graph = None if self.graph is None else self.graph.to(moved["x"])
        return replace(self, graph=graph, **moved)


@dataclass(frozen=True)
class Prediction:
    """What a model may return in place of a bare tensor: its output and an auxiliary loss."""

    output: Tensor
    penalty: Tensor | None = None


def csr_tensor(matrix: Any) -> Tensor:
    """A scipy sparse matrix as a float32 CSR tensor, duplicates summed, columns sorted. O(nnz)."""
    csr = matrix.tocsr().astype(np.float32)
    csr.sum_duplicates()
    csr.eliminate_zeros()
    with warnings.catch_warnings():
        # torch warns once per process about every CSR tensor; users cannot act on it.
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            torch.from_numpy(csr.indptr).to(torch.int64),
            torch.from_numpy(csr.indices).to(torch.int64),
            torch.from_numpy(csr.data),
            size=csr.shape,
            check_invariants=True,
        )


def scipy_csr(x: Tensor) -> Any:
    """A matrix tensor of any layout as a scipy CSR matrix; a CSR tensor shares its memory."""
    from scipy.sparse import csr_matrix

    csr = x.detach().cpu()
    csr = csr if csr.layout == torch.sparse_csr else csr.to_sparse_csr()
    parts = (csr.values().numpy(), csr.col_indices().numpy(), csr.crow_indices().numpy())
    return csr_matrix(parts, shape=tuple(x.shape))


def normalize_rows(matrix: Any) -> Any:
    """A scipy sparse matrix whose rows sum to one; a row of zeros stays so. O(nnz)."""
    csr = matrix.tocsr().astype(np.float32)
    sums = np.asarray(csr.sum(axis=1), dtype=np.float32).ravel()
    sums[sums == 0] = 1
    csr.data = csr.data / np.repeat(sums, np.diff(csr.indptr))
    return csr


def undirected(pairs: Any, num_nodes: int) -> Tensor:
    """(e, 2) pairs as a (2, 2e') edge_index: both ways, no loops, no duplicates. O(e log e).

    >>> undirected([(0, 1), (1, 0), (2, 2), (2, 1)], 3)
    tensor([[0, 1, 1, 2],
            [1, 0, 2, 1]])
    """
    edges = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    if edges.size and not (edges.min() >= 0 and edges.max() < num_nodes):
        raise ValueError(f"edges must lie in 0..{num_nodes - 1}, not {edges.min()}..{edges.max()}")
    edges = edges[edges[:, 0] != edges[:, 1]]
    both = np.concatenate([edges, edges[:, ::-1]])
    keys = np.unique(both[:, 0] * num_nodes + both[:, 1])
    return torch.from_numpy(np.stack([keys // num_nodes, keys % num_nodes]))


TASKS = ("multiclass", "multilabel", "regression")


def fingerprint(*tensors: Tensor | None) -> str:
    """A hash of sixteen letters, the same for equal tensors. O(numbers)."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(b"none" if tensor is None else str(tuple(tensor.shape)).encode())
        parts = [] if tensor is None else [tensor]
        if tensor is not None and tensor.layout == torch.sparse_csr:
            parts = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
        for part in parts:
            digest.update(part.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def single(weight: Tensor | None) -> Tensor | None:
    """Weights of edges as a fingerprint takes them, as earlier versions read them."""
    return None if weight is None else weight.float()


@dataclass(frozen=True, eq=False)
class Dataset:
    """n rows with p features each, their labels, and the edges between them.

    Args:
        name: the name `load_dataset` knows it by.
        x: (n, p) float32, dense or sparse CSR.
        y: (n,) int64 with -1 for unknown; where `task` is not "multiclass", (n,) or (n, t) float
            with nan for unknown, float64 where the numbers come from a table.
        task: "multiclass", "multilabel" or "regression".
        edge_index: (2, e) int64, each undirected edge in both directions; None without a graph.
        edge_weight: (e,) float, or None for ones.
        class_names: one name per class, by label; empty if there are none.
        splits: the splits that come with the data, by name.
        source: where the data comes from, and under which licence.
        ids: a unique name per row; empty if rows have only their number.
        encoder: how the columns of a table became x, to encode further rows; None without a table.
    """

    name: str
    x: Tensor
    y: Tensor
    task: str = "multiclass"
    edge_index: Tensor | None = None
    edge_weight: Tensor | None = None
    class_names: tuple[str, ...] = ()
    splits: Mapping[str, Split] = field(default_factory=dict[str, Split])
    source: str = ""
    ids: tuple[str, ...] = ()
    encoder: TableEncoder | None = None

    def __post_init__(self) -> None:
        n = self.x.shape[0]
        if self.task not in TASKS:
            raise ValueError(f"task must be one of {', '.join(TASKS)}, not {self.task!r}")
        if self.x.ndim != 2:
            raise ValueError(f"x must be (rows, features), not of shape {tuple(self.x.shape)}")
        if self.y.shape[0] != n:
            raise ValueError(f"y must have a label for each of the {n} rows, not {self.y.shape[0]}")
        if self.task == "multiclass" and (self.y.ndim != 1 or self.y.dtype != torch.int64):
            raise ValueError(
                f"y must be (rows,) int64 for multiclass, not {shape_and_type(self.y)}"
            )
        if self.task != "multiclass" and not self.y.is_floating_point():
            raise ValueError(f"y must be floating for {self.task}, not {shape_and_type(self.y)}")
        if self.edge_index is not None:
            check_edges(self.edge_index, self.edge_weight, n)
        elif self.edge_weight is not None:
            raise ValueError("edge_weight needs edge_index: there are no edges to weigh")
        if self.ids and len(set(self.ids)) != n:
            raise ValueError(f"ids must be {n} different names, one per row")
        for split in self.splits.values():
            split.check(n)
        object.__setattr__(self, "splits", MappingProxyType(dict(self.splits)))

    @property
    def num_rows(self) -> int:
        return self.x.shape[0]

    @property
    def num_features(self) -> int:
        return self.x.shape[1]

    @property
    def num_edges(self) -> int:
        """Directed edges; 0 without a graph."""
        return 0 if self.edge_index is None else self.edge_index.shape[1]

    @property
    def num_outputs(self) -> int:
        """Classes, labels or targets: the width of a model's last layer."""
        if self.task == "multiclass":
            return len(self.class_names) or int(self.y.max()) + 1
        return self.y.shape[1] if self.y.ndim == 2 else 1

    @property
    def fingerprint(self) -> str:
        """Equal for equal rows, labels and edges: a run recognises its data by it."""
        return fingerprint(self.x, self.y, self.edge_index, single(self.edge_weight))

    def split(self, spec: str | Split) -> Split:
        """A split of these rows from a short string; see `parse_split` for the forms.

        >>> import difformer
        >>> digits = difformer.load_dataset("digits")
        >>> digits.split("random:3").describe()
        'random:3: 200 train, 500 val, 1000 test'
        """
        split = spec if isinstance(spec, Split) else parse_split(spec, self.y, self.splits)
        return split.check(self.num_rows)

    def describe(self) -> str:
        """One line for people: name, task, sizes and the splits that come with the data."""
        parts = [
            counted(self.num_rows, "row"),
            counted(self.num_features, "feature"),
            f"{counted(self.num_outputs, 'output')} ({self.task})",
            counted(self.num_edges, "directed edge") if self.num_edges else "no graph",
        ]
        if self.splits:
            parts.append(f"splits {', '.join(self.splits)}")
        return f"{self.name}: " + "; ".join(parts)

    def __repr__(self) -> str:
        return f"<Dataset {self.describe()}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """How it travels to another process: torch warns of sparse tensors that do."""
        x = scipy_csr(self.x) if self.x.is_sparse_csr else self.x
        return _received, (type(self), {**vars(self), "x": x, "splits": dict(self.splits)})


def _received(kind: type[Dataset], parts: dict[str, Any]) -> Dataset:
    given: dict[str, Any] = {"x": csr_tensor(parts["x"])} if hasattr(parts["x"], "tocsr") else {}
    return kind(**{**parts, **given})


def check_edges(edge_index: Tensor, edge_weight: Tensor | None, n: int) -> None:
    """ValueError unless they are edges of `n` rows and their weights."""
    if edge_index.ndim != 2 or edge_index.shape[0] != 2 or edge_index.dtype != torch.int64:
        raise ValueError(f"edge_index must be (2, edges) int64, not {shape_and_type(edge_index)}")
    if edge_index.numel() and not (0 <= int(edge_index.min()) <= int(edge_index.max()) < n):
        low, high = int(edge_index.min()), int(edge_index.max())
        raise ValueError(f"edge_index must lie in 0..{n - 1}, not {low}..{high}")
    if edge_weight is None:
        return
    if edge_weight.shape != edge_index.shape[1:] or not edge_weight.is_floating_point():
        expected = f"({edge_index.shape[1]},) floating"
        raise ValueError(f"edge_weight must be {expected}, not {shape_and_type(edge_weight)}")
