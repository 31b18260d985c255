"""The command line as a person calls it, for fixtures of a module as well."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from difformer.app.cli import main


@pytest.fixture(scope="session")
def run() -> Callable[..., int]:
    """Calls `difformer` and gives back its exit code."""

    def call(*words: object) -> int:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        return int(ended.value.code or 0)

    return call
