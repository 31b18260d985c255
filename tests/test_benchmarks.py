"""The tables of benchmarks in the docs are those of the result files."""

import json
from pathlib import Path

import pytest

from benchmarks import coverage, measure, tables
from benchmarks.growth import exponent
from difformer.commands.bench import BENCHMARKS
from difformer.commit import commit, commit_of


@pytest.mark.parametrize("page", tables.DOCS, ids=lambda page: page.name)
def test_the_docs_show_the_result_files(page):
    text = page.read_text("utf-8")
    assert "<!-- " in text
    assert tables.filled(text) == text, "run python -m benchmarks.tables"


def test_a_result_file_names_its_commit_and_a_table_shows_it(tmp_path, monkeypatch):
    path = tmp_path / "imports.json"
    measure.write_results("imports", {"x": {"seconds": 1.0, "of_import_torch": 1.0}}, path=path)
    content = json.loads(path.read_text("utf-8"))
    assert content["commit"] == commit()
    monkeypatch.setattr(tables, "result_file", lambda name: path)
    assert f"{commit_of(content)}.\n" in tables.table("imports")
    del content["commit"]
    path.write_text(json.dumps(content))
    assert "before 2a0c100.\n" in tables.table("imports")


def test_the_exponent_of_a_square_is_two():
    assert exponent([10, 100, 1000], [0.5, 1.0, 100.0]) == pytest.approx(2.0)


def test_the_command_lists_every_benchmark_that_has_a_result():
    folder = Path(tables.__file__).parent
    kept = {path.stem for path in (folder.parent / "results" / "benchmarks").glob("*.json")}
    assert kept <= set(BENCHMARKS)
    assert all((folder / f"{name}.py").exists() for name in BENCHMARKS)


@pytest.mark.parametrize("kind", ["sets", "intervals"])
def test_nine_of_ten_sets_and_intervals_hold_the_truth_in_the_mean_over_the_suite(kind):
    """What the default does on splits that were measured: results/benchmarks/coverage.json."""
    content = json.loads(Path("results/benchmarks/coverage.json").read_text("utf-8"))["results"]
    means = [coverage.mean(records) for records in content[kind].values()]
    assert len(means) >= 7
    assert 0.87 <= sum(means) / len(means) <= 0.93


def test_coverage_is_measured_on_a_split_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(coverage, "QUICK", 1)
    monkeypatch.setattr(coverage, "DRAWS", 0)  # no regression on iris
    path = tmp_path / "coverage.json"
    first = coverage.coverage(only=("iris",), path=path)["sets"]["iris"]
    assert first.keys() == {"0"}
    assert 0.5 < first["0"]["coverage"] <= 1 <= first["0"]["size"]
    assert first["0"]["held_out"] == 30
    monkeypatch.setattr(coverage, "of_sets", None)  # nothing is measured twice
    assert coverage.coverage(only=("iris",), path=path)["sets"]["iris"] == first
