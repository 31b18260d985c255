"""Requests to the service of a run on a table: what is answered, and what is refused."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from difformer.app import cli
from difformer.app.service.app import make_app
from difformer.app.service.limits import Limits
from difformer.data.table.read import read_table
from difformer.jobs.own import OwnRun
from difformer.jobs.table import train_own

ROW = {"size": 2.9, "colour": "blue", "note": "likes to climb in the trees"}
FISH = {"size": 0.1, "colour": "red", "note": "likes to swim in the sea"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, draw = tmp_path_factory.mktemp("service"), random.Random(0)
    rows = [(FISH, ROW)[i % 2] for i in range(60)]
    table: dict[str, list[Any]] = {
        "name": [f"r{i}" for i in range(60)],
        "size": [draw.gauss(3 * (i % 2), 1) for i in range(60)],
        "colour": [row["colour"] for row in rows],
        "note": [row["note"] for row in rows],
        "kind": [("fish", "ape")[i % 2] if i % 3 == 0 else None for i in range(60)],
    }
    one_form = {"epochs": 25, "hidden_channels": 16, "kernel": "simple", "early_stopping": True}
    train_own(read_table(table, "kind", id="name"), folder / "run", one_form)
    return folder / "run"


@pytest.fixture(scope="module")
def client(run: Path) -> Any:
    pytest.importorskip("fastapi", reason="the service needs the extra serve")
    from starlette.testclient import TestClient

    with TestClient(make_app(run, Limits(bytes=20_000, rows=10))) as client:
        yield client


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
    from difformer.app.service import together
    from difformer.app.service.requests import RefusedError

    loaded, limits = OwnRun.load(run), Limits(rows=6, concurrent=1)
    chunks = [
        {name: [value, value] for name, value in ROW.items()} | {"size": [i, -i]} for i in range(9)
    ]
    chunks[4]["size"] = ["big", 1]
    alone = [together.predict_together(loaded, [chunk])[0] for chunk in chunks]
    sizes: list[int] = []
    whole = together.predict_together

    def counted(run: Any, some: Any, edges: Any = None) -> Any:
        sizes.append(len(some))
        return whole(run, some, edges)

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
    rows = [FISH, ROW] * 100

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
        (b'{"rows": [{"size": 1, "size": 2}]}', 400, "the body has 'size' twice in one object"),
        (b'{"rows": [], "rows": [{"size": 1}]}', 400, "the body has 'rows' twice in one object"),
        (b'{"rows": []}', 400, "at least one"),
        (b'{"rows": {}, "extra": 1}', 400, "must be"),
        (b'{"rows": [1]}', 422, "row 1 must be an object"),
        (b'{"rows": [{"size": 1}]}', 422, "row 1, column 'colour' is missing"),
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


def test_nobody_is_sent_to_another_host(run: Path) -> None:
    test = pytest.importorskip("starlette.testclient", reason="the service needs the extra serve")
    with test.TestClient(make_app(run, hosts=["*"]), follow_redirects=False) as client:
        asked = client.post("/predict/", headers={"host": "evil"}, json={})
    assert asked.status_code == 404


def test_only_who_has_the_token_is_answered(run: Path) -> None:
    test = pytest.importorskip("starlette.testclient", reason="the service needs the extra serve")
    with test.TestClient(make_app(run, token="secret")) as client:
        for shown in ({}, {"authorization": "Bearer Secret"}, {"authorization": "secret"}):
            for path in ("/docs", "/openapi.json", "/metrics"):
                assert client.get(path, headers=shown).status_code == 401
            assert client.post("/predict", json={"rows": [ROW]}, headers=shown).status_code == 401
        alive = client.get("/health")  # nothing else: the columns are part of the run
        assert (alive.status_code, alive.json()) == (200, {"status": "ok"})
        page = client.get("/")  # it asks for the token; nothing of the run is in it
        assert page.status_code == 200
        assert "colour" not in page.text
        right = {"authorization": "Bearer secret"}
        assert client.get("/health", headers=right).json()["columns"] == ["size", "colour", "note"]
        assert client.post("/predict", json={"rows": [ROW]}, headers=right).status_code == 200


HERE = "http://10.0.0.7:8000"  # what the client has reached
ALLOWED = ["Good.example", "*.better.example"]


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        (("localhost", "LOCALHOST:80", "127.0.0.1:8000", "[::1]:80", "10.0.0.7:8000"), 200),
        (("good.example", "a.better.example"), 200),
        (("evil.example", "evil.example:80", "localhost.evil", "a]", "", "10.0.0.8:8000"), 400),
    ],
)
def test_only_names_of_this_machine_and_allowed_ones_are_answered(
    run: Path, hosts: tuple[str, ...], status: int
) -> None:
    """A page of another host may have had its name point to this machine."""
    test = pytest.importorskip("starlette.testclient", reason="the service needs the extra serve")
    with test.TestClient(make_app(run, hosts=ALLOWED), base_url=HERE) as client:
        for host in hosts:
            answer = client.get("/openapi.json", headers={"host": host})
            assert answer.status_code == status, host
            assert status == 200 or "--allowed-host" in answer.json()["detail"]
    with test.TestClient(make_app(run), base_url=HERE) as client:
        assert client.get("/health", headers={"host": "good.example"}).status_code == 400


def test_the_address_told_is_one_to_open(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = "difformer.app.service.server"
    monkeypatch.setattr(f"{server}.listen", lambda *_: nullcontext())
    monkeypatch.setattr(f"{server}.make_server", lambda *_: SimpleNamespace(run=lambda _: None))
    with pytest.raises(SystemExit, match="0"):
        cli.main(["serve", str(run), "--host", "::1", "--port", "8000"])
    assert "http://[::1]:8000/" in "".join(capsys.readouterr())


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
