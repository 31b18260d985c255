"""cora, citeseer, pubmed: citation graphs, embedded. Papers, their words, and citations.

Source: https://github.com/kimiyoung/planetoid (MIT; Yang, Cohen and Salakhutdinov, 2016), after the
LINQS collections (Sen et al., 2008); see embedded/NOTICE.md and scripts/embed_citations.py.
"""

from __future__ import annotations

from importlib.resources import as_file
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from difformer.data.dataset import Dataset, csr_tensor, normalize_rows, undirected
from difformer.data.fetch import search_path
from difformer.data.npz import read_npz
from difformer.data.split import PARTS, Split

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


def load(name: str, root: Path | None = None, *, normalize: bool = True) -> Dataset:
    """The dataset, x sparse CSR, its edges undirected, with the split "public".

    `normalize` divides each row of x by its sum, as the released code of the paper does. Citeseer
    has 15 papers without words or label, which count as class 0 here as in all published code and
    figures. They are not in the public split. The ids of cora are McCallum's numbers of the papers.
    """
    search_path(root)  # a missing folder is an error, even if the dataset is embedded
    with as_file(package_files("difformer.data") / "embedded" / f"{name}.npz") as path:
        parts = read_npz(path)
    classes = parts["classes"].astype(np.int64)
    # A bit for each word and paper; for TF-IDF also how often each word occurs in its paper, which
    # is divided by all words of the paper.
    words = np.unpackbits(parts["words"], axis=1, count=classes.size)
    x: Any = sp.csr_matrix(words.T, dtype=np.float32)
    if "idf" in parts:
        often = parts["often"].astype(np.float64)
        share = often / np.repeat(np.add.reduceat(often, x.indptr[:-1]), np.diff(x.indptr))
        x.data = (share * parts["idf"][x.indices]).astype(np.float32)
    train, val, test = (torch.from_numpy(parts[part].astype(np.int64)) for part in PARTS)
    return Dataset(
        name=name,
        x=csr_tensor(normalize_rows(x) if normalize else x),
        y=torch.from_numpy(classes),
        edge_index=undirected(parts["edges"].T, x.shape[0]),
        class_names=CLASS_NAMES[name],
        splits={"public": Split("public", train, val, test)},
        ids=tuple(str(number) for number in parts.get("ids", ())),
        source="Planetoid (Yang et al., 2016; MIT), github.com/kimiyoung/planetoid",
    )
