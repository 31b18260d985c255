"""Rows of a table that are joined by edges: known ones, new ones, and over HTTP."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the service needs the extra serve")

from difformer.app.service.app import Service
from difformer.data.table.read import read_table
from difformer.errors import DataError
from difformer.jobs.own import OwnRun
from difformer.jobs.table import train_own
from difformer.runs.answer import predict_run


def write(path: Path, rows: list[tuple[str, ...]], header: tuple[str, ...]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on rows of 7 distinct values, on two rings; the ring is the class."""
    folder = tmp_path_factory.mktemp("field")
    draw = random.Random(0)
    values = ["0", "1", "2", "3", *(str(draw.randrange(4) + i // 70 * 3) for i in range(4, 140))]
    rows = [(f"r{i}", values[i], "" if i % 3 == 0 else "ab"[i // 70]) for i in range(140)]
    ring = [(f"r{i}", f"r{i // 70 * 70 + (i + 1) % 70}") for i in range(140)]
    table = write(folder / "t.csv", rows, ("name", "kind", "y"))
    edges = write(folder / "e.csv", ring, ("from", "to"))
    own = read_table(table, "y", id="name", edges=edges)
    train_own(own, folder / "run", {"epochs": 20, "hidden_channels": 16})
    return folder / "run"


def test_predictions_are_those_of_fit_row_by_row(field: Path) -> None:
    run = OwnRun.load(field)
    filled = lines(field / "predictions.csv")
    assert len({row["probability"] for row in filled}) > 7
    for row in filled:
        number = int(row["name"][1:])
        assert row["y"] == run.estimator.transduction_[number]
        near = {number // 70 * 70 + (number + step) % 70 for step in (1, -1)}
        named = [int(word.split(" ")[0][1:]) for word in row["influential"].split("; ")]
        assert set(named[:2]) == near


def test_edges_join_new_rows_to_known_ones(field: Path, tmp_path: Path) -> None:
    new, out = tmp_path / "new.csv", tmp_path / "out.csv"
    write(new, [("new", "3")], ("name", "kind"))  # a value of both rings
    for ring, known in (("a", range(70)), ("b", range(70, 140))):
        edges = write(tmp_path / "e.csv", [(f"r{i}", "new") for i in known], ("from", "to"))
        predict_run(field, new, out, edges=edges, overwrite=True)
        assert lines(out)[0]["y"] == ring
    bad = write(tmp_path / "e.csv", [("r1", "stranger")], ("from", "to"))
    with pytest.raises(DataError, match="row 1, column 'to': 'stranger' is not a known id"):
        predict_run(field, new, out, edges=bad, overwrite=True)


def test_rows_of_training_are_answered_by_id(field: Path, tmp_path: Path) -> None:
    filled = {row["name"]: row for row in lines(field / "predictions.csv")}
    new = write(tmp_path / "new.csv", [("r0", "0"), ("x", "0"), ("r3", "3")], ("name", "kind"))
    predict_run(field, new, tmp_path / "out.csv")
    known, unknown, other = lines(tmp_path / "out.csv")
    assert known == filled["r0"]
    assert other == filled["r3"]
    assert unknown["probability"] != known["probability"]
    # An edge that names it is one that the row of the new table brings.
    edges = write(tmp_path / "e.csv", [(f"r{i}", "r0") for i in range(70, 140)], ("a", "b"))
    predict_run(field, new, tmp_path / "out.csv", edges=edges, overwrite=True)
    joined = lines(tmp_path / "out.csv")
    assert joined[0]["y"] == "b"
    assert joined[1:] == [unknown, other]


def test_edges_among_new_rows_are_used(field: Path, tmp_path: Path) -> None:
    from starlette.testclient import TestClient

    rows = [("x", "3"), ("y", "3"), ("z", "3")]
    new = write(tmp_path / "new.csv", rows, ("name", "kind"))
    pairs = [(f"r{i}", "x") for i in range(70, 140)] + [("y", "x"), ("r1", "r2")]
    edges = write(tmp_path / "e.csv", pairs, ("a", "b"))
    notes: list[str] = []
    predict_run(field, new, tmp_path / "plain.csv")
    predict_run(field, new, tmp_path / "out.csv", edges=edges, tell=notes.append)
    plain, found = lines(tmp_path / "plain.csv"), lines(tmp_path / "out.csv")
    chance = [float(row["probability of b"]) for row in found]
    before = [float(row["probability of b"]) for row in plain]
    assert chance[0] > before[0]
    assert chance[1] > before[1]  # by the row it is joined to
    assert found[2] == plain[2]
    assert notes == [f"{edges}: ignored, because between known rows: 1 edge"]
    # As read chunk by chunk, and as asked of the service.
    body = {"rows": [{"name": name, "kind": kind} for name, kind in rows], "edges": pairs}
    with TestClient(Service(field)) as client:
        answers = client.post("/predict", json=body).json()["predictions"]
        assert [row["probabilities"]["b"] for row in answers] == pytest.approx(chance)
        for wrong, reason in (
            ([["x", "nobody"]], "'nobody' is not a known id"),
            ([["x"]], "must all be [id, id]"),
            ([["x", "y", -1]], "edge 1: the weight"),
            ([["x", ["y"]]], "edge 1 must join two ids"),
            ("x", "edges must be a list"),
        ):
            answer = client.post("/predict", json={**body, "edges": wrong})
            assert (answer.status_code, reason in answer.json()["detail"]) == (422, True), wrong
        twice = {**body, "rows": [body["rows"][0]] * 2}
        assert "must be different" in client.post("/predict", json=twice).json()["detail"]


def test_the_service_answers_rows_of_training_by_id(field: Path) -> None:
    from starlette.testclient import TestClient

    filled = {row["name"]: row for row in lines(field / "predictions.csv")}
    rows = [{"name": "r0", "kind": 0}, {"kind": 0}, {"name": "r0", "kind": 0}]
    with TestClient(Service(field)) as client:
        found = client.post("/predict", json={"rows": rows}).json()["predictions"]
    assert found[0]["probability"] == float(filled["r0"]["probability"])
    assert found[0] == found[2] != found[1]
