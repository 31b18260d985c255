"""The tables of benchmarks in the docs are those of the result files."""

import json
from pathlib import Path
from statistics import mean

import pytest

from benchmarks import coverage, measure, tables
from benchmarks.all_pair_trained import HIDDEN_FORM
from benchmarks.growth import exponent
from difformer.app.commands.bench import BENCHMARKS
from difformer.machine import commit, commit_of

FOLDER = Path(__file__).resolve().parent.parent


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


def kept(name):
    """The results in a result file."""
    return json.loads((FOLDER / f"results/benchmarks/{name}.json").read_text("utf-8"))["results"]


def said(page):
    """The words of a page, on one line."""
    return " ".join((FOLDER / f"docs/{page}.md").read_text("utf-8").split())


def test_the_words_about_the_suite_are_of_its_sets():
    kinds = [found["kind"] for found in kept("suite").values()]
    words = {7: "seven", 11: "eleven", 18: "eighteen"}
    tables, graphs = (words[kinds.count(kind)] for kind in ("table", "graph"))
    assert f"fits it to {tables} tables and {graphs} graphs." in said("defaults")
    assert f"developed on these {words[len(kinds)]} datasets" in said("defaults")


def test_the_words_about_growth_are_of_the_figures():
    found = kept("growth")
    near, noise, landmarks = (
        found[name] for name in ("sharp, near rows", "sharp, near rows, no groups", "landmarks")
    )
    last = found["DIFFormer-s"]["rows"]["1000000"]["seconds"]
    times = [each["rows"]["1000000"]["seconds"] / last for each in (near, noise, landmarks)]
    for words in (
        f"by an exponent of {near['exponent']} on rows in groups and of {noise['exponent']} on "
        f"pure noise; with landmarks it is {landmarks['exponent']}.",
        f"it takes {times[0]:.1f} times as long as one of -s on rows in groups",
        f"and {times[1]:.1f} times on pure noise",
    ):
        assert words in said("speed")
    assert times[2] < 1  # "a step with landmarks is cheaper than one of -s"


def test_the_words_about_cheaper_forms_are_of_the_figures():
    found = kept("all_pair")["labels"]

    def gaps(name, ours, theirs):
        pairs = [(each[ours]["test"], each[theirs]["test"]) for each in found[name].values()]
        return [round(100 * (mean(a) - mean(b)), 1) for a, b in pairs]

    one, *more = gaps("digits", "sharp", "near")
    more += gaps("cifar10", "sharp", "near") + gaps("20news", "sharp", "near")
    digits, images = (gaps(name, "sharp", "landmarks") for name in ("digits", "cifar10"))
    texts, hidden = (gaps(name, HIDDEN_FORM, "near") for name in ("20news", "cifar10"))
    assert texts == sorted(texts)
    for words in (
        f"within {max(more)} points of the sharp form everywhere except on digits with one label "
        f"per class ({one} points)",
        f"within {max(digits)} points on digits, and {min(images)} to {max(images)} points below "
        "on CIFAR-10 features",
        f"it gains {texts[0]} to {texts[-1]} points on 20News, more with more labels, and "
        f"{min(hidden)} to {max(hidden)} points on CIFAR-10 features.",
    ):
        assert words in said("all_pair")


def test_the_exponent_of_a_square_is_two():
    assert exponent([10, 100, 1000], [0.5, 1.0, 100.0]) == pytest.approx(2.0)


def test_the_command_lists_every_benchmark_that_has_a_result():
    folder = Path(tables.__file__).parent
    there = {path.stem for path in (folder.parent / "results" / "benchmarks").glob("*.json")}
    assert there <= set(BENCHMARKS)
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
