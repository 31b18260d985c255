"""The tables of benchmarks in the docs are those of the result files."""

from pathlib import Path

import pytest

from benchmarks import tables
from benchmarks.growth import exponent
from difformer.commands.bench import BENCHMARKS


@pytest.mark.parametrize("page", tables.DOCS, ids=lambda page: page.name)
def test_the_docs_show_the_result_files(page):
    text = page.read_text("utf-8")
    assert "<!-- " in text
    assert tables.filled(text) == text, "run python -m benchmarks.tables"


def test_the_exponent_of_a_square_is_two():
    assert exponent([10, 100, 1000], [0.5, 1.0, 100.0]) == pytest.approx(2.0)


def test_the_command_lists_every_benchmark_that_has_a_result():
    folder = Path(tables.__file__).parent
    kept = {path.stem for path in (folder.parent / "results" / "benchmarks").glob("*.json")}
    assert kept <= set(BENCHMARKS)
    assert all((folder / f"{name}.py").exists() for name in BENCHMARKS)
