"""The documentation site: its tutorials run, and every public name and example is in it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import difformer

REPOSITORY = Path(__file__).resolve().parent.parent
TUTORIALS = sorted((REPOSITORY / "docs" / "tutorials").glob("*.md"))


# Statements that make `hook`, the module scripts/site.py, in any process.
LOAD = f"""
import importlib.util
import sys
sys.path.insert(0, {str(REPOSITORY / "src")!r})
spec = importlib.util.spec_from_file_location("hook", {str(REPOSITORY / "scripts" / "site.py")!r})
hook = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hook)
"""


def site() -> Any:
    """scripts/site.py as a module."""
    space: dict[str, Any] = {}
    exec(LOAD, space)
    return space["hook"]


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs(path: Path, tmp_path: Path) -> None:
    """In a process of its own: a tutorial may set seeds and leave what it likes behind."""
    assert path.read_text(encoding="utf-8").startswith("---\nexecuted: true\n---\n")
    assert f"tutorials/{path.name}" in (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    code = f"{LOAD}\nfrom pathlib import Path\nprint(hook.execute(Path({str(path)!r}).read_text()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert '```text title="Output"' in done.stdout


def test_what_a_block_prints_stands_below_it() -> None:
    page = "a\n\n```python\nx = 1\n```\n\n```python\nprint(x + 1)\n```\nend\n"
    assert site().execute(page).endswith('```\n\n```text title="Output"\n2\n```\nend\n')


def test_every_public_name_and_every_example_is_in_the_site() -> None:
    pages = "".join(site().api_pages().values())
    for name in difformer.__all__:
        assert name.startswith("__") or f".{name}\n" in pages
    shown = site().example_page()
    for path in (REPOSITORY / "examples").glob("*.py"):
        assert path.name in shown


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocstrings", reason="pip install 'difformer[docs]'")
    pytest.importorskip("material", reason="pip install 'difformer[docs]'")
    # The tutorials have tests of their own; here their blocks are left as they are.
    for part in ("docs", "results", "examples", "scripts", "src"):
        (tmp_path / part).symlink_to(REPOSITORY / part)
    config = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    hook = "hooks: [quick.py]"
    (tmp_path / "mkdocs.yml").write_text(config.replace("hooks: [scripts/site.py]", hook))
    (tmp_path / "quick.py").write_text(
        f"{LOAD}\nhook.execute = lambda text: text\n"
        "on_files, on_page_markdown = hook.on_files, hook.on_page_markdown\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "site" / "results" / "fig2a" / "fig2a.png").is_file()
    shown = re.sub(r"<[^>]+>", "", (tmp_path / "site/api/estimators/index.html").read_text())
    assert "DIFFormerClassifier" in shown
    assert "n_neighbors: int = 7," in shown  # an option by its default
    assert "epochs: int = 200," in shown
    assert "option(" not in shown
    assert "like(" not in shown
    assert (tmp_path / "site/images/states.png").is_file()
