"""Graphs of the paper's further datasets, read from small files of their layouts."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from difformer.data.fetch import Zip
from difformer.data.registry import fetch_dataset, load_dataset
from difformer.errors import DataError
from difformer_paper.datasets import proteins
from difformer_paper.datasets.heterophilous import read_npz
from difformer_paper.datasets.pokec import COLUMNS, PROFILES, RELATIONS

COUNTS = {
    "actor": (7600, 26659, 932),
    "chameleon": (2277, 31371, 2325),
    "squirrel": (5201, 198353, 2089),
    "chameleon-filtered": (890, 8854, 2325),
    "squirrel-filtered": (2223, 46998, 2089),
}


def write_tiny(path: Path, **changes: Any) -> None:
    masks = np.eye(3, dtype=bool)
    arrays: dict[str, Any] = {
        "node_features": np.array([[1, 3], [0, 0], [2, 0]], dtype=np.float32),
        "node_labels": np.array([0, 1, 0]),
        "edges": np.array([[0, 1], [1, 2]]),
        "train_masks": masks[[0, 1]],
        "val_masks": masks[[1, 2]],
        "test_masks": masks[[2, 0]],
    }
    np.savez(path, **(arrays | changes))


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_those_of_the_source(name: str, data_root: Path) -> None:
    rows, edges, features = COUNTS[name]
    data = load_dataset(name, data_root)
    assert (data.num_rows, data.num_features, data.num_outputs) == (rows, features, 5)
    assert data.edge_index is not None
    assert data.edge_index.shape == (2, 2 * edges)
    assert list(data.splits) == [f"given:{i}" for i in range(10)]
    for split in data.splits.values():
        assert split.train.numel() + split.val.numel() + split.test.numel() == rows


def test_tiny_file_is_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "tiny.npz"
    write_tiny(path)
    data = read_npz(path, "tiny")
    assert data.x.to_dense().tolist() == [[0.25, 0.75], [0, 0], [1, 0]]
    assert read_npz(path, "tiny", normalize=False).x.to_dense().tolist() == [[1, 3], [0, 0], [2, 0]]
    assert data.edge_index is not None
    assert data.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert data.split("given:1").describe() == "given:1: 1 train, 1 val, 1 test"
    assert data.split("given:1").test.tolist() == [0]
    write_tiny(path, node_labels=np.array([{}, 1, 0], dtype=object))
    with pytest.raises(DataError, match=r"tiny\.npz cannot be read: .*pickle"):
        read_npz(path, "tiny")


PEOPLE = 12


def profile(user: int, **cells: str) -> str:
    row = ["null"] * COLUMNS
    row[:4] = [str(user), "1", "14", str(user % 2)]
    row[4:6] = ["zilinsky kraj, kysucke nove mesto", "2012-05-25 11:20:00.0"]
    row[6:8] = ["2005-04-03 00:00:00.0", "26"]
    row[8] = "185 cm, 83 kg"
    for column, cell in cells.items():
        row[int(column.removeprefix("c"))] = cell
    return "\t".join(row) + "\t\n"


def write_dump(folder, profiles=None, relations="1\t2\n2\t1\n3\t12\n"):
    folder.mkdir(exist_ok=True)
    lines = profiles or [profile(user) for user in (3, 1, 2, *range(4, PEOPLE + 1))]
    with gzip.open(folder / PROFILES, "wt", encoding="utf-8") as file:
        file.write("".join(lines))
    with gzip.open(folder / RELATIONS, "wt") as file:
        file.write(relations)


def test_the_raw_dump_becomes_a_dataset(tmp_path):
    lines = [profile(user) for user in range(2, PEOPLE + 1)]
    lines.insert(4, profile(1, c3="null", c7="null", c4="zahranicie, cesko", c1="0"))
    write_dump(tmp_path / "pokec", lines)
    data = load_dataset("pokec", tmp_path)
    assert data.x.shape == (PEOPLE, 65)
    assert data.y.tolist() == [-1, *(user % 2 for user in range(2, PEOPLE + 1))]
    assert data.edge_index.tolist() == [[0, 1, 2], [1, 0, 11]]
    first, second = data.x[0], data.x[1]
    assert second[:2].tolist() == pytest.approx([1.0, 0.14])
    assert second[4:6].tolist() == pytest.approx([0.26, 1.0])
    assert second[6:14].tolist() == [0, 0, 0, 0, 1, 0, 0, 0]
    assert second[14:].sum() == 1
    assert first[[0, 4, 5]].tolist() == [0, 0, 0]
    assert first[6:14].sum() == 0
    assert 1.2 < second[2] < 1.4  # decades since 1999
    assert data.class_names == ("woman", "man")


def test_the_file_of_the_released_script_is_read_first(tmp_path):
    write_dump(tmp_path / "pokec")
    rng = np.random.default_rng(0)
    content = {
        "edge_index": rng.integers(0, 40, (2, 90)),
        "node_feat": rng.random((40, 65)),
        "label": rng.integers(-1, 2, (1, 40)),
        "num_nodes": 40,
    }
    savemat(tmp_path / "pokec" / "pokec.mat", content)
    data = load_dataset("pokec", tmp_path)
    assert data.x.shape == (40, 65)
    assert data.edge_index.tolist() == content["edge_index"].tolist()
    assert data.y.tolist() == content["label"][0].tolist()
    known = int((data.y >= 0).sum())
    sizes = [data.splits[name].train.numel() for name in ("paper", "released")]
    assert sizes == [int(known * 0.1), int(known * 0.5)]
    content["label"] = content["label"][:, :30]
    savemat(tmp_path / "pokec" / "pokec.mat", content)
    with pytest.raises(DataError, match="y must have a label for each of the 40 rows, not 30"):
        load_dataset("pokec", tmp_path)
    (tmp_path / "pokec" / "pokec.mat").write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match="is not the Pokec of the released script"):
        load_dataset("pokec", tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"relations": "1\t2\n1\t13\n"}, "edge_index must lie in 0..11, not 0..12"),
        ({"relations": "1\t2\n1\n"}, "columns changed from 2 to 1 at row 2$"),
        ({"relations": "1\t2\nx\t3\n"}, "'x' to int64 at row 1, column 1"),
        ({"profiles": ["1\t1\t14\n"]}, "line 1: 3 columns where 59 must be"),
        ({"profiles": [profile(1), profile(3)]}, "must hold each of the people 1 to 2 once"),
        ({"profiles": [profile(1, c7="old")]}, "line 1: invalid literal"),
    ],
)
def test_lines_that_are_wrong_are_named(tmp_path, options, message):
    write_dump(tmp_path / "pokec", **options)
    with pytest.raises(DataError, match=message):
        load_dataset("pokec", tmp_path)


N = 7
LINKS = np.array([[0, 1], [1, 2], [2, 3], [0, 4], [5, 4]])


def save(path: Path, rows, form="%d") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        np.savetxt(file, np.asarray(rows), fmt=form, delimiter=",")


def write_proteins(folder: Path) -> np.ndarray:
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


def test_proteins_become_a_dataset(tmp_path):
    features = write_proteins(tmp_path / "ogbn_proteins")
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
def test_files_of_proteins_that_do_not_belong_together_are_named(tmp_path, file, rows, message):
    write_proteins(tmp_path / "ogbn_proteins")
    save(tmp_path / "ogbn_proteins" / file, rows)
    with pytest.raises(DataError, match=message):
        load_dataset("ogbn-proteins", tmp_path)


def test_a_line_or_a_file_that_is_cut_off_is_named(tmp_path):
    folder = tmp_path / "ogbn_proteins"
    write_proteins(folder)
    file = folder / "raw/edge.csv.gz"
    whole = file.read_bytes()
    with gzip.open(file, "wt") as stream:
        stream.write("0,1\n1,2\n2")
    with pytest.raises(DataError, match=r"edge.csv.gz .*changed from 2 to 1 at row 3"):
        proteins.read_folder(folder)
    file.write_bytes(whole[:-12])
    with pytest.raises(DataError, match="is cut off or damaged"):
        proteins.read_folder(folder)


def test_the_archive_of_proteins_is_fetched_and_not_kept(tmp_path, monkeypatch):
    write_proteins(tmp_path / "made" / "proteins")
    with zipfile.ZipFile(tmp_path / "proteins.zip", "w") as archive:
        for file in (tmp_path / "made").rglob("*.gz"):
            archive.write(file, file.relative_to(tmp_path / "made"))
    served, target = (tmp_path / "proteins.zip").as_uri(), tmp_path / "data"
    target.mkdir()
    monkeypatch.setattr(proteins, "ARCHIVE", Zip(served, "other"))
    with pytest.raises(DataError, match="lacks .*other/raw/edge.csv.gz"):
        fetch_dataset("ogbn-proteins", target)
    monkeypatch.setattr(proteins, "ARCHIVE", Zip(served, "proteins"))
    folder = fetch_dataset("ogbn-proteins", target)
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*.*")) == sorted(proteins.FILES)
    assert load_dataset("ogbn-proteins", target).num_rows == N
