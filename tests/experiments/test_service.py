"""The service under load and abuse: over real sockets, with short limits."""

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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the service needs the extra serve")

from difformer.app.service.app import make_app
from difformer.app.service.limits import Limits
from difformer.app.service.requests import RefusedError
from difformer.app.service.server import listen, make_server
from difformer.app.service.together import Together
from difformer.data.table.read import read_table
from difformer.errors import DifformerError
from difformer.jobs.own import OwnRun
from difformer.jobs.table import train_own

ROW = {"size": 2.9, "colour": "blue"}
SHORT = Limits(seconds=0.3, idle=0.3)
PATIENCE = 30.0  # seconds; only a failing test waits so long


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, draw = tmp_path_factory.mktemp("service"), random.Random(0)
    sizes = [draw.gauss(3 * (i % 2), 1) for i in range(40)]
    colours = [("red", "blue")[i % 2] for i in range(40)]
    kinds = [("fish", "ape")[i % 2] for i in range(40)]
    table = read_table({"size": sizes, "colour": colours, "kind": kinds}, "kind")
    one_form = {"kernel": "simple", "early_stopping": True}
    params = {"epochs": 2, "hidden_channels": 8, "graph": None, **one_form}
    train_own(table, folder / "run", params)
    return folder / "run"


@contextmanager
def running(app: Any, limits: Limits) -> Iterator[Callable[[], socket.socket]]:
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


def post(rows: Any, head: str = "") -> bytes:
    body = json.dumps({"rows": rows}).encode()
    lines = f"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{head}"
    return f"{lines}content-length: {len(body)}\r\n\r\n".encode() + body


def until_closed(connection: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    parts: list[bytes] = []
    with connection:
        try:
            while part := connection.recv(65536):
                parts.append(part)
        except ConnectionResetError:
            pass
    return b"".join(parts)


def ask(connection: socket.socket, request: bytes) -> tuple[int, bytes]:
    """The status and body of one request that closes its connection."""
    connection.sendall(request)
    head, _, body = until_closed(connection).partition(b"\r\n\r\n")
    return int(head.split()[1]), body


@pytest.fixture(scope="module")
def client(run: Path) -> Any:
    from starlette.testclient import TestClient

    with TestClient(make_app(run)) as client:
        yield client


def test_the_schema_is_of_what_is_taken_and_answered(client: Any) -> None:
    told = client.get("/openapi.json").json()["paths"]["/predict"]["post"]
    body = told["requestBody"]["content"]["application/json"]["schema"]
    assert set(body["properties"]) == {"rows"}  # the table has no ids that edges could join
    row = body["properties"]["rows"]["items"]
    assert set(row["properties"]) == {"size", "colour", "kind"}
    assert row["required"] == ["size", "colour"]  # a label may be there, and is not looked at
    answer = client.post("/predict", json={"rows": [{**ROW, "kind": "ape"}]}).json()
    content = told["responses"]["200"]["content"]["application/json"]["schema"]
    named = content["properties"]["predictions"]
    told = named["items"]["properties"]
    assert set(told) == set(named["items"]["required"]) == set(answer["predictions"][0])
    kinds = {"string": str, "number": float, "array": list, "object": dict}
    for name, value in answer["predictions"][0].items():
        assert isinstance(value, kinds[told[name]["type"]]), name


@pytest.mark.parametrize("huge", [1e39, -1e308, 10**299, 10**4000, "1e308", "-1e400"])
def test_a_huge_number_is_refused_by_its_row_and_column(client: Any, huge: Any) -> None:
    answer = client.post("/predict", json={"rows": [ROW, {**ROW, "size": huge}]})
    assert answer.status_code == 422
    assert "row 2, column 'size'" in answer.json()["detail"]


def test_an_answer_that_would_not_be_finite_is_refused(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from starlette.testclient import TestClient

    app = make_app(run)
    monkeypatch.setattr(OwnRun, "answer", raising(ValueError("X: row 0 is not finite")))
    with TestClient(app) as client:
        answer = client.post("/predict", json={"rows": [ROW]})
    assert (answer.status_code, answer.json()["detail"]) == (
        422,
        "no answer: X: row 0 is not finite",
    )


def raising(error: Exception) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise error

    return function


def test_a_fault_is_a_500_and_one_line_of_log(
    run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from starlette.testclient import TestClient

    app = make_app(run)
    monkeypatch.setattr(OwnRun, "answer", raising(RuntimeError("two\nlines")))
    with TestClient(app) as client, caplog.at_level(logging.ERROR):
        answer = client.post("/predict", json={"rows": [ROW]})
    assert answer.status_code == 500
    assert "two" not in answer.text
    assert [record.getMessage() for record in caplog.records] == ["500: RuntimeError: two lines"]
    assert caplog.records[0].exc_info is None


def test_a_header_that_comes_drop_by_drop_is_dropped(run: Path) -> None:
    with running(make_app(run, SHORT), SHORT) as connect:
        never, partly = connect(), connect()
        partly.sendall(b"POST /predict HTTP/1.1\r\nhost: ")
        second = connect()  # a whole request, then a header without an end
        second.sendall(post([ROW]))
        assert b"200 OK" in second.recv(65536)
        second.sendall(b"GET /health HTTP/1.1\r\nx: ")
        assert until_closed(never) == b""
        assert until_closed(partly) == b""
        assert b"HTTP/1.1" not in until_closed(second)


def test_an_idle_connection_is_closed(run: Path) -> None:
    with running(make_app(run, SHORT), SHORT) as connect:
        connection = connect()
        connection.sendall(post([ROW]))
        assert until_closed(connection).startswith(b"HTTP/1.1 200 OK")


def test_a_body_that_does_not_come_is_a_408_and_the_connection_closes(run: Path) -> None:
    with running(make_app(run, SHORT), SHORT) as connect:
        status, body = ask(connect(), post([ROW])[:-5])
    assert status == 408
    assert b"0.3 seconds" in body


def flood(connection: socket.socket, head: bytes, seconds: float) -> float:
    """Send a body without reading, until the connection breaks; how many seconds it took."""
    connection.settimeout(seconds)
    begin = time.monotonic()
    with contextlib.suppress(OSError):
        connection.sendall(head)
        while time.monotonic() - begin < seconds:
            connection.sendall(bytes(65536))
    return time.monotonic() - begin


@pytest.mark.parametrize("more", ["", "connection: close\r\n", "expect: 100-continue\r\n"])
def test_a_client_that_sends_all_before_it_reads_gets_the_413(run: Path, more: str) -> None:
    with running(make_app(run), Limits()) as connect:
        status, body = ask(connect(), post([{"size": "x" * 30_000_000}], more))
    assert status == 413
    assert b"at most 1000000 bytes" in body


def test_a_client_whose_header_is_too_long_gets_the_400(run: Path) -> None:
    with running(make_app(run), Limits()) as connect:
        status, _ = ask(connect(), b"GET / HTTP/1.1\r\nx: " + b"x" * 30_000_000)
    assert status == 400


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])  # a 413, which closes; a 415
@pytest.mark.parametrize("limits", [Limits(drained=1_000_000), SHORT])
def test_a_refused_body_without_an_end_is_cut(run: Path, kind: str, limits: Limits) -> None:
    head = f"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n"
    with running(make_app(run, limits), limits) as connect, connect() as connection:
        length = f"content-length: {10**12}\r\n\r\n"
        assert flood(connection, (head + length).encode(), 5.0) < 5.0


def test_a_client_that_leaves_is_not_counted_as_a_fault(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(make_app(run), Limits()) as connect:
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


def test_more_connections_than_allowed_are_sent_away_and_told_when_to_come_back(run: Path) -> None:
    limits = Limits(connections=5)
    with running(make_app(run, limits), limits) as connect:
        taken = [connect() for _ in range(3)]
        for connection in taken:
            connection.sendall(post([ROW]))
            assert b"200 OK" in connection.recv(65536)
        refused = until_closed(connect())
        assert refused.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in refused
        for connection in taken:
            connection.close()


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is an address on Linux")
def test_one_address_cannot_take_all_connections(run: Path) -> None:
    limits = Limits(connections=5)
    with running(make_app(run, limits), limits) as connect, ExitStack() as held:
        taken = [held.enter_context(connect()) for _ in range(5)]
        port = taken[0].getpeername()[1]
        refused = [until_closed(connection) for connection in taken[3:]]
        assert all(answer.startswith(b"HTTP/1.1 503") for answer in refused)
        other = socket.create_connection(("127.0.0.1", port), PATIENCE, ("127.0.0.2", 0))
        assert ask(other, post([ROW], "connection: close\r\n"))[0] == 200


def test_more_waiting_rows_or_bytes_than_allowed_are_a_503(run: Path) -> None:
    limits = Limits(rows=10, waiting_rows=20, concurrent=1)
    loaded = OwnRun.load(run)
    chunk = {name: [value] * 10 for name, value in ROW.items()}

    async def crowd(limits: Limits) -> list[Any]:
        together = Together(loaded, limits)
        found = await asyncio.gather(
            *(together.predict(chunk, 10) for _ in range(8)), return_exceptions=True
        )
        assert together.rows == 0
        return found

    found = asyncio.run(crowd(limits))
    refused = [f for f in found if isinstance(f, RefusedError)]
    assert {(r.status, r.headers["retry-after"]) for r in refused} == {(503, "1")}
    assert 0 < len(refused) < 8
    roomy = asyncio.run(crowd(replace(limits, waiting_rows=80)))
    assert not any(isinstance(f, Exception) for f in roomy)


def test_bytes_held_are_bounded_and_given_back(run: Path) -> None:
    limits = Limits(waiting_bytes=300, seconds=PATIENCE)
    with running(make_app(run, limits), limits) as connect:
        large = post([ROW] * 8)
        slow = connect()
        slow.sendall(large[:-1])
        while True:  # until the first body is held
            status, _ = ask(connect(), post([ROW], "connection: close\r\n"))
            if status == 503:
                break
            assert status == 200
        slow.sendall(large[-1:])
        assert b"200 OK" in slow.recv(65536)
        slow.close()
        status, _ = ask(connect(), post([ROW], "connection: close\r\n"))
        assert status == 200


def test_the_help_page_needs_no_other_file(client: Any) -> None:
    page = client.get("/docs").text
    assert "<script" not in page
    assert "http" not in page
    assert "size" in page


def test_a_taken_port_is_one_line() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(DifformerError, match=f"cannot listen on 127.0.0.1 port {port}: "):
            listen("127.0.0.1", port)


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
    with listen("127.0.0.1", 0) as listening:
        server = make_server(make_app(run), Limits())
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        connection = socket.create_connection(listening.getsockname(), timeout=PATIENCE)
        connection.sendall(post([ROW]))
        assert begun.wait(PATIENCE)
        server.should_exit = True
        go.set()
        assert b"200 OK" in until_closed(connection)
        thread.join()
