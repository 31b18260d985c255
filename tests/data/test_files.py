from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from difformer.data.fetch import (
    FetchError,
    Source,
    cache_dir,
    fetch,
    find,
    obtain,
    search_path,
)
from difformer.errors import DataError

CONTENT = {"a.txt": b"first", "b.txt": b"second"}
SHA256 = {name: sha256(content).hexdigest() for name, content in CONTENT.items()}


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


def write(folder: Path, names: Any = CONTENT) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(CONTENT[name])


def source(origin: Any = None, folder: str = "toy/raw") -> Source:
    return Source(origin or Origin(refuses="no connection"), folder, SHA256)


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


def test_another_form_of_the_dataset_is_found_too(tmp_path: Path) -> None:
    write(tmp_path / "named" / "toy" / "other")
    other = source(folder="toy/other")
    assert find("toy", [source(), other]) == tmp_path / "named" / "toy" / "other"


def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    write(tmp_path / "root" / "toy" / "raw")
    (tmp_path / "root" / "toy" / "raw" / "b.txt").write_bytes(b"secon")
    with pytest.raises(DataError, match=r"b\.txt has the wrong checksum: delete it, then run"):
        obtain("toy", [source()], tmp_path / "root")


def test_a_data_folder_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the data folder .*none does not exist"):
        obtain("toy", [source()], tmp_path / "none")


def test_what_is_found_is_not_fetched(tmp_path: Path) -> None:
    write(tmp_path / "named" / "toy" / "raw")
    origin = Origin()
    obtain("toy", [source(origin)])
    assert origin.asked == []


def test_what_is_nowhere_is_fetched_into_the_cache(tmp_path: Path) -> None:
    origin = Origin()
    found = obtain("toy", [source(origin)], tmp_path / "root")
    assert found == cache_dir() / "toy" / "raw"
    assert origin.asked == ["a.txt", "b.txt"]
    assert obtain("toy", [source(origin)]) == found
    assert len(origin.asked) == 2


def test_the_next_source_is_tried_when_one_refuses() -> None:
    second = source(Origin(), folder="toy/other")
    assert obtain("toy", [source(), second]).name == "other"


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


def test_a_full_disk_is_not_tried_again_from_another_source() -> None:
    class Full(Origin):
        def fetch(self, files: Mapping[str, str], folder: Path) -> None:
            raise DataError("no space left")

    second = Origin()
    with pytest.raises(DataError, match="no space left"):
        obtain("toy", [source(Full()), source(second)])
    assert second.asked == []
