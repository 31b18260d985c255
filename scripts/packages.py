"""The picture of the packages in CONTRIBUTING.md, generated from their imports.

    python scripts/packages.py          # writes it anew
    python scripts/packages.py --check  # exit code 1 where it is not current

A test calls both functions, and `tests/test_layers.py` takes its rules from LAYERS.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = REPOSITORY / "src"
PAGE = REPOSITORY / "CONTRIBUTING.md"
BEGIN, END = "<!-- packages -->\n", "<!-- end of packages -->"
# A module imports only from a lower number, or from its own package.
LAYERS = {
    "errors": -4,
    "machine": -3,
    "progress": -3,
    "extensions": -3,
    "settings": -3,
    "statistics": -3,
    "files": -3,
    "tensorfiles": -2,
    "metrics": -2,
    "blocks": -2,
    "core": 0,
    "nn": 1,
    "data": 1,
    "shards": 2,
    "train": 3,
    "estimators": 4,
    "systems": 5,
    "jobs": 6,
    "compare": 7,
    "runs": 8,
    "report": 9,
    "app": 10,
    "__main__": 11,
    "difformer_paper": 12,
}


def module_name(path: Path, root: Path = SOURCE) -> str:
    """The dotted name of a file: `difformer/core/graph.py` -> `difformer.core.graph`."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(dotted: str) -> str | None:
    """The layer a dotted name lies in: `difformer.core.graph` -> `core`."""
    parts = dotted.split(".")
    if parts[0] == "difformer_paper":
        return parts[0]
    return parts[1] if parts[0] == "difformer" and len(parts) > 1 else None


def imports(path: Path, root: Path = SOURCE) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import in a file, those inside functions included."""
    here = module_name(path, root).split(".")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            target = node.module or ""
            if node.level:
                base = here[: len(here) - node.level + (path.name == "__init__.py")]
                target = ".".join([*base, node.module] if node.module else base)
            # `from difformer.nn import frozen` names a module in the alias.
            yield from ((node.lineno, f"{target}.{a.name}") for a in node.names)


def uses() -> dict[str, set[str]]:
    """For each package of more than one module, the packages it imports from."""
    homes = [*(SOURCE / "difformer").iterdir(), SOURCE / "difformer_paper"]
    home = {path.name: path for path in homes if (path / "__init__.py").is_file()}
    found = {name: set[str]() for name in home}
    for package, others in found.items():
        for path in home[package].rglob("*.py"):
            others |= {layer_of(name) or "" for _, name in imports(path)} & set(found) - {package}
    return found


def picture() -> str:
    """The packages as a Mermaid chart: those on top first, an arrow per package imported.

    An arrow is left out where another path leads to the same package.
    """
    used = uses()
    lines = ["```mermaid", "flowchart TD"]
    for name in sorted(used, key=lambda name: (-LAYERS[name], name)):
        indirect = {far for other in used[name] for far in used[other]}
        lines += [f"    {name} --> {other}" for other in sorted(used[name] - indirect)]
    return "\n".join([*lines, "```", ""])


def filled(page: str) -> str:
    """The page with the picture that the imports give now."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + picture() + rest[rest.index(END) :]


def main() -> None:
    """Write the picture into the page, or compare it."""
    page = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        sys.exit(0 if filled(page) == page else "the picture is old: python scripts/packages.py")
    PAGE.write_text(filled(page), encoding="utf-8")


if __name__ == "__main__":
    main()
