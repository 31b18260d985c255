"""The citation graphs are embedded, have the counts of the literature, and are Planetoid's."""

from __future__ import annotations

import os
import pickle
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from difformer.data import npz, planetoid
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

EMBEDDED = Path(planetoid.__file__).with_name("embedded")
FOLDERS = {"cora": "Cora/raw", "citeseer": "CiteSeer/raw", "pubmed": "PubMed/raw"}


@pytest.fixture
def originals(request: pytest.FixtureRequest) -> Path:
    """A folder with Planetoid's own files, which what is embedded is compared with."""
    try:
        return request.getfixturevalue("data_root")
    except pytest.skip.Exception:
        pytest.skip("no copy of Planetoid's own files to compare with: set DIFFORMER_DATA")


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_those_of_the_literature(name: str) -> None:
    rows, features, classes, _, edges, _, isolated = COUNTS[name]
    data = load_dataset(name)
    assert (data.num_rows, data.num_features, data.num_outputs) == (rows, features, classes)
    assert data.edge_index is not None
    assert data.edge_index.shape == (2, 2 * edges)
    assert rows - data.edge_index[0].unique().numel() == isolated
    assert data.splits["public"].describe() == f"public: {20 * classes} train, 500 val, 1000 test"
    assert data.y[data.splits["public"].train].bincount().tolist() == [20] * classes


@pytest.mark.parametrize("name", COUNTS)
def test_what_is_embedded_is_packed_from_planetoid_s_files(name: str, originals: Path) -> None:
    raw = embed_citations.read_raw(originals / FOLDERS[name], name)
    assert len(raw.edges) == COUNTS[name][3]
    assert len(np.unique(raw.edges[raw.edges[:, 0] == raw.edges[:, 1]])) == COUNTS[name][5]
    kept = npz.read_npz(EMBEDDED / f"{name}.npz")
    kept.pop("ids", None)
    packed = embed_citations.pack(raw)
    assert kept.keys() == packed.keys()
    for part, array in packed.items():
        assert np.array_equal(array, kept[part]), part


def test_what_is_embedded_needs_no_network_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("difformer.data.fetch.fetch", None)
    monkeypatch.setenv("DIFFORMER_DATA", str(tmp_path))
    for name in COUNTS:
        assert load_dataset(name).num_rows == COUNTS[name][0]
        assert fetch_dataset(name) is None
    with pytest.raises(DataError, match="does not exist"):
        load_dataset("cora", tmp_path / "nowhere")


def test_what_is_embedded_is_small() -> None:
    assert sum(file.stat().st_size for file in EMBEDDED.iterdir()) < 1_300_000


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


def test_cora_from_linqs_files_is_the_same_cora(tmp_path: Path) -> None:
    """LINQS's two files, written from what is embedded by the order we keep, packed again."""
    data = load_dataset("cora", normalize=False)
    text = Path(embed_citations.__file__).with_name("cora_order.txt").read_text()
    numbers = [line for line in text.splitlines() if not line.startswith("#")]
    lines = [int(number) for number in " ".join(numbers).split()]
    assert sorted(lines) == list(range(2708))
    words, names = data.x.to_dense().int().tolist(), planetoid.CLASS_NAMES["cora"]
    content = {
        line: " ".join([data.ids[i], *map(str, words[i]), names[data.y[i]]])
        for i, line in enumerate(lines)
    }
    (tmp_path / "cora.content").write_text("\n".join(content[i] for i in range(2708)))
    assert data.edge_index is not None
    cited = [f"{data.ids[a]}\t{data.ids[b]}" for a, b in data.edge_index.T.tolist()]
    (tmp_path / "cora.cites").write_text("\n".join(cited))
    embed_citations.write(
        tmp_path / "cora.npz", embed_citations.pack(embed_citations.read_linqs_cora(tmp_path))
    )
    assert (tmp_path / "cora.npz").read_bytes() == (EMBEDDED / "cora.npz").read_bytes()
    assert len(set(data.ids)) == 2708


@pytest.mark.network
def test_the_script_makes_what_is_embedded(tmp_path: Path) -> None:
    embed_citations.make(tmp_path)
    for name in COUNTS:
        assert (tmp_path / f"{name}.npz").read_bytes() == (EMBEDDED / f"{name}.npz").read_bytes()


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
    evil = pickle.dumps(Evil(f"touch {tmp_path / 'witness'}"), protocol=protocol)
    # From protocol 4 on, the pickle is refused before it gets as far as naming anything.
    names = r"(names (posix|nt)\.system|uses \w+), which no Planetoid file needs"
    with pytest.raises(ValueError, match=names):
        embed_citations.read_pickle(evil)
    assert not (tmp_path / "witness").exists()


@pytest.mark.parametrize(
    "name", ["builtins.eval", "__builtin__.eval", "numpy.load", "os.system", "collections.deque"]
)
def test_only_six_names_are_admitted(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    with pytest.raises(ValueError, match=f"names {name}"):
        embed_citations.read_pickle(f"c{module}\n{attribute}\n.".encode())
    assert len(embed_citations.NAMES) == 6


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
        (ARRAY + b"K\x02K\x02\x86" + INT + b"\x89U\x08AAAAAAAAtb.", "cannot reshape"),
        (ARRAY + b"K\x02K\x02\x86" + OBJECT + b"\x89U\x20" + b"A" * 32 + b"tb.", "OBJECT array"),
        (ARRAY + b"K\x00K\x02\x86" + INT + b"q\x00\x89U\x00tbh\x00Nb.", "builds one object twice"),
        (b"\x80\x02(.", "is damaged"),
        (b"\x80\x02U\x01aK\x01K\x02\x86b.", "is damaged"),
    ],
)
def test_an_array_that_forges_memory_is_refused(content: bytes, message: str) -> None:
    """numpy's own constructors would take shapes, strides and types that reach beyond the bytes."""
    with pytest.raises(ValueError, match=message):
        embed_citations.read_pickle(content)


def test_a_whole_array_is_read_and_a_cut_or_changed_one_is_not_trusted() -> None:
    whole = ARRAY + b"K\x02K\x02\x86" + INT + b"\x89U\x10" + bytes(range(16)) + b"tb."
    expected = np.frombuffer(bytes(range(16)), "<i4").reshape(2, 2)
    assert np.array_equal(embed_citations.read_pickle(whole), expected)
    for size in range(len(whole)):
        with pytest.raises(ValueError, match="damaged|which no Planetoid file needs"):
            embed_citations.read_pickle(whole[:size])
    rng = np.random.default_rng(0)
    for _ in range(300):
        content = bytearray(whole)
        for place in rng.integers(len(content), size=3):
            content[place] = int(rng.integers(256))
        with suppress(ValueError):
            embed_citations.read_pickle(bytes(content))
