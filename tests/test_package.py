"""What importing the package gives, and costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import difformer

SOURCE = Path(difformer.__file__).parent.parent


LAZY = ["", ".baselines", ".data", ".estimators", ".experiments", ".nn", ".report", ".train"]


@pytest.mark.parametrize("package", LAZY)
def test_every_public_name_loads_from_where_type_checkers_look(package: str) -> None:
    module = import_module(f"difformer{package}")
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    checked = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {*checked, "__version__"} == {*module.__all__, "__version__"}
    assert set(module.__all__) <= set(dir(module))
    for name, home in checked.items():
        assert getattr(module, name) is getattr(import_module(str(home)), name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'DIFFormr'"):
        _ = difformer.DIFFormr


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import difformer, sys; difformer.list_datasets(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=SOURCE)
