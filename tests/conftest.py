"""Fixtures for every test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

# Tests run side by side: two processes of two threads each would wait for each other.
torch.set_num_threads(1)

REPOSITORY = Path(__file__).resolve().parent.parent


def find_data_root() -> Path | None:
    """Where the real datasets are: $DIFFORMER_DATA, or ../shared/data beside the clone."""
    named = os.environ.get("DIFFORMER_DATA")
    root = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    return root if root.is_dir() else None


@pytest.fixture
def data_root() -> Path:
    """The folder of real datasets; the test skips where there is none."""
    root = find_data_root()
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
