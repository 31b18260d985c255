"""From tables and edges to parts: equal to what is read in memory, and nothing half done."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from difformer.core.graph import Graph
from difformer.data.dataset import single
from difformer.data.table.read import read_table
from difformer.errors import DataError
from difformer.files import csv_lines
from difformer.shards.build import make_shards
from difformer.shards.edges import EdgeTable
from difformer.shards.folder import Held, ShardFolder
from difformer.shards.partition import ShardSettings
from difformer.shards.store import Manifest

pytest.importorskip("duckdb")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

N, E = 300, 900


def held(folder: Path) -> Held:
    """All rows of a dataset."""
    shards = ShardFolder(folder)
    return shards.hold(0, len(shards.manifest.parts))


def joined(rows: Held) -> torch.Tensor:
    """(2, edges): where each edge comes from, and which row it enters."""
    target = torch.repeat_interleave(torch.arange(rows.rows), rows.crow.diff())
    return torch.stack([rows.col, target])


def quiet(stage: str, share: float | None) -> None:
    assert stage
    assert share is None or 0 <= share <= 1


def columns(names: str) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    ids: Any = {"text": [f"n {i}" for i in range(N)], "whole": (np.arange(N) * 7 + 5).tolist()}
    price = rng.normal(50, 9, N).round(3).tolist()
    price[4] = None
    return {
        "name": ids[names],
        "size": rng.normal(size=N).tolist(),
        "price": price,
        "since": [f"20{10 + i % 9}-03-0{1 + i % 7}" for i in range(N)],
        "colour": rng.choice(["red", "green", "blue"], N).tolist(),
        "grade": [None if i % 10 == 3 else f"g{i % 3}" for i in range(N)],
    }


def edges(names: list[Any], weighted: bool) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    source, target = rng.integers(N, size=E), rng.integers(N, size=E)
    source[-40:], target[-40:] = source[:40], target[:40]  # repeated
    source[100:120] = target[100:120]  # loops
    found = {"from": [names[i] for i in source], "to": [names[i] for i in target]}
    if weighted:
        found["weight"] = rng.integers(1, 9, E).astype(float).tolist()
    return found


def write(path: Path, table: dict[str, Any], kind: str) -> str:
    file = path.with_suffix(f".{kind}")
    if kind == "parquet":
        pq.write_table(pa.table(table), file)
    else:
        file.write_text(csv_lines([table, *zip(*table.values(), strict=True)]))
    return str(file)


def given(
    folder: Path, kind: str = "parquet", names: str = "text", weighted: bool = False
) -> dict[str, Any]:
    table = columns(names)
    nodes = write(folder / "nodes", table, kind)
    joins = write(folder / "edges", edges(table["name"], weighted), kind)
    told = {"label": ["grade"], "id": "name", "memory": "3GB", "parts": 5}
    return {"nodes": [nodes], "edges": [joins], **told}


def make(out: Path, **settings: Any) -> Manifest:
    return make_shards(ShardSettings(**settings), out, tell=quiet)


@pytest.mark.parametrize("partition", ["range", "hash", "metis", "streaming"])
@pytest.mark.parametrize(
    "table", [("parquet", "text", False), ("parquet", "whole", True), ("csv", "text", True)]
)
def test_the_parts_hold_what_is_read_in_memory(
    tmp_path: Path, partition: str, table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if partition == "metis":
        pytest.importorskip("pymetis")
    monkeypatch.setattr("difformer.shards.edges.BUCKET", 60)
    kind, names, weighted = table
    settings = given(tmp_path, *table)
    manifest = make(tmp_path / "out", **settings, partition=partition)
    backwards = {k: v[::-1] for k, v in edges(columns(names)["name"], weighted).items()}
    again = {**settings, "edges": [write(tmp_path / "backwards", backwards, kind)]}
    assert make(tmp_path / "again", **again, partition=partition) == manifest  # to the last bit
    sharded = held(tmp_path / "out")
    whole = read_table(settings["nodes"][0], "grade", id="name", edges=settings["edges"][0])
    assert whole.edge_index is not None
    order = torch.tensor([sharded.ids().index(name) for name in whole.ids])
    assert torch.equal(sharded.y[order], whole.y)
    torch.testing.assert_close(sharded.x[order], whole.x, rtol=0, atol=1e-6)
    assert manifest.class_names == whole.class_names
    graph = Graph.undirected_with_loops(whole.edge_index, N, single(whole.edge_weight))
    new = joined(sharded)
    found = Graph.from_edges(new, N, sharded.weight)
    torch.testing.assert_close(found.dense()[order][:, order], graph.dense())
    assert manifest.edges == graph.num_edges  # each pair once
    assert ((new[1] * N + new[0]).diff() > 0).all()  # sorted by the row they enter
    pairs = list(zip(*edges(columns(names)["name"], False).values(), strict=True))
    straight = [pair for pair in pairs if pair[0] != pair[1]]
    assert manifest.found == {
        "edges read": E,
        "dangling edges": 0,
        "loops": E - len(straight),
        "repeated edges": len(straight) - len(set(straight)),
    }
    part = np.searchsorted(manifest.starts, np.arange(N), side="right")
    between = new[0] != new[1]
    cut = (part[new[0][between]] != part[new[1][between]]).mean()
    assert manifest.cut == pytest.approx(float(cut))


def test_edges_to_nowhere_are_left_out_and_counted(tmp_path: Path) -> None:
    settings = given(tmp_path)
    lost = {"from": ["n 0", "nobody"], "to": ["nowhere", "n 1"]}
    settings["edges"].append(write(tmp_path / "more", lost, "parquet"))
    manifest = make(tmp_path / "out", **settings)
    assert (manifest.found["dangling edges"], manifest.found["edges read"]) == (2, E + 2)
    settings |= {"id": None, "kinds": {"name": "skip"}}
    settings["edges"] = [write(tmp_path / "n", {"a": [0, 1, N], "b": [1, 2, 0]}, "csv")]
    manifest = make(tmp_path / "numbered", **settings)
    assert (manifest.found["dangling edges"], manifest.edges) == (1, N + 4)


def test_splits_are_drawn_by_row_or_read_from_a_column(tmp_path: Path) -> None:
    settings = given(tmp_path)
    by_range = make(tmp_path / "a", **settings, split="ratio:0.6/0.2/0.1:3")
    by_hash = make(tmp_path / "b", **settings, split="ratio:0.6/0.2/0.1:3", partition="hash")
    labelled = sum(cell is not None for cell in columns("text")["grade"])
    for part, share in (("train", 0.6), ("val", 0.2), ("test", 0.1)):
        assert by_range.size(part) == by_hash.size(part)  # whatever the partition
        assert abs(by_range.size(part) - share * labelled) < 0.08 * labelled
    table = {**columns("text"), "use": ["train", "valid", "test"] * (N // 3)}
    settings["nodes"] = [write(tmp_path / "split", table, "parquet")]
    make(tmp_path / "c", **settings, split="column:use")
    data = held(tmp_path / "c")
    known = [i for i in range(N) if table["grade"][i] is not None]
    assert torch.nonzero(data.split == 1).flatten().tolist() == [i for i in known if i % 3 == 1]
    assert data.x.shape[1] == by_range.features  # the column is no feature


@pytest.mark.parametrize("label", [["size"], ["size", "price"], ["colour"]])
def test_labels_are_those_of_the_table(tmp_path: Path, label: list[str]) -> None:
    settings = {**given(tmp_path), "label": label}
    manifest = make(tmp_path / "out", **settings)
    whole = read_table(settings["nodes"][0], label if len(label) > 1 else label[0], id="name")
    assert (manifest.task, manifest.outputs) == (whole.task, whole.num_outputs)
    torch.testing.assert_close(held(tmp_path / "out").y, whole.y, equal_nan=True)


def test_numbers_of_rows_are_those_of_a_file_read_by_many_threads(tmp_path: Path) -> None:
    rows, first = 100_000, 2**60 + 1  # such a number is no float64
    names = first + np.arange(rows)
    table = {"name": names[::-1], "v": np.arange(rows) % 17, "y": np.arange(rows) % 2}
    pq.write_table(pa.table(table), tmp_path / "nodes.parquet", row_group_size=5_000)
    ends = {"a": names[[0, 5]], "b": names[[-1, 7]]}
    pq.write_table(pa.table(ends), tmp_path / "edges.parquet")
    asked: Any = {"nodes": [str(tmp_path / "nodes.parquet")], "label": ["y"], "id": "name"}
    make(tmp_path / "out", **asked, edges=[str(tmp_path / "edges.parquet")], memory="3GB")
    data = held(tmp_path / "out")
    ids, pairs = data.ids(), joined(data)
    assert ids == list(map(str, names[::-1]))
    straight = pairs[:, pairs[0] != pairs[1]]
    found = {tuple(sorted(int(ids[i]) - first for i in pair)) for pair in straight.T.tolist()}
    assert found == {(0, rows - 1), (5, 7)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": ["none"]}, "has no column 'none'; it has name, size"),
        ({"nodes": ["no.parquet"]}, "nodes: no.parquet: no such file"),
        ({"edges": ["edges.parquet", "no.parquet"]}, "edges: no.parquet: no such file"),
        ({"edges": ["empty"]}, "edges: empty: holds no file that ends in .parquet, .csv, .tsv"),
        ({"nodes": ["loop.csv"]}, "nodes: loop.csv: Too many levels of symbolic links"),
        ({"parts": N + 1}, "parts must be at most the 300 rows, got 301"),
        ({"memory": "10MB"}, "memory must be at least .*GB here, got 0.01GB"),
        ({"kinds": {"colour": "text"}}, "column 'colour' is free text"),
        ({"kinds": {"nothing": "skip"}}, r"nodes\.parquet: has no column 'nothing'"),
        ({"id": "colour"}, "the id .* is also that of row"),
        ({"split": "column:colour"}, "must say train, val or test"),
        ({"weight": -1.0}, r"edges\.parquet: column 'weight' must hold finite weights, 0 or more"),
        ({"nodes": ["few.csv"], "partition": "hash"}, "got 5: 3 of them would have no row"),
        ({"partition": "metis"}, "use --partition streaming"),
        ({"parts": 500, "partition": "hash"}, "parts must be at most 128 by hash, got 500"),
        ({"partition": "metis", "edges": []}, "partition must be range or hash without edges"),
        ({"label": []}, "label must name at least one column"),
        ({"neighbours": 3}, "neighbours must be 0 or more, and 0 with edges"),
    ],
)
def test_what_cannot_be_sharded_is_one_line(
    tmp_path: Path, change: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("loop.csv").symlink_to("loop.csv")
    monkeypatch.setattr("difformer.shards.build.METIS_BYTES", 10**9)
    write(Path("few"), {name: cells[:6] for name, cells in columns("text").items()}, "csv")
    settings = {**given(tmp_path), **change}
    if weight := settings.pop("weight", None):
        pairs = {"from": ["n 0"], "to": ["n 1"], "weight": [weight]}
        write(tmp_path / "edges", pairs, "parquet")
    with pytest.raises((DataError, ValueError), match=message) as caught:
        make(tmp_path / "out", **settings)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
def test_a_disk_that_is_full_of_edges_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EdgeTable, "path", lambda *_: Path("/dev/full"))
    with pytest.raises(DataError, match="^cannot write .*: No space left on device.*$"):
        make(tmp_path / "out", **given(tmp_path))


# Forks one writer after the other, each of which is killed when it names its file number `at`.
KILLED = """
import json, os, signal, sys
from pathlib import Path
import duckdb, pyarrow.parquet, sklearn.preprocessing, torch
from difformer.shards.build import make_shards
from difformer.shards.partition import ShardSettings
real, count = os.replace, 0
out, settings, deaths = json.loads(sys.argv[1])

def replace(*names):
    global count
    count += 1
    if count == at:
        os.kill(os.getpid(), signal.SIGKILL)
    real(*names)

for at in deaths:
    if not os.fork():
        try:
            os.replace = replace
            make_shards(ShardSettings(**settings), Path(out), tell=lambda *_: None)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == -signal.SIGKILL
    assert not Path(out, "manifest.json").exists()
"""


@pytest.mark.parametrize(
    ("partition", "deaths"), [("range", (4, 9, 16, 5)), ("streaming", (4, 9, 16, 12))]
)
def test_a_killed_writer_leaves_nothing_that_looks_finished_and_goes_on(
    tmp_path: Path, partition: str, deaths: tuple[int, ...]
) -> None:
    """It dies before its sources are read, among the rows, and after the edges of one part."""
    settings = {**given(tmp_path), "partition": partition, "parts": 3}
    calm = make(tmp_path / "calm", **settings)
    out = tmp_path / "out"
    words = [sys.executable, "-c", KILLED, json.dumps([str(out), settings, deaths])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    subprocess.run(words, env=environment, check=True, timeout=300)
    with pytest.raises(DataError, match="is not a sharded dataset"):
        ShardFolder(out)
    assert ["edges" in p.read_text() for p in sorted(out.glob(".work/part-*.json"))] == [1, 0, 0]
    kept = {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in out.glob("part-*/x.npy")}
    assert make(out, **settings) == calm
    assert kept == {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in kept}
    assert len(kept) == 3
    left, usual = ({p.name for p in each.iterdir()} for each in (out, tmp_path / "calm"))
    assert left == usual


def test_parts_that_a_cluster_finished_in_any_order_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, out = given(tmp_path), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.delattr(Manifest, "write")  # it ends when the parts are written
        with pytest.raises(AttributeError):
            make(out, **settings)
    path = out / ".work" / "part-00001.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in record.items() if k != "edges"}))
    assert make(out, **settings) == make(tmp_path / "calm", **settings)


def test_every_file_of_a_part_is_covered_by_a_checksum(tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(out, **given(tmp_path, weighted=True))
    files = sorted(out.glob("part-00001/*"))
    assert {path.stem for path in files} >= {"x", "y", "split", "row", "crow", "col", "weight"}
    for path in files:
        whole = path.read_bytes()
        for content in (whole[:-4], whole[:-1] + bytes([whole[-1] ^ 1]), None):
            path.unlink()
            if content is not None:
                path.write_bytes(content)
            ShardFolder(out).hold(0, 1)  # the other parts are as they were
            with pytest.raises(DataError, match=re.escape(str(path))) as caught:
                ShardFolder(out).hold(1, 2)
            assert "\n" not in str(caught.value)
        path.write_bytes(whole)


def test_other_settings_start_anew_and_other_files_are_left_alone(tmp_path: Path) -> None:
    settings = given(tmp_path)
    out = tmp_path / "out"
    (out / ".work").mkdir(parents=True)
    (out / "asked.json").write_text(json.dumps({"parts": 2}))
    (out / ".asked.json.part").write_text("{")
    (out / "part-00009").mkdir()
    assert make(out, **settings) == make(tmp_path / "calm", **settings)
    assert not (out / "part-00009").exists()
    (out / ".work").mkdir()  # a call cut off while it tidied up
    assert make(out, **settings) == make(tmp_path / "calm", **settings)
    assert not (out / ".work").exists()
    with pytest.raises(DataError, match="holds a sharded dataset already"):
        make(out, **{**settings, "parts": settings.get("parts", 16) + 1})
    with pytest.raises(DataError, match="must be empty or new, it holds "):
        make(tmp_path, **settings)


@pytest.mark.parametrize("partition", ["range", "hash"])
def test_neighbours_found_by_parts_are_those_of_all_rows(
    tmp_path: Path, partition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faiss")
    settings = {**given(tmp_path), "edges": [], "neighbours": 4}
    monkeypatch.setattr("difformer.shards.edges.SHARE", 1e-6)  # some rows at a time
    assert make(tmp_path / "out", **settings, partition=partition).graph
    data = held(tmp_path / "out")
    found = {(int(a), int(b)) for a, b in joined(data).T if a != b}
    # Two columns hold few different values, so that some rows are equally near: those are left out.
    unit = torch.nn.functional.normalize(data.x.double(), dim=1)
    near = (unit @ unit.T).fill_diagonal_(-2)
    fourth, fifth = near.topk(5).values[:, 3:].T
    for row in torch.nonzero(fourth - fifth > 1e-6).flatten().tolist():
        assert {(int(j), row) for j in near[row].topk(4).indices} <= found
    assert N * 4 <= len(found) <= N * 8
    assert {(b, a) for a, b in found} == found


def test_features_of_texts_are_read_from_a_mapped_file(tmp_path: Path) -> None:
    settings = given(tmp_path)
    more = np.random.default_rng(3).normal(size=(N, 7)).astype(np.float32)
    np.save(tmp_path / "texts.npy", more)
    settings["features"] = [str(tmp_path / "texts.npy")]
    manifest = make(tmp_path / "out", **settings, partition="hash")
    data = held(tmp_path / "out")
    alone = make(tmp_path / "alone", **{**settings, "features": ()}, partition="hash")
    assert manifest.features == alone.features + 7 == data.x.shape[1]
    row = np.concatenate([part["row"] for part in data.parts])
    assert torch.equal(data.x[:, -7:], torch.from_numpy(more[row]))
    np.save(tmp_path / "texts.npy", more[:-1])
    with pytest.raises(DataError, match=r"texts\.npy has 299 rows, the nodes have 300"):
        make(tmp_path / "few", **settings)


@pytest.mark.parametrize("names", ["text", "whole"])
def test_files_without_a_header_give_the_same_parts(tmp_path: Path, names: str) -> None:
    """Edges are found to have none; of tables it is said, and their columns have other names."""
    settings = given(tmp_path, "csv", names, weighted=True)
    calm = make(tmp_path / "calm", **settings)
    for name in ("edges", "nodes"):
        path = Path(settings[name][0])
        path.write_text(path.read_text().partition("\n")[2])
        if name == "edges":
            with pytest.warns(UserWarning, match=r"edges\.csv: has no header"):
                assert make(tmp_path / "found", **settings) == calm
    settings |= {"label": ["column6"], "id": "column1", "header": False}
    found = make(tmp_path / "said", **settings)
    assert [part.files for part in found.parts] == [part.files for part in calm.parts]
