"""Series and edges from CSV files, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from difformer.data.graphs import read_step_edges
from difformer.data.series import read_known_file, read_places, read_series, read_series_file
from difformer.data.times import calendar, cycles_of, following, season_of, whole_times
from difformer.errors import DataError

SERIES = "day,a,b\n2020-01-01,1,2\n2020-01-02,,4\n2020-01-03,5,na\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_series_file_has_times_nodes_and_missing_values(tmp_path: Path) -> None:
    series = read_series_file(write(tmp_path / "s.csv", SERIES))
    assert series.names == ("a", "b")
    np.testing.assert_array_equal(series.values, [[1, 2], [np.nan, 4], [5, np.nan]])


def test_edges_go_by_name_in_any_format_and_may_change_over_time(tmp_path: Path) -> None:
    series = read_series_file(write(tmp_path / "s.csv", SERIES))
    text = '{"target": "b", "source": "a", "weight": 0.1}\n'
    ((index, weight),) = read_step_edges(write(tmp_path / "e.jsonl", text), series)
    assert weight is not None
    assert (index.tolist(), weight.tolist()) == ([[0], [1]], [0.1])
    text = "source,target,time\na,b,2020-01-01\nb,a,2020-01-03\n"
    graphs = read_step_edges(write(tmp_path / "e.csv", text), series)
    assert [g[0].tolist() for g in graphs] == [[[0], [1]], [[], []], [[1], [0]]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("day,a\n", "has no rows"),
        ("day\n1\n", "one per node, it has 1"),
        ("day,a,b\n1,2\n", r"row 1 \(line 2\) has 2 cells, the header 3"),
        ("day,a\ntwo,1\none,1\n", "sorted by time, step 1"),
        (
            "day,a\n2020-01-01,1\nsoon,2\n2020-01-03,1\n",
            "be alike, 'soon' is not a date",
        ),
        ("day,a\n9,1\n10,1\n10,1\n", "10.0 comes twice"),
    ],
)
def test_a_bad_series_file_is_named_with_its_row(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_series_file(write(tmp_path / "s.csv", text))


WEEKS = [datetime(2018, 1, 7) + timedelta(days=7 * i) for i in range(30)]


def rows(times: Sequence[object], cells: Callable[[int], str] = str) -> str:
    return "week,a\n" + "".join(f"{time},{cells(i)}\n" for i, time in enumerate(times))


def test_a_time_without_a_row_is_a_step_without_values(tmp_path: Path) -> None:
    kept = [i for i in range(30) if i not in (7, 8, 20)]
    text = rows([WEEKS[i].date() for i in kept], lambda i: str(kept[i]))
    series = read_series_file(write(tmp_path / "s.csv", text))
    assert series.stamps == tuple(WEEKS)
    gone = np.isnan(series.values[:, 0])
    assert np.flatnonzero(gone).tolist() == [7, 8, 20]
    np.testing.assert_array_equal(series.values[~gone, 0], kept)
    assert series.notes == ("3 steps without a row, left empty, first 2018-02-25 00:00:00",)
    # What is known of the other steps need not be known of these.
    known = read_known_file(write(tmp_path / "k.csv", text), series).known
    np.testing.assert_array_equal(known, series.values)


@pytest.mark.parametrize(
    ("times", "added"),
    [
        ([datetime(2020, 1 + m, 1) for m in range(12) if m != 4], [datetime(2020, 5, 1)]),
        ([float(t) for t in range(10) if t != 3], [3.0]),
        ([datetime(2024, 3, 4) + timedelta(days=i) for i in range(15) if i % 7 < 5], []),
        ([float(t * t) for t in range(12)], []),  # no rule
        ([float(t) for t in range(12)] + [100.0], []),  # more would be made up than is there
    ],
)
def test_only_a_rule_says_which_times_are_left_out(
    times: list[object], added: list[object]
) -> None:
    whole = whole_times(times)
    assert [t for t in whole or times if t not in times] == added


def test_rows_in_any_order_bad_cells_and_empty_lines_are_put_right(tmp_path: Path) -> None:
    text = rows([w.date() for w in WEEKS], lambda i: "many" if i == 3 else str(i))
    lines = text.splitlines()
    series = read_series_file(
        write(tmp_path / "s.csv", "\n".join([lines[0], *lines[:0:-1], ",", ""]))
    )
    assert series.stamps == tuple(WEEKS)
    expected = np.arange(30.0)
    expected[3] = np.nan
    np.testing.assert_array_equal(series.values[:, 0], expected)
    bad, order = series.notes
    assert bad == "1 not numbers, taken as empty (row 27, column 'a': 'many')"
    assert order == "rows were put in the order of their times"


@pytest.mark.parametrize(
    ("cells", "first"),
    [
        (["20200131", "20200201", "20200202"], datetime(2020, 1, 31)),
        (["2020-01", "2020-02", "2020-03"], datetime(2020, 1, 1)),
        (["2020Q1", "2020Q2", "2020Q3"], datetime(2020, 1, 1)),
        (["2020-51", "2020-52", "2020-53"], datetime(2020, 12, 14)),
        (["2020-W51", "2020-W52", "2020-W53"], datetime(2020, 12, 14)),
        (["31/1/2020 06:00", "31/1/2020 12:00", "31/1/2020 18:00"], datetime(2020, 1, 31, 6)),
    ],
)
def test_times_are_read_as_they_are_written(
    tmp_path: Path, cells: list[str], first: datetime
) -> None:
    series = read_series_file(write(tmp_path / "s.csv", rows(cells)))
    assert series.stamps[0] == first
    assert following(series.stamps, 1) is not None


def test_a_frame_may_have_its_times_in_a_column() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"week": WEEKS, "a": range(30), "b": [None, *range(29)]})
    found = [frame, frame.set_index("week"), frame.convert_dtypes()]
    found.append(frame.assign(week=[str(w) for w in WEEKS]).set_index("week"))
    found.append(frame.assign(week=frame["week"].dt.to_period("W-SUN")))
    polars = pytest.importorskip("polars")
    found.append(polars.from_pandas(frame))
    for each in found:
        series = read_series(each)
        assert series.names == ("a", "b")
        assert season_of(series.stamps) == 52
        assert np.isnan(series.values).tolist()[:2] == [[False, True], [False, False]]
    with pytest.warns(UserWarning, match=r"no row for 1 of its times \(first 2018-01-28"):
        read_series(frame.drop(index=3).set_index("week"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("from,to\na,b\n", "must have columns source, target"),
        ("source,target,weight\na,b,1e39\n", "'1e39' must be a weight, 0 or more"),
        (
            "source,target,time\na,b,2020-01-01\na,b,2020-01-02\na,b,soon\n",
            "e.csv: times must be alike, 'soon' is not a date",
        ),
        (
            "source,target,time\na,b,2021-01-01\n",
            "column 'time': .* is not a step of the series",
        ),
    ],
)
def test_a_bad_edges_file_is_named_with_its_row(tmp_path: Path, text: str, message: str) -> None:
    series = read_series_file(write(tmp_path / "s.csv", SERIES))
    with pytest.raises(DataError, match=message):
        read_step_edges(write(tmp_path / "e.csv", text), series)


def days(text: str) -> list[datetime]:
    return [datetime.fromisoformat(one) for one in text.split()]


@pytest.mark.parametrize(
    ("known", "later"),
    [
        ("2020-01-01 2020-01-08 2020-01-15", "2020-01-22 2020-01-29"),
        ("2020-01-01T00:00 2020-01-01T06:00 2020-01-01T12:00", "2020-01-01T18:00 2020-01-02"),
        ("2019-11-01 2019-12-01 2020-01-01", "2020-02-01 2020-03-01"),
        ("2019-11-30 2019-12-31 2020-01-31", "2020-02-29 2020-03-31"),
        ("2019-11-30 2019-12-30 2020-01-30", "2020-02-29 2020-03-30"),
        ("2019-04-01 2019-07-01 2019-10-01 2020-01-01", "2020-04-01 2020-07-01"),
        (
            "2024-03-06 2024-03-07 2024-03-08 2024-03-11 2024-03-12 2024-03-13 2024-03-14",
            "2024-03-15 2024-03-18",
        ),
    ],
)
def test_the_times_go_on_as_they_did(known: str, later: str) -> None:
    assert following(days(known), 2) == days(later)


def test_times_without_a_rule_do_not_go_on_but_by_a_guess() -> None:
    odd = days("2020-01-01 2020-01-02 2020-01-05 2020-01-06 2020-01-07")
    assert following(odd, 1) is None
    assert following(odd, 1, guess=True) == days("2020-01-08")
    assert following(["a", "b"], 1) is None


def test_the_calendar_knows_the_cycles_that_the_times_go_through() -> None:
    start = datetime(2020, 1, 6)
    hours = [start + timedelta(hours=i) for i in range(24 * 15)]
    assert cycles_of(hours) == (0, 1)
    assert cycles_of([start + timedelta(days=i) for i in range(15)]) == (1,)
    weeks = [start + timedelta(days=7 * i) for i in range(110)]
    assert cycles_of(weeks) == (2,)
    assert season_of(weeks) == 52
    assert cycles_of(weeks[:50]) == ()
    assert cycles_of([1.0, 2.0, 3.0]) == ()
    found = calendar(hours, (0, 1))
    assert found.shape == (360, 8)
    np.testing.assert_allclose(found[24:48, :4], found[:24, :4], atol=1e-9)
    np.testing.assert_allclose(found[168:192], found[:24], atol=1e-9)
    assert not np.allclose(found[24:48, 4:], found[:24, 4:])


def test_what_is_known_ahead_goes_by_its_times(tmp_path: Path) -> None:
    series = read_series_file(write(tmp_path / "s.csv", SERIES))
    rows = ["2020-01-04,1", "2020-01-02,0", "2020-01-01,5", "2020-01-03,na", "2019-12-31,9"]
    text = "day,holiday\n" + "\n".join(rows) + "\n"
    known = read_known_file(write(tmp_path / "k.csv", text), series).known
    np.testing.assert_array_equal(known, [[5], [0], [np.nan], [1]])
    for wrong, reason in (
        ("day,holiday\n2020-01-01,1\n", "known must have a row for every step, 2020-01-02"),
        (text.replace("2020-01-04", "2020-01-05"), "known must go on with 2020-01-04"),
        (text.replace(",5", ",x"), "row 3, column 'holiday': 'x' is not a number"),
        ("day\n2020-01-01\n", "must have a column of times and others"),
    ):
        with pytest.raises(DataError, match=reason):
            read_known_file(write(tmp_path / "k.csv", wrong), series)


def test_places_go_by_name_in_any_order_of_columns(tmp_path: Path) -> None:
    text = "latitude,longitude,city\n47.5,19,b\n"
    found = read_places(write(tmp_path / "p.csv", text), ("a", "b"))
    np.testing.assert_array_equal(found, [[np.nan, np.nan], [19, 47.5]])
    np.testing.assert_array_equal(
        read_places(write(tmp_path / "p.csv", "node,east,north\na,1,2\n"), ("a",)), [[1, 2]]
    )
    with pytest.raises(DataError, match="must have columns node, x and y"):
        read_places(write(tmp_path / "p.csv", "node,x\na,1\n"), ("a",))


@pytest.mark.parametrize(
    "text",
    [
        "Tag;a;b\n30.12.2019;1,5;2\n31.12.2019;;4.000,5\n01.01.2020;5;na\n",
        "day\ta\tb\n12/30/2019\t1.5\t2\n12/31/2019\t\t4,000.5\n01/01/2020\t5\tna\n",
    ],
)
def test_a_series_is_written_as_people_write_it(tmp_path: Path, text: str) -> None:
    series = read_series_file(write(tmp_path / "s.csv", text))
    np.testing.assert_array_equal(series.values, [[1.5, 2], [np.nan, 4000.5], [5, np.nan]])
    assert list(series.stamps) == days("2019-12-30 2019-12-31 2020-01-01")
    (tmp_path / "l.csv").write_bytes("day,Zürich\n1,2\n".encode("latin-1"))
    with pytest.raises(DataError, match="if it is Latin-1 or Windows-1252, save it as UTF-8"):
        read_series_file(tmp_path / "l.csv")
