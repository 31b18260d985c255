"""The page as people meet it: opened in headless Chromium, at a desk and on a phone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch

from difformer.blocks import Note, Section, Table
from difformer.compare.comparison import Comparison, Row
from difformer.data.dataset import Dataset
from difformer.data.snapshots import TemporalDataset
from difformer.report.page import write_page
from difformer.report.run_page import write_report

DESK, PHONE = (1280, 900), (390, 844)
SIZES = {"desktop": DESK, "phone": PHONE}
SCREENS = [(1400, "light"), (400, "dark")]  # colours do not depend on the width
DRAWN = (
    "() => window.difformerReport && "
    "window.difformerReport.drawn() >= document.querySelectorAll('.plot').length"
)


def every_plot(page: Any) -> None:
    page.wait_for_function(DRAWN)


@contextmanager
def opened(
    browser: Any,
    path: Path,
    size: tuple[int, int] = DESK,
    *,
    scheme: str = "light",
    drawn: Callable[[Any], None] = every_plot,
) -> Iterator[Any]:
    """The page, drawn; afterwards nothing must have gone wrong, and nothing have been asked for."""
    faults: list[str] = []
    page = browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    page.set_default_timeout(120_000)  # a busy machine takes half a minute to read plotly
    page.on("console", lambda m: faults.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda r: faults.append(r.url) if _outside(r.url, path) else None)
    page.on("dialog", lambda d: (faults.append(f"dialog {d.message}"), d.dismiss()))
    try:
        page.goto(path.as_uri(), timeout=120_000)  # a crowded machine opens 5 MB slowly
        drawn(page)
        yield page
    finally:
        page.close()
    assert faults == []


def _outside(url: str, path: Path) -> bool:
    return url != path.as_uri() and not url.startswith(("data:", "blob:"))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from difformer.data.registry import load_dataset
    from difformer.jobs.job import Experiment
    from difformer.jobs.rows import run_experiment

    folder = tmp_path_factory.mktemp("digits") / "run"
    experiment = Experiment.make(
        "digits", seeds=(0, 1), model={"num_layers": 2}, train={"epochs": 10, "lr": 0.01}
    )
    run_experiment(experiment, dataset=load_dataset("digits"), folder=folder)
    return write_report(folder, projection="pca")


@pytest.fixture(scope="module")
def at_desk(browser: Any, report: Path) -> Iterator[Any]:
    """The page opened once, for the tests that leave it as they found it."""
    with opened(browser, report) as page:
        yield page


def test_every_figure_is_drawn_at_a_desk_and_on_a_phone(
    browser: Any, report: Path, tmp_path: Path
) -> None:
    kept = Path(os.environ.get("DIFFORMER_SCREENSHOTS", tmp_path))
    for name, size in SIZES.items():
        with opened(browser, report, size) as page:
            empty = page.evaluate(
                "[...document.querySelectorAll('.plot')]"
                ".filter(p => !p.querySelector('.main-svg') || p.clientHeight < 200).length"
            )
            assert empty == 0
            # Nothing is wider than the screen but what scrolls on its own.
            assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
            # A number is never broken over two lines.
            line = "parseFloat(getComputedStyle(c).lineHeight)"
            tallest = f"cells => Math.max(...cells.map(c => c.clientHeight / {line}))"
            assert page.eval_on_selector_all(".shaded tbody td", tallest) < 2
            shot = kept / f"report-{name}.png"
            page.screenshot(path=shot, full_page=True)
            assert shot.stat().st_size > 10_000


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


def test_a_chosen_row_shows_its_image_and_the_rows_that_moved_it(at_desk: Any) -> None:
    at_desk.fill("#row", "12")
    at_desk.press("#row", "Enter")
    assert "Row 12, class 2" in at_desk.inner_text("#detail")
    assert at_desk.locator("#detail table").count() == 2
    assert at_desk.locator("#detail tbody tr").count() == 16
    image = at_desk.locator("#detail img").first
    assert image.evaluate("i => i.naturalWidth") == 8
    assert image.get_attribute("alt").startswith("Row 12")
    at_desk.fill("#row", "99999")
    at_desk.press("#row", "Enter")
    assert "Row 99999 is not among the drawn rows" in at_desk.inner_text("#detail")
    at_desk.click("text=Clear")
    assert "No row is chosen" in at_desk.inner_text("#detail")


def test_pointing_at_a_row_shows_it(at_desk: Any) -> None:
    plot = at_desk.locator(".panel .plot").first
    plot.evaluate("p => p.emit('plotly_hover', {points: [{customdata: 7}]})")
    assert "Row 7" in at_desk.inner_text("#detail")


def test_a_screen_reader_finds_words_for_every_figure(at_desk: Any) -> None:
    labels = at_desk.eval_on_selector_all(".plot", "nodes => nodes.map(n => n.ariaLabel)")
    assert len(labels) >= 6
    assert all(label and len(label) > 20 for label in labels)
    uncaptioned = "tables => tables.filter(t => !t.caption && !t.ariaLabel).length"
    assert at_desk.eval_on_selector_all("table", uncaptioned) == 0
    unnamed = "nodes => nodes.filter(n => !n.labels.length).length"
    assert at_desk.eval_on_selector_all("input, select", unnamed) == 0
    assert at_desk.get_attribute("html", "lang") == "en"


def test_the_page_prints(at_desk: Any) -> None:
    assert len(at_desk.pdf()) > 50_000


EVIL = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    '"><svg onload=alert(3)>',
    "{{ 7*7 }} & <b>ü 类 🚀</b>",
)


def test_values_that_would_break_out_of_html_are_shown_as_text(
    browser: Any, tmp_path: Path, blobs: Callable[..., Dataset], trained: Callable[..., Path]
) -> None:
    data = blobs(60, classes=4, names=EVIL)
    folder = trained(tmp_path / "<b>ü&'\"run", data)
    config = folder / "config.toml"
    config.write_text(
        config.read_text() + '\n[evil]\n"<i>k</i>" = "</td><script>alert(4)</script>"\n'
    )
    path = write_report(folder, dataset=data)
    text = path.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    with opened(browser, path) as page:
        assert page.locator("script").count() == 3
        assert "alert(4)" in page.inner_text("#settings")
        assert EVIL[3] in page.inner_text("#predictions")
        legend = page.text_content(".panel .legend")
        assert "<img src=x onerror=alert(2)>" in legend
        assert page.locator(".panel image, .panel a").count() == 0


def test_many_rows_are_sampled_said_so_and_drawn_quickly(
    browser: Any, tmp_path: Path, blobs: Callable[..., Dataset], trained: Callable[..., Path]
) -> None:
    data = blobs(60_000, features=2)
    folder = trained(tmp_path / "run", data, epochs=1, hidden_channels=2, num_layers=1)
    path = write_report(folder, dataset=data)
    assert path.stat().st_size < 12_000_000
    with opened(browser, path) as page:
        assert "20,000 of 60,000 rows are drawn" in page.inner_text("#states")
        kind = page.evaluate("() => document.querySelector('.panel .plot').data[1].type")
        assert kind == "scattergl"
        took = page.evaluate(
            "() => { const s = document.getElementById('threshold-1'); const t = performance.now();"
            " s.value = 20; s.dispatchEvent(new Event('input')); return performance.now() - t; }"
        )
        assert took < 5000  # the tests draw in software, on busy machines


def test_a_page_of_tables_alone_opens_without_scripts(browser: Any, tmp_path: Path) -> None:
    table = Table("Accuracy.", ["system", "test"], [["mlp", "0.9"], ["<b>gcn</b>", "0.8"]])
    section = Section("results", "Results", [Note("Paired."), table])
    path = write_page(tmp_path / "page.html", "Comparison", [section])
    assert path.stat().st_size < 20_000
    page = browser.new_page()
    page.goto(path.as_uri(), timeout=120_000)  # a crowded machine opens 5 MB slowly
    assert "<b>gcn</b>" in page.inner_text("table")
    page.close()


def test_a_comparison_and_a_series_fit_a_desk_and_a_phone(
    browser: Any, tmp_path: Path, trained: Callable[..., Path]
) -> None:
    runs = {"a": {"val": 0.5, "test": 0.51, "seconds": 1.0}}
    rows = [Row("mlp", runs), Row("gcn", runs), Row("lp", cannot="it needs a graph " * 9)]
    found = Comparison("blobs", "accuracy", ("a",), 0, tuple(rows), True)
    (tmp_path / "comparison.json").write_text(json.dumps(found.to_json()))
    x = torch.randn(48, 3, generator=torch.Generator().manual_seed(0))
    weeks = TemporalDataset("weeks", x, x[:, :1], "regression", num_nodes=6)
    pages = {
        "comparison": (write_report(tmp_path), 2),
        "series": (write_report(trained(tmp_path / "run", weeks), dataset=weeks), 6),
    }
    kept = Path(os.environ.get("DIFFORMER_SCREENSHOTS", tmp_path))
    for (name, (path, plots)), (kind, size) in product(pages.items(), SIZES.items()):
        with opened(browser, path, size) as page:
            assert page.locator(".plot").count() >= plots
            assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
            # No table is so wide that a row of it must be looked for by scrolling.
            wide = "ts => ts.filter(t => t.scrollWidth > document.body.clientWidth).length"
            assert name == "series" or page.eval_on_selector_all("table", wide) == 0
            page.screenshot(path=kept / f"{name}-{kind}.png", full_page=True)


def shown_plots(page: Any) -> None:
    """Wait until every figure that is not folded is drawn."""
    page.wait_for_function(
        "() => window.difformerReport.drawn() >= [...document.querySelectorAll('.plot')]"
        ".filter(p => !p.closest('details:not([open])')).length"
    )


@pytest.fixture(scope="module")
def table_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from difformer.jobs.job import OwnTable
    from difformer.jobs.table import train_own

    folder = tmp_path_factory.mktemp("table")
    generator = torch.Generator().manual_seed(0)
    size = torch.randn(120, generator=generator)
    lines = ["name,size,weight,kind"]
    for i in range(120):
        kind = ("ant" if size[i] < 0 else "elk") if i % 3 else ""
        lines.append(f"row {i},{size[i]:.3f},{i % 11},{kind}")
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    table = OwnTable(nodes=str(folder / "t.csv"), label="kind", id="name")
    data = table.read()
    train_own(data, folder / "run", {"epochs": 15, "hidden_channels": 16}, table=table)
    return write_report(folder / "run", dataset=data, projection="pca")


def fits(page: Any, width: int, scheme: str, name: str, folder: Path) -> None:
    """Nothing is wider than the screen, and ink is darker than paper in the light scheme."""
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    paper, ink = page.evaluate(
        "(() => { const s = getComputedStyle(document.body);"
        " return [s.backgroundColor, s.color]; })()"
    )
    bright = [sum(map(int, value[4:-1].split(","))) for value in (paper, ink)]
    assert (bright[0] > bright[1]) == (scheme == "light")
    kept = Path(os.environ.get("DIFFORMER_SCREENSHOTS", folder))
    page.screenshot(path=kept / f"{name}.png", full_page=True)


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_the_page_of_a_table_opens_at_any_width_in_light_and_dark(
    browser: Any, table_report: Path, width: int, scheme: str, tmp_path: Path
) -> None:
    with opened(browser, table_report, (width, 900), scheme=scheme, drawn=shown_plots) as page:
        fits(page, width, scheme, f"table-{width}-{scheme}", tmp_path)
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
        page.wait_for_function(DRAWN)
        assert page.evaluate("window.difformerReport.drawn()") > before
        hints = page.evaluate(
            "[...document.querySelectorAll('.scroll')]"
            ".filter(b => b.scrollWidth > b.clientWidth + 1)"
            ".filter(b => getComputedStyle(b.previousElementSibling).display === 'none').length"
        )
        assert hints == 0


@pytest.fixture(scope="module", params=["edges", "places"])
def series_report(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    from datetime import date, timedelta

    from difformer.jobs.series import SeriesSettings, train_series

    folder = tmp_path_factory.mktemp("series")
    generator = torch.Generator().manual_seed(0)
    rate = 5 + 4 * torch.sin(torch.arange(160)[:, None] / 8 + torch.arange(7) / 3)
    counts = torch.poisson(rate.expand(160, 7), generator=generator)
    counts[:, 5] = 3  # constant
    names = ["north", "south", "east", "west", "a & <b>", "still", "rim"]
    lines = ["week," + ",".join(names)]
    for i, row in enumerate(counts.int().tolist()):
        day = date(2019, 1, 7) + timedelta(days=7 * i)
        lines.append(
            f"{day}," + ",".join("" if (i + j) % 41 == 0 else str(v) for j, v in enumerate(row))
        )
    (folder / "s.csv").write_text("\n".join(lines) + "\n")
    ring = "".join(f"{a},{b}\n" for a, b in pairwise(names))
    (folder / "e.csv").write_text("source,target\n" + ring)
    places = "".join(f"{name},{i % 3},{i // 3}\n" for i, name in enumerate(names))
    (folder / "p.csv").write_text("node,longitude,latitude\n" + places)
    given = {request.param: folder / f"{request.param[0]}.csv"}
    settings = SeriesSettings(epochs=10, steps=5, origins=20)
    with pytest.MonkeyPatch.context() as patch:  # statsforecast takes seconds
        patch.setattr("difformer.estimators.backtest.MOST_NODES", 0)
        train_series(folder / "s.csv", given.pop("edges", None), folder / "run", settings, **given)
    return request.param, write_report(folder / "run")


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_the_page_of_a_series_opens_at_any_width_in_light_and_dark(
    browser: Any, series_report: tuple[str, Path], width: int, scheme: str, tmp_path: Path
) -> None:
    given, report = series_report
    assert report.stat().st_size < 3_000_000
    with opened(browser, report, (width, 900), scheme=scheme, drawn=shown_plots) as page:
        fits(page, width, scheme, f"series-{given}-{width}-{scheme}", tmp_path)
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
        assert page.locator("#map .plot").count() == 1
        drawn = page.evaluate("() => document.querySelector('#map .plot').data.at(-1)")
        assert len(drawn["x"]) == len(drawn["marker"]["color"]) == 7
        assert "a & <b>" in page.inner_text("#map")
