"""The page as people meet it: opened in headless Chromium, at a desk and on a phone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch

from difformer.blocks import Note, Section, Table
from difformer.compare.comparison import Comparison, Row
from difformer.data.dataset import Dataset
from difformer.data.registry import load_dataset
from difformer.data.snapshots import TemporalDataset
from difformer.data.table.read import read_table
from difformer.jobs.job import Experiment
from difformer.jobs.rows import run_experiment
from difformer.jobs.series import SeriesSettings, train_series
from difformer.jobs.table import train_own
from difformer.report.page import write_page
from difformer.report.run_page import write_report

Make = Callable[..., Dataset]
Train = Callable[..., Path]
Open = Callable[..., Any]

WIDTHS = {"desktop": 1280, "phone": 390}
SCREENS = [(1400, "light"), (400, "dark")]  # colours do not depend on the width


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits") / "run"
    train = {"epochs": 10, "lr": 0.01}
    experiment = Experiment.make("digits", seeds=(0, 1), model={"num_layers": 2}, train=train)
    run_experiment(experiment, dataset=load_dataset("digits"), folder=folder)
    return write_report(folder, projection="pca")


@pytest.fixture(scope="module")
def at_desk(opened: Open, report: Path) -> Iterator[Any]:
    """The page opened once, for the tests that leave it as they found it."""
    with opened(report) as page:
        yield page


def test_every_figure_is_drawn_at_a_desk_and_on_a_phone(
    opened: Open, report: Path, shots: Path
) -> None:
    for name, width in WIDTHS.items():
        with opened(report, width) as page:
            empty = page.evaluate(
                "[...document.querySelectorAll('.plot')]"
                ".filter(p => !p.querySelector('.main-svg') || p.clientHeight < 200).length"
            )
            assert empty == 0
            # A number is never broken over two lines.
            line = "parseFloat(getComputedStyle(c).lineHeight)"
            tallest = f"cells => Math.max(...cells.map(c => c.clientHeight / {line}))"
            assert page.eval_on_selector_all(".shaded tbody td", tallest) < 2
            page.screenshot(path=shots / f"report-{name}.png", full_page=True)
            assert (shots / f"report-{name}.png").stat().st_size > 10_000


def test_the_slider_changes_which_edges_are_shown(at_desk: Any) -> None:
    lines = "() => document.querySelector('.panel .plot').data[0].x.length / 3"
    before = at_desk.evaluate(lines)
    at_desk.evaluate(
        "() => { const s = document.getElementById('threshold-0'); s.value = 95;"
        " s.dispatchEvent(new Event('input')); }"
    )
    after = at_desk.evaluate(lines)
    assert 0 < after < before
    shown = at_desk.inner_text("output[for=threshold-0]")
    assert f"{after:.0f} of the 1,500 strongest" in shown


def test_a_row_that_is_chosen_or_pointed_at_is_shown(at_desk: Any) -> None:
    at_desk.fill("#row", "12")
    at_desk.press("#row", "Enter")
    assert "Row 12, class 2" in at_desk.inner_text("#detail")
    assert at_desk.locator("#detail table").count() == 2
    assert at_desk.locator("#detail tbody tr").count() == 16  # the rows that moved it
    image = at_desk.locator("#detail img").first
    assert image.evaluate("i => i.naturalWidth") == 8
    assert image.get_attribute("alt").startswith("Row 12")
    at_desk.fill("#row", "99999")
    at_desk.press("#row", "Enter")
    assert "Row 99999 is not among the drawn rows" in at_desk.inner_text("#detail")
    at_desk.click("text=Clear")
    assert "No row is chosen" in at_desk.inner_text("#detail")
    plot = at_desk.locator(".panel .plot").first
    plot.evaluate("p => p.emit('plotly_hover', {points: [{customdata: 7}]})")
    assert "Row 7" in at_desk.inner_text("#detail")


def test_a_screen_reader_finds_words_for_every_figure_and_the_page_prints(at_desk: Any) -> None:
    labels = at_desk.eval_on_selector_all(".plot", "nodes => nodes.map(n => n.ariaLabel)")
    assert len(labels) >= 6
    assert all(label and len(label) > 20 for label in labels)
    uncaptioned = "tables => tables.filter(t => !t.caption && !t.ariaLabel).length"
    assert at_desk.eval_on_selector_all("table", uncaptioned) == 0
    unnamed = "nodes => nodes.filter(n => !n.labels.length).length"
    assert at_desk.eval_on_selector_all("input, select", unnamed) == 0
    assert at_desk.get_attribute("html", "lang") == "en"
    assert len(at_desk.pdf()) > 50_000


EVIL = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    '"><svg onload=alert(3)>',
    "{{ 7*7 }} & <b>ü 类 🚀</b>",
)


def test_values_that_would_break_out_of_html_are_shown_as_text(
    opened: Open, tmp_path: Path, blobs: Make, trained: Train
) -> None:
    data = blobs(60, classes=4, names=EVIL)
    folder = trained(tmp_path / "<b>ü&'\"run", data)
    config = folder / "config.toml"
    evil = '\n[evil]\n"<i>k</i>" = "</td><script>alert(4)</script>"\n'
    config.write_text(config.read_text() + evil)
    path = write_report(folder, dataset=data)
    text = path.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    with opened(path) as page:
        assert page.locator("script").count() == 3
        assert "alert(4)" in page.inner_text("#settings")
        assert EVIL[3] in page.inner_text("#predictions")
        assert "<img src=x onerror=alert(2)>" in page.text_content(".panel .legend")
        assert page.locator(".panel image, .panel a").count() == 0


def test_many_rows_are_sampled_said_so_and_drawn_quickly(
    opened: Open, tmp_path: Path, blobs: Make, trained: Train
) -> None:
    data = blobs(60_000, features=2)
    folder = trained(tmp_path / "run", data, epochs=1, hidden_channels=2, num_layers=1)
    path = write_report(folder, dataset=data)
    assert path.stat().st_size < 12_000_000
    with opened(path) as page:
        assert "20,000 of 60,000 rows are drawn" in page.inner_text("#states")
        kind = page.evaluate("() => document.querySelector('.panel .plot').data[1].type")
        assert kind == "scattergl"
        took = page.evaluate(
            "() => { const s = document.getElementById('threshold-1'); const t = performance.now();"
            " s.value = 20; s.dispatchEvent(new Event('input')); return performance.now() - t; }"
        )
        assert took < 5000  # the tests draw in software, on busy machines


def test_a_page_of_tables_alone_opens_without_scripts(opened: Open, tmp_path: Path) -> None:
    table = Table("Accuracy.", ["system", "test"], [["mlp", "0.9"], ["<b>gcn</b>", "0.8"]])
    section = Section("results", "Results", [Note("Paired."), table])
    path = write_page(tmp_path / "page.html", "Comparison", [section])
    assert path.stat().st_size < 20_000
    with opened(path) as page:
        assert "<b>gcn</b>" in page.inner_text("table")


def test_a_comparison_and_snapshots_fit_a_desk_and_a_phone(
    opened: Open, tmp_path: Path, trained: Train, shots: Path
) -> None:
    runs = {"a": {"val": 0.5, "test": 0.51, "seconds": 1.0}}
    rows = [Row("mlp", runs), Row("gcn", runs), Row("lp", cannot="it needs a graph " * 9)]
    found = Comparison("blobs", "accuracy", ("a",), 0, tuple(rows), True)
    (tmp_path / "comparison.json").write_text(json.dumps(found.to_json()))
    x = torch.randn(48, 3, generator=torch.Generator().manual_seed(0))
    weeks = TemporalDataset("weeks", x, x[:, :1], "regression", num_nodes=6)
    pages = {
        "comparison": (write_report(tmp_path), 2),
        "snapshots": (write_report(trained(tmp_path / "run", weeks), dataset=weeks), 6),
    }
    for (name, (path, plots)), (kind, width) in product(pages.items(), WIDTHS.items()):
        with opened(path, width) as page:
            assert page.locator(".plot").count() >= plots
            # No table is so wide that a row of it must be looked for by scrolling.
            wide = "ts => ts.filter(t => t.scrollWidth > document.body.clientWidth).length"
            assert name == "snapshots" or page.eval_on_selector_all("table", wide) == 0
            page.screenshot(path=shots / f"{name}-{kind}.png", full_page=True)


@pytest.fixture(scope="module")
def table_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    size = torch.randn(120, generator=torch.Generator().manual_seed(0)).tolist()
    kinds = [("ant" if s < 0 else "elk") if i % 3 else "" for i, s in enumerate(size)]
    lines = [f"row {i},{size[i]:.3f},{i % 11},{kinds[i]}\n" for i in range(120)]
    (folder / "t.csv").write_text("name,size,weight,kind\n" + "".join(lines))
    table: dict[str, Any] = {"nodes": str(folder / "t.csv"), "label": "kind", "id": "name"}
    data = read_table(**table)
    train_own(data, folder / "run", {"epochs": 15, "hidden_channels": 16}, table=table)
    return write_report(folder / "run", dataset=data, projection="pca")


def bright(page: Any, scheme: str) -> bool:
    """Whether ink is darker than paper in the light scheme alone."""
    style = "getComputedStyle(document.body)"
    colours = page.evaluate(f"[{style}.backgroundColor, {style}.color]")
    paper, ink = (sum(map(int, value[4:-1].split(","))) for value in colours)
    return (paper > ink) == (scheme == "light")


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_the_page_of_a_table_opens_at_any_width_in_light_and_dark(
    opened: Open, table_report: Path, width: int, scheme: str, shots: Path
) -> None:
    with opened(table_report, width, scheme) as page:
        assert bright(page, scheme)
        page.screenshot(path=shots / f"table-{width}-{scheme}.png", full_page=True)
        page.fill("#find-rows", "row 17")
        assert page.locator(".finder tbody tr").count() == 1
        assert page.locator(".finder li").count() > 0  # the rows that weigh most in it
        page.locator(".finder li button").first.click()
        assert page.input_value("#find-rows").startswith("row ")
        page.fill("#find-rows", "")
        page.select_option("#order-rows", "least sure first")
        sure = page.locator(".finder tbody tr td:nth-child(4)").all_inner_texts()
        assert [float(v) for v in sure] == sorted(float(v) for v in sure)
        before = page.evaluate("window.difformerReport.drawn()")
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        page.wait_for_function(f"window.difformerReport.drawn() > {before}")
        hints = page.evaluate(
            "[...document.querySelectorAll('.scroll')]"
            ".filter(b => b.scrollWidth > b.clientWidth + 1)"
            ".filter(b => getComputedStyle(b.previousElementSibling).display === 'none').length"
        )
        assert hints == 0


@pytest.fixture(scope="module")
def series_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("series")
    rate = 5 + 4 * torch.sin(torch.arange(160)[:, None] / 8 + torch.arange(7) / 3)
    counts = torch.poisson(rate, generator=torch.Generator().manual_seed(0))
    counts[:, 5] = 3  # constant
    names = ["north", "south", "east", "west", "a & <b>", "still", "rim"]
    lines = [["week", *names]]
    for i, row in enumerate(counts.int().tolist()):
        cells = ["" if (i + j) % 41 == 0 else str(v) for j, v in enumerate(row)]
        lines.append([str(date(2019, 1, 7) + timedelta(days=7 * i)), *cells])
    edges = [("source", "target"), *pairwise(names)]
    for name, rows in (("s.csv", lines), ("e.csv", edges)):
        (folder / name).write_text("".join(f"{','.join(row)}\n" for row in rows))
    settings = SeriesSettings(epochs=10, steps=5, origins=20)
    with pytest.MonkeyPatch.context() as patch:  # statsforecast takes seconds
        patch.setattr("difformer.estimators.backtest.MOST_NODES", 0)
        train_series(folder / "s.csv", folder / "e.csv", folder / "run", settings)
    return write_report(folder / "run")


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_the_page_of_a_series_opens_at_any_width_in_light_and_dark(
    opened: Open, series_report: Path, width: int, scheme: str, shots: Path
) -> None:
    assert series_report.stat().st_size < 3_000_000
    with opened(series_report, width, scheme) as page:
        assert bright(page, scheme)
        page.screenshot(path=shots / f"series-{width}-{scheme}.png", full_page=True)
        left = "1 node hardly varies; its forecast is the last value: still"
        assert left in page.inner_text("#read")
        # A node is found by its name, and its fan is drawn.
        page.fill("#find-nodes", "west")
        assert page.locator(".finder tbody tr").count() == 1
        fan = "() => document.querySelector('.finder .plot').data"
        west = page.evaluate(fan)
        assert len(west) == 4
        assert len(west[0]["x"]) == 5
        page.fill("#find-nodes", "north")
        assert page.evaluate(fan) != west
        # The map has every node, coloured by its error.
        drawn = page.evaluate("() => document.querySelector('#map .plot').data.at(-1)")
        assert len(drawn["x"]) == len(drawn["marker"]["color"]) == 7
        assert "a & <b>" in page.inner_text("#map")
