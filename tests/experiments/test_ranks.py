"""Ranks over the columns of a table: published examples, ties, and the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from difformer.experiments.ranks import rank
from difformer.experiments.tables import fill_page


def test_the_best_is_first_and_equal_figures_share_a_rank() -> None:
    found = rank([[3.0, 3.0], [1.0, 2.0], [1.0, 5.0]])
    assert found.ranks == ((1.0, 2.0), (2.5, 3.0), (2.5, 1.0))
    assert found.means == (1.5, 2.75, 1.75)


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
