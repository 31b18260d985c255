"""The documentation site: what a page prints, and that every public name and example is in it.

`make docs` builds the site, runs its tutorials and looks at what came out.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import difformer
from scripts import site

REPOSITORY = Path(__file__).resolve().parent.parent
TUTORIALS = sorted((REPOSITORY / "docs" / "tutorials").glob("*.md"))


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_is_executed_where_the_site_is_built(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("---\nexecuted: true\n---\n")
    assert f"tutorials/{path.name}" in (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")


def test_what_a_block_prints_stands_below_it() -> None:
    page = "a\n\n```python\nx = 1\n```\n\n```python\nprint(x + 1)\n```\nend\n"
    assert site.execute(page).endswith('```\n\n```text title="Output"\n2\n```\nend\n')


def test_a_figure_of_a_table_is_not_broken_over_two_lines() -> None:
    text = "82.6 ± 0.2\n| the first | 82.6 ± 0.2 (5) | +1.3 [-0.5, 2.2] |"
    shown = text.split("\n")[0] + "\n| the first | 82.6_±_0.2_(5) | +1.3_[-0.5,_2.2] |"
    assert site.unbroken(text) == shown.replace("_", "\u00a0")


def test_every_public_name_and_every_example_is_in_the_site() -> None:
    pages = "".join(site.api_pages().values())
    for name in difformer.__all__:
        assert name.startswith("__") or f".{name}\n" in pages
    shown = site.example_page()
    for path in (REPOSITORY / "examples").glob("*.py"):
        assert path.name in shown


def test_what_a_built_site_lacks_is_named(tmp_path: Path) -> None:
    """`make docs` looks at the whole site in this way."""
    names = ["results/fig2a/fig2a.png", "images/states.png", "api/estimators/index.html"]
    tutorials = [f"tutorials/{path.stem}/index.html" for path in TUTORIALS]
    for name in [*names, *tutorials]:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text('<span class="filename">Output</span>')
    shown = "<b>DIFFormerClassifier</b>(n_neighbors: int <i>=</i> 7, epochs: int = 200,"
    page = tmp_path / names[2]
    page.write_text(shown)
    problems = site.problems
    assert problems(tmp_path) == []
    page.write_text(shown.replace("200", "option(200)"))
    assert problems(tmp_path) == [
        "the page of the estimators lacks 'epochs: int = 200,'",
        "the page of the estimators shows 'option('",
    ]
    page.write_text(shown)
    (tmp_path / names[0]).unlink()
    (tmp_path / tutorials[0]).write_text("no such thing")
    assert problems(tmp_path) == [
        "results/fig2a/fig2a.png is missing",
        f"the tutorial {TUTORIALS[0].stem} shows no output",
    ]
