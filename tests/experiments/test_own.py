"""From a person's table to predictions for new rows, by files and over HTTP."""

from __future__ import annotations

import asyncio
import csv
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from difformer.data.split import Split
from difformer.data.tables import read_table
from difformer.errors import DataError, DifformerError, RunError
from difformer.experiments.own.peers import PEERS, simple_peers
from difformer.experiments.own.predict import predict_own
from difformer.experiments.own.run import OwnRun
from difformer.experiments.own.train import NAMED_UP_TO, train_own
from difformer.experiments.service import Limits, make_app

HEADER = ("name", "size", "colour", "note", "kind")


def make_rows(n: int, start: int = 0) -> list[tuple[str, ...]]:
    draw = random.Random(start)
    rows: list[tuple[str, ...]] = []
    for i in range(start, start + n):
        kind = i % 2
        size = f"{draw.gauss(3 * kind, 1):.3f}"
        colour = ("red", "blue")[kind] if draw.random() < 0.8 else "green"
        note = ("likes to swim in the sea", "likes to climb in the trees")[kind]
        rows.append((f"r{i}", size, colour, note, ("fish", "ape")[kind] if i % 3 == 0 else ""))
    return rows


def write(path: Path, rows: list[tuple[str, ...]], header: tuple[str, ...] = HEADER) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    own = read_table(write(folder / "t.csv", make_rows(90)), "kind", id="name")
    train_own(own, folder / "run", {"epochs": 25, "hidden_channels": 16})
    return folder / "run"


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_holds_its_files_and_fills_the_empty_labels(run: Path) -> None:
    names = {path.name for path in run.iterdir()}
    assert names == {
        "config.toml",
        "metrics.csv",
        "split.json",
        "estimator.safetensors",
        "held_out.csv",
        "predictions.csv",
        "result.json",
    }
    result = json.loads((run / "result.json").read_text())
    assert {"linear, standard", "sharp, standard"} <= set(result["tried"])
    filled = lines(run / "predictions.csv")
    assert len(filled) == 60
    right = [row["kind"] == ("fish", "ape")[int(row["name"][1:]) % 2] for row in filled]
    assert sum(right) > 50


def test_simple_peers_are_scored_on_the_same_held_out_labels(run: Path) -> None:
    found = json.loads((run / "result.json").read_text())["peers"]
    assert {one["system"] for one in found} == set(PEERS)
    values = [one["value"] for one in found]
    assert values == sorted(values, reverse=True)
    own = read_table(run.parent / "t.csv", "kind", id="name")
    split = Split.load(run / "split.json")
    assert simple_peers(own, split) == found
    guess = max((own.y[split.train] == c).float().mean().item() for c in (0, 1))
    assert values[0] > guess


def test_without_validation_rows_peers_are_scored_by_folds_of_the_labels(tmp_path: Path) -> None:
    own = read_table(write(tmp_path / "t.csv", make_rows(60)), "kind", id="name")
    labelled = (own.y >= 0).nonzero().flatten()
    all_rows = Split("all", labelled, labelled[:0], labelled[:0])
    found = simple_peers(own, all_rows)
    assert {one["system"] for one in found} == set(PEERS)
    spoiled = replace(own, y=torch.where(own.y >= 0, own.y, torch.randint(0, 2, own.y.shape)))
    assert simple_peers(spoiled, all_rows) == found  # other rows' labels are not looked at
    one_each = Split("few", [int((own.y == c).nonzero()[0]) for c in (0, 1)], [], [])
    assert simple_peers(own, one_each) == []


def test_numbers_are_predicted_by_the_peers_that_can_and_large_tables_by_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(str(i), str(2.5 * i + 0.1)) for i in range(40)]
    own = read_table(write(tmp_path / "t.csv", rows, ("size", "weight")), "weight")
    split = Split("halves", range(0, 40, 2), range(1, 40, 2), [])
    found = simple_peers(own, split)
    assert {one["system"] for one in found} == {"logistic", "forest", "boosting", "knn"}
    assert [one["value"] for one in found] == sorted(one["value"] for one in found)
    assert found[0]["metric"] == "rmse"
    monkeypatch.setattr("difformer.experiments.own.peers.PEERS_UP_TO", 39)
    assert simple_peers(own, split) == []


def test_a_killed_run_goes_on_to_the_same_bits(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from difformer.estimators.search import Search

    settings = {"epochs": 25, "hidden_channels": 16}
    own = read_table(run.parent / "t.csv", "kind", id="name")
    judge, calls = Search.judge, list[int]()

    def dies(self: Any, form: Any) -> None:
        judge(self, form)
        calls.append(1)
        if len(calls) in (1, 6):  # after the first form, and among the later ones
            raise RuntimeError("killed")

    monkeypatch.setattr(Search, "judge", dies)
    for resume in (False, True):
        with pytest.raises(RuntimeError, match="killed"):
            train_own(own, tmp_path / "run", settings, resume=resume)
        with pytest.raises(RunError, match="is not a finished run"):
            OwnRun.load(tmp_path / "run")
    train_own(own, tmp_path / "run", settings, resume=True)
    for name in ("estimator.safetensors", "predictions.csv", "metrics.csv", "split.json"):
        assert (tmp_path / "run" / name).read_bytes() == (run / name).read_bytes(), name
    finished = json.loads((tmp_path / "run" / "result.json").read_text())
    assert train_own(own, tmp_path / "run", settings, resume=True)[0] == finished
    with pytest.raises(RunError, match=r"another configuration \(own\.epochs"):
        train_own(own, tmp_path / "run", {"epochs": 26, "hidden_channels": 16}, resume=True)
    other = read_table(write(tmp_path / "o.csv", make_rows(90, start=1)), "kind", id="name")
    with pytest.raises(RunError, match=r"data\.fingerprint"):
        train_own(other, tmp_path / "run", settings, resume=True)


def test_ctrl_c_while_forms_are_compared_leaves_a_run_that_can_be_resumed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from difformer.estimators.search import Search

    settings = {"epochs": 25, "hidden_channels": 16}
    own = read_table(run.parent / "t.csv", "kind", id="name")

    def interrupt(self: Any, form: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Search, "judge", interrupt)
        assert train_own(own, tmp_path / "run", settings) == ({"interrupted": True}, None)
    assert train_own(own, tmp_path / "run", settings, resume=True)[1] is not None


def test_new_rows_get_label_probability_and_influential_rows(run: Path, tmp_path: Path) -> None:
    new = write(tmp_path / "new.csv", make_rows(20, start=200))
    assert predict_own(run, new, tmp_path / "out.csv") == 20
    found = lines(tmp_path / "out.csv")
    assert list(found[0]) == [
        "name",
        "kind",
        "probability",
        "probability of ape",
        "probability of fish",
        "influential",
    ]
    assert sum(r["kind"] == ("fish", "ape")[int(r["name"][1:]) % 2] for r in found) > 16
    assert all(0.5 <= float(row["probability"]) <= 1 for row in found)
    assert all(row["influential"].startswith("r") for row in found)


def test_the_label_column_may_be_left_out_of_new_rows(run: Path, tmp_path: Path) -> None:
    with_label = write(tmp_path / "a.csv", make_rows(5, start=300))
    without = write(tmp_path / "b.csv", [r[:-1] for r in make_rows(5, start=300)], HEADER[:-1])
    predict_own(run, with_label, tmp_path / "a.out.csv")
    predict_own(run, without, tmp_path / "b.out.csv")
    assert (tmp_path / "a.out.csv").read_bytes() == (tmp_path / "b.out.csv").read_bytes()


def test_edges_join_new_rows_to_known_ones(tmp_path: Path) -> None:
    rows = make_rows(40)
    write(tmp_path / "e.csv", [(f"r{i}", f"r{i + 2}") for i in range(38)], ("from", "to"))
    own = read_table(write(tmp_path / "t.csv", rows), "kind", id="name", edges=tmp_path / "e.csv")
    train_own(own, tmp_path / "run", {"epochs": 20, "hidden_channels": 16})
    unclear = ("new", "1.5", "green", "likes nothing", "")
    write(tmp_path / "new.csv", [unclear])
    for kind, known in (("fish", range(0, 20, 2)), ("ape", range(1, 20, 2))):
        edges = write(tmp_path / "n.csv", [(f"r{i}", "new") for i in known], ("from", "to"))
        predict_own(
            tmp_path / "run",
            tmp_path / "new.csv",
            tmp_path / "out.csv",
            edges=edges,
            overwrite=True,
        )
        assert lines(tmp_path / "out.csv")[0]["kind"] == kind
    bad = write(tmp_path / "n.csv", [("r1", "stranger")], ("from", "to"))
    with pytest.raises(DataError, match="row 1, column 'to': 'stranger' is not a known id"):
        predict_own(
            tmp_path / "run", tmp_path / "new.csv", tmp_path / "out.csv", edges=bad, overwrite=True
        )


def test_regression_predicts_numbers(tmp_path: Path) -> None:
    table = {"a": [i / 10 for i in range(60)], "y": [i / 5 if i % 2 else None for i in range(60)]}
    own = read_table(table, "y")
    train_own(own, tmp_path / "run", {"epochs": 40, "hidden_channels": 16, "graph": "knn"})
    predict_own(tmp_path / "run", {"a": [1.23, 4.56]}, tmp_path / "out.csv")
    found = lines(tmp_path / "out.csv")
    assert list(found[0]) == ["id", "y", "influential"]
    assert float(found[0]["y"]) < float(found[1]["y"])


def test_what_is_not_a_run_is_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a finished run"):
        OwnRun.load(tmp_path)
    own = read_table(write(tmp_path / "t.csv", make_rows(30)), "kind", id="name")
    with pytest.raises(RunError, match="holds a run already"):
        train_own(own, run)
    for name in ("estimator.safetensors", "result.json"):
        copy = tmp_path / name.replace(".", "-")
        copy.mkdir()
        for file in run.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
        (copy / name).write_bytes(b'{"task": "multiclass"')
        with pytest.raises(DifformerError, match=name.split(".")[0] + "|not a finished run"):
            OwnRun.load(copy)


def test_a_model_file_from_elsewhere_is_named(run: Path, tmp_path: Path) -> None:
    own = read_table(write(tmp_path / "t.csv", make_rows(90)), "kind", id="name")
    train_own(own, tmp_path / "other", {"epochs": 2, "hidden_channels": 16, "graph": None})
    model = (run / "estimator.safetensors").read_bytes()
    (tmp_path / "other" / "estimator.safetensors").write_bytes(model)
    with pytest.raises(
        RunError, match=r"estimator\.safetensors is not the file that the run wrote"
    ):
        OwnRun.load(tmp_path / "other")


def test_new_ids_must_be_different(run: Path, tmp_path: Path) -> None:
    new = write(tmp_path / "new.csv", make_rows(2, start=5) + make_rows(1, start=5))
    with pytest.raises(DataError, match="row 3, column 'name': the id 'r5' is there twice"):
        predict_own(run, new, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


@pytest.fixture(scope="module")
def client(run: Path) -> Any:
    pytest.importorskip("fastapi", reason="the service needs the extra serve")
    from starlette.testclient import TestClient

    with TestClient(make_app(run, Limits(bytes=20_000, rows=10))) as client:
        yield client


ROW = {"size": 2.9, "colour": "blue", "note": "likes to climb in the trees"}


def test_the_service_answers_as_the_run_does(client: Any, run: Path) -> None:
    answer = client.post("/predict", json={"rows": [ROW, {**ROW, "size": None}]})
    assert answer.status_code == 200
    first = answer.json()["predictions"][0]
    assert first["kind"] == "ape"
    assert 0.5 < first["probability"] <= 1
    assert len(first["influential"]) == 3
    alone = client.post("/predict", json={"rows": [ROW]}).json()["predictions"][0]
    assert alone == first


def test_requests_that_wait_are_answered_together_and_as_alone(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from difformer.experiments.service import together
    from difformer.experiments.service.requests import RefusedError

    loaded, limits = OwnRun.load(run), Limits(rows=6, concurrent=1)
    chunks = [
        {name: [value, value] for name, value in ROW.items()} | {"size": [i, -i]} for i in range(9)
    ]
    chunks[4]["size"] = ["big", 1]
    alone = [together.predict_together(loaded, [chunk])[0] for chunk in chunks]
    sizes: list[int] = []
    whole = together.predict_together

    def counted(run: Any, some: Any) -> Any:
        sizes.append(len(some))
        return whole(run, some)

    monkeypatch.setattr(together, "predict_together", counted)

    async def ask() -> list[Any]:
        crowd = together.Together(loaded, limits)
        waiting = [crowd.predict(chunk, 2) for chunk in chunks]
        return await asyncio.gather(*waiting, return_exceptions=True)

    found = asyncio.run(ask())
    assert max(sizes) == 3  # of two rows each: no more rows than one request may have
    assert len([s for s in sizes if s > 1]) >= 2
    refused = found.pop(4)
    assert isinstance(refused, RefusedError)
    assert "row 1, column 'size': 'big'" in refused.reason
    assert found == [*alone[:4], *alone[5:]]


def test_two_hundred_clients_at_once_are_answered_without_an_error(run: Path) -> None:
    httpx = pytest.importorskip("httpx", reason="the service needs the extra serve")
    fish = {"size": 0.1, "colour": "red", "note": "likes to swim in the sea"}
    rows = [fish, ROW] * 100

    async def ask() -> list[Any]:
        transport = httpx.ASGITransport(app=make_app(run))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            posts = [client.post("/predict", json={"rows": [row]}) for row in rows]
            return await asyncio.gather(*posts)

    answers = asyncio.run(ask())
    assert {answer.status_code for answer in answers} == {200}
    kinds = [answer.json()["predictions"][0]["kind"] for answer in answers]
    assert kinds == ["fish", "ape"] * 100


def test_the_service_tells_about_itself(client: Any) -> None:
    health = client.get("/health").json()
    assert health["status"] == "ok"
    assert health["columns"] == ["size", "colour", "note"]
    assert 'difformer_requests_total{status="200"}' in client.get("/metrics").text
    body = client.get("/openapi.json").json()["paths"]["/predict"]["post"]["requestBody"]
    rows = body["content"]["application/json"]["schema"]["properties"]["rows"]
    assert rows["items"]["required"] == ["size", "colour", "note"]
    assert client.get("/docs").status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "must be JSON"),
        (b"\xff\xfe\x00", 400, "must be JSON"),
        (b'{"rows": ' + b"[" * 9000, 400, "must be JSON"),
        (b'{"rows": [{"size": NaN}]}', 400, "NaN is not JSON"),
        (b'{"rows": [' + b"9" * 5000 + b"]}", 400, "must be JSON"),
        (b"[]", 400, "must be"),
        (b'{"rows": []}', 400, "at least one"),
        (b'{"rows": {}, "extra": 1}', 400, "must be"),
        (b'{"rows": [1]}', 422, "row 1 must be an object"),
        (b'{"rows": [{"size": 1}]}', 422, "row 1: column 'colour' is missing"),
        (b"x" * 30_000, 413, "at most 20000 bytes"),
    ],
)
def test_a_malformed_request_gets_a_4xx(
    client: Any, body: bytes, status: int, message: str
) -> None:
    answer = client.post("/predict", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert message in answer.json()["detail"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": "big"}, "row 1, column 'size': 'big' is not a finite number"),
        ({"size": [1]}, "row 1, column 'size' must be one value"),
        ({"size": 10**301}, "too large"),
        ({"size": "1e999"}, "not a finite number"),
        ({"weight": 1}, "column 'weight' was not there"),
        ({"note": "x " * 8000}, None),
    ],
)
def test_a_wrong_value_is_named(client: Any, change: dict[str, Any], message: str | None) -> None:
    answer = client.post("/predict", json={"rows": [{**ROW, **change}]})
    if message is None:
        assert answer.status_code == 200
    else:
        assert answer.status_code == 422
        assert message in answer.json()["detail"]


def test_other_requests_are_refused(client: Any) -> None:
    assert client.post("/predict", json={"rows": [ROW] * 11}).status_code == 413
    assert client.post("/predict", content=b"{}").status_code == 415
    assert client.get("/predict").status_code == 405
    assert client.get("/../../etc/passwd").status_code == 404
    chunked = client.post(
        "/predict",
        content=iter([b"x" * 1000] * 50),
        headers={"content-type": "application/json"},
    )
    assert chunked.status_code == 413


VALUES = st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=30)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["size", "colour", "note", "kind", "name", "\ud800", "x"]),
            VALUES | st.lists(VALUES, max_size=2),
        ),
        max_size=12,
    )
)
def test_no_request_makes_it_fail(client: Any, rows: list[Any]) -> None:
    body = json.dumps({"rows": rows}).encode()
    answer = client.post("/predict", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (200, 400, 413, 422)


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


def test_rows_of_training_are_answered_by_id(field: Path, tmp_path: Path) -> None:
    filled = {row["name"]: row for row in lines(field / "predictions.csv")}
    new = write(tmp_path / "new.csv", [("r0", "0"), ("x", "0"), ("r3", "3")], ("name", "kind"))
    predict_own(field, new, tmp_path / "out.csv")
    known, unknown, other = lines(tmp_path / "out.csv")
    assert known == filled["r0"]
    assert other == filled["r3"]
    assert unknown["probability"] != known["probability"]
    # An edge that names it is one that the row of the new table brings.
    edges = write(tmp_path / "e.csv", [(f"r{i}", "r0") for i in range(70, 140)], ("a", "b"))
    predict_own(field, new, tmp_path / "out.csv", edges=edges, overwrite=True)
    joined = lines(tmp_path / "out.csv")
    assert joined[0]["y"] == "b"
    assert joined[1:] == [unknown, other]


def test_edges_among_new_rows_are_used(field: Path, tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="the service needs the extra serve")
    from starlette.testclient import TestClient

    rows = [("x", "3"), ("y", "3"), ("z", "3")]
    new = write(tmp_path / "new.csv", rows, ("name", "kind"))
    pairs = [(f"r{i}", "x") for i in range(70, 140)] + [("y", "x"), ("r1", "r2")]
    edges = write(tmp_path / "e.csv", pairs, ("a", "b"))
    notes: list[str] = []
    predict_own(field, new, tmp_path / "plain.csv")
    predict_own(field, new, tmp_path / "out.csv", edges=edges, tell=notes.append)
    plain, found = lines(tmp_path / "plain.csv"), lines(tmp_path / "out.csv")
    chance = [float(row["probability of b"]) for row in found]
    before = [float(row["probability of b"]) for row in plain]
    assert chance[0] > before[0]
    assert chance[1] > before[1]  # by the row it is joined to
    assert found[2] == plain[2]
    assert notes == [f"{edges}: not looked at, because between known rows: 1 edges"]
    # As read chunk by chunk, and as asked of the service.
    body = {"rows": [{"name": name, "kind": kind} for name, kind in rows], "edges": pairs}
    with TestClient(make_app(field)) as client:
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
    pytest.importorskip("fastapi", reason="the service needs the extra serve")
    from starlette.testclient import TestClient

    filled = {row["name"]: row for row in lines(field / "predictions.csv")}
    rows = [{"name": "r0", "kind": 0}, {"kind": 0}, {"name": "r0", "kind": 0}]
    with TestClient(make_app(field)) as client:
        found = client.post("/predict", json={"rows": rows}).json()["predictions"]
    assert f"{found[0]['probability']:.9g}" == filled["r0"]["probability"]
    assert found[0] == found[2] != found[1]


def test_influential_rows_are_not_named_for_large_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert NAMED_UP_TO == 5000
    monkeypatch.setattr("difformer.experiments.own.train.NAMED_UP_TO", 50)
    own = read_table(write(tmp_path / "t.csv", make_rows(60)), "kind", id="name")
    params = {"epochs": 2, "hidden_channels": 16, "graph": None}
    train_own(own, tmp_path / "run", params)
    assert "influential" not in lines(tmp_path / "run" / "predictions.csv")[0]
    train_own(own, tmp_path / "asked", params, influential=2)
    assert "influential" in lines(tmp_path / "asked" / "predictions.csv")[0]
