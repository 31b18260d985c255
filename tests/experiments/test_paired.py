"""Differences between two rows of a table are taken run by run, on the runs both have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from difformer_paper.measure import CellResult
from difformer_paper.specs import Spec, parse_spec
from difformer_paper.tables import View, fill_page
from difformer_paper.verdicts import difference, paired_table

SPEC = """
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
title = "with"
[variants.without]
title = "without"
"""


@pytest.fixture
def spec() -> Spec:
    return parse_spec("toy", SPEC)


def result(system: str, variant: str, accuracies: dict[str, float]) -> CellResult:
    runs: list[dict[str, Any]] = [
        {"split": split, "seed": 0, "metrics": {"test": {"accuracy": value}}}
        for split, value in accuracies.items()
    ]
    cell = f"digits.{system}.{variant}.random"
    settings: dict[str, Any] = {}
    return CellResult(
        "toy",
        cell,
        system,
        "digits",
        variant,
        "random",
        "digits",
        "",
        settings,
        [],
        {},
        "",
        "",
        runs,
    )


def test_only_runs_that_both_have_are_compared() -> None:
    ours = result("mlp", "with", {"random:0": 0.9, "random:1": 0.8})
    theirs = result("gcn", "with", {"random:1": 0.7, "random:2": 0.1})
    found = difference(ours, theirs, "accuracy")
    assert found is not None
    assert found.pairs == 1
    assert found.mean == pytest.approx(0.1)
    assert difference(ours, result("gcn", "with", {"random:2": 0.1}), "accuracy") is None
    assert difference(ours, None, "accuracy") is None


def test_every_row_is_held_against_one(spec: Spec) -> None:
    low = {"random:0": 0.5, "random:1": 0.6, "random:2": 0.7}
    high = {name: value + 0.1 for name, value in low.items()}
    results = [result("mlp", "with", low), result("gcn", "with", high)]
    table = paired_table(View(spec, results), "mlp:with")
    assert tuple(table.rows) == (("GCN", "with", "**+10.0 [10.0, 10.0]** (3)"),)
    assert "Minus MLP, with" in table.notes[0]
    fewer = [results[0], result("gcn", "with", {"random:0": 0.6})]
    assert tuple(paired_table(View(spec, fewer), "mlp:with").rows) == (
        ("GCN", "with", "+10.0 (1)"),
    )


def test_every_system_is_held_against_itself(spec: Spec) -> None:
    results = [
        result("mlp", "with", {"random:0": 0.5, "random:1": 0.7}),
        result("mlp", "without", {"random:0": 0.6, "random:1": 0.6}),
        result("gcn", "with", {"random:0": 0.5}),
    ]
    table = paired_table(View(spec, results), "*:without")
    assert [row[:2] for row in table.rows] == [("MLP", "with")]
    assert table.rows[0][2].startswith("+0.0 [")
    table = paired_table(View(spec, results, systems=["gcn"]), "mlp:with")
    assert [row[:2] for row in table.rows] == [("GCN", "with")]
    assert tuple(paired_table(View(spec, results, protocols=["public"]), "mlp:with").rows) == ()


@pytest.mark.parametrize("wrong", ["mlp", "mlp:never", "nobody:with"])
def test_an_unknown_row_is_named(spec: Spec, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        paired_table(View(spec, []), wrong)


def test_a_page_may_narrow_them_too() -> None:
    page = "<!-- results: table4 paired=mlp:default systems=lp -->\n<!-- end of results -->"
    filled = fill_page(page, Path(__file__).parents[2] / "results")
    assert "| LP |" in filled
    assert "| GCN-kNN |" not in filled
