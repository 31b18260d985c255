"""The layers of the package import only downwards, and siblings do not import each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import packages

REPOSITORY = Path(__file__).resolve().parent.parent
SOURCE, LAYERS = packages.SOURCE, packages.LAYERS
MODULES = sorted(SOURCE.rglob("*.py"))
GUIDE = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
TYPES = re.findall(r"^\| `(\w+)` in `([\w/.]+)`", GUIDE, re.MULTILINE)
WALKS = re.findall(r"^\*\*(.+?)\*\*.*\n\n((?:\d+\. .*\n)+)", GUIDE, re.MULTILINE)


def violations(path: Path, root: Path) -> list[str]:
    module = packages.module_name(path, root)
    own = packages.layer_of(module)
    if own is None:  # the package's own __init__ names everything, lazily
        return []
    found: list[str] = []
    for line, name in packages.imports(path, root):
        other = packages.layer_of(name)
        if other in LAYERS and other != own and LAYERS[other] >= LAYERS[own]:
            found.append(f"{module}:{line} ({own}) imports {name} ({other})")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_downwards(path: Path) -> None:
    assert violations(path, SOURCE) == []


def test_every_module_lies_in_a_layer() -> None:
    tops = {packages.layer_of(packages.module_name(path)) for path in MODULES}
    assert tops - set(LAYERS) == {None}  # difformer/__init__.py


@pytest.mark.parametrize(
    ("file", "code", "breaks"),
    [
        ("core/a.py", "import difformer.nn.layer", True),
        ("core/a.py", "from difformer.errors import DifformerError", False),
        ("nn/a.py", "from difformer.data.dataset import Dataset", True),
        ("nn/a.py", "from difformer.nn.layer import Layer", False),
        ("nn/a.py", "from difformer import data", True),
        ("nn/a.py", "from ..train import loop", True),
        ("nn/__init__.py", "from ..core import graph", False),
        ("core/__init__.py", "from ..nn import layer", True),
        ("data/a.py", "def f():\n    import difformer.app.cli", True),
    ],
)
def test_a_wrong_import_is_seen(tmp_path: Path, file: str, code: str, breaks: bool) -> None:
    path = tmp_path / "difformer" / file
    path.parent.mkdir(parents=True)
    path.write_text(code)
    assert bool(violations(path, tmp_path)) is breaks


def test_the_picture_of_the_packages_is_current() -> None:
    drawn = packages.PICTURE.read_text(encoding="utf-8")
    assert drawn == packages.picture(), "run: python scripts/packages.py"
    for arrow in ("nn core", "estimators train", "app report"):  # one without arrows would be too
        assert f'data-uses="{arrow}"' in drawn


def test_every_type_is_where_the_guide_says() -> None:
    assert len(TYPES) == 12
    for name, path in TYPES:
        code = (SOURCE / "difformer" / path).read_text(encoding="utf-8")
        assert f"\nclass {name}" in code, (name, path)


@pytest.mark.parametrize(("title", "steps"), WALKS, ids=[title for title, _ in WALKS])
def test_a_walk_is_a_straight_line_of_at_most_a_dozen_modules(title: str, steps: str) -> None:
    """Every module of the line is there, and one before it in the line imports it."""
    named = re.findall(r"^\d+\. `([\w/.]+)`", steps, re.MULTILINE)
    files = [SOURCE / n if n.startswith("difformer") else SOURCE / "difformer" / n for n in named]
    assert len(files) == steps.count("\n")
    assert 3 <= len(files) <= 12
    reached: set[str] = set()
    for place, path in enumerate(files):
        name = packages.module_name(path)
        assert path.is_file(), path
        assert place == 0 or any(f"{n}.".startswith(f"{name}.") for n in reached), name
        reached |= {name for _, name in packages.imports(path)}


def test_the_five_walks_are_told() -> None:
    assert len(WALKS) == 5
