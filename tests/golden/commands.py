"""Help, JSON documents and pages of the commands."""

from __future__ import annotations

import csv
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from doors import answer, call, write_edges, write_links, write_series, write_table
from pages import read_page

COMMANDS = (
    "demo", "datasets", "train", "settings", "compare", "tune", "predict", "reproduce", "report",
    "runs", "energy", "shard", "features", "bench", "serve", "export",
)  # fmt: skip
RESULTS = Path(__file__).resolve().parent.parent.parent / "results"
OWN = ("train", "--nodes", "table.csv", "--id", "name", "-q")
SHORT = ("--recipe", "stable", "--epochs", 3)


def help_of(*words: str) -> dict[str, Any]:
    """The help of a command, line by line."""
    return {"lines": call(*words, "--help").out.splitlines()}


def inputs() -> None:
    """The tables that the commands below read."""
    write_table()
    write_edges()
    write_series()
    write_links()
    write_series("newer.csv", steps=20, start=50)


def cells(path: str, most: int = 25) -> list[list[Any]]:
    """The first lines of a CSV file, numbers as numbers."""
    with open(path, encoding="utf-8", newline="") as file:
        return [[_number(cell) for cell in line] for line in list(csv.reader(file))[:most]]


def _number(cell: str) -> Any:
    try:
        return float(cell)
    except ValueError:
        return cell


def own_classes() -> dict[str, Any]:
    """A table with edges: train, predict, report, runs, energy."""
    inputs()
    found = {"train": answer(*OWN, "--label", "y", "--edges", "edges.csv", *SHORT, "--out", "run")}
    found["page"] = read_page("run/report.html")
    found["predict"] = answer("predict", "run", "table.csv", "-o", "out.csv", "--level", 0.9)
    found["out.csv"] = cells("out.csv")
    found["predictions.csv"] = cells("run/predictions.csv")
    found["held_out.csv"] = cells("run/held_out.csv")
    found["report"] = answer("report", "run")
    found["runs"] = answer("runs", "run")
    found["energy"] = answer("energy", "run")
    return found


def own_default() -> dict[str, Any]:
    """A table under the default, which tries several forms."""
    inputs()
    found = {"train": answer(*OWN, "--label", "y", "--out", "run")}
    return found | {"page": read_page("run/report.html"), "csv": cells("run/predictions.csv")}


def own_numbers() -> dict[str, Any]:
    """A column of numbers: train, page, predict with intervals."""
    inputs()
    found = {"train": answer(*OWN, "--label", "z", *SHORT, "--out", "run")}
    found["page"] = read_page("run/report.html")
    found["predict"] = answer("predict", "run", "table.csv", "-o", "out.csv", "--level", 0.8)
    return found | {"out.csv": cells("out.csv")}


def own_several() -> dict[str, Any]:
    """Two columns of yes or no."""
    inputs()
    found = {"train": answer(*OWN, "--label", "warm", "--label", "wet", *SHORT, "--out", "run")}
    return found | {"page": read_page("run/report.html"), "csv": cells("run/predictions.csv")}


def series() -> dict[str, Any]:
    """A series with edges: train, page, forecast from newer values."""
    inputs()
    words = ("--edges", "links.csv", "--epochs", 5, "-q", "--out", "run")
    found = {"train": answer("train", "--series", "series.csv", *words)}
    found["page"] = read_page("run/report.html")
    found["forecast.csv"] = cells("run/forecast.csv")
    found["predict"] = answer("predict", "run", "--series", "newer.csv", "-o", "next.csv")
    return found | {"next.csv": cells("next.csv")}


def named() -> dict[str, Any]:
    """Runs on a named dataset: page, two runs beside each other, energy, states."""
    words = ("--epochs", 3, "-q", "--seeds", 2)
    answer("train", "cora", "--hidden-channels", 8, *words, "--out", "runs/s")
    answer("train", "cora", "-m", "gcn", *words, "--no-report", "--out", "runs/gcn")
    found = {"page": read_page("runs/s/report.html"), "energy": answer("energy", "runs/s")}
    found["runs"] = answer("runs", "runs", "--out", "runs.html")
    found["runs page"] = read_page("runs.html")
    answer("report", "runs/gcn")
    return found | {"gcn page": read_page("runs/gcn/report.html")}


def compare() -> dict[str, Any]:
    """A comparison of two systems on two splits, and its page."""
    inputs()
    data = ("table.csv", "--label", "y", "--id", "name", "--edges", "edges.csv")
    words = ("--models", "gcn,difformer-s", "--splits", 2, "--epochs", 3, "--workers", 1)
    found = answer("compare", *data, *words, "-q", "--out", "sheet")
    return {"compare": found, "page": read_page("sheet/report.html")}


def tune() -> dict[str, Any]:
    """Three trials of one system."""
    inputs()
    data = ("table.csv", "--label", "y", "--id", "name")
    words = ("--model", "mlp", "--trials", 3, "--epochs", 3, "-q")
    return answer("tune", *data, *words)


def features() -> dict[str, Any]:
    """Random features of digits."""
    words = ("--encoder", "random", "--out", "digits.npz", "--width", 4, "--device", "cpu", "-q")
    return answer("features", "digits", *words)


def export() -> dict[str, Any]:
    """A run as ONNX: what goes in and comes out."""
    inputs()
    answer(*OWN, "--label", "z", *SHORT, "--no-report", "--out", "run")
    return answer("export", "run", "--onnx", "model.onnx")


def shown(table: str) -> dict[str, Any]:
    """What a table of the paper shows of the stored results."""
    Path("results").symlink_to(RESULTS)
    return {"shown": answer("reproduce", table, "--show")}


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "help": partial(help_of),
    **{f"help-{name}": partial(help_of, name) for name in COMMANDS},
    "help-datasets-fetch": partial(help_of, "datasets", "fetch"),
    "commands-datasets": lambda: {"list": answer("datasets")},
    "commands-own-classes": own_classes,
    "commands-own-default": own_default,
    "commands-own-numbers": own_numbers,
    "commands-own-several": own_several,
    "commands-series": series,
    "commands-named": named,
    "commands-compare": compare,
    "commands-tune": tune,
    "commands-features": features,
    "commands-export": export,
    **{f"commands-reproduce-{name}": partial(shown, name) for name in ("table2", "table4", "fig8")},
}
