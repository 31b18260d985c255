"""The style of the figures, in colour and in black and white, and their files."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from difformer.blocks import COLOURS
from difformer.errors import RunError
from difformer.files import write_atomic
from difformer.train.folder import csv_text
from difformer_paper.measure import CellResult
from difformer_paper.specs import Spec

if TYPE_CHECKING:
    from difformer.runs.open import LoadedRun


Row = dict[str, Any]

MARKERS = "osD^vPX*hp"
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)))
STYLE: dict[str, Any] = {
    "font.size": 8,
    "font.family": "sans-serif",
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "savefig.dpi": 200,
    "savefig.bbox": "tight",
    "svg.hashsalt": "difformer",  # equal figures have equal bytes
    "svg.fonttype": "none",
}


@dataclass(frozen=True)
class Work:
    """A figure in the making: where it is kept, and where its runs and their data are."""

    name: str
    title: str
    folder: Path
    runs: Sequence[Path]
    data_dir: Path | str | None

    def look(
        self, look: Callable[[LoadedRun], Mapping[str, list[Row]]], kinds: Mapping[str, Any]
    ) -> dict[str, list[Row]]:
        """The tables that `look` makes of every run, joined; without runs, those kept as CSV.

        Args:
            kinds: for each table, the type of each of its columns that is not a float.
        """
        from difformer.runs.open import load_run

        tables: dict[str, list[Row]] = {name: [] for name in kinds}
        for folder in self.runs:
            for name, rows in look(load_run(folder, data_dir=self.data_dir)).items():
                tables[name] += rows
        return tables if self.runs else {name: self._read(name, kinds[name]) for name in kinds}

    def _read(self, name: str, kinds: Mapping[str, Callable[[str], Any]]) -> list[Row]:
        path = self.folder / f"{name}.csv"
        if not path.exists():
            raise RunError(f"{path} is not there: give --fresh to measure {self.name} again")
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        return [{key: kinds.get(key, float)(cell) for key, cell in row.items()} for row in rows]


@dataclass(frozen=True)
class Drawn:
    """A figure, what it shows in a sentence or two, and the numbers behind it."""

    figure: Any
    says: Sequence[str]
    tables: Mapping[str, Sequence[Mapping[str, Any]]]
    notes: Sequence[str] = field(default_factory=tuple[str, ...])


@contextmanager
def style() -> Generator[Any, None, None]:
    """matplotlib with our style, without a display."""
    import matplotlib as mpl
    from cycler import cycler
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    def make(width: float, height: float) -> Any:
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        return figure

    settings: Any = {**STYLE, "axes.prop_cycle": cycler(color=COLOURS)}
    with mpl.rc_context(settings):
        yield make


def axes(figure: Any, rows: int, columns: int, **options: Any) -> list[Any]:
    """The axes of a grid, row by row."""
    return list(figure.subplots(rows, columns, squeeze=False, **options).flat)


def summary(results: Sequence[CellResult], key: Callable[[Any], Row]) -> list[Row]:
    """Mean ± deviation of the test accuracy over the runs of each cell.

    Args:
        key: what the figure varies, from the options of a cell's model.
    """
    rows: list[Row] = []
    for result in sorted(
        results, key=lambda r: [str(v) for v in key(r.settings["model"]).values()]
    ):
        if result.runs:
            std = result.std("accuracy")
            rows.append(
                {
                    "dataset": result.column,
                    "system": result.system,
                    **key(result.settings["model"]),
                    "mean": round(result.mean("accuracy"), 5),
                    "std": "" if std is None else round(std, 5),
                    "seeds": len(result.runs),
                }
            )
    return rows


def panels(
    spec: Spec,
    found: Sequence[Row],
    size: tuple[float, float],
    draw: Callable[[Any, str, list[Row]], None],
) -> tuple[Any, dict[str, list[Row]]]:
    """A figure with a panel for each dataset that was measured, and their rows by its title.

    Args:
        size: of one panel, in inches.
        draw: called with the axes, title and rows of each.
    """
    rows = {
        column.title: [row for row in found if row["dataset"] == name]
        for name, column in spec.columns.items()
    }
    rows = {title: mine for title, mine in rows.items() if mine}
    count = max(1, len(rows))
    with style() as new:
        figure = new(size[0] * count, size[1])
        for ax, (title, mine) in zip(axes(figure, 1, count), rows.items(), strict=False):
            draw(ax, title, mine)
    return figure, rows


def notes(spec: Spec, results: Sequence[CellResult]) -> list[str]:
    """How a figure was measured: the spec's note, runs and epochs, and what is left out."""
    found = [spec.note]
    for name, column in spec.columns.items():
        mine = [r for r in results if r.column == name and r.runs]
        if mine:
            runs, epochs = (
                {len(r.runs) for r in mine},
                {r.settings["train"]["epochs"] for r in mine},
            )
            each = "1 run" if runs == {1} else f"{_range(runs)} runs"
            found.append(f"{column.title}: {each} per point, {_range(epochs)} epochs.")
    absent = dict.fromkeys(r.dataset for r in results if r.absent)
    return [
        " ".join([*found, *(f"{name} is left out: its data is not at hand." for name in absent)])
    ]


def _range(values: set[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def save(work: Work, drawn: Drawn) -> list[Path]:
    """Write the figure as PNG and SVG, its numbers as CSV, and what it shows as README.md."""
    folder = work.folder
    with style():
        written = [
            save_image(drawn.figure, folder / f"{work.name}.{end}") for end in ("png", "svg")
        ]
    texts = {f"{name}.csv": csv_text(rows) for name, rows in drawn.tables.items()}
    for name, text in {**texts, "README.md": _readme(work, drawn)}.items():
        write_atomic(folder / name, text)
        written.append(folder / name)
    return written


def save_image(figure: Any, path: Path) -> Path:
    """Write a figure as png or svg, by the suffix of the file; equal figures have equal bytes."""
    image = io.BytesIO()
    metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    figure.savefig(image, format=path.suffix[1:], metadata=metadata)
    write_atomic(path, image.getvalue())
    return path


def _readme(work: Work, drawn: Drawn) -> str:
    numbers = ", ".join(f"[{name}.csv]({name}.csv)" for name in drawn.tables)
    lines = [
        f"# {work.title}",
        "",
        f"![{work.title}]({work.name}.png)",
        "",
        *drawn.says,
        "",
        f"Made by `difformer reproduce {work.name}`; the numbers: {numbers}.",
        *(["", *drawn.notes] if drawn.notes else []),
    ]
    return "\n".join(lines) + "\n"
