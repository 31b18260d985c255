"""A table becomes a dataset: every format, typed columns, chunks, ids, and named mistakes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import StandardScaler

from difformer.data.dataset import Dataset
from difformer.data.table.encoder import TableEncoder
from difformer.data.table.files import read_chunks
from difformer.data.table.read import read_table
from difformer.errors import DataError

WORDS = ("a dry red wine", "a sweet white wine", "sparkling wine for the evening")


def encoder_of(data: Dataset) -> TableEncoder:
    assert data.encoder is not None
    return data.encoder


def records(n: int = 40) -> list[dict[str, Any]]:
    return [
        {
            "name": f"w{i}",
            "price": None if i == 3 else 5.0 + i * 1.5,
            "region": ("north", "south", "west")[i % 3],
            "bottled": f"20{10 + i % 10}-01-{1 + i % 28:02d}",
            "note": f"{WORDS[i % 3]} of {i // 2} hills",
            "shelf": "A",
            "code": f"x{i:04d}",
            "grape": ("A", "B")[i % 2] if i < 30 else None,
        }
        for i in range(n)
    ]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """The rows in the format of the file's ending."""
    if path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows))
    elif path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
        import pyarrow.parquet as parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return path


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_every_format_gives_the_same_dataset(tmp_path: Path, ending: str) -> None:
    own = read_table(write(tmp_path / f"t.{ending}", records()), "grape", id="name")
    same = read_table(write(tmp_path / "u.csv", records()), "grape", id="name")
    assert torch.equal(own.x.to_dense(), same.x.to_dense())
    assert own.y.tolist() == same.y.tolist()
    assert own.ids == same.ids == tuple(f"w{i}" for i in range(40))
    assert own.class_names == ("A", "B")
    assert own.y[30:].tolist() == [-1] * 10


def test_columns_are_typed_and_their_treatment_stated(tmp_path: Path) -> None:
    own = read_table(write(tmp_path / "t.csv", records()), "grape", id="name")
    assert {name: kind for name, kind, _ in encoder_of(own).describe()} == {
        "grape": "label",
        "name": "id",
        "price": "number",
        "region": "category",
        "bottled": "date",
        "note": "text",
        "shelf": "skip",
        "code": "skip",
    }
    said = {name: treatment for name, _, treatment in encoder_of(own).describe()}
    assert "1 empty: the mean, and a flag" in said["price"]
    assert said["shelf"] == "left out: the same in every row"
    assert "days since 1970" in said["bottled"]


def test_the_encoding_is_scikit_learns(tmp_path: Path) -> None:
    rows = [{**row, "price": row["price"] or 1.0} for row in records()]
    own = read_table(write(tmp_path / "t.csv", rows), "grape", id="name")
    x = own.x.to_dense().numpy()
    scaled = StandardScaler().fit_transform([[row["price"]] for row in rows])
    np.testing.assert_allclose(x[:, :1], scaled, atol=1e-5)
    text = TfidfVectorizer(min_df=2).fit_transform([row["note"] for row in rows]).toarray()
    np.testing.assert_allclose(x[:, -text.shape[1] :], text, atol=1e-6)


def test_chunks_of_any_size_give_the_same_features(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", records())
    whole = read_table(path, "grape", id="name").x.to_dense()
    for size in (1, 7, 39):
        part = read_table(path, "grape", id="name", size=size).x.to_dense()
        np.testing.assert_allclose(part, whole, atol=1e-6)
    assert max(len(c["name"]) for c in read_chunks(path, 7)) == 7


def test_an_encoder_comes_back_from_json_with_the_same_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", records())
    own = read_table(path, "grape", id="name")
    again = TableEncoder.from_json(encoder_of(own).to_json())
    assert np.array_equal(again.encode(path).toarray(), own.x.to_dense())
    assert again.to_json() == encoder_of(own).to_json()
    for text in ("", "{}", "[]", encoder_of(own).to_json().replace('"version": 2', '"version": 9')):
        with pytest.raises(DataError, match="not a table's description"):
            TableEncoder.from_json(text)


@pytest.mark.parametrize(
    ("name", "cell", "message"),
    [
        ("price", "cheap", "row 1, column 'price': 'cheap' is not a finite number"),
        ("bottled", "soon", "row 1, column 'bottled': 'soon' is not a date"),
    ],
)
def test_new_tables_must_be_like_the_one_trained_on(
    tmp_path: Path, name: str, cell: str, message: str
) -> None:
    encoder = encoder_of(read_table(write(tmp_path / "t.csv", records()), "grape", id="name"))
    rows = [{**row, name: cell} for row in records(2)]
    with pytest.raises(DataError, match=message):
        encoder.encode(write(tmp_path / "new.csv", rows))
    del rows[0][name]
    with pytest.raises(DataError, match=f"has no column '{name}'; it has"):
        encoder.encode({other: [value] for other, value in rows[0].items()})
    with pytest.raises(DataError, match="no column can be used"):
        read_table({"a": ["5", "5"], "y": ["A", "B"]}, "y")


def test_labels_never_reach_the_features(tmp_path: Path) -> None:
    own = read_table(write(tmp_path / "t.csv", records()), "grape", id="name")
    flipped = [{**r, "grape": {"A": "B", "B": "A", None: None}[r["grape"]]} for r in records()]
    other = read_table(write(tmp_path / "u.csv", flipped), "grape", id="name")
    assert torch.equal(own.x.to_dense(), other.x.to_dense())


def test_a_kind_may_be_given(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", records())
    own = read_table(path, "grape", id="name", kinds={"code": "category", "note": "skip"})
    assert own.x.layout == torch.strided
    with pytest.raises(DataError, match="has no column 'cod'; it has name, price"):
        read_table(path, "grape", kinds={"cod": "text"})
    with pytest.raises(DataError, match="row 1, column 'region': 'north' is not a number"):
        read_table(path, "grape", kinds={"region": "number"})


def test_an_unknown_category_is_none_of_the_known_ones_and_more_columns_are_passed_over(
    tmp_path: Path,
) -> None:
    encoder = encoder_of(read_table(write(tmp_path / "t.csv", records()), "grape", id="name"))
    rows = [{**row, "region": "east", "extra": 1} for row in records(2)]
    chunk = {name: [row[name] for row in rows] for name in rows[0]}
    assert encoder.extra(chunk) == ["extra"]
    assert encoder.encode_chunk(chunk).toarray()[:, 2:5].sum() == 0


def test_whole_numbers_of_a_frame_are_named_as_they_are() -> None:
    """Classes 0 and 1, not 0.0 and 1.0; and ids that a float could not tell apart."""
    pandas = pytest.importorskip("pandas")
    rows: dict[str, Any] = {
        "user": [2**53 + i for i in range(12)],
        "a": list(range(12)),
        "y": [0, 1, 1] * 4,
    }
    edges = {"from": [str(2**53 + 1)], "to": [2**53 + 2]}
    frame = pandas.DataFrame(rows)
    missing = frame.assign(y=[0, 1, None] * 4)
    for source in (frame, missing, missing.convert_dtypes(), frame.astype({"y": "Int64"})):
        data = read_table(source, "y", id="user", edges=edges)
        assert data.class_names == ("0", "1")
        assert data.ids[:2] == (str(2**53), str(2**53 + 1))
        assert data.edge_index is not None
        assert data.edge_index.tolist() == [[1], [2]]


def test_the_index_of_a_frame_names_its_rows() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": range(6), "y": [0, 1] * 3}, index=list("uvwxyz"))
    data = read_table(frame, "y", edges={"from": ["u"], "to": ["z"]})
    assert data.ids == tuple("uvwxyz")
    assert data.edge_index is not None
    assert data.edge_index.tolist() == [[0], [5]]
    assert read_table(frame.reset_index(drop=True), "y").ids == ()
    twice = pandas.concat([frame, frame])
    assert read_table(twice, "y").ids == ()
    with pytest.raises(DataError, match="the id 'u' is also that of row 1"):
        read_table(twice, "y", edges={"from": ["u"], "to": ["z"]})
