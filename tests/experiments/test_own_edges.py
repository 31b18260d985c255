"""New rows beside those of training: joined to them by edges, known by id, or unlike all of them.

In files and over HTTP.
"""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("starlette", reason="the service needs the extra serve")

from starlette.testclient import TestClient

from difformer.app.cli import app
from difformer.app.service.app import Service, predict_together
from difformer.data.table.read import read_table
from difformer.errors import DataError
from difformer.jobs.own import OwnRun
from difformer.jobs.table import train_own
from difformer.runs.answer import predict_run


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def joined(*pairs: tuple[str, str]) -> dict[str, list[str]]:
    """Edges as the columns of a table."""
    return {"from": [a for a, _ in pairs], "to": [b for _, b in pairs]}


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on rows of 7 distinct values, on two rings; the ring is the class."""
    folder, draw = tmp_path_factory.mktemp("field") / "run", random.Random(0)
    table = {
        "name": [f"r{i}" for i in range(140)],
        "kind": [*range(4), *(draw.randrange(4) + i // 70 * 3 for i in range(4, 140))],
        "y": ["" if i % 3 == 0 else "ab"[i // 70] for i in range(140)],
    }
    ring = joined(*((f"r{i}", f"r{i // 70 * 70 + (i + 1) % 70}") for i in range(140)))
    own = read_table(table, "y", id="name", edges=ring)
    train_own(own, folder, {"epochs": 20, "hidden_channels": 16})
    return folder


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
    new, out = {"name": ["new"], "kind": [3]}, tmp_path / "out.csv"  # a value of both rings
    for ring, known in (("a", range(70)), ("b", range(70, 140))):
        edges = joined(*((f"r{i}", "new") for i in known))
        predict_run(field, new, out, edges=edges, overwrite=True)
        assert lines(out)[0]["y"] == ring
    with pytest.raises(DataError, match="row 1, column 'to': 'stranger' is not a known id"):
        predict_run(field, new, out, edges=joined(("r1", "stranger")), overwrite=True)


def test_rows_of_training_are_answered_by_id(field: Path, tmp_path: Path) -> None:
    filled = {row["name"]: row for row in lines(field / "predictions.csv")}
    new, out = {"name": ["r0", "x", "r3"], "kind": [0, 0, 3]}, tmp_path / "out.csv"
    predict_run(field, new, out)
    known, unknown, other = lines(out)
    assert (known, other) == (filled["r0"], filled["r3"])
    assert unknown["probability"] != known["probability"]
    # An edge that names it is one that the row of the new table brings.
    edges = joined(*((f"r{i}", "r0") for i in range(70, 140)))
    predict_run(field, new, out, edges=edges, overwrite=True)
    first, *rest = lines(out)
    assert first["y"] == "b"
    assert rest == [unknown, other]
    rows = [{"name": "r0", "kind": 0}, {"kind": 0}, {"name": "r0", "kind": 0}]
    with TestClient(Service(field)) as client:
        found = client.post("/predict", json={"rows": rows}).json()["predictions"]
    assert found[0]["probability"] == float(filled["r0"]["probability"])
    assert found[0] == found[2] != found[1]


def test_edges_among_new_rows_are_used(field: Path, tmp_path: Path) -> None:
    new = {"name": ["x", "y", "z"], "kind": [3, 3, 3]}
    pairs = [*((f"r{i}", "x") for i in range(70, 140)), ("y", "x"), ("r1", "r2")]
    notes: list[str] = []
    predict_run(field, new, tmp_path / "plain.csv")
    edges = tmp_path / "e.csv"
    edges.write_text("\n".join(["from,to", *map(",".join, pairs)]))
    predict_run(field, new, tmp_path / "out.csv", edges=edges, tell=notes.append)
    plain, found = lines(tmp_path / "plain.csv"), lines(tmp_path / "out.csv")
    chance = [float(row["probability of b"]) for row in found]
    before = [float(row["probability of b"]) for row in plain]
    assert chance[0] > before[0]
    assert chance[1] > before[1]  # by the row it is joined to
    assert found[2] == plain[2]
    assert notes == [f"{edges}: ignored, because between known rows: 1 edge"]
    # As read chunk by chunk, and as asked of the service.
    body: Any = {"rows": [{"name": name, "kind": 3} for name in new["name"]], "edges": pairs}
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


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on ages from 17 to 90 in two cities."""
    folder, draw = tmp_path_factory.mktemp("drift") / "run", random.Random(0)
    table: dict[str, list[Any]] = {
        "name": [f"r{i}" for i in range(200)],
        "age": [draw.randint(17, 90) for _ in range(200)],
        "city": [draw.choice(["Rome", "Oslo"]) for _ in range(200)],
        "kind": [("fish", "ape")[i % 2] for i in range(200)],
    }
    quick = {"epochs": 3, "hidden_channels": 8, "kernel": "simple", "early_stopping": True}
    train_own(read_table(table, "kind", id="name"), folder, quick, influential=0)
    return folder


def test_predict_says_which_cells_are_unlike_training(people: Path, tmp_path: Path) -> None:
    new, out = tmp_path / "new.csv", str(tmp_path / "o.csv")
    new.write_text("name,age,city\na,20,Rome\nb,500,Oslo\nc,40,Paris\n")
    asked = ["predict", str(people), str(new), "-o", out, "--overwrite"]
    found = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)["drift"]
    age = {"column": "age", "cells": 1, "row": "b", "value": "500", "seen": [17.0, 90.0]}
    assert (found["odd"], len(found["columns"]), age in found["columns"]) == (2, 2, True)
    said = " ".join(CliRunner().invoke(app, asked).stderr.split())
    assert "note: " in said
    for told in (
        "2 of 3 rows",
        "row 'b', column 'age': '500', in training 17 to 90",
        "row 'c', column 'city': 'Paris'",
    ):
        assert told in said
    usual = {"name": ["a"], "age": [20], "city": ["Rome"]}
    predict_run(people, usual, out, overwrite=True)  # a warning would be an error


def test_the_service_warns_each_request_of_its_own_cells(people: Path) -> None:
    chunks: list[dict[str, list[Any]]] = [
        {"name": [None, None], "age": [30, 500], "city": ["Rome", "Oslo"]},
        {"name": [None], "age": [30], "city": ["Rome"]},
        {"name": ["x"], "age": [30], "city": ["<b>"]},
    ]
    found: Any = predict_together(OwnRun.load(people), [(chunk, None) for chunk in chunks])
    assert [len(answers["predictions"]) for answers in found] == [2, 1, 1]
    assert found[0]["warnings"] == ["row 2, column 'age': 500, in training 17 to 90"]
    assert found[1]["warnings"] == []
    assert found[2]["warnings"] == ["row 'x', column 'city': '<b>', in training 'Oslo', 'Rome'"]
    with TestClient(Service(people)) as client:
        answer = client.post("/predict", json={"rows": [{"age": 500, "city": "Rome"}]}).json()
        told = client.get("/openapi.json").json()["paths"]["/predict"]["post"]["responses"]["200"]
    assert answer["warnings"] == ["row 1, column 'age': 500, in training 17 to 90"]
    content = told["content"]["application/json"]["schema"]
    assert content["properties"]["warnings"] == {"type": "array", "items": {"type": "string"}}
    assert content["required"] == ["predictions", "warnings"]
