"""ogbn-proteins in OGB's raw layout, on small files of that layout."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import numpy as np
import pytest

from difformer.data.fetch import Zip
from difformer.data.registry import fetch_dataset, load_dataset
from difformer.errors import DataError
from difformer_paper.datasets import proteins

N = 7
LINKS = np.array([[0, 1], [1, 2], [2, 3], [0, 4], [5, 4]])


def save(path: Path, rows, form="%d") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        np.savetxt(file, np.asarray(rows), fmt=form, delimiter=",")


def write(folder: Path) -> np.ndarray:
    rng = np.random.default_rng(0)
    features = rng.random((len(LINKS), 8)).round(3)
    save(folder / "raw/edge.csv.gz", LINKS)
    save(folder / "raw/edge-feat.csv.gz", features, "%.3f")
    save(folder / "raw/node-label.csv.gz", rng.integers(0, 2, (N, 112)))
    save(folder / "raw/num-node-list.csv.gz", [[N]])
    save(folder / "raw/num-edge-list.csv.gz", [[len(LINKS)]])
    for part, rows in {"train": [0, 1, 2], "valid": [3, 4], "test": [5, 6]}.items():
        save(folder / f"split/species/{part}.csv.gz", np.array(rows)[:, None])
    return features


def test_files_of_its_layout_become_a_dataset(tmp_path):
    features = write(tmp_path / "ogbn_proteins")
    data = load_dataset("ogbn-proteins", tmp_path)
    assert data.task == "multilabel"
    assert data.x.shape == (N, 8)
    assert data.y.shape == (N, 112)
    assert data.num_outputs == 112
    assert data.edge_index.shape == (2, 2 * len(LINKS))
    np.testing.assert_allclose(data.x[0], features[[0, 3]].mean(0), rtol=1e-6)
    np.testing.assert_allclose(data.x[4], features[[3, 4]].mean(0), rtol=1e-6)
    assert (data.x[6] == 0).all()
    split = data.splits["species"]
    assert [s.tolist() for s in (split.train, split.val, split.test)] == [[0, 1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize(
    ("file", "rows", "message"),
    [
        ("raw/edge.csv.gz", [[0, 1], [1, 99]], "must have 5 lines, it has 2"),
        ("raw/edge.csv.gz", [[0, 1]] * 4 + [[0, 99]], "edge_index must lie in 0..6, not 0..99"),
        ("raw/edge-feat.csv.gz", [[0] * 8], "must have 5 lines, it has 1"),
        ("raw/edge-feat.csv.gz", [[0] * 7] * 5, "lines must have 8 numbers, not 7"),
        ("raw/node-label.csv.gz", [[0] * 112], "must have 7 lines, it has 1"),
    ],
)
def test_files_that_do_not_belong_together_are_named(tmp_path, file, rows, message):
    write(tmp_path / "ogbn_proteins")
    save(tmp_path / "ogbn_proteins" / file, rows)
    with pytest.raises(DataError, match=message):
        load_dataset("ogbn-proteins", tmp_path)


def test_a_line_or_a_file_that_is_cut_off_is_named(tmp_path):
    folder = tmp_path / "ogbn_proteins"
    write(folder)
    file = folder / "raw/edge.csv.gz"
    whole = file.read_bytes()
    with gzip.open(file, "wt") as stream:
        stream.write("0,1\n1,2\n2")
    with pytest.raises(DataError, match=r"edge.csv.gz .*changed from 2 to 1 at row 3"):
        proteins.read_folder(folder)
    file.write_bytes(whole[:-12])
    with pytest.raises(DataError, match="is cut off or damaged"):
        proteins.read_folder(folder)


@pytest.fixture
def served(tmp_path):
    """The address of the archive."""
    write(tmp_path / "made" / "proteins")
    with zipfile.ZipFile(tmp_path / "proteins.zip", "w") as archive:
        for file in (tmp_path / "made").rglob("*.gz"):
            archive.write(file, file.relative_to(tmp_path / "made"))
    return (tmp_path / "proteins.zip").as_uri()


def test_the_archive_is_fetched_and_not_kept(tmp_path, served, monkeypatch):
    monkeypatch.setattr(proteins, "ARCHIVE", Zip(served, "proteins"))
    target = tmp_path / "data"
    target.mkdir()
    folder = fetch_dataset("ogbn-proteins", target)
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*.*")) == sorted(proteins.FILES)
    assert load_dataset("ogbn-proteins", target).num_rows == N


def test_an_archive_without_a_file_says_which(tmp_path, served, monkeypatch):
    monkeypatch.setattr(proteins, "ARCHIVE", Zip(served, "other"))
    (tmp_path / "data").mkdir()
    with pytest.raises(DataError, match="lacks .*other/raw/edge.csv.gz"):
        fetch_dataset("ogbn-proteins", tmp_path / "data")
