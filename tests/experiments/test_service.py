"""The service of a run on a table: what is answered and refused, under load and under abuse."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the service needs the extra serve")
from starlette.testclient import TestClient

from difformer.app import cli
from difformer.app.service import app as service
from difformer.app.service.app import RefusedError, Service, predict_together
from difformer.app.service.server import Limits, listen, make_server
from difformer.data.table.read import read_table
from difformer.errors import DifformerError
from difformer.jobs.own import OwnRun
from difformer.jobs.table import train_own

ROW = {"size": 2.9, "colour": "blue", "note": "likes to climb in the trees"}
FISH = {"size": 0.1, "colour": "red", "note": "likes to swim in the sea"}
SHORT = Limits(seconds=0.3, idle=0.3)
PATIENCE = 30.0  # seconds; only a failing test waits so long
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, draw = tmp_path_factory.mktemp("service"), random.Random(0)
    table: dict[str, list[Any]] = {
        "name": [f"r{i}" for i in range(60)],
        "size": [draw.gauss(3 * (i % 2), 1) for i in range(60)],
        **{name: [(FISH, ROW)[i % 2][name] for i in range(60)] for name in ("colour", "note")},
        "kind": [("fish", "ape")[i % 2] if i % 3 == 0 else None for i in range(60)],
    }
    one_form = {"epochs": 25, "hidden_channels": 16, "kernel": "simple", "early_stopping": True}
    train_own(read_table(table, "kind", id="name"), folder / "run", one_form)
    return folder / "run"


@pytest.fixture(scope="module")
def client(run: Path) -> Any:
    with TestClient(Service(run, Limits(bytes=20_000, rows=10))) as client:
        yield client


@contextmanager
def running(app: Any, limits: Limits) -> Generator[Callable[[], socket.socket]]:
    """A server in a thread; gives a function that connects to it."""
    with listen("127.0.0.1", 0) as listening:
        server = make_server(app, limits)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        port = listening.getsockname()[1]
        try:
            yield lambda: socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def served(run: Path, limits: Limits | None = None) -> Generator[Callable[[], socket.socket]]:
    limits = limits or Limits()
    with running(Service(run, limits), limits) as connect:
        yield connect


def post(rows: Any, head: str = "") -> bytes:
    body = json.dumps({"rows": rows}).encode()
    lines = f"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{head}"
    return f"{lines}content-length: {len(body)}\r\n\r\n".encode() + body


def until_closed(connection: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    parts: list[bytes] = []
    with connection, contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def ask(connection: socket.socket, request: bytes) -> tuple[int, bytes]:
    """The status and body of one request that closes its connection."""
    connection.sendall(request)
    head, _, body = until_closed(connection).partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def raising(error: Exception) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise error

    return function


def test_the_service_answers_as_the_run_does_and_tells_about_itself(client: Any) -> None:
    answer = client.post("/predict", json={"rows": [ROW, {**ROW, "size": None, "kind": "fish"}]})
    assert answer.status_code == 200
    first = answer.json()["predictions"][0]
    assert first["kind"] == "ape"
    assert 0.5 < first["probability"] <= 1
    assert len(first["influential"]) == 3
    assert client.post("/predict", json={"rows": [ROW]}).json()["predictions"] == [first]
    health = client.get("/health").json()
    assert (health["status"], health["columns"]) == ("ok", ["size", "colour", "note"])
    assert 'difformer_requests_total{status="200"}' in client.get("/metrics").text
    page = client.get("/docs").text
    assert "size" in page
    assert not {"<script", "http"} & set(page.split('"'))


def test_the_schema_is_of_what_is_taken_and_answered(client: Any) -> None:
    told = client.get("/openapi.json").json()["paths"]["/predict"]["post"]
    body = told["requestBody"]["content"]["application/json"]["schema"]
    assert set(body["properties"]) == {"rows", "edges"}
    row = body["properties"]["rows"]["items"]
    assert set(row["properties"]) == {"size", "colour", "note", "kind", "name"}
    assert row["required"] == ["size", "colour", "note"]
    answer = client.post("/predict", json={"rows": [ROW]}).json()
    content = told["responses"]["200"]["content"]["application/json"]["schema"]
    named = content["properties"]["predictions"]["items"]
    assert set(named["properties"]) == set(named["required"]) == set(answer["predictions"][0])
    kinds = {"string": str, "number": float, "array": list, "object": dict}
    for name, value in answer["predictions"][0].items():
        assert isinstance(value, kinds[named["properties"][name]["type"]]), name


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
        (iter([b"x" * 1000] * 50), 413, "at most 20000 bytes"),
        ([ROW] * 11, 413, "rows must be at most 10, got 11"),
        *(
            ([ROW, {**ROW, "size": huge}], 422, "row 2, column 'size'")
            for huge in (1e39, -1e308, 10**301, 10**4000, "1e308", "-1e400")
        ),
        ([{**ROW, "size": "big"}], 422, "row 1, column 'size': 'big' is not a finite number"),
        ([{**ROW, "size": [1]}], 422, "row 1, column 'size' must be one value"),
        ([{**ROW, "weight": 1}], 422, "column 'weight' was not there"),
        ([{**ROW, "note": "x " * 8000}], 200, ""),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_wrong_request_gets_a_4xx_that_names_the_fault(
    client: Any, body: Any, status: int, message: str
) -> None:
    content = json.dumps({"rows": body}) if isinstance(body, list) else body
    answer = client.post("/predict", content=content, headers=JSON)
    assert answer.status_code == status
    assert status == 200 or message in answer.json()["detail"]


def test_other_requests_are_refused(client: Any) -> None:
    assert client.post("/predict", content=b"{}").status_code == 415
    assert client.get("/predict").status_code == 405
    assert client.get("/../../etc/passwd").status_code == 404
    wrong = client.post("/predict", content=b"{}", headers={**JSON, "content-length": "x"})
    assert wrong.status_code == 400
    edges = client.post("/predict", json={"rows": [ROW], "edges": [["r0", "r1"]] * 20_001})
    assert edges.status_code == 413


VALUES = st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=30)
NAMES = st.sampled_from(["size", "colour", "note", "kind", "name", "\ud800", "x"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.dictionaries(NAMES, VALUES | st.lists(VALUES, max_size=2)), max_size=12))
def test_no_request_makes_it_fail(client: Any, rows: list[Any]) -> None:
    answer = client.post("/predict", content=json.dumps({"rows": rows}), headers=JSON)
    assert answer.status_code in (200, 400, 413, 422)


@pytest.mark.parametrize(
    ("error", "status", "said", "logged"),
    [
        (ValueError("X: row 0 is not finite"), 422, "no answer: X: row 0 is not finite", []),
        (RuntimeError("two\nlines"), 500, "its log says more", ["500: RuntimeError: two lines"]),
    ],
)
def test_what_the_model_refuses_is_a_422_and_a_fault_a_500_with_one_line_of_log(
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    status: int,
    said: str,
    logged: list[str],
) -> None:
    monkeypatch.setattr(OwnRun, "answer", raising(error))
    with TestClient(Service(run)) as client, caplog.at_level(logging.ERROR):
        answer = client.post("/predict", json={"rows": [ROW]})
    assert (answer.status_code, said in answer.json()["detail"]) == (status, True)
    assert [record.getMessage() for record in caplog.records] == logged
    assert not any(record.exc_info for record in caplog.records)


def test_only_who_has_the_token_is_answered(run: Path) -> None:
    with TestClient(Service(run, token="secret")) as client:
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


def test_only_names_of_this_machine_and_allowed_ones_are_answered(run: Path) -> None:
    """A page of another host may have had its name point to this machine."""
    own = ("localhost", "LOCALHOST:80", "127.0.0.1:8000", "[::1]:80", "10.0.0.7:8000")
    evil = ("evil.example", "evil.example:80", "localhost.evil", "a]", "", "10.0.0.8:8000")
    with TestClient(Service(run, hosts=ALLOWED), base_url=HERE) as client:
        for host in (*own, "good.example", "a.better.example", *evil):
            answer = client.get("/openapi.json", headers={"host": host})
            assert answer.status_code == (400 if host in evil else 200), host
            assert host not in evil or "--allowed-host" in answer.json()["detail"]
    with TestClient(Service(run), base_url=HERE) as client:
        assert client.get("/health", headers={"host": "good.example"}).status_code == 400
    with TestClient(Service(run, hosts=["*"]), follow_redirects=False) as client:
        asked = client.post("/predict/", headers={"host": "evil"}, json={})
        assert asked.status_code == 404  # nobody is sent to another host


def test_the_address_told_is_one_to_open(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = "difformer.app.service.server"
    monkeypatch.setattr(f"{server}.listen", lambda *_: nullcontext())
    monkeypatch.setattr(f"{server}.make_server", lambda *_: SimpleNamespace(run=lambda _: None))
    with pytest.raises(SystemExit, match="0"):
        cli.main(["serve", str(run), "--host", "::1", "--port", "8000"])
    assert "http://[::1]:8000/" in "".join(capsys.readouterr())


def test_a_taken_port_is_one_line() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(DifformerError, match=f"cannot listen on 127.0.0.1 port {port}: "):
            listen("127.0.0.1", port)


# --- many requests ---------------------------------------------------------------------------


def crowd(run: OwnRun, limits: Limits, chunks: list[Any]) -> list[Any]:
    """What requests of two rows or more that come at once are answered."""

    async def ask() -> list[Any]:
        app = Service(run, limits)
        waiting = [app.answer(chunk, len(chunk["size"])) for chunk in chunks]
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert app.together.rows == 0
        return found

    return asyncio.run(ask())


def test_requests_that_wait_are_answered_together_and_as_alone(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, whole = OwnRun.load(run), predict_together
    chunks = [{name: [value] * 2 for name, value in ROW.items()} for _ in range(9)]
    chunks = [{**chunk, "size": [i, -i]} for i, chunk in enumerate(chunks)]
    chunks[4]["size"] = ["big", 1]
    alone = [predict_together(loaded, [(chunk, None)])[0] for chunk in chunks]
    sizes: list[int] = []

    def counted(run: Any, batch: Any) -> Any:
        sizes.append(len(batch))
        return whole(run, batch)

    monkeypatch.setattr(service, "predict_together", counted)
    found = crowd(loaded, Limits(rows=6, concurrent=1), chunks)
    assert max(sizes) == 3  # of two rows each: no more rows than one request may have
    assert len([s for s in sizes if s > 1]) >= 2
    refused = found.pop(4)
    assert isinstance(refused, RefusedError)
    assert "row 1, column 'size': 'big'" in refused.detail
    assert found == [*alone[:4], *alone[5:]]


def test_more_waiting_rows_than_allowed_are_a_503(run: Path) -> None:
    loaded = OwnRun.load(run)
    chunks = [{name: [value] * 10 for name, value in ROW.items()}] * 8
    found = crowd(loaded, Limits(rows=10, waiting_rows=20, concurrent=1), chunks)
    refused = [f for f in found if isinstance(f, RefusedError)]
    assert {(r.status_code, (r.headers or {})["retry-after"]) for r in refused} == {(503, "1")}
    assert 0 < len(refused) < 8
    roomy = crowd(loaded, Limits(rows=10, waiting_rows=80, concurrent=1), chunks)
    assert not any(isinstance(f, Exception) for f in roomy)


# --- slow and greedy clients, over sockets ---------------------------------------------------


def test_a_header_that_comes_drop_by_drop_is_dropped(run: Path) -> None:
    with served(run, SHORT) as connect:
        never, partly = connect(), connect()
        partly.sendall(b"POST /predict HTTP/1.1\r\nhost: ")
        second = connect()  # a whole request, then a header without an end
        second.sendall(post([ROW]))
        assert b"200 OK" in second.recv(65536)
        second.sendall(b"GET /health HTTP/1.1\r\nx: ")
        assert until_closed(never) == b""
        assert until_closed(partly) == b""
        assert b"HTTP/1.1" not in until_closed(second)


def test_an_idle_connection_is_closed_and_a_body_that_does_not_come_is_a_408(run: Path) -> None:
    with served(run, SHORT) as connect:
        assert ask(connect(), post([ROW]))[0] == 200
        status, body = ask(connect(), post([ROW])[:-5])
    assert (status, b"0.3 seconds" in body) == (408, True)


@pytest.mark.parametrize("more", ["", "connection: close\r\n", "expect: 100-continue\r\n"])
def test_a_client_that_sends_all_before_it_reads_gets_the_413(run: Path, more: str) -> None:
    with served(run) as connect:
        status, body = ask(connect(), post([{"size": "x" * 30_000_000}], more))
        assert (status, b"at most 1000000 bytes" in body) == (413, True)
        assert ask(connect(), b"GET / HTTP/1.1\r\nx: " + b"x" * 30_000_000)[0] == 400


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])  # a 413, which closes; a 415
@pytest.mark.parametrize("limits", [Limits(drained=1_000_000), SHORT])
def test_a_refused_body_without_an_end_is_cut(run: Path, kind: str, limits: Limits) -> None:
    head = f"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n"
    with served(run, limits) as connect, connect() as connection:
        connection.settimeout(5.0)
        begin = time.monotonic()
        with contextlib.suppress(OSError):
            connection.sendall(f"{head}content-length: {10**12}\r\n\r\n".encode())
            while time.monotonic() - begin < 5.0:
                connection.sendall(bytes(65536))
        assert time.monotonic() - begin < 5.0


def test_a_client_that_leaves_is_not_counted_as_a_fault(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with served(run) as connect:
        with connect() as leaving:
            leaving.sendall(post([ROW])[:-5])
            time.sleep(0.2)  # so that the body is awaited
        deadline = time.monotonic() + PATIENCE
        while True:
            _, counted = ask(connect(), b"GET /metrics HTTP/1.0\r\nhost: localhost\r\n\r\n")
            if b'status="400"' in counted or time.monotonic() > deadline:
                break
    assert b'status="500"' not in counted
    assert not caplog.records


def test_who_does_not_read_the_answer_is_dropped() -> None:
    dropped = threading.Event()

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return

        async def gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        watching = asyncio.create_task(gone())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not watching.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)
        dropped.set()

    with running(endless, SHORT) as connect, connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert dropped.wait(PATIENCE)


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is an address on Linux")
def test_one_address_has_half_of_the_connections_and_is_told_when_to_come_back(run: Path) -> None:
    with served(run, Limits(connections=5)) as connect, ExitStack() as held:
        taken = [held.enter_context(connect()) for _ in range(5)]
        port = taken[0].getpeername()[1]
        for connection in taken[3:]:
            refused = until_closed(connection)
            assert refused.startswith(b"HTTP/1.1 503")
            assert b"retry-after: 1" in refused
        other = socket.create_connection(("127.0.0.1", port), PATIENCE, ("127.0.0.2", 0))
        assert ask(other, post([ROW], "connection: close\r\n"))[0] == 200


def test_bytes_held_are_bounded_and_given_back(run: Path) -> None:
    closing = post([ROW], "connection: close\r\n")
    with served(run, Limits(waiting_bytes=500, seconds=PATIENCE)) as connect:
        large = post([ROW] * 8)
        slow = connect()
        slow.sendall(large[:-1])
        while (status := ask(connect(), closing)[0]) != 503:  # until the first body is held
            assert status == 200
        slow.sendall(large[-1:])
        assert b"200 OK" in slow.recv(65536)
        slow.close()
        assert ask(connect(), closing)[0] == 200


def test_a_request_under_way_is_answered_when_the_service_stops(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()
    whole = OwnRun.answer

    def slow(*words: Any, **options: Any) -> Any:
        begun.set()
        assert go.wait(PATIENCE)
        return whole(*words, **options)

    monkeypatch.setattr(OwnRun, "answer", slow)
    with served(run) as connect:
        connection = connect()
        connection.sendall(post([ROW]))
        assert begun.wait(PATIENCE)
        threading.Timer(0.2, go.set).start()  # by then the server has been told to stop
    assert b"200 OK" in until_closed(connection)
