"""The size card: what it counts on a small tree, and that this repository is within its maxima."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import size

MODULE = '''"""A module.

Of three lines."""

from dataclasses import dataclass

__all__ = ["Other", "Some"]


@dataclass(frozen=True)
class SomeOptions:
    """Options."""

    a: int = 1


@dataclass
class Some(SomeOptions):
    b: int = 2


@dataclass
class Other:
    c: int = 3


class PlainSettings: ...
'''


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "src" / "ours").mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    (tmp_path / "src" / "ours" / "a.py").write_text(MODULE)
    (tmp_path / "src" / "ours" / "b.py").write_text("x = 1\n")
    (tmp_path / "tests" / "test_a.py").write_text("1\n2\n3\n")
    return tmp_path


def test_the_figures_of_a_small_tree(tree: Path) -> None:
    lines = len(MODULE.splitlines()) + 1
    assert size.counted(tree) == {
        "source lines": lines,
        "source files": 2,
        "test lines": 3,
        "public names": 2,
        "dataclasses": 3,
        "settings classes": 2,  # by its own name, and by the class it inherits
        "docstring percent": round(100 * 4 / lines, 1),
        "longest line": 33,
    }


def test_a_figure_above_its_maximum_is_named_and_one_at_it_is_not() -> None:
    said = size.exceeded({"a": 3, "b": 2, "c": 1, size.SHARE: 50}, {"a": 2, "b": 2})
    assert said == [
        "a: 3 exceeds 2, the maximum in size.toml",
        "c: size.toml has no maximum for it",
    ]


def test_a_walk_counts_files_whose_functions_run(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "src" / "ours" / "c.py").write_text("def f():\n    return 1\n")
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', {!r}], check=True)"
    both = "import ours.b, ours.c; ours.c.f()"
    walks = {"here": (("-c", both),), "in a child": (("-c", child.format(both)),)}
    monkeypatch.setattr(size, "WALKS", walks)
    assert dict(size.walked(tree)) == {"files: here": 1, "files: in a child": 1}


def test_this_repository_is_within_its_maxima() -> None:
    found = size.counted(size.REPOSITORY) | size.of_help(size.REPOSITORY)
    assert size.exceeded(found, size.maxima()) == []
