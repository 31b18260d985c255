"""What importing the package gives, and costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import difformer

SOURCE = Path(difformer.__file__).parent.parent


# `NAME` in `folder/file.py`
NAMED = r"`(\w+)`[^|`]* (?:in|of) `(?:src/difformer/)?([\w/]+\.py)`"


def test_every_public_name_loads_from_where_type_checkers_look() -> None:
    module = difformer
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


def test_every_name_of_the_package_that_a_text_mentions_is_there() -> None:
    """An error that recommends `difformer.read_table` must recommend what exists."""
    mentioned: dict[str, str] = {}
    for path in (SOURCE / "difformer").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for name in re.findall(r"(?<![.\w])difformer\.([A-Za-z]\w*)", node.value):
                    mentioned[name] = path.name
    assert {"load_dataset", "core"} <= set(mentioned)
    packages = {path.stem for path in (SOURCE / "difformer").iterdir()}
    files = {"sqlite", "example", "KIND"}  # the last one: a group of entry points
    unknown = set(mentioned) - set(difformer.__all__) - packages - files
    assert not unknown, {name: mentioned[name] for name in unknown}


def test_every_name_in_the_contributors_table_is_there() -> None:
    guide = (SOURCE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = [line for line in guide.splitlines() if line.startswith("| ")]
    named = [(name, path) for row in rows for name, path in re.findall(NAMED, row)]
    assert len(named) >= 3
    for name, path in named:
        assert name in (SOURCE / "difformer" / path).read_text(encoding="utf-8"), (name, path)
