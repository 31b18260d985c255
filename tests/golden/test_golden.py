"""The software answers as it was recorded: floats to 1e-6, texts equal.

The cases run in a process of their own, by `record.py`: no fixture or patch of the tests reaches
them. After a change of an answer that is meant, `python tests/golden/record.py --only NAME`.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
NAMES = sorted(file.stem for file in (HERE / "answers").glob("*.json"))


@cache
def recorded_now(group: str, folder: Path) -> str:
    """Run the cases of a group into a folder; what the process said."""
    command = [sys.executable, str(HERE / "record.py"), "--only", group, "--out", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("golden")


@pytest.mark.parametrize("name", NAMES)
def test_the_answer_is_the_recorded_one(name: str, fresh: Path) -> None:
    said = recorded_now(name.partition("-")[0], fresh)
    file = fresh / f"{name}.json"
    assert file.exists(), said
    before = json.loads((HERE / "answers" / file.name).read_text(encoding="utf-8"))
    found = list(differences(before, json.loads(file.read_text(encoding="utf-8"))))
    assert not found, "\n".join([f"{name}: {len(found)} differ", *found[:20]])


def test_every_case_is_recorded(fresh: Path) -> None:
    command = [sys.executable, str(HERE / "record.py"), "--list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert sorted(listed) == NAMES


@pytest.mark.parametrize(
    ("before", "after"),
    [(1.0, 1.00001), ("0.5", "0.51"), ("a", "b"), ([1], [1, 2]), ({"a": 1}, {}), (None, 0.0)],
)
def test_a_difference_is_seen(before: Any, after: Any) -> None:
    assert len(list(differences(before, after))) == 1
    assert not list(differences(before, before))


def differences(before: Any, after: Any, where: str = "") -> Any:
    """Where two documents differ, one line for each place."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from differences(before.get(key, GONE), after.get(key, GONE), f"{where}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from differences(old, new, f"{where}[{i}]")
    elif not alike(before, after):
        yield f"  {where}: {before!r} was recorded, now {after!r}"


GONE = "(nothing)"


def alike(before: Any, after: Any) -> bool:
    """Equal, or two numbers (also as texts, as in cells) that agree to 1e-6."""
    if before == after:
        return True
    try:
        old, new = float(before), float(after)
    except (TypeError, ValueError):
        return False
    if math.isnan(old) and math.isnan(new):
        return True
    return math.isclose(old, new, rel_tol=1e-6, abs_tol=1e-6)
