"""What a measured table says: paired differences, ranks, losses and settings that differ."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from difformer_paper.measure import CellResult, read_results
from difformer_paper.specs import load_spec, parse_spec
from difformer_paper.tables import View, fill_page
from difformer_paper.verdicts import difference, differing_settings, losses, paired_table, rank

REPOSITORY = Path(__file__).parents[2]
SPEC = parse_spec(
    "toy",
    """
title = "Toy"
metric = "accuracy"
percent = true
systems = ["mlp", "gcn"]
[columns.digits]
title = "Digits"
[protocols.random]
title = "random splits"
splits = ["random:0", "random:1", "random:2"]
seeds = [0]
[variants.with]
[variants.without]
""",
)


def result(
    system: str,
    variant: str,
    *accuracies: float | None,
    table: str = "toy",
    column: str = "digits",
    protocol: str = "random",
    metric: str = "accuracy",
) -> CellResult:
    """One run per split; None where a split was not run."""
    runs: list[dict[str, Any]] = [
        {"split": f"random:{i}", "seed": 0, "metrics": {"test": {metric: value}}}
        for i, value in enumerate(accuracies)
        if value is not None
    ]
    cell = f"{column}.{system}.{variant}.{protocol}"
    words = (table, cell, system, column, variant, protocol, column, "", {})
    return CellResult(*words, [], {}, "", "", runs)


def page(words: str) -> str:
    marked = f"<!-- results: {words} -->\n<!-- end of results -->\n"
    return fill_page(marked, REPOSITORY / "results")


def test_only_runs_that_both_have_are_compared() -> None:
    ours, theirs = result("mlp", "with", 0.9, 0.8), result("gcn", "with", None, 0.7, 0.1)
    found = difference(ours, theirs, "accuracy")
    assert found is not None
    assert found.pairs == 1
    assert found.mean == pytest.approx(0.1)
    assert difference(ours, result("gcn", "with", None, None, 0.1), "accuracy") is None
    assert difference(ours, None, "accuracy") is None


def test_every_row_is_held_against_one() -> None:
    results = [result("mlp", "with", 0.5, 0.6, 0.7), result("gcn", "with", 0.6, 0.7, 0.8)]
    table = paired_table(View(SPEC, results), "mlp:with")
    assert table.rows == [("GCN", "with", "**+10.0 [10.0, 10.0]** (3)")]
    assert "Minus MLP, with" in table.notes[0]
    fewer = [results[0], result("gcn", "with", 0.6)]
    assert paired_table(View(SPEC, fewer), "mlp:with").rows == [("GCN", "with", "+10.0 (1)")]


def test_every_system_is_held_against_itself() -> None:
    both = [result("mlp", "with", 0.5, 0.7), result("mlp", "without", 0.6, 0.6)]
    results = [*both, result("gcn", "with", 0.5)]
    table = paired_table(View(SPEC, results), "*:without")
    assert [row[:2] for row in table.rows] == [("MLP", "with")]
    assert table.rows[0][2].startswith("+0.0 [")
    table = paired_table(View(SPEC, results, systems=["gcn"]), "mlp:with")
    assert [row[:2] for row in table.rows] == [("GCN", "with")]
    assert paired_table(View(SPEC, results, protocols=["public"]), "mlp:with").rows == []


@pytest.mark.parametrize("wrong", ["mlp", "mlp:never", "nobody:with"])
def test_an_unknown_row_is_named(wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        paired_table(View(SPEC, []), wrong)


def test_a_page_may_narrow_them_too() -> None:
    filled = page("table4 paired=mlp:default systems=lp")
    assert "| LP |" in filled
    assert "| GCN-kNN |" not in filled


def test_the_best_is_first_and_equal_figures_share_a_rank() -> None:
    found = rank([[3.0, 3.0], [1.0, 2.0], [1.0, 5.0]])
    assert found.ranks == [[1.0, 2.0], [2.5, 3.0], [2.5, 1.0]]
    assert found.means == [1.5, 2.75, 1.75]
    with pytest.raises(ValueError, match="three systems on two columns, got 2 on 1"):
        rank([[1.0], [2.0]])


def test_the_critical_difference_is_that_of_the_table_of_demsar() -> None:
    """Four systems on fourteen sets: q = 2.569, CD = 1.25 (Demšar 2006, section 3.2.4)."""
    figures = [[float(i + b % 2) for b in range(14)] for i in range(4)]
    assert rank(figures).critical == pytest.approx(1.25, abs=0.005)


def test_systems_that_never_change_places_are_told_apart_and_equal_ones_are_not() -> None:
    apart = rank([[float(i)] * 30 for i in range(3)])
    assert apart.p < 1e-6
    assert apart.means[0] - apart.means[2] > apart.critical
    turning = rank([[0.0, 1.0, 2.0] * 4, [1.0, 2.0, 0.0] * 4, [2.0, 0.0, 1.0] * 4])
    assert turning.p == pytest.approx(1.0)


def test_a_page_shows_the_rows_that_have_every_figure_the_best_first() -> None:
    text = page("table2 ranks protocols=released")
    means = [float(line.split(" | ")[2]) for line in text.splitlines()[3:] if line[:2] == "| "]
    assert len(means) > 15
    assert means == sorted(means)
    assert "Nemenyi" in text


def test_losses_name_the_published_figure_and_the_best_system_ahead() -> None:
    results = [
        result(*words, figure, table="table2", column=column, protocol="released")
        for *words, column, figure in (
            ("difformer-s", "stable", "cora", 0.80),
            ("difformer-s", "stable", "pubmed", 0.99),
            ("gcn", "default", "cora", 0.81),
            ("gat", "default", "cora", 0.82),
            ("sgc", "default", "cora", 0.80),
        )
    ]
    told, best = (
        losses(View(load_spec("table2"), some, protocols=["released"]))
        for some in (results, results[1:2])
    )
    behind = "Cora 80.0, behind the published 85.9 and GAT 82.0 and 1 more."
    assert told == f"- DIFFormer-s, stable recipe: {behind}"
    assert best == "- DIFFormer-s, stable recipe: nowhere."


def test_the_best_system_ahead_has_the_lowest_error() -> None:
    spec = parse_spec("toy", ERRORS)
    results = [
        result(system, "own", error, metric="mse")
        for system, error in (("difformer-s", 0.9), ("mlp", 0.7), ("gcn", 0.8))
    ]
    told = losses(View(spec, results))
    assert told == "- DIFFormer-s, own: digits 0.900, behind MLP 0.700 and 1 more."


ERRORS = """
title = "Errors"
metric = "mse"
systems = ["difformer-s", "mlp", "gcn"]
columns.digits = {}
protocols.random = { splits = ["random:0"], seeds = [0] }
variants.own = {}
"""


@pytest.fixture(scope="module")
def agreement() -> dict[str, str]:
    """What is said of agreement in Table 2, by network."""
    found = read_results(REPOSITORY / "results", "table2")
    view = View(load_spec("table2"), found, systems=["difformer-s"], variants=["agreement"])
    (item,) = differing_settings(view, "stable").splitlines()
    columns = item.split(": ", 1)[1].rstrip(".").split("; ")
    return {text.split()[0]: text.split(maxsplit=1)[1] for text in columns}


def test_every_setting_that_differs_is_named_with_its_value(agreement: dict[str, str]) -> None:
    where = {"systems": ["difformer-s"], "columns": ["citeseer"], "protocols": ["released"]}
    ours, theirs = (
        {**vars(experiment.train), **experiment.model}
        for variant in ("agreement", "stable")
        for cell in load_spec("table2").cells(variants=[variant], **where)
        for experiment in cell.experiments()
    )
    changed = {key: str(value) for key, value in ours.items() if theirs[key] != value}
    assert dict(re.findall(r"`(\w+)` ([^,]+)", agreement["Citeseer"])) == changed
    assert {"num_layers", "hidden_channels", "consistency"} <= set(changed)


def test_settings_of_one_kind_of_split_are_named_with_it(agreement: dict[str, str]) -> None:
    assert re.search(r"`dropout` 0.2, .*split of the released scripts", agreement["Pubmed"])
    assert "`consistency` 1.0 (ten random splits" in agreement["Pubmed"]


def test_the_readme_says_where_agreement_is_more_than_one_more_loss(
    agreement: dict[str, str],
) -> None:
    words = " ".join((REPOSITORY / "README.md").read_text(encoding="utf-8").split())
    assert "and has other settings on Citeseer and Pubmed." in words
    assert agreement["Cora"] == "`consistency` 1.0"
    assert all(agreement[name].count("`") > 2 for name in ("Citeseer", "Pubmed"))


def test_an_unknown_variant_is_an_error() -> None:
    with pytest.raises(ValueError, match="settings must be one of default, .*, got 'other'"):
        differing_settings(View(load_spec("table2"), []), "other")
