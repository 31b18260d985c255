"""Finding and fetching, against a server on this machine that misbehaves on request."""

from __future__ import annotations

import errno
import http.server
import threading
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from threading import Event, Thread
from typing import IO, Any

import pytest

from difformer.data import fetch as download
from difformer.data.fetch import (
    FetchError,
    Source,
    Web,
    Zip,
    cache_dir,
    fetch,
    find,
    obtain,
    search_path,
)
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
    return sorted(path.name for path in folder.glob("*") if path.is_file())


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


def test_a_git_id_is_that_of_git(tmp_path: Path) -> None:
    path = tmp_path / "hello"
    path.write_bytes(b"hello\n")
    assert download.is_whole(path, "git:ce013625030ba8dba906f756967f9e9ca394464a")
    assert not download.is_whole(path, "git:" + "0" * 40)


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


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A zip archive with one file of ours, and others that must not be written."""
    path = tmp_path / "toy.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as content:
        content.writestr("toy/data.bin", CONTENT)
        content.writestr("toy/../../../evil", b"x")
        content.writestr("toy/other.bin", b"\0" * (1 << 20))
    return path


def test_only_the_named_members_leave_an_archive(archive: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    Zip(archive.as_uri(), "toy").fetch(FILES, target)
    assert (target / "data.bin").read_bytes() == CONTENT
    assert names(target) == ["data.bin"]
    assert names(tmp_path) == ["toy.zip"]


@pytest.mark.parametrize(
    ("files", "limit", "message"),
    [
        ({"data.bin": "0" * 64}, 1 << 20, r"data\.bin has the wrong checksum"),
        ({"other.bin": ""}, 1 << 16, "other.bin is larger than"),
        ({"missing.bin": ""}, 1 << 20, "lacks .*toy/missing.bin"),
    ],
)
def test_another_file_or_a_bomb_in_an_archive_is_given_up(
    archive: Path, tmp_path: Path, files: dict[str, str], limit: int, message: str
) -> None:
    with pytest.raises(FetchError, match=message):
        Zip(archive.as_uri(), "toy", limit).fetch(files, tmp_path / "target")
    assert names(tmp_path / "target") == []


TEXTS = {"a.txt": b"first", "b.txt": b"second"}
SUMS = {name: sha256(content).hexdigest() for name, content in TEXTS.items()}


@dataclass
class Origin:
    """A source that counts what it is asked for, or refuses."""

    refuses: str = ""
    asked: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "nowhere" if self.refuses else "somewhere"

    def fetch(self, files: Mapping[str, str], folder: Path) -> None:
        self.asked += files
        if self.refuses:
            raise FetchError(self.refuses)
        write(folder, files)


def write(folder: Path, names: Any = TEXTS) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(TEXTS[name])


def source(origin: Any = None, folder: str = "toy/raw") -> Source:
    return Source(origin or Origin(refuses="no connection"), folder, SUMS)


@pytest.fixture(autouse=True)
def empty_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("root", "named"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("DIFFORMER_DATA", str(tmp_path / "named"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.platform", "linux")


def test_places_are_tried_in_turn(tmp_path: Path) -> None:
    root, named, cached = tmp_path / "root", tmp_path / "named", cache_dir()
    assert search_path(root) == [root, named, cached]
    assert cached == tmp_path / "cache" / "difformer" / "data"
    for place in (cached, named, root):
        write(place / "toy" / "raw")
        found = find("toy", [source()], root)
        assert found is not None
        assert found == place / "toy" / "raw"


def test_a_folder_with_some_of_the_files_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "root" / "toy" / "raw", ["a.txt"])
    write(tmp_path / "named" / "toy" / "raw")
    found = find("toy", [source()], tmp_path / "root")
    assert found is not None
    assert found == tmp_path / "named" / "toy" / "raw"


def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    write(tmp_path / "root" / "toy" / "raw")
    (tmp_path / "root" / "toy" / "raw" / "b.txt").write_bytes(b"secon")
    with pytest.raises(DataError, match=r"b\.txt has the wrong checksum: delete it, then run"):
        obtain("toy", [source()], tmp_path / "root")


def test_a_data_folder_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the data folder .*none does not exist"):
        obtain("toy", [source()], tmp_path / "none")


def test_what_is_nowhere_is_fetched_into_the_cache_once(tmp_path: Path) -> None:
    origin = Origin()
    found = obtain("toy", [source(origin)], tmp_path / "root")
    assert found == cache_dir() / "toy" / "raw"
    assert origin.asked == ["a.txt", "b.txt"]
    assert obtain("toy", [source(origin)]) == found
    assert len(origin.asked) == 2


def test_the_next_source_is_tried_when_one_refuses_and_its_form_is_found() -> None:
    second = source(Origin(), folder="toy/other")
    assert obtain("toy", [source(), second]).name == "other"
    assert find("toy", [source(), second]) == cache_dir() / "toy" / "other"
    mine = Source(None, "toy/mine", SUMS)  # the user puts the files there
    assert fetch("toy", [mine, second]).name == "other"
    write(cache_dir() / "toy" / "mine")
    assert fetch("toy", [mine, second]).name == "mine"


def test_fetching_keeps_whole_files_and_replaces_damaged_ones(tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "toy" / "raw"
    write(folder)
    (folder / "b.txt").write_bytes(b"secon")
    origin = Origin()
    assert fetch("toy", [source(origin)], tmp_path / "mine") == folder
    assert origin.asked == ["b.txt"]
    assert (folder / "b.txt").read_bytes() == b"second"


def test_a_dataset_that_another_process_fetches_is_waited_for_and_not_fetched_again() -> None:
    pytest.importorskip("fcntl")
    begun, goes_on = Event(), Event()

    class Slow(Origin):
        def fetch(self, files: Mapping[str, str], folder: Path) -> None:
            begun.set()
            assert goes_on.wait(timeout=30)
            super().fetch(files, folder)

    first, second = Slow(), Origin()
    theirs = Thread(target=fetch, args=("toy", [source(first)]))
    mine = Thread(target=fetch, args=("toy", [source(second)]))
    theirs.start()
    assert begun.wait(timeout=30)
    mine.start()
    mine.join(timeout=0.2)
    goes_on.set()
    theirs.join()
    mine.join()
    assert (sorted(first.asked), second.asked) == (["a.txt", "b.txt"], [])
    assert find("toy", [source()]) is not None


def test_a_dataset_that_is_nowhere_says_where_it_was_sought_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        obtain("toy", [source(), source()], tmp_path / "root")
    text = str(caught.value)
    assert "\n" not in text
    for part in [
        f"toy is not in {tmp_path / 'root'}, {tmp_path / 'named'}, {cache_dir()}",
        "(nowhere: no connection; nowhere: no connection)",
        "run `difformer datasets fetch toy`",
        "--data-dir or $DIFFORMER_DATA at a folder with toy/raw/a.txt",
    ]:
        assert part in text
