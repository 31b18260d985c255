"""The size card: how large the code base is, beside the most that size.toml allows.

    python scripts/size.py          # what can be counted without running anything, in a second
    python scripts/size.py --walks  # also how many files of ours run in each of five walks
    make size

Exit code 1, and one line for each figure that exceeds its maximum. Raising a maximum is allowed:
one line in size.toml, with the user who gains.

- public names: the entries of every `__all__` in src.
- dataclasses: classes decorated with `dataclass`.
- settings classes: dataclasses whose name, or that of a class they inherit, ends with Options,
  Settings, Parameters or Config.
- docstring share: lines of docstrings per line of src.
- a walk: the files of src of which at least one function or class body runs, in the process of the
  walk and its children. A module that is only imported does not count.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
SETTINGS = ("Options", "Settings", "Parameters", "Config")
COMMAND = ("-m", "difformer")
SHARE = "docstring percent"  # a share is shown, and not a size that must fall
FIT = """
from sklearn.datasets import load_digits
from difformer import DIFFormerClassifier
X, y = load_digits(return_X_y=True)
y[100:] = -1
DIFFormerClassifier(random_state=0).fit(X[:300], y[:300]).predict(X[:300])
"""
OWN = ("--nodes", "t.csv", "--edges", "e.csv", "--label", "y", "--id", "name")
PAPER = ("--models", "mlp", "--datasets", "cora", "--splits", "random:0", "--seeds", "1")
WALKS: dict[str, tuple[tuple[str, ...], ...]] = {
    "fit and predict": (("-c", FIT),),
    "train a table": ((*COMMAND, "train", *OWN, "--out", "table"),),
    "train a series": ((*COMMAND, "train", "--series", "s.csv", "--out", "series"),),
    "reproduce a cell": ((*COMMAND, "reproduce", "table2", *PAPER, "--out", "results"),),
    "shard and train": (
        (*COMMAND, "shard", "parts", *OWN, "--parts", "2"),
        (*COMMAND, "train", "parts", "--epochs", "3", "--out", "sharded"),
    ),
}
# Python runs this first in each process of a walk. Threads and children are counted too.
TRACER = """
import atexit, os, sys, threading
seen = set()
def look(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(ROOT):
        seen.add(code.co_filename)
ROOT = os.environ["SIZE_SOURCE"]
def save():
    sys.setprofile(None)
    with open(os.path.join(os.environ["SIZE_SEEN"], str(os.getpid())), "w") as file:
        file.write("\\n".join(sorted(seen)))
atexit.register(save)
threading.setprofile(look)
sys.setprofile(look)
"""


def counted(root: Path) -> dict[str, float]:
    """All figures that need only the text of the files."""
    source = sorted((root / "src").rglob("*.py"))
    texts = [file.read_text(encoding="utf-8") for file in source]
    trees = [ast.parse(text) for text in texts]
    lines = [line for text in texts for line in text.splitlines()]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    data = [
        each for each in classes if any("dataclass" in ast.unparse(d) for d in each.decorator_list)
    ]
    parents = {each.name: [ast.unparse(base) for base in each.bases] for each in classes}
    tests = [file.read_text(encoding="utf-8") for file in (root / "tests").rglob("*.py")]
    documented = sum(map(docstring_lines, trees))
    return {
        "source lines": len(lines),
        "source files": len(source),
        "test lines": sum(len(text.splitlines()) for text in tests),
        "public names": sum(map(public_names, trees)),
        "dataclasses": len(data),
        "settings classes": sum(is_settings(each.name, parents) for each in data),
        SHARE: round(100 * documented / max(len(lines), 1), 1),
        "longest line": max(map(len, lines), default=0),
    }


def public_names(tree: ast.Module) -> int:
    """How many names the `__all__` of a module lists."""
    return sum(
        len(node.value.elts)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.List | ast.Tuple)
        and any(isinstance(each, ast.Name) and each.id == "__all__" for each in node.targets)
    )


def is_settings(name: str, parents: dict[str, list[str]]) -> bool:
    """Whether a class or one that it inherits has the name of settings."""
    return name.endswith(SETTINGS) or any(
        base != name and is_settings(base, parents) for base in parents.get(name, [])
    )


def docstring_lines(tree: ast.Module) -> int:
    """How many lines of a file belong to docstrings."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    first = [n.body[0] for n in ast.walk(tree) if isinstance(n, kinds) and ast.get_docstring(n)]
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in first)


def of_help(root: Path) -> dict[str, float]:
    """Lines and options of `difformer train --help`, 100 columns wide."""
    text = run((*COMMAND, "train", "--help"), root, COLUMNS="100").stdout
    options = [line for line in text.splitlines() if line.startswith("  -")]
    return {"train --help lines": len(text.splitlines()), "train --help options": len(options)}


def walked(root: Path) -> Iterator[tuple[str, float]]:
    """For each walk, how many files of ours run; a walk that fails is an error."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        write_inputs(here)
        (here / "tracer").mkdir()
        (here / "tracer" / "sitecustomize.py").write_text(TRACER)
        for name, commands in WALKS.items():
            seen = here / name.replace(" ", "-")
            seen.mkdir()
            for words in commands:
                source = {"SIZE_SOURCE": str(root / "src"), "SIZE_SEEN": str(seen)}
                done = run(words, root, here / "tracer", here, **source)
                if done.returncode:
                    raise SystemExit(f"the walk {name!r} failed: {done.stderr.strip()}")
            files = [line for file in seen.iterdir() for line in file.read_text().splitlines()]
            yield f"files: {name}", len(set(files))


def write_inputs(folder: Path) -> None:
    """A table of 60 rows, its edges, and a series of 60 steps."""
    rows = [f"r{i},{i % 7},{i % 11},{'up' if i % 3 else 'down'}" for i in range(50)]
    rows += [f"r{i},{i % 7},{i % 11}," for i in range(50, 60)]
    edges = [f"r{i},r{(i + 1) % 60}" for i in range(60)]
    steps = [f"2024-{1 + t // 28:02}-{1 + t % 28:02},{t % 7},{t % 5 + 1}" for t in range(60)]
    for name, head, lines in (
        ("t.csv", "name,a,b,y", rows),
        ("e.csv", "source,target", edges),
        ("s.csv", "day,n0,n1", steps),
    ):
        (folder / name).write_text("\n".join([head, *lines]) + "\n")


def run(words: tuple[str, ...], root: Path, *paths: Path, **variables: str) -> Any:
    """Python in a process of its own, with the source of `root`; the last path is where it runs."""
    path = os.pathsep.join(map(str, (*paths[:1], root / "src")))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **variables}
    where = paths[-1] if paths else root
    command = [sys.executable, *words]
    return subprocess.run(command, env=environment, cwd=where, capture_output=True, text=True)


def maxima() -> dict[str, float]:
    """The maxima of size.toml."""
    return toml.loads((REPOSITORY / "size.toml").read_text(encoding="utf-8"))["most"]


def exceeded(figures: dict[str, float], allowed: dict[str, float]) -> list[str]:
    """One line for each figure that is larger than its maximum, or has none."""
    return [
        f"{name}: {value:,g} exceeds {allowed[name]:,g}, the maximum in size.toml"
        if name in allowed
        else f"{name}: size.toml has no maximum for it"
        for name, value in figures.items()
        if value > allowed.get(name, -1) and name != SHARE
    ]


def main() -> None:
    """Print the card; exit with 1 where a figure exceeds its maximum."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--walks", action="store_true", help="also run the five walks")
    parser.add_argument("--root", type=Path, default=REPOSITORY, help="another checkout")
    asked = parser.parse_args()
    root = asked.root.resolve()
    figures = counted(root) | of_help(root)
    figures |= dict(walked(root)) if asked.walks else {}
    allowed = maxima()
    for name, value in figures.items():
        most = "" if name == SHARE else f"{allowed.get(name, float('nan')):>10,g}"
        print(f"{name:24}{value:>10,g}{most}")
    sys.exit("\n".join(exceeded(figures, allowed)) or None)


if __name__ == "__main__":
    main()
