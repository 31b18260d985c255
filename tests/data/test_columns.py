"""Columns are typed by their cells, in whatever notation; numbers are scaled, also of a stream."""

from __future__ import annotations

import csv
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from difformer.data.table.cells import THOUSANDS, read_numbers
from difformer.data.table.encoder import TableEncoder
from difformer.data.table.read import read_table
from difformer.data.table.scales import Numbers, standardise


def ages(n: int = 1800) -> dict[str, list[Any]]:
    return {
        "age": [str(18 + i % 60) for i in range(n)],
        "pay": [f"{20000 + 13.5 * i:.2f}" for i in range(n)],
        "born": [f"{1950 + i % 50}-0{1 + i % 9}-11" for i in range(n)],
        "y": ["ab"[i % 2] for i in range(n)],
    }


def test_one_bad_cell_is_reported_and_taken_as_missing(tmp_path: Path) -> None:
    table = ages()
    table["age"][41], table["pay"][7], table["born"][99] = "forty", "inf", "31.12.2019"
    path = tmp_path / "t.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([list(table), *zip(*table.values(), strict=True)])
    data = read_table(path, "y")
    said = {name: (kind, how) for name, kind, how in data.encoder.describe()}
    assert said["age"] == (
        "number",
        "scaled; 1 not numbers, taken as empty (row 42: 'forty')",
    )
    assert said["pay"][0] == "number"
    assert "row 8: 'inf'" in said["pay"][1]
    assert said["born"][0] == "date"
    assert "row 100: '31.12.2019'" in said["born"][1]
    x = data.x.numpy()
    assert x.shape == (1800, 6)
    assert x[41, :2].tolist() == [0.0, 1.0]  # the mean, and a flag


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
    assert data.encoder.columns[0].kind == kind
    scaled = (numbers - numbers.mean()) / numbers.std()
    np.testing.assert_allclose(data.x[:, 0], scaled, atol=1e-6)


def test_a_cell_that_is_a_number_or_a_date_is_one_however_texts_are_written() -> None:
    """As a request of the service or a data frame has it, where training had a file of texts."""
    table = {"a": ["3,5", "1.234,25", "7,125"], "d": ["1.2.2020", "3.4.2021", "5.6.2022"]}
    encoder = read_table({**table, "y": ["u", "v", "v"]}, "y").encoder
    dates = [datetime(2020, 2, 1), datetime(2021, 4, 3), datetime(2022, 6, 5)]
    typed = encoder.encode_chunk({"a": [3.5, 1234.25, 7.125], "d": dates})
    np.testing.assert_array_equal(typed, encoder.encode_chunk(table))


def test_spans_and_periods_of_a_frame_are_numbers_and_dates() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "waited": pandas.to_timedelta([1, 2, None, 4], unit="D"),
            "month": pandas.period_range("2020-01", periods=4, freq="M"),
            "y": ["a", "b", "a", "b"],
        }
    )
    encoder = read_table(frame, "y").encoder
    assert [(c.name, c.kind) for c in encoder.columns] == [("waited", "number"), ("month", "date")]
    assert encoder.columns[0].learned["mean"] == pytest.approx(7 / 3)


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
    long = counting(rows=2500)
    assert TableEncoder.learn(long, size=1).columns[0].reason == "it counts the rows"
    long["id"][-1] = 0
    assert TableEncoder.learn(long, size=1).columns[0].kind == "number"


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        ("1,234.5", 1234.5),
        ("999", 999),
        ("20000", 20000),
        ("-20000.25", -20000.25),
        ("$20000", 2e4),
    ],
)
def test_where_thousands_have_commas_a_number_without_them_is_one_too(
    cell: str, number: float
) -> None:
    values, bad = read_numbers([cell], THOUSANDS)
    assert bad == []
    np.testing.assert_array_equal(values, [number])
    cells = ["1,5", "12,34", "1234,567", "0,123", "forty"]  # these commas part no thousands
    assert read_numbers(cells, THOUSANDS)[1] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("outlier", [False, True])
def test_numbers_learned_from_a_stream_are_those_of_all(outlier: bool) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(100, 3, 50_000)
    values[7] = 1e9 if outlier else values[7]
    values[3] = np.nan
    streamed = Numbers(most=1000)
    for chunk in np.array_split(values, 37):
        streamed.add(chunk)
    assert streamed.missing
    assert len(streamed.sample()) <= 2000
    found, exact = [*streamed.scale().values()], [float(v[0]) for v in standardise(values[:, None])]
    loose = 0.05 if outlier else 1e-12  # the sample says what is usual where some are not
    np.testing.assert_allclose(found[:2], exact[:2], rtol=loose)
    np.testing.assert_allclose(found[2:], exact[2:], rtol=max(loose, 1e-9), atol=3)
    same = Numbers(most=10)
    for _ in range(9):
        same.add(np.full(10, 4.0))
    assert list(same.scale().values())[:2] == [4.0, 1.0]
    assert np.array_equal(same.distinct, [4])


@pytest.mark.parametrize("deviation", [1e5, 1e3, 10.0])
def test_labels_keep_their_deviation_however_far_from_zero(deviation: float) -> None:
    values = np.random.default_rng(0).normal(0, deviation, (500, 1))
    _, scale, _, _ = standardise(1.7e15 + values, clip=False)
    assert scale[0] == pytest.approx(values.std(), rel=0.05)
    assert standardise(np.full((500, 1), 1.7e15 / 3), clip=False)[1][0] == 1
