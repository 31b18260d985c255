"""The commit that a result file names."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from difformer.machine import commit, commit_of

SOURCE = Path(__file__).resolve().parent.parent / "src/difformer/machine.py"
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def package_in(folder: Path) -> Path:
    """A copy of the module in a package."""
    folder.mkdir(parents=True)
    shutil.copy(SOURCE, folder)
    return folder


def commit_in(package: Path) -> str:
    """What the copy of `commit` in a package says, in a process of its own."""
    code = "import runpy, sys; print(runpy.run_path(sys.argv[1])['commit']())"
    words = [sys.executable, "-c", code, str(package / SOURCE.name)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


@needs_git
def test_a_checkout_is_named_with_whether_its_code_is_changed(tmp_path: Path) -> None:
    top, package = tmp_path, package_in(tmp_path / "src/difformer")
    assert commit_in(package) == "None"
    git(top, "init", "-q")
    assert commit_in(package) == "None"  # there is no commit yet
    git(top, "add", ".")
    git(top, "commit", "-qm", "one")
    head = git(top, "rev-parse", "HEAD")
    assert commit_in(package) == head[:12]
    (top / "results.json").write_text("{}")  # a figure that was measured is not code
    assert commit_in(package) == head[:12]
    (package / "other.py").write_text("")
    assert commit_in(package) == f"{head[:12]}-dirty"


@needs_git
def test_a_package_installed_inside_another_checkout_is_not_that_checkout(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-qm", "theirs", "--allow-empty")
    assert commit_in(package_in(tmp_path / "site-packages/difformer")) == "None"


def test_a_file_without_a_commit_is_older_than_the_first_that_names_one() -> None:
    assert commit_of({}) == "before 2a0c100"
    assert commit_of({"commit": "1" * 12}) == "commit 111111111111"
    assert commit_of({"commit": None}) == "no git checkout"
    assert commit_of({"commit": commit()}) != "before 2a0c100"
