"""Pokec in both its forms, on small files of their layouts."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from scipy.io import savemat

from difformer.data.registry import load_dataset
from difformer.errors import DataError
from difformer_paper.datasets.pokec import (
    COLUMNS,
    FEATURES,
    PROFILES,
    RELATIONS,
)

N = 12


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
    lines = profiles or [profile(user) for user in (3, 1, 2, *range(4, N + 1))]
    with gzip.open(folder / PROFILES, "wt", encoding="utf-8") as file:
        file.write("".join(lines))
    with gzip.open(folder / RELATIONS, "wt") as file:
        file.write(relations)


def test_the_raw_dump_becomes_a_dataset(tmp_path):
    lines = [profile(user) for user in range(2, N + 1)]
    lines.insert(4, profile(1, c3="null", c7="null", c4="zahranicie, cesko", c1="0"))
    write_dump(tmp_path / "pokec", lines)
    data = load_dataset("pokec", tmp_path)
    assert data.x.shape == (N, FEATURES) == (N, 65)
    assert data.y.tolist() == [-1, *(user % 2 for user in range(2, N + 1))]
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
