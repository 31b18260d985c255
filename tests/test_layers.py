"""The layers of the package import only downwards, and siblings do not import each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "difformer"
LAYERS = {
    "errors": -4,
    "lazy": -3,
    "options": -3,
    "files": -3,
    "tensorfiles": -2,
    "core": 0,
    "nn": 1,
    "data": 1,
    "baselines": 2,
    "train": 2,
    "estimators": 3,
    "experiments": 4,
    "report": 5,
    "commands": 6,
    "cli": 7,
    "__main__": 8,
}
MODULES = sorted(SOURCE.rglob("*.py"))


def layer_of(dotted: str) -> str | None:
    """The layer a dotted name lies in: `difformer.core.graph` -> `core`."""
    parts = dotted.split(".")
    return parts[1] if parts[0] == "difformer" and len(parts) > 1 else None


def imports(path: Path, module: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import in a file, those inside functions included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                here = module.split(".")
                base = here[: len(here) - node.level + (1 if is_package else 0)]
                target = ".".join([*base, node.module] if node.module else base)
            else:
                target = node.module or ""
            # `from difformer import core` names the layer in the alias, not in the module.
            names = (
                [f"{target}.{a.name}" for a in node.names] if target == "difformer" else [target]
            )
            yield from ((node.lineno, name) for name in names)


def violations(path: Path, root: Path) -> list[str]:
    relative = path.relative_to(root).with_suffix("")
    is_package = relative.name == "__init__"
    parts = relative.parts[:-1] if is_package else relative.parts
    module = ".".join(["difformer", *parts])
    own = layer_of(module)
    if own is None:  # the package's own __init__ names everything, lazily
        return []
    found: list[str] = []
    for line, name in imports(path, module, is_package=is_package):
        other = layer_of(name)
        if other in LAYERS and other != own and LAYERS[other] >= LAYERS[own]:
            found.append(f"{module}:{line} ({own}) imports {name} ({other})")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_downwards(path: Path) -> None:
    assert violations(path, SOURCE) == []


def test_every_module_lies_in_a_layer() -> None:
    tops = {p.relative_to(SOURCE).parts[0].removesuffix(".py") for p in MODULES}
    assert tops - set(LAYERS) - {"__init__"} == set()


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
        ("data/a.py", "def f():\n    import difformer.cli", True),
    ],
)
def test_a_wrong_import_is_seen(tmp_path: Path, file: str, code: str, breaks: bool) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(code)
    assert bool(violations(path, tmp_path)) is breaks
