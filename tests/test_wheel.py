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
    package = script().sources()
    assert "difformer/data/embedded/cora.npz" in package
    assert script().check_contents(contents(wheel), contents(sdist), package) == []
    assert wheel.stat().st_size < 2_000_000


def test_what_is_missing_and_what_is_too_much_is_named() -> None:
    package = ["difformer/a.py", "difformer/b.npz"]
    sdist = ["src/difformer/a.py", "src/difformer/b.npz", "README.md"]

    def found(wheel: list[str], sdist: list[str]) -> list[str]:
        return script().check_contents(wheel, sdist, package)

    assert found([*package, "difformer-1.dist-info/METADATA"], sdist) == []
    assert found(package[1:], sdist) == ["the wheel lacks difformer/a.py"]
    assert found(package, sdist[1:]) == ["the sdist lacks src/difformer/a.py"]
    for odd in ("tests/a.py", "difformer/__pycache__/a.pyc"):
        assert found([*package, odd], sdist) == [f"the wheel holds {odd}"]
    for odd in ("tests/a.py", ".venv/a", "results/a.json", "src/difformer/__pycache__/a.pyc"):
        assert found(package, [*sdist, odd]) == [f"the sdist holds {odd}"]
