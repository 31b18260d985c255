"""Fixtures for every test."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from difformer.app.cli import main
from difformer.systems.fitted import Boosting, Forest
from difformer.systems.registry import get_system

# Tests run side by side: two processes of two threads each would wait for each other.
torch.set_num_threads(1)
# Shells start background jobs deaf to Ctrl-C, which some tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def small_forests() -> Iterator[None]:
    """Forests and boosting of 20 trees by default: each `train --nodes` fits five of both."""
    patch = pytest.MonkeyPatch()
    for kind, config in (
        (Forest, get_system("forest").configure(trees=20)),
        (Boosting, get_system("boosting").configure(iterations=20)),
    ):

        def estimator(
            self: Any, *values: Any, whole: Any = kind.estimator, small: Any = config
        ) -> Any:
            if self.config == type(small)():
                self.config = small
            return whole(self, *values)

        patch.setattr(kind, "estimator", estimator)
    yield
    patch.undo()


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


class Cli:
    """Calls `difformer` and gives back its exit code and what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *words: str) -> Outcome:
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as exit:
            main(words)
        out, err = self.capsys.readouterr()
        code = exit.value.code
        return Outcome(code if isinstance(code, int) else 1, out, err)

    def refused(self, *words: str) -> str:
        """The one line on stderr of a call that is refused; nothing else is printed."""
        done = self(*words)
        assert done.code == 2, done
        assert done.out == ""
        assert done.err.startswith("error: ")
        assert done.err.count("\n") == 1
        return done.err.strip()


REPOSITORY = Path(__file__).resolve().parent.parent


def find_data_root() -> Path | None:
    """Where the real datasets are: $DIFFORMER_DATA, or ../shared/data beside the clone."""
    named = os.environ.get("DIFFORMER_DATA")
    root = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    return root if root.is_dir() else None


DATA_ROOT = find_data_root()  # before a test changes the environment


@pytest.fixture
def data_root() -> Path:
    """The folder of real datasets; the test skips where there is none."""
    root = DATA_ROOT
    if root is None:
        pytest.skip("no real data: set DIFFORMER_DATA, or put ../shared/data beside the clone")
    return root


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `network` wait to be asked for: a test run must not depend on the outside."""
    if os.environ.get("DIFFORMER_NETWORK") != "1":
        skip = pytest.mark.skip(reason="talks to the network: set DIFFORMER_NETWORK=1")
        for item in items:
            if item.get_closest_marker("network"):
                item.add_marker(skip)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line, in an empty folder with an empty home."""
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("DIFFORMER_DATA", raising=False)
    return Cli(capsys)
