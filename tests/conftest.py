"""Fixtures for every test."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import Adam

from difformer.baselines.fitted import Boosting, Forest
from difformer.baselines.registry.rows import BoostingConfig, ForestConfig
from difformer.cli import main
from difformer.train.loop import Fit
from difformer.train.replicas import _Copies

# Tests run side by side: two processes of two threads each would wait for each other.
torch.set_num_threads(1)
# Shells start background jobs deaf to Ctrl-C, which some tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)


TRACED = 3  # calls of a step of training per object; those after them run the same lines


def install() -> None:
    """Nothing; the first call after `sys.settrace` makes coverage trace in C again."""


def first_calls_traced(method: Callable[..., Any]) -> Callable[..., Any]:
    """Coverage makes training slow: it looks at the first steps of each fit only."""

    @wraps(method)
    def call(self: Any, *values: Any, **options: Any) -> Any:
        calls = vars(self).setdefault("_calls_of_tests", Counter())
        calls[method.__name__] += 1
        trace = sys.gettrace()
        if trace is None or calls[method.__name__] <= TRACED:
            return method(self, *values, **options)
        sys.settrace(None)
        try:
            return method(self, *values, **options)
        finally:
            sys.settrace(trace)
            install()

    return call


@pytest.fixture(scope="session", autouse=True)
def trace_less() -> None:
    """Leave the many equal steps of training out of what coverage traces.

    A fixture, because the processes of xdist begin to trace after they have read this file.
    """
    places = ((Fit, "_train_epoch"), (Fit, "_metrics"), (_Copies, "outputs"), (Adam, "step"))
    for kind, name in places if sys.gettrace() is not None else ():
        setattr(kind, name, first_calls_traced(getattr(kind, name)))


@pytest.fixture(scope="session", autouse=True)
def small_forests() -> Iterator[None]:
    """Forests and boosting of 20 trees by default: each `train --nodes` fits five of both."""
    patch = pytest.MonkeyPatch()
    for kind, config in (
        (Forest, ForestConfig(trees=20)),
        (Boosting, BoostingConfig(iterations=20)),
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
