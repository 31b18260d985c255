"""The style of the figures, in colour and in black and white, and their files."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from difformer.blocks import COLOURS
from difformer.errors import RunError, missing_extra
from difformer.files import write_atomic
from difformer.train.folder import csv_text

if TYPE_CHECKING:
    from difformer.runs.open import LoadedRun

MARKERS = "osD^vPX*hp"
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)))
STYLE = Path(__file__).with_name("figures.mplstyle")

Row = dict[str, Any]
Tables = dict[str, list[Row]]


def few(value: float, digits: int = 5) -> float:
    """A number of a table, with its first digits only."""
    return float(f"{value:.{digits}g}")


def table(columns: Mapping[str, Sequence[Any]], digits: int = 5, **same: Any) -> list[Row]:
    """The rows of some columns, after what is the `same` in all; numbers with few digits only."""
    return [
        same
        | {
            k: few(v, digits) if isinstance(v, float) else v
            for k, v in zip(columns, row, strict=True)
        }
        for row in zip(*columns.values(), strict=True)
    ]


@dataclass(frozen=True)
class Work:
    """A figure in the making: where it is kept, and where its runs and their data are."""

    name: str
    title: str
    folder: Path
    runs: Sequence[Path]
    data_dir: Path | str | None

    def look(self, look: Callable[[LoadedRun], Tables], names: Sequence[str]) -> Tables:
        """The tables that `look` makes of every run, joined; without runs, those kept as CSV."""
        from difformer.runs.open import load_run

        found = [look(load_run(folder, data_dir=self.data_dir)) for folder in self.runs]
        return {
            name: [row for tables in found for row in tables[name]] if found else self._read(name)
            for name in names
        }

    def _read(self, name: str) -> list[Row]:
        path = self.folder / f"{name}.csv"
        if not path.exists():
            raise RunError(f"{path} is not there: give --fresh to measure {self.name} again")
        with path.open(encoding="utf-8", newline="") as file:
            return [{key: _cell(text) for key, text in row.items()} for row in csv.DictReader(file)]


def _cell(text: str) -> Any:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


class Drawn(NamedTuple):
    """A figure, what it shows in a sentence or two, the numbers behind it and how they came."""

    figure: Any
    says: Sequence[str]
    tables: Mapping[str, Sequence[Row]]
    note: str = ""


@contextmanager
def style() -> Generator[Any, None, None]:
    """matplotlib with our style, without a display."""
    try:
        import matplotlib as mpl
        from cycler import cycler
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_extra("a figure", "paper") from error

    def make(width: float, height: float) -> Any:
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        return figure

    colours: Any = {"axes.prop_cycle": cycler(color=COLOURS)}
    with mpl.rc_context(colours, fname=STYLE):
        yield make


def axes(figure: Any, rows: int, columns: int, **options: Any) -> list[Any]:
    """The axes of a grid, row by row."""
    return list(figure.subplots(rows, columns, squeeze=False, **options).flat)


def save(work: Work, drawn: Drawn) -> list[Path]:
    """Write the figure as PNG and SVG, its numbers as CSV, and what it shows as README.md."""
    with style():
        written = [
            save_image(drawn.figure, work.folder / f"{work.name}.{end}") for end in ("png", "svg")
        ]
    numbers = ", ".join(f"[{name}.csv]({name}.csv)" for name in drawn.tables)
    readme = [
        f"# {work.title}",
        "",
        f"![{work.title}]({work.name}.png)",
        "",
        *drawn.says,
        "",
        f"Made by `difformer reproduce {work.name}`; the numbers: {numbers}.",
        *(["", drawn.note] if drawn.note else []),
    ]
    texts = {f"{name}.csv": csv_text(rows) for name, rows in drawn.tables.items()}
    for name, text in {**texts, "README.md": "\n".join(readme) + "\n"}.items():
        write_atomic(work.folder / name, text)
        written.append(work.folder / name)
    return written


def save_image(figure: Any, path: Path) -> Path:
    """Write a figure as png or svg, by the suffix of the file; equal figures have equal bytes."""
    image = io.BytesIO()
    metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    figure.savefig(image, format=path.suffix[1:], metadata=metadata)
    write_atomic(path, image.getvalue())
    return path
