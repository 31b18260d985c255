"""`predict` and the service say which cells of new rows are unlike all of training."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("starlette", reason="the service needs the extra serve")

from difformer.app.cli import app
from difformer.app.service.app import Service, predict_together
from difformer.data.table.read import read_table
from difformer.jobs.own import OwnRun
from difformer.jobs.table import train_own
from difformer.runs.answer import predict_run

ROW = {"age": 30, "city": "Rome"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def test_predict_says_which_cells_are_unlike_training(run: Path, tmp_path: Path) -> None:
    new = {"name": ["a", "b", "c"], "age": [20, 500, 40], "city": ["Rome", "Oslo", "Paris"]}
    notes: list[str] = []
    predict_run(run, new, tmp_path / "a.csv", tell=notes.append)
    (note,) = notes
    assert "2 of 3 rows" in note
    assert "row 'b', column 'age': 500, in training 17 to 90" in note
    assert "row 'c', column 'city': 'Paris'" in note
    predict_run(run, {**new, "age": [20] * 3, "city": ["Rome"] * 3}, tmp_path / "b.csv")


def test_the_json_of_predict_holds_the_drift(run: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.csv"
    new.write_text("name,age,city\na,20,Rome\nb,500,Oslo\n")
    asked = ["predict", str(run), str(new), "-o", str(tmp_path / "o.csv"), "--json"]
    found = json.loads(CliRunner().invoke(app, asked).stdout)
    assert found["drift"]["odd"] == 1
    (told,) = found["drift"]["columns"]
    assert told == {"column": "age", "cells": 1, "row": "b", "value": "500", "seen": [17.0, 90.0]}
    said = CliRunner().invoke(app, [*asked[:-1], "--overwrite"])
    assert "note: " in said.stderr
    assert "row 'b', column 'age': '500', in training 17 to 90" in said.stderr


def test_the_service_warns_each_request_of_its_own_cells(run: Path) -> None:
    loaded = OwnRun.load(run)
    chunks = [
        {"age": [30, 500], "city": ["Rome", "Oslo"]},
        {"age": [30], "city": ["Rome"]},
        {"age": [30], "city": ["<b>"], "name": ["x"]},
    ]
    chunks = [{"name": [None] * len(chunk["age"]), **chunk} for chunk in chunks]
    found: Any = predict_together(loaded, [(chunk, None) for chunk in chunks])
    assert [len(answers["predictions"]) for answers in found] == [2, 1, 1]
    assert found[0]["warnings"] == ["row 2, column 'age': 500, in training 17 to 90"]
    assert found[1]["warnings"] == []
    assert found[2]["warnings"] == ["row 'x', column 'city': '<b>', in training 'Oslo', 'Rome'"]


def test_the_answers_of_the_service_hold_the_warnings(run: Path) -> None:
    from starlette.testclient import TestClient

    with TestClient(Service(run)) as client:
        rows = [{**ROW, "age": 500}]
        answer = client.post("/predict", json={"rows": rows}).json()
        told = client.get("/openapi.json").json()["paths"]["/predict"]["post"]["responses"]["200"]
    assert answer["warnings"] == ["row 1, column 'age': 500, in training 17 to 90"]
    content = told["content"]["application/json"]["schema"]
    assert content["properties"]["warnings"] == {"type": "array", "items": {"type": "string"}}
    assert content["required"] == ["predictions", "warnings"]
