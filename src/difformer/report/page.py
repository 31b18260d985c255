"""Self-contained HTML pages: escaped text, data as JSON, scripts allowed by their hash.

The page's content security policy allows its own scripts by hash and no request at all, so that a
value that escaped sanitising could still not run or send anything.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from difformer import __version__
from difformer.blocks import Explorer, Finder, Plot, Section, Table
from difformer.files import json_text, write_atomic


def write_page(
    path: Path | str, title: str, sections: Sequence[Section], *, subtitle: str = ""
) -> Path:
    """Write a page of sections as one file, atomically."""
    path = Path(path)
    write_atomic(path, render_page(title, sections, subtitle=subtitle).encode())
    return path


def render_page(title: str, sections: Sequence[Section], *, subtitle: str = "") -> str:
    """The page as text; about 2 MB, nearly all of it plotly, which is compressed."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    blocks = [block for section in sections for block in section.blocks]
    plots = {
        block.name: {"data": block.data, "layout": block.layout}
        for block in blocks
        if isinstance(block, Plot)
    }
    explorer = next((block.data for block in blocks if isinstance(block, Explorer)), None)
    finders = {block.name: _finder(block) for block in blocks if isinstance(block, Finder)}
    drawn = bool(plots or explorer or any(each["curves"] for each in finders.values()))
    script = _asset("page.js") if drawn or finders else ""
    hashes = [_hash(script)] if script else ["'none'"]
    policy = " ".join([*hashes, *([_packed_plotly()[1], "'unsafe-eval'"] if drawn else [])])
    data = {"plots": plots, "explorer": explorer, "finders": finders}
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    template = environment.from_string(_asset("page.html.j2"))
    return template.render(
        title=title,
        subtitle=subtitle,
        sections=sections,
        version=__version__,
        policy=policy,
        style=Markup(_asset("page.css")),
        script=Markup(script),
        library=Markup(_packed_plotly()[0]) if drawn else None,
        data=Markup(safe_json(data)),
    )


def _finder(block: Finder) -> dict[str, Any]:
    """What the page looks records up in, and which of their columns hold words."""
    return {**vars(block), "texts": Table("", block.header, block.rows[:100]).texts}


def safe_json(value: Any) -> str:
    """JSON that is safe in a script element: without <, > and &, and without nan."""
    text = json_text(value, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


@cache
def _asset(name: str) -> str:
    return (resources.files("difformer.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def _packed_plotly() -> tuple[str, str]:
    """Plotly as base64 of gzip, less than half its size, and the hash of the unpacked script."""
    from plotly.offline import get_plotlyjs

    script: str = get_plotlyjs()
    packed = gzip.compress(script.encode(), 9, mtime=0)
    return base64.b64encode(packed).decode(), _hash(script)
