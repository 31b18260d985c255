"""The wheel and the sdist hold what they must and nothing else; `make wheel` also tries them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def script() -> Any:
    """scripts/try_wheel.py as a module."""
    path = REPOSITORY / "scripts" / "try_wheel.py"
    spec = importlib.util.spec_from_file_location("try_wheel", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_wheel_and_sdist_hold_what_they_must(tmp_path: Path) -> None:
    for tool in ("build", "hatchling"):
        pytest.importorskip(tool)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run([*command, str(REPOSITORY)], check=True, capture_output=True, timeout=300)
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    contents = script().contents
    assert script().check_contents(contents(wheel), contents(sdist)) == []
    assert wheel.stat().st_size < 2_000_000


def test_what_is_missing_and_what_is_too_much_is_named() -> None:
    tried = script()
    whole = list(tried.MUST)
    sources = [f"src/{name}" for name in whole]
    assert tried.check_contents(whole, sources) == []
    assert tried.check_contents(whole[1:], sources) == [f"the wheel lacks {whole[0]}"]
    assert tried.check_contents([*whole, "tests/a.py"], sources) == ["the wheel holds tests/a.py"]
    odd = "difformer/__pycache__/a.pyc"
    assert tried.check_contents([*whole, odd], sources) == [f"{odd} should not be there"]
