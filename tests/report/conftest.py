"""Small runs to write pages of, and a browser to open them in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from difformer.data.dataset import Dataset
from difformer.data.snapshots import TemporalDataset, time_split
from difformer.data.split import Split
from difformer.jobs.job import Experiment
from difformer.jobs.rows import run_experiment

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def make_blobs(
    n: int = 60, *, classes: int = 3, features: int = 6, names: tuple[str, ...] = ()
) -> Dataset:
    """Rows around one centre a class."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(n) % classes
    centres = 2 * torch.randn(classes, features, generator=generator)
    x = centres[y] + torch.randn(n, features, generator=generator)
    return Dataset("blobs", x, y, class_names=names or tuple("abcdefghij"[:classes]))


def make_split(n: int) -> Split:
    rows = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    a, b = n // 3, 2 * n // 3
    return Split("thirds", rows[:a], rows[a:b], rows[b:])


def make_run(
    folder: Path, dataset: Dataset, *, seeds: int = 1, epochs: int = 5, **model: Any
) -> Path:
    """Train a small DIFFormer and keep its folder."""
    options = {"hidden_channels": 8, **model}
    system = options.pop("system", "difformer-s")
    experiment = Experiment.make(
        dataset.name, system=system, seeds=range(seeds), model=options, train={"epochs": epochs}
    )
    split = make_split(dataset.num_rows)
    if isinstance(dataset, TemporalDataset):
        split = time_split(dataset.num_snapshots, dataset.num_nodes)
    run_experiment(experiment, dataset=dataset, split=split, folder=folder)
    return folder


@pytest.fixture
def blobs() -> Callable[..., Dataset]:
    return make_blobs


@pytest.fixture
def trained() -> Callable[..., Path]:
    return make_run


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the default blobs, trained once."""
    return make_run(tmp_path_factory.mktemp("once") / "run", make_blobs())


@pytest.fixture
def folder(once: Path, tmp_path: Path) -> Path:
    """A copy of that run, to damage and to write pages into."""
    return shutil.copytree(once, tmp_path / "run")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium of the system; the test skips where there is none."""
    path = os.environ.get("DIFFORMER_CHROMIUM") or next(
        filter(None, map(shutil.which, BROWSERS)), None
    )
    if path is None:
        pytest.skip("no Chromium: apt-get install chromium, or set DIFFORMER_CHROMIUM to one")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    flags = ["--no-sandbox", "--disable-dev-shm-usage", "--use-angle=swiftshader"]
    flags += ["--enable-unsafe-swiftshader", "--ignore-gpu-blocklist"]
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=flags)
        yield opened
        opened.close()


DRAWN = (
    "() => !window.difformerReport || window.difformerReport.drawn() >= "
    "[...document.querySelectorAll('.plot')].filter(p => !p.closest('details:not([open])')).length"
)


@pytest.fixture(scope="session")
def opened(browser: Any) -> Callable[..., Any]:
    """Opens a page, drawn but for what is folded; in the end nothing must have gone wrong."""

    @contextmanager
    def open_page(
        where: Path | str, width: int = 1280, scheme: str = "light", height: int = 900
    ) -> Generator[Any]:
        faults: list[str] = []
        address = where.as_uri() if isinstance(where, Path) else where
        own = (address, "data:", "blob:")
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        page.set_default_timeout(120_000)  # a busy machine takes half a minute to read plotly
        bad = ("error", "warning")
        page.on("console", lambda m: faults.append(m.text) if m.type in bad else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda r: None if r.url.startswith(own) else faults.append(r.url))
        page.on("dialog", lambda d: (faults.append(f"dialog {d.message}"), d.dismiss()))
        try:
            page.goto(address, timeout=120_000)  # a crowded machine opens 5 MB slowly
            page.wait_for_function(DRAWN)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            yield page
        finally:
            page.close()
        # The service refuses what is wrong, which the browser tells as an error.
        assert [text for text in faults if "401" not in text and "422" not in text] == []

    return open_page


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    """Where pictures of pages go."""
    return Path(os.environ.get("DIFFORMER_SCREENSHOTS", tmp_path))
