"""Own files: every format, typed columns, chunks, and what is wrong named by row and column."""

from __future__ import annotations

import csv
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import StandardScaler

from difformer.data.dataset import Dataset
from difformer.data.edges import read_edges
from difformer.data.encoder import TableEncoder
from difformer.data.pyg import from_pyg
from difformer.data.rawtable import read_chunks
from difformer.data.tables import read_table
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


def test_labels_never_reach_the_features(tmp_path: Path) -> None:
    own = read_table(write(tmp_path / "t.csv", records()), "grape", id="name")
    flipped = [{**r, "grape": {"A": "B", "B": "A", None: None}[r["grape"]]} for r in records()]
    other = read_table(write(tmp_path / "u.csv", flipped), "grape", id="name")
    assert torch.equal(own.x.to_dense(), other.x.to_dense())


def test_a_kind_may_be_given(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", records())
    own = read_table(path, "grape", id="name", kinds={"code": "category", "note": "skip"})
    assert own.x.layout == torch.strided
    with pytest.raises(DataError, match="no column 'cod' to give a kind"):
        read_table(path, "grape", kinds={"cod": "text"})
    with pytest.raises(DataError, match="row 1, column 'region': 'north' is not a number"):
        read_table(path, "grape", kinds={"region": "number"})


@pytest.mark.parametrize(
    ("labels", "task"),
    [([0, 1] * 10, "multiclass"), ([0.5, 1.25] * 10, "regression"), (range(20), "regression")],
)
def test_the_task_follows_from_the_labels(labels: Any, task: str) -> None:
    table = {"a": [float(i % 7) for i in range(20)], "y": list(labels)}
    assert read_table(table, "y").task == task


def test_npz_and_pyg_data_are_read(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    np.savez(tmp_path / "t.npz", x=x, y=y)
    own = read_table(tmp_path / "t.npz", "y")
    assert own.num_features == 3
    from torch_geometric.data import Data

    edges = torch.tensor([[0, 1], [1, 0]])
    mask = torch.arange(20) < 5
    data = Data(x=torch.from_numpy(x), y=torch.from_numpy(y), edge_index=edges, train_mask=mask)
    data.val_mask, data.test_mask = torch.arange(20) == 5, torch.arange(20) > 5
    found = from_pyg(data)
    assert found.task == "multiclass"
    assert found.split("given").train.tolist() == [0, 1, 2, 3, 4]


def test_edges_go_by_id(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("from,to,weight\na,b,2\nb,c,0.5\n")
    edges, weight = read_edges(tmp_path / "e.csv", {"a": 0, "b": 1, "c": 2})
    assert edges.tolist() == [[0, 1], [1, 2]]
    assert weight is not None
    assert weight.tolist() == [2.0, 0.5]
    (tmp_path / "e.csv").write_text("from;to;weight\na;b;2\nb;c;0,5\n")
    again, weight = read_edges(tmp_path / "e.csv", {"a": 0, "b": 1, "c": 2})
    assert weight is not None
    assert (again.tolist(), weight.tolist()) == (edges.tolist(), [2.0, 0.5])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("from,to\na,z\n", "row 1, column 'to': 'z' is not a known id"),
        ("from,to,weight\na,b,-1\n", "row 1, column 'weight': '-1' must be a weight"),
        ("from,to,weight\na,b,1e39\n", "row 1, column 'weight': '1e39' must be a weight"),
        ("from\na\n", "must have source, target"),
    ],
)
def test_bad_edges_are_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "e.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_edges(tmp_path / "e.csv", {"a": 0, "b": 1})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,a,y\n1,2,A\n1,3,B\n", "row 2, column 'id': the id '1' is also that of row 1"),
        ("id,a,y\n1,2,A\n,3,B\n", "row 2, column 'id': the id is empty"),
        ("id,a,y\n1,2,\n2,3,\n", "label column 'y' is empty in every row"),
        ("id,a,y\n1,2,A\n2,3,A\n", "has one class only: 'A'"),
        ("id,a,z\n1,2,A\n", "has no label column 'y'; it has id, a, z"),
        ("id,a,y\n1,2\n", "row 1 .line 2. has 2 cells, the header 3"),
        ("id,a,a,y\n1,2,3,A\n", "two columns named 'a'"),
        ("", "is empty"),
        ("id,a,y\n", "label column 'y' is empty|has no rows"),
        ("id,a,y\n1,5,A\n2,5,B\n", "no column can be used"),
    ],
)
def test_bad_tables_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_table(path, "y", id="id")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.pop("price"), "column 'price' of training is missing"),
        (
            lambda r: r.update(price="cheap"),
            "row 1, column 'price': 'cheap' is not a finite number",
        ),
        (lambda r: r.update(bottled="soon"), "row 1, column 'bottled': 'soon' is not a date"),
    ],
)
def test_new_tables_must_be_like_the_one_trained_on(
    tmp_path: Path, change: Any, message: str
) -> None:
    own = read_table(write(tmp_path / "t.csv", records()), "grape", id="name")
    rows = records(2)
    for row in rows:
        change(row)
    with pytest.raises(DataError, match=message):
        encoder_of(own).encode(write(tmp_path / "new.csv", rows))


def test_columns_that_were_not_there_in_training_are_named_and_passed_over(tmp_path: Path) -> None:
    encoder = encoder_of(read_table(write(tmp_path / "t.csv", records()), "grape", id="name"))
    rows = [{**row, "extra": 1} for row in records(2)]
    chunk = {name: [row[name] for row in rows] for name in rows[0]}
    assert encoder.extra(chunk) == ["extra"]
    plain = encoder.encode(write(tmp_path / "a.csv", records(2)))
    more = encoder.encode(write(tmp_path / "b.csv", rows))
    assert (abs(plain - more) > 0).sum() == 0


@pytest.mark.parametrize(
    ("columns", "task", "y"),
    [
        ({"a": ["1", "0", ""], "b": ["0", "0", "1"]}, "multilabel", [[1, 0], [0, 0], [None, 1]]),
        ({"a": ["yes", "No"], "b": ["true", "FALSE"]}, "multilabel", [[1, 1], [0, 0]]),
        ({"a": [True, False], "b": [1.0, 0.0]}, "multilabel", [[1, 1], [0, 0]]),
        ({"a": ["1", "0"], "b": ["2.5", ""]}, "regression", [[1, 2.5], [0, None]]),
    ],
)
def test_several_labels_are_yes_or_no_or_numbers(
    columns: dict[str, Any], task: str, y: list[list[Any]]
) -> None:
    table = {"size": list(range(len(y))), **columns}
    data = read_table(table, ["a", "b"])
    assert data.task == task
    assert encoder_of(data).labels == ("a", "b")
    assert [column.name for column in encoder_of(data).columns] == ["size"]  # neither is a feature
    found = [[None if v != v else v for v in row] for row in data.y.tolist()]
    assert found == y
    again = TableEncoder.from_json(encoder_of(data).to_json())
    assert again.labels == ("a", "b")


def test_several_labels_of_other_kinds_are_named() -> None:
    table = {"size": [1, 2, 3], "a": ["1", "0", "1"], "b": ["red", "blue", "red"]}
    with pytest.raises(DataError, match="row 1, column 'b': 'red' is not a number"):
        read_table(table, ["a", "b"])
    with pytest.raises(DataError, match="row 1, column 'b': 'red' must be yes or no"):
        read_table(table, ["a", "b"], task="multilabel")
    numbers = {"size": [1, 2], "a": ["1", "0"], "b": ["0", "1"]}
    assert read_table(numbers, ["a", "b"], task="regression").task == "regression"
    with pytest.raises(ValueError, match="multilabel or regression for several labels"):
        read_table(table, ["a", "b"], task="multiclass")
    with pytest.raises(ValueError, match="name columns once"):
        read_table(table, ["a", "a"])


def test_an_unknown_category_is_none_of_the_known_ones(tmp_path: Path) -> None:
    own = read_table(write(tmp_path / "t.csv", records()), "grape", id="name")
    rows = [{**row, "region": "east"} for row in records(2)]
    encoded = encoder_of(own).encode(write(tmp_path / "new.csv", rows)).toarray()
    assert encoded[:, 2:5].sum() == 0


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.xls", b"", "must end in .csv"),
        ("t.npz", b"PK\x03\x04", "not an npz file"),
        ("t.jsonl", b"{", "line 1 is not JSON"),
        ("t.jsonl", b"[1]", "line 1 must be an object"),
        ("t.jsonl", b'{"a": [1]}', "row 1, column 'a' must be one value"),
        ("t.csv", b"a,y\n\xff\xfe,1\n", "cannot be read"),
    ],
)
def test_a_file_that_is_no_table_is_named(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(read_chunks(tmp_path / name))


def test_pickled_arrays_are_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=np.array([{}], dtype=object))
    with pytest.raises(DataError, match="plain arrays"):
        list(read_chunks(tmp_path / "t.npz"))


def ages(n: int = 1800) -> dict[str, list[Any]]:
    return {
        "age": [str(18 + i % 60) for i in range(n)],
        "pay": [f"{20000 + 13.5 * i:.2f}" for i in range(n)],
        "born": [f"{1950 + i % 50}-0{1 + i % 9}-11" for i in range(n)],
        "y": ["ab"[i % 2] for i in range(n)],
    }


def test_one_bad_cell_is_reported_and_taken_as_missing(tmp_path: Path) -> None:
    table = ages()
    table["age"][41], table["pay"][7], table["born"][99] = "forty", "43,065.41", "31.12.2019"
    path = tmp_path / "t.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([list(table), *zip(*table.values(), strict=True)])
    data = read_table(path, "y")
    said = {name: (kind, how) for name, kind, how in encoder_of(data).describe()}
    assert said["age"] == (
        "number",
        "scaled; 1 not numbers, taken as empty (row 42: 'forty')",
    )
    assert said["pay"][0] == "number"
    assert "row 8: '43,065.41'" in said["pay"][1]
    assert said["born"][0] == "date"
    assert "row 100: '31.12.2019'" in said["born"][1]
    x = data.x.numpy()
    assert x.shape == (1800, 6)
    assert x[41, :2].tolist() == [0.0, 1.0]  # the mean, and a flag


def test_infinite_numbers_are_taken_as_missing() -> None:
    table = {"a": ["1", "2", "inf", "4"], "y": ["a", "b", "a", "b"]}
    data = read_table(table, "y")
    assert encoder_of(data).columns[0].bad == ("1", "row 3: 'inf'")
    assert data.x[2].tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("cells", "kind", "values"),
    [
        (["3,5", "1.234,25", "7", "-2,0"], "number", [3.5, 1234.25, 7, -2]),
        (["3.5", "1,234.25", "7", "43,065.5"], "number", [3.5, 1234.25, 7, 43065.5]),
        (["$3.5", "-$1,234.25", "$ 7"], "number", [3.5, -1234.25, 7]),
        (["3,5 €", "1 234,25 €", "7 €"], "number", [3.5, 1234.25, 7]),
        (["12.5%", "7 %", "-0.5%"], "number", [12.5, 7, -0.5]),
        (["0,123", "1,250", "12,500"], "number", [0.123, 1.25, 12.5]),
        (["1970/01/02", "1970/01/31", "1970/02/01"], "date", [1, 30, 31]),
        (["02-01-1970", "31-01-1970", "01-02-1970"], "date", [1, 30, 31]),
        (["1970-01", "1970-02", "1971-01"], "date", [0, 31, 365]),
        (["2.1.1970 06:00", "31.1.1970 12:00:00", "1.2.1970"], "date", [1.25, 30.5, 31]),
        (["31.12.2019", "01.01.2020", "03.01.2020"], "date", [18261, 18262, 18264]),
        (["12/31/2019", "01/01/2020", "01/03/2020"], "date", [18261, 18262, 18264]),
    ],
)
def test_numbers_and_dates_are_read_as_they_are_written(
    cells: list[str], kind: str, values: list[float]
) -> None:
    cells, numbers = cells * 3, np.array(values * 3)
    data = read_table(
        {"a": cells, "y": ["a", "b"] * (len(cells) // 2) + ["a"] * (len(cells) % 2)}, "y"
    )
    assert encoder_of(data).columns[0].kind == kind
    scaled = (numbers - numbers.mean()) / numbers.std()
    np.testing.assert_allclose(data.x[:, 0], scaled, atol=1e-6)


def test_a_cell_that_is_a_number_or_a_date_is_one_however_texts_are_written() -> None:
    """As a request of the service or a data frame has it, where training had a file of texts."""
    table = {"a": ["3,5", "1.234,25", "7,125"], "d": ["1.2.2020", "3.4.2021", "5.6.2022"]}
    encoder = encoder_of(read_table({**table, "y": ["u", "v", "v"]}, "y"))
    dates = [datetime(2020, 2, 1), datetime(2021, 4, 3), datetime(2022, 6, 5)]
    typed = encoder.encode_chunk({"a": [3.5, 1234.25, 7.125], "d": dates})
    np.testing.assert_array_equal(typed, encoder.encode_chunk(table))


PRICES = [1000 + 13.25 * i for i in range(60)]


@pytest.mark.parametrize(
    "cells",
    [
        [f"{price:.2f}" for price in PRICES],
        [f"{price:.2f}".replace(".", ",") for price in PRICES],
        [f"{price:,.2f}" for price in PRICES],
        [f"€{price:,.2f}" for price in PRICES],
    ],
)
def test_a_label_is_read_as_it_is_written(cells: list[str]) -> None:
    data = read_table({"a": list(range(60)), "price": cells}, "price")
    assert data.task == "regression"
    assert data.y[:, 0].tolist() == PRICES


def test_one_bad_label_is_reported_and_a_row_to_predict() -> None:
    cells = [str(price) for price in PRICES]
    cells[7], cells[9] = "forty", ""
    table = {"a": list(range(60)), "price": cells}
    data = read_table(table, "price")
    assert data.task == "regression"
    assert torch.isnan(data.y[:, 0]).nonzero()[:, 0].tolist() == [7, 9]
    said = "number; 1 empty, to predict; 1 not numbers, taken as empty (row 8: 'forty')"
    assert encoder_of(data).describe()[0] == ("price", "label", said)
    again = TableEncoder.from_json(encoder_of(data).to_json())
    assert again.describe() == encoder_of(data).describe()
    few = {"a": list(range(12)), "kind": ["1", "2", "x"] * 4}  # codes, and not a bad cell
    assert read_table(few, "kind").class_names == ("x", "1", "2")
    half = {**table, "price": ["forty", "7.5"] * 30}
    with pytest.raises(DataError, match="row 1, column 'price': 'forty' is not a number"):
        read_table(half, "price", task="regression")


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


def test_spans_and_periods_of_a_frame_are_numbers_and_dates() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "waited": pandas.to_timedelta([1, 2, None, 4], unit="D"),
            "month": pandas.period_range("2020-01", periods=4, freq="M"),
            "y": ["a", "b", "a", "b"],
        }
    )
    encoder = encoder_of(read_table(frame, "y"))
    assert [(c.name, c.kind) for c in encoder.columns] == [("waited", "number"), ("month", "date")]
    assert encoder.columns[0].learned["mean"] == pytest.approx(7 / 3)


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_the_separator_is_recognised(tmp_path: Path, mark: str) -> None:
    rows = [
        ["a", "b;c" if mark == "," else "b,c", "y"],
        *[[f"{i}", f"{i * i}", "uv"[i % 2]] for i in range(9)],
    ]
    (tmp_path / "t.csv").write_text("\n".join(mark.join(row) for row in rows))
    data = read_table(tmp_path / "t.csv", "y")
    assert data.num_features == 2


def test_a_file_in_latin_1_is_hinted_at(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("name,y\nMüller,1\n".encode("latin-1"))
    with pytest.raises(DataError, match="cannot be read as UTF-8 .*Latin-1.* save it as UTF-8"):
        read_table(tmp_path / "t.csv", "y")


def test_a_hundred_thousand_columns_are_read(tmp_path: Path) -> None:
    names = ",".join(f"c{i}" for i in range(100_000))
    (tmp_path / "t.csv").write_text(f"{names}\n{','.join('1' * 100_000)}\n")
    assert len(next(iter(read_chunks(tmp_path / "t.csv")))) == 100_000


def test_minus_one_is_unlabelled_as_in_python() -> None:
    table = {"a": [float(i) for i in range(12)], "y": [0, 1, -1] * 4}
    data = read_table(table, "y")
    assert data.class_names == ("0", "1")
    assert data.y.tolist() == [0, 1, -1] * 4
    assert read_table(table, "y", unlabelled=None).class_names == ("-1", "0", "1")
    texts = {**table, "y": ["a", "-1"] * 6}  # among texts it is one of them
    assert read_table(texts, "y").class_names == ("-1", "a")


def test_half_a_surrogate_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"a": "\\ud800", "y": 1}\n')
    with pytest.raises(DataError, match="line 1 is not JSON"):
        list(read_chunks(tmp_path / "t.jsonl"))
    (tmp_path / "t.jsonl").write_text('{"a": ' + "[" * 100_000 + "\n")
    with pytest.raises(DataError, match="line 1 is not JSON"):
        list(read_chunks(tmp_path / "t.jsonl"))


def test_how_a_column_is_written_does_not_depend_on_the_chunks(tmp_path: Path) -> None:
    sizes = [f"{i % 7}.{i % 10}4{i % 3}" for i in range(1500)]
    sizes[900] = "1'956"  # among the cells by which a format is recognised
    lines = [f"{size},{'ab'[i % 2]}" for i, size in enumerate(sizes)]
    (tmp_path / "t.csv").write_text("\n".join(["size,kind", *lines]) + "\n")
    whole = read_table(tmp_path / "t.csv", "kind")
    assert read_table(tmp_path / "t.csv", "kind", size=100).fingerprint == whole.fingerprint


def counting(rows: int = 30, first: int = 1, **more: Any) -> dict[str, list[Any]]:
    return {"id": list(range(first, first + rows)), "x": [i * i % 7 for i in range(rows)], **more}


def test_a_column_that_counts_the_rows_is_no_feature() -> None:
    pd = pytest.importorskip("pandas")
    for first in (0, 1):
        for table in (counting(first=first), pd.DataFrame(counting(first=first))):
            by_name = {c.name: c for c in TableEncoder.learn(table).columns}
            assert (by_name["id"].kind, by_name["id"].reason) == ("skip", "it counts the rows")
            assert by_name["x"].kind == "number"
    # Years, a gap, another order, few rows, the only column, or a word of the user: a number.
    years = counting(first=1990)
    gap = counting()
    gap["id"][20] = 99
    order = counting()
    order["id"].reverse()
    for table in (years, gap, order, counting(rows=8), {"id": list(range(30))}):
        assert TableEncoder.learn(table).columns[0].kind == "number"
    assert TableEncoder.learn(counting(), kinds={"id": "number"}).columns[0].kind == "number"


def test_a_counter_is_recognised_across_chunks() -> None:
    table = counting(rows=2500)
    assert TableEncoder.learn(table, size=1).columns[0].reason == "it counts the rows"
    table["id"][-1] = 0
    assert TableEncoder.learn(table, size=1).columns[0].kind == "number"
