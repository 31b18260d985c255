"""One writer: a file is the old one or the new one, and a failure is one line."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from difformer.errors import DataError, RunError
from difformer.files import alone_in, number_text, replacing, write_atomic, write_json


def test_file_and_folder_are_flushed_before_the_name_counts(tmp_path, monkeypatch):
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        done.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", lambda *a: (done.append("renamed"), replace(*a)))
    write_atomic(tmp_path / "deep" / "a.json", "{}")
    assert (tmp_path / "deep" / "a.json").read_text() == "{}"
    assert done == ["file", "renamed", "folder"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a"
    write_atomic(path, b"old")

    def fail(problem: Exception) -> None:
        with replacing(path, error=DataError) as part:
            part.write_bytes(b"half")
            raise problem

    with pytest.raises(DataError, match=f"^cannot write {path}: No space left on device; "):
        fail(OSError(28, "No space left on device"))
    with pytest.raises(ZeroDivisionError):
        fail(ZeroDivisionError())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("no folder")
    refused = pytest.raises(RunError, match="^cannot write .*file/a: ")
    with refused as caught, alone_in(tmp_path / "file"):  # what cannot be locked is not named
        write_atomic(tmp_path / "file" / "a", b"")
    assert "\n" not in str(caught.value)


# What writes a file, or gives it its name. `part` is what `replacing` hands out.
WRITING = (
    "write_text(",
    "write_bytes(",
    "os.replace",
    "os.rename",
    "mkstemp",
    '.open("w',
    ".replace(path)",
    ".replace(target)",
    "savefig(path",
    "torch.save",
    "save_file(",
    "to_csv",
    "to_parquet",
)
PASSES = ("/proc/", "part.open(", "# Not save_file")


def test_files_are_written_through_it_alone():
    """No other module opens a file to write, or renames one."""
    source = Path(__file__).parent.parent / "src" / "difformer"
    for path in source.rglob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        text = "\n".join(line for line in lines if not any(word in line for word in PASSES))
        for call in WRITING:
            assert path == source / "files.py" or call not in text, f"{path}: {call}"


def test_saved_tensors_are_readable_by_whom_other_files_are_and_leave_nothing_beside(tmp_path):
    import torch

    from difformer.tensorfiles import write_tensors

    (tmp_path / "plain").write_bytes(b"")
    write_tensors(tmp_path / "tensors", "model", {"a": torch.zeros(2)}, {})
    plain, tensors = ((tmp_path / name).stat().st_mode for name in ("plain", "tensors"))
    assert tensors == plain
    assert {path.name for path in tmp_path.iterdir()} == {"plain", "tensors"}


def test_one_writer_of_a_folder_waits_for_another(tmp_path):
    pytest.importorskip("fcntl")
    order = []

    def second():
        with alone_in(tmp_path):
            order.append("second")

    with alone_in(tmp_path):
        waiting = Thread(target=second)
        waiting.start()
        waiting.join(timeout=0.2)
        order.append("first")
    waiting.join()
    assert order == ["first", "second"]


def test_a_writer_whose_file_another_took_away_names_the_other(tmp_path):
    taken = pytest.raises(RunError, match="another process writes to this folder")
    with taken as caught, replacing(tmp_path / "a"):
        pass  # as if another process had given the file its name
    assert "make room" not in str(caught.value)


def test_json_holds_null_where_a_number_is_not_finite(tmp_path):
    found = {"loss": float("nan"), "ends": (1.5, float("inf"), {"low": -float("inf")})}
    write_json(tmp_path / "a.json", found, indent=1)

    def refuse(name: str) -> None:
        raise ValueError(name)

    read = json.loads((tmp_path / "a.json").read_text(), parse_constant=refuse)
    assert read == {"loss": None, "ends": [1.5, None, {"low": None}]}


def test_every_json_file_has_one_writer():
    # `json.dumps` writes NaN, which other readers refuse. In the others nothing is a file of JSON.
    package = Path(str(__import__("difformer").__file__)).parent
    found = {path for path in package.rglob("*.py") if "json.dump" in path.read_text("utf-8")}
    writers = {"files.py", "tensorfiles.py", "data/table/files.py"}
    assert found == {package / name for name in writers}


def test_a_number_is_written_so_that_it_reads_back():
    draw = random.Random(0)
    numbers = [draw.gauss(0, 1) * 10 ** draw.randint(-300, 300) for _ in range(500)]
    times = [1e9 + 0.001 * i for i in range(500)]
    assert [float(number_text(value)) for value in numbers + times] == numbers + times
    assert number_text(times[7]) == "1000000000.007"
    assert number_text(np.float32(0.3)) == "0.3"  # the digits of its precision, no more
    assert [number_text(v) for v in (5.0, -0.0, float("nan"))] == ["5", "-0", ""]
