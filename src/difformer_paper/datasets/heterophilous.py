"""actor, chameleon, squirrel (and the last two filtered): graphs whose neighbours differ in class.

Source: https://github.com/yandex-research/heterophilous-graphs (MIT; Platonov et al., 2023), after
Pei et al. (2020) and Rozemberczki et al. (2021). The filtered versions leave out duplicate nodes,
which leak labels from training to test. Each file holds ten splits.
"""

from __future__ import annotations

from pathlib import Path

import scipy.sparse as sp
import torch

from difformer.data import npz
from difformer.data.dataset import Dataset, csr_tensor, normalize_rows, undirected
from difformer.data.fetch import Source, Web, obtain
from difformer.data.split import mask_split
from difformer.errors import DataError
from difformer.files import reading

SHA256 = {
    "actor": "c350eef06b2c2a9bf8218be2b57cac6d4003d0922eb597a039e9123f75817816",
    "chameleon": "4c640bd2877fc4f9f101531e2f977bc16445a54e09a5cb01178df608e552f3fd",
    "chameleon-filtered": "bf46f07e1fb5249280447e5fe3100f3e82fc4b93ad1e13ffcfdec924b6ac0bb5",
    "squirrel": "d436e3b42c0546b105241c0ab0766097074e68e55f67b133eeb9b0162e55cbd9",
    "squirrel-filtered": "f06370ffb3116c5de8b7a600005400b2293c025e0ce2f6916d8201a825505ac7",
}

REPOSITORY = Web("https://raw.githubusercontent.com/yandex-research/heterophilous-graphs/main/data")

PARTS = ("train", "val", "test")
ARRAYS = ("node_features", "node_labels", "edges", *(f"{part}_masks" for part in PARTS))


def sources(name: str) -> tuple[Source, ...]:
    """Where a dataset comes from."""
    return (Source(REPOSITORY, "heterophilous", {_file(name): SHA256[name]}),)


def load(name: str, root: Path | None = None, *, normalize: bool = True) -> Dataset:
    """The dataset, x sparse CSR, its edges undirected, with the splits "given:0" to "given:9".

    `normalize` divides each row of x by its sum, as the released code of the paper does.
    """
    folder = obtain(name, sources(name), root)
    return read_npz(folder / _file(name), name, normalize=normalize)


def read_npz(path: Path, name: str, *, normalize: bool = True) -> Dataset:
    """Read one file, whose arrays agree as its checksum promises; pickled ones are refused."""
    with reading(path, error=DataError):
        arrays = npz.read_npz(path, ARRAYS)
    x = sp.csr_matrix(arrays["node_features"])
    masks = [torch.from_numpy(arrays[f"{part}_masks"]) for part in PARTS]
    rows = enumerate(zip(*masks, strict=True))
    return Dataset(
        name=name,
        x=csr_tensor(normalize_rows(x) if normalize else x),
        y=torch.from_numpy(arrays["node_labels"]).to(torch.int64),
        edge_index=undirected(arrays["edges"], len(masks[0][0])),
        splits={f"given:{i}": mask_split(*each, name=f"given:{i}") for i, each in rows},
        source="heterophilous-graphs (Platonov et al., 2023; MIT), github.com/yandex-research",
    )


def _file(name: str) -> str:
    return f"{name.replace('-', '_')}.npz"
