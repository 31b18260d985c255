"""What importing the package gives, and costs."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import difformer

SOURCE = Path(difformer.__file__).parent.parent


def test_every_public_name_loads() -> None:
    for name, module in difformer._PUBLIC.items():
        assert getattr(difformer, name) is getattr(import_module(module), name)
        assert name in dir(difformer)


def test_public_names_are_the_ones_exported() -> None:
    assert set(difformer.__all__) == {*difformer._PUBLIC, "__version__"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'DIFFormr'"):
        _ = difformer.DIFFormr


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import difformer, sys; difformer.list_datasets(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=SOURCE)
