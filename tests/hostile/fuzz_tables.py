"""Fuzzed tables, edges and series: samples, damage, and reading them back."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from mutate import VALUES, change_value, damage_bytes, dumps

from difformer.data.graphs import read_step_edges
from difformer.data.series import read_series_file
from difformer.data.table.read import read_table
from difformer.jobs.series import SeriesSettings, train_series
from difformer.runs.answer import predict_run

HEADER = ("name", "size", "weight", "colour", "day", "note", "kind")


def make_rows(n: int = 40) -> list[dict[str, Any]]:
    draw, rows = Random(0), []
    for i in range(n):
        kind = i % 2
        cells = (
            f"r{i}",
            round(draw.gauss(3 * kind, 1), 3),
            1000 + i if i % 9 else None,
            ("red", "blue")[kind] if draw.random() < 0.8 else "green",
            f"2020-{1 + i % 12:02d}-{1 + i % 28:02d}",
            ("likes to swim in the sea", "likes to climb in the trees")[kind],
            ("fish", "ape")[kind] if i % 3 else None,
        )
        rows.append(dict(zip(HEADER, cells, strict=True)))
    return rows


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows([["" if v is None else v for v in row.values()] for row in rows])
    return text.getvalue().encode("utf-8", "surrogatepass")


def write_edges(path: Path) -> None:
    lines = [f"r{i},r{(i + 7) % 40},{1 + i % 3}" for i in range(40)]
    path.write_text("\n".join(["source,target,weight", *lines]) + "\n")


def check_table(path: Path, edges: Path | None = None) -> None:
    """Read in one chunk and in many: the same finite numbers, one per row and column."""
    whole = read_table(path, "kind", id="name", edges=edges)
    assert whole.num_rows == len(whole.y)
    x = whole.x if whole.x.layout == torch.strided else whole.x.to_dense()
    assert x.shape == (whole.num_rows, whole.encoder.width)
    assert bool(torch.isfinite(x).all()), "features that are not finite"
    assert not bool(torch.isinf(whole.y.float()).any()), "an infinite target"
    small = read_table(path, "kind", id="name", edges=edges, size=max(1, whole.num_rows // 3))
    assert small.fingerprint == whole.fingerprint, "another table in other chunks"


def prepare_tables(root: Path) -> None:
    import pyarrow
    import pyarrow.parquet as parquet

    rows = make_rows()
    (root / "t.csv").write_bytes(as_csv(rows))
    (root / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parquet.write_table(pyarrow.Table.from_pylist(rows), root / "t.parquet")
    columns = {name: [row[name] for row in rows] for name in HEADER}
    arrays = {
        "name": np.array(columns["name"]),
        "size": np.array(columns["size"]),
        "weight": np.array(columns["weight"], np.float64),
        "note": np.array(columns["note"]),
        "kind": np.array(["" if v is None else v for v in columns["kind"]]),
    }
    np.savez(root / "t.npz", **arrays)
    write_edges(root / "edges.csv")


def csv_case(root: Path, place: Path, draw: Random) -> None:
    path = place / "t.csv"
    if draw.random() < 0.5:
        content = damage_bytes((root / "t.csv").read_bytes(), draw)
    else:
        rows = make_rows()
        for _ in range(draw.randrange(1, 6)):
            rows[draw.randrange(len(rows))][draw.choice(HEADER)] = draw.choice(VALUES[:-6])
        content = as_csv(rows)
    path.write_bytes(content)
    check_table(path)


def jsonl_case(root: Path, place: Path, draw: Random) -> None:
    path = place / "t.jsonl"
    if draw.random() < 0.5:
        content = damage_bytes((root / "t.jsonl").read_bytes(), draw)
    else:
        rows = make_rows()
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(rows))
            rows[at] = change_value(rows[at], draw)
        content = b"".join(dumps(row, draw) + b"\n" for row in rows)
    path.write_bytes(content)
    check_table(path)


def parquet_case(root: Path, place: Path, draw: Random) -> None:
    import pyarrow
    import pyarrow.parquet as parquet

    path = place / "t.parquet"
    if draw.random() < 0.5:
        path.write_bytes(damage_bytes((root / "t.parquet").read_bytes(), draw))
    else:
        rows = make_rows()
        table = pyarrow.Table.from_pylist(rows)
        name = draw.choice([*HEADER, "more", "kind"])
        column = _odd_column(draw, len(rows), pyarrow)
        if name in HEADER and draw.random() < 0.7:
            table = table.set_column(HEADER.index(name), name, column)
        else:
            table = table.append_column(name, column)
        try:
            parquet.write_table(table, path)
        except pyarrow.ArrowException:  # no such file can be written
            shutil.copy(root / "t.parquet", path)
    check_table(path)


def _odd_column(draw: Random, n: int, pyarrow: Any) -> Any:
    """A column of a type that a table has seldom, with extreme values."""
    ints = [draw.choice((0, 1, -1, 2**62, -(2**63), 2**63 - 1, None)) for _ in range(n)]
    makers: list[Callable[[], Any]] = [
        lambda: pyarrow.array(ints, pyarrow.int64()).cast(
            pyarrow.timestamp(draw.choice(["s", "ms", "us", "ns"])), safe=False
        ),
        lambda: pyarrow.array(ints, pyarrow.int64()).cast(pyarrow.duration("us"), safe=False),
        lambda: pyarrow.array([i and i % 2**31 for i in ints], pyarrow.int32()).cast(
            pyarrow.date32()
        ),
        lambda: pyarrow.array([[1, 2]] * n),
        lambda: pyarrow.array([{"a": 1}] * n),
        lambda: pyarrow.array([b"\xff\x00"] * n),
        lambda: pyarrow.array([str(i) for i in ints]).dictionary_encode(),
        lambda: pyarrow.nulls(n),
        lambda: pyarrow.array([draw.choice((1e308, float("inf"), float("nan"))) for _ in range(n)]),
        lambda: pyarrow.array([i % 2 == 0 for i in range(n)]),
        lambda: pyarrow.array([str(i) * 1000 for i in range(n)]),
        lambda: pyarrow.array(range(n)).cast(pyarrow.decimal128(38, 10)),
        lambda: pyarrow.array([i and i % (24 * 3600) for i in ints], pyarrow.int32()).cast(
            pyarrow.time32("s")
        ),
    ]
    return draw.choice(makers)()


def npz_case(root: Path, place: Path, draw: Random) -> None:
    path = place / "t.npz"
    if draw.random() < 0.6:
        path.write_bytes(damage_bytes((root / "t.npz").read_bytes(), draw))
    else:
        with np.load(root / "t.npz") as file:
            arrays = dict(file)
        n = 40
        odd: list[Any] = [
            np.full(n, 1 + 2j),
            np.array(["2020-01-01"] * n, "datetime64[D]"),
            np.full(n, np.iinfo(np.int64).min).view("datetime64[s]"),
            np.full(n, 2**62).view("datetime64[ns]"),
            np.zeros((n, 0)),
            np.zeros((n, 3, 2)),
            np.zeros(n, [("a", "f8")]),
            np.array(5.0),
            np.zeros(n, "V8"),
            np.full(n, b"\xff"),
            np.full(n, 1e308),
            np.full((n, 2), np.inf, np.float16),
            np.zeros(n, bool),
            np.arange(n, dtype=np.timedelta64),
            np.full(n, 2**63, np.uint64),
            np.zeros(3),
            np.longdouble([1e300] * n) ** 2,
        ]
        name = draw.choice([*arrays, "more", "kind", "name"])
        arrays[name] = draw.choice(odd)
        np.savez(path, **arrays)
    check_table(path)


def edges_case(root: Path, place: Path, draw: Random) -> None:
    path = place / "edges.csv"
    whole = (root / "edges.csv").read_bytes()
    if draw.random() < 0.05:  # without the header, which must cost no edge
        path.write_bytes(whole.partition(b"\n")[2])
        found = [
            read_table(root / "t.csv", "kind", id="name", edges=e) for e in (path, root / path.name)
        ]
        assert found[0].fingerprint == found[1].fingerprint, "an edge is lost"
        return
    path.write_bytes(damage_bytes(whole, draw))
    check_table(root / "t.csv", path)


def prepare_series(root: Path) -> None:
    draw = Random(1)
    lines = ["time,a,b,c"]
    for t in range(30):
        cells = [f"{draw.gauss(0, 1):.3f}" if draw.random() > 0.1 else "" for _ in range(3)]
        lines.append(f"2020-01-{t + 1:02d},{','.join(cells)}")
    (root / "s.csv").write_text("\n".join(lines) + "\n")
    (root / "s_edges.csv").write_text("source,target,weight\na,b,1\nb,c,2\n")
    settings = SeriesSettings(lags=2, steps=2, origins=0, epochs=2)
    train_series(root / "s.csv", root / "s_edges.csv", root / "series", settings)


def series_case(root: Path, place: Path, draw: Random) -> None:
    files = {name: (root / name).read_bytes() for name in ("s.csv", "s_edges.csv")}
    name = draw.choice(("s.csv", "s.csv", "s_edges.csv"))
    files[name] = damage_bytes(files[name], draw)
    for each, content in files.items():
        (place / each).write_bytes(content)
    series = read_series_file(place / "s.csv")
    assert not bool(np.isinf(series.values).any()), "an infinite value"
    assert series.values.shape == (len(series.stamps), len(series.names))
    edges = read_step_edges(place / "s_edges.csv", series)
    for index, weight in edges:
        assert index.numel() == 0 or int(index.max()) < len(series.names)
        finite = weight is None or bool(torch.isfinite(weight).all())
        assert finite, "a weight that is not finite"
    predict_run(root / "series", place / "s.csv", place / "out.csv")
    _finite_csv(place / "out.csv")


def _finite_csv(path: Path) -> None:
    with path.open() as file:
        for row in list(csv.reader(file))[1:]:
            assert all(np.isfinite(float(cell)) for cell in row[1:]), f"not finite: {row}"
