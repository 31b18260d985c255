"""Ranks over the columns of a table, and where ours are behind: examples, ties, and the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from difformer_paper.measure import CellResult
from difformer_paper.specs import load_spec
from difformer_paper.tables import View, fill_page
from difformer_paper.verdicts import losses, rank


def test_the_best_is_first_and_equal_figures_share_a_rank() -> None:
    found = rank([[3.0, 3.0], [1.0, 2.0], [1.0, 5.0]])
    assert found.ranks == [[1.0, 2.0], [2.5, 3.0], [2.5, 1.0]]
    assert found.means == [1.5, 2.75, 1.75]


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


def test_ranks_need_rows_and_columns() -> None:
    with pytest.raises(ValueError, match="three systems on two columns, got 2 on 1"):
        rank([[1.0], [2.0]])


def test_a_page_shows_the_rows_that_have_every_figure_the_best_first() -> None:
    page = "<!-- results: table2 ranks protocols=released -->\n<!-- end of results -->\n"
    text = fill_page(page, Path(__file__).parents[2] / "results")
    means = [float(line.split(" | ")[2]) for line in text.splitlines()[3:] if line[:2] == "| "]
    assert len(means) > 15
    assert means == sorted(means)
    assert "Nemenyi" in text


def result(system: str, variant: str, column: str, accuracy: float) -> CellResult:
    cell = f"{column}.{system}.{variant}.released"
    run = {"split": "released", "seed": 0, "metrics": {"test": {"accuracy": accuracy}}}
    words = ("table2", cell, system, column, variant, "released", column, "", {})
    return CellResult(*words, [("released", 0)], {}, "", "", [run])


def test_losses_name_the_published_figure_and_the_best_system_ahead() -> None:
    results = [
        result("difformer-s", "stable", "cora", 0.80),
        result("difformer-s", "stable", "pubmed", 0.99),
        result("gcn", "default", "cora", 0.81),
        result("gat", "default", "cora", 0.82),
        result("sgc", "default", "cora", 0.80),
    ]
    view = View(load_spec("table2"), results, protocols=["released"])
    assert losses(view) == (
        "- DIFFormer-s, stable recipe: "
        "Cora 80.0, behind the published 85.9 and GAT 82.0 and 1 more."
    )
    best = View(load_spec("table2"), results[1:2], protocols=["released"])
    assert losses(best) == "- DIFFormer-s, stable recipe: nowhere."
