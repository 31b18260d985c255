"""What the documentation site adds to docs/: figures, results, the API, examples, executed pages.

An mkdocs hook (see mkdocs.yml). If the front matter of a page has `executed: true`, its Python
blocks are run in order, in one namespace. The page shows what a block prints, and the figures it
leaves open, below the block. The build fails if a page fails to run or the site lacks something.
"""

from __future__ import annotations

import base64
import contextlib
import io
import re
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"```python\n(.*?)```\n", re.DOTALL)
RESULT = re.compile(r"\]\(\.\./results/([^)\s]+)\)")
# Spaces inside a figure of a table: 82.6 ± 0.2 (5), +1.3 [0.5, 2.2].
INSIDE = re.compile(r"(?<=[\d\]]) (?=±|\[[-\d]|\(\d+\))|(?<=±) |(?<=\d,) (?=[-\d.]+\])")
IMAGE = re.compile(r"!\[[^\]]*\]\(([^)\s]+\.(?:png|svg))\)")


def execute(text: str) -> str:
    """A page with its Python blocks run and their output below them."""
    import matplotlib as mpl

    mpl.use("Agg")
    space: dict[str, Any] = {"__name__": "__main__"}

    def run(match: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(match[1], "<page>", "exec"), space)
        shown = f'```text title="Output"\n{printed.getvalue()}```\n' if printed.getvalue() else ""
        return match[0] + "\n" + shown + "".join(_figures())

    return BLOCK.sub(run, text)


def _figures() -> list[str]:
    """The open figures as pictures inside the page; they are closed."""
    from matplotlib import pyplot

    found: list[str] = []
    for number in pyplot.get_fignums():
        content = io.BytesIO()
        pyplot.figure(number).savefig(content, format="png", dpi=110, bbox_inches="tight")
        encoded = base64.b64encode(content.getvalue()).decode()
        source = f"data:image/png;base64,{encoded}"
        found.append(f'\n<img alt="Figure of the code above" src="{source}">\n')
    pyplot.close("all")
    return found


API = {
    "estimators": (
        "Estimators",
        "Classes with the interface of scikit-learn. [Your own data](../estimators.md) and "
        "[Graphs over time](../temporal.md) describe how to use them.",
    ),
    "nn": (
        "Models and layers",
        "PyTorch modules. [The mathematics](../maths.md) has their equations.",
    ),
    "core": (
        "Diffusion, diffusivities and graphs",
        "The diffusion process without learned weights, its parts, and prepared graphs. "
        "[The mathematics](../maths.md) has the definitions.",
    ),
    "data": (
        "Datasets and splits",
        "Functions that load datasets and read tables, and the classes they return.",
    ),
    "runs": ("Runs", "Functions that open what `difformer train` saved in a run folder."),
}
"""Title and first sentences of the API pages, by package."""


def api_pages() -> dict[str, str]:
    """One page per package with public names, for mkdocstrings."""
    import difformer

    groups: dict[str, list[str]] = {group: [] for group in API}
    groups["nn"].append("difformer.nn.config.DIFFormerConfig")  # the options of DIFFormer
    for name in difformer.__all__:
        if not name.startswith("__"):
            value = getattr(difformer, name)
            groups[value.__module__.split(".")[1]].append(f"{value.__module__}.{name}")
    return {
        f"api/{group}.md": "\n\n".join([f"# {title}", about, *(f"::: {n}" for n in groups[group])])
        + "\n"
        for group, (title, about) in API.items()
    }


NAMES = {
    "face": "Face",
    "hub": "Hub",
    "hugging": "Hugging",
    "lightning": "Lightning",
    "networkx": "NetworkX",
    "onnx": "ONNX",
    "pyg": "PyG",
    "scipy": "SciPy",
    "tensorboard": "TensorBoard",
}
"""Words in the names of examples with a special spelling."""


def example_page() -> str:
    """Every example, with its docstring as text."""
    about = "Short scripts that use the library with other tools. They are in `examples/`, and the "
    parts = ["# Examples", "", about + "tests run them.", ""]
    for path in sorted((REPOSITORY / "examples").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        _, docstring, code = text.split('"""', 2)
        title = " ".join(NAMES.get(word, word) for word in path.stem.split("_"))
        title = title[:1].upper() + title[1:]
        parts += [f"## {title}", "", docstring.strip(), ""]
        parts += [f'```python title="{path.name}"', code.strip(), "```", ""]
    return "\n".join(parts)


def figure_pages(names: set[str]) -> dict[str, bytes]:
    """The README of each figure as a page, with the pictures it shows."""
    found: dict[str, bytes] = {}
    for name in sorted(names):
        source = REPOSITORY / "results" / name
        found[f"results/{name}"] = source.read_bytes()
        if source.suffix == ".md":
            text = source.read_text(encoding="utf-8")
            for file in {*IMAGE.findall(text), *re.findall(r"\]\(([^):/]+\.csv)\)", text)}:
                found[f"results/{Path(name).parent / file}"] = (source.parent / file).read_bytes()
    return found


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    pages = [path.read_text(encoding="utf-8") for path in (REPOSITORY / "docs").glob("*.md")]
    linked = {name for text in pages for name in RESULT.findall(text)}
    files_linked = {name for name in linked if (REPOSITORY / "results" / name).is_file()}
    generated: dict[str, str | bytes] = {**api_pages(), "examples.md": example_page()}
    generated |= figure_pages(files_linked)
    for uri, content in generated.items():
        files.append(File.generated(config, uri, content=content))
    return files


def unbroken(text: str) -> str:
    """The page with figures of tables that are not broken over two lines."""
    lines = text.split("\n")
    return "\n".join(INSIDE.sub("\u00a0", line) if line[:1] == "|" else line for line in lines)


def on_page_markdown(text: str, page: Any, **_: Any) -> str:
    """Link to the results inside the site, and run the pages that are executed."""
    text = unbroken(RESULT.sub(lambda match: f"](results/{match[1]})", text))
    return execute(text) if page.meta.get("executed") else text


def problems(site: Path) -> list[str]:
    """What a built site lacks, or shows by mistake."""
    needed = [site / "results/fig2a/fig2a.png", site / "images/states.png"]
    found = [f"{path.relative_to(site)} is missing" for path in needed if not path.is_file()]
    shown = re.sub(r"<[^>]+>", "", (site / "api/estimators/index.html").read_text(encoding="utf-8"))
    for text in ("DIFFormerClassifier", "n_neighbors: int = 7,", "epochs: int = 200,"):
        if text not in shown:
            found.append(f"the page of the estimators lacks {text!r}")
    for text in ("option(", "like("):  # how an option is declared, in place of its default
        if text in shown:
            found.append(f"the page of the estimators shows {text!r}")
    for path in sorted((REPOSITORY / "docs" / "tutorials").glob("*.md")):
        page = site / "tutorials" / path.stem / "index.html"
        if not page.is_file() or ">Output<" not in page.read_text(encoding="utf-8"):
            found.append(f"the tutorial {path.stem} shows no output")
    return found


def on_post_build(config: Any) -> None:
    """Look at what was built."""
    from mkdocs.exceptions import PluginError

    if found := problems(Path(config.site_dir)):
        raise PluginError("; ".join(found))
