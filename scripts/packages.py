"""The picture of the packages in docs/architecture.md, generated from their imports.

    python scripts/packages.py          # writes it anew
    python scripts/packages.py --check  # exit code 1 where it is not current

A test calls both functions, and `tests/test_layers.py` takes its rules from LAYERS.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = REPOSITORY / "src"
PICTURE = REPOSITORY / "docs" / "images" / "packages.svg"
WIDE, HIGH, BOX, MIDDLE = 470, 66, 42, 480  # of a box with its margin, a row, a box; half the width
STYLE = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0 0L8 4L0 8z" fill="#777"/></marker></defs>\n'
    "<style>rect{fill:#eef3f8;stroke:#4477aa}.use{stroke:#777;marker-end:url(#tip)}"
    "text{font:11px sans-serif;text-anchor:middle;fill:#333}"
    ".name{font:bold 13px monospace;fill:#114}</style>"
)
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


def about(package: str) -> str:
    """The first sentence of a package's docstring."""
    home = SOURCE if package == "difformer_paper" else SOURCE / "difformer"
    text = ast.get_docstring(ast.parse((home / package / "__init__.py").read_text("utf-8"))) or ""
    first = re.split(r"\.(?:\s|$)", text.replace("\n", " "))[0]
    said = re.sub(r"^\w+: ", "", first)
    return said[:1].upper() + said[1:]


def picture() -> str:
    """The packages as an SVG: a row per layer, those on top first, and an arrow per import.

    An arrow is left out where another path leads to the same package.
    """
    used = uses()
    rows = sorted({LAYERS[name] for name in used}, reverse=True)
    place: dict[str, tuple[float, float]] = {}
    for row, layer in enumerate(rows):
        names = sorted(name for name in used if LAYERS[name] == layer)
        for column, name in enumerate(names):
            place[name] = (WIDE * (column + 0.5 - len(names) / 2) + MIDDLE, HIGH * row + 10)
    shapes = []
    for name, (x, y) in place.items():
        indirect = {far for other in used[name] for far in used[other]}
        for other in sorted(used[name] - indirect):
            ox, oy = place[other]
            ends = f'x1="{x:g}" y1="{y + BOX:g}" x2="{ox:g}" y2="{oy - 3:g}"'
            shapes.append(f'<line class="use" {ends} data-uses="{name} {other}"/>')
    for name, (x, y) in place.items():
        corner = f'x="{x - WIDE / 2 + 8:g}" y="{y:g}" width="{WIDE - 16}" height="{BOX}" rx="6"'
        shapes.append(f"<rect {corner}/>")
        shapes.append(f'<text class="name" x="{x:g}" y="{y + 17:g}">{name}</text>')
        shapes.append(f'<text x="{x:g}" y="{y + 33:g}">{escape(shortened(about(name)))}</text>')
    size = f'viewBox="0 0 {2 * MIDDLE:g} {HIGH * len(rows):g}"'
    return "\n".join(
        [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', STYLE, *shapes, "</svg>\n"]
    )


def shortened(text: str, most: int = 74) -> str:
    """The text, cut after a whole word where it does not fit into its box."""
    return text if len(text) <= most else text[:most].rsplit(" ", 1)[0].rstrip(",:;") + " …"


def main() -> None:
    """Write the picture, or compare it."""
    if "--check" in sys.argv[1:]:
        same = PICTURE.read_text(encoding="utf-8") == picture()
        sys.exit(0 if same else "the picture is old: python scripts/packages.py")
    PICTURE.write_text(picture(), encoding="utf-8")


if __name__ == "__main__":
    main()
