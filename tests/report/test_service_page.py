"""The page of a served model: a person types a row and sees the answer, in a browser."""

from __future__ import annotations

import random
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the service needs the extra serve")

from difformer.app.service.app import Service
from difformer.app.service.server import listen, make_server
from difformer.data.table.read import read_table
from difformer.jobs.own import OwnRun
from difformer.jobs.table import train_own

QUICK = {"epochs": 20, "hidden_channels": 8, "recipe": "stable"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, draw = tmp_path_factory.mktemp("service"), random.Random(0)
    sizes = [draw.gauss(3 * (i % 2), 1) for i in range(60)]
    table = {
        "name": [f"r{i}" for i in range(60)],
        "size": sizes,
        "colour": [("red", "<b>blue</b>")[i % 2] for i in range(60)],
        "kind": [("fish", "ape")[i % 2] for i in range(60)],
        "weight": [10 * size + 100 for size in sizes],
    }
    edges = {"a": [f"r{i}" for i in range(58)], "b": [f"r{i + 2}" for i in range(58)]}
    for label, other in (("kind", "weight"), ("weight", "kind")):
        own = {name: cells for name, cells in table.items() if name != other}
        data = read_table(own, label, id="name", edges=edges)
        train_own(data, folder / label, {**QUICK, "early_stopping": True})
    return {label: folder / label for label in ("kind", "weight")}


@contextmanager
def served(run: Path, **options: Any) -> Generator[str]:
    """The address of a service in a thread."""
    with listen("127.0.0.1", 0) as listening:
        server = make_server(Service(OwnRun.load(run, level=0.8), **options))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (400, "dark")])
def test_a_typed_row_is_answered(
    opened: Any, runs: dict[str, Path], width: int, scheme: str, shots: Path
) -> None:
    with served(runs["kind"]) as address, opened(address, width, scheme) as page:
        page.fill("input[name=size]", "0")
        page.fill("input[name=colour]", "red")
        page.click("text=Predict")
        page.wait_for_selector("#answer .label")
        assert page.inner_text("#answer .label") == "kind: fish"
        assert page.locator("#answer meter").count() == 2
        assert page.locator("#answer li").count() > 0
        fish = page.locator("#answer meter").first.evaluate("m => m.value")
        page.fill("#edges", ", ".join(f"r{i}" for i in range(1, 60, 2)))
        page.click("text=Predict")
        changed = f"() => document.querySelector('#answer meter').value !== {fish}"
        page.wait_for_function(changed)
        page.screenshot(path=shots / f"service-{width}-{scheme}.png", full_page=True)
        page.fill("input[name=size]", "1000")
        page.fill("input[name=colour]", "<i>")
        page.click("text=Predict")
        page.wait_for_selector(".refused")
        warned = page.inner_text(".refused")
        assert "column 'colour': '<i>', in training '<b>blue</b>', 'red'" in warned
        assert page.locator("#answer .label").count() == 1
        page.fill("input[name=size]", "big")
        page.click("text=Predict")
        page.wait_for_selector("#answer .label", state="detached")
        assert "column 'size': 'big' is not a finite number" in page.inner_text(".refused")


def test_a_number_is_answered_with_its_interval(opened: Any, runs: dict[str, Path]) -> None:
    with served(runs["weight"]) as address, opened(address) as page:
        page.click("text=Predict")
        page.wait_for_selector("#answer .label")
        text = page.inner_text("#answer .label")
        assert text.startswith("weight: ")
        assert ", from " in text


def test_the_page_asks_for_the_token(opened: Any, runs: dict[str, Path]) -> None:
    with served(runs["kind"], token="secret") as address, opened(address) as page:
        for token in ("wrong", "secret"):
            page.wait_for_selector("#token")
            page.fill("#token", token)
            page.click("text=Enter")
            if token == "wrong":
                page.wait_for_selector(".refused")
        page.click("text=Predict")
        page.wait_for_selector("#answer .label")
