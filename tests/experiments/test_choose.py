"""Settings by validation: both rules, and what is printed for the spec."""

from __future__ import annotations

from difformer.experiments.choose import Tried, lowest, one_standard_error, rules
from difformer.experiments.specs import load_spec, parse_spec


def tried(val: float, **settings: float) -> Tried:
    return Tried(settings, val, 0.05, 3)


BEST = tried(0.70, source=0.0, lr=0.05, weight_decay=0.0, dropout=0.0)
NEAR = tried(0.72, source=0.0, lr=0.01, weight_decay=0.0, dropout=0.2)
NEAR_SLOW = tried(0.74, source=0.0, lr=0.005, weight_decay=0.0, dropout=0.2)
OTHER_SOURCE = tried(0.71, source=0.5, lr=0.01, weight_decay=0.005, dropout=0.5)
FAR = tried(0.80, source=0.0, lr=0.01, weight_decay=0.005, dropout=0.5)
ALL = [NEAR, FAR, OTHER_SOURCE, BEST, NEAR_SLOW]


def test_the_most_regularised_of_the_best_structure_within_one_error_is_chosen() -> None:
    assert lowest(ALL) is BEST
    assert one_standard_error(ALL) is NEAR_SLOW


def test_both_rules_are_printed_each_for_its_variant_and_can_be_read_back() -> None:
    spec = load_spec("table5")
    (cell,) = spec.cells(systems=["mlp"], columns=["covid"], variants=["baseline"])
    low = tried(0.70, lr=0.05, weight_decay=0.0, dropout=0.0)
    near = tried(0.72, lr=0.01, weight_decay=0.0, dropout=0.2)
    text = rules(cell, [low, near])
    assert text.index('variants = ["baseline-lowest"]') < text.index('variants = ["baseline"]')
    toy = """
title = "Toy"
metric = "mse"
systems = ["mlp"]
columns.covid = {}
protocols.time = { splits = ["time"], seeds = [0] }
variants.baseline = { systems = ["mlp"] }
variants.baseline-lowest = { systems = ["mlp"] }
"""
    read = {c.variant.name: c for c in parse_spec("toy", toy + text).cells()}
    assert read["baseline"].model == {"dropout": 0.2}
    assert read["baseline"].train == {"lr": 0.01, "weight_decay": 0.0}
    assert read["baseline-lowest"].model == {"dropout": 0.0}
    assert read["baseline-lowest"].train == {"lr": 0.05, "weight_decay": 0.0}


def test_a_variant_may_take_the_lowest_error_alone() -> None:
    (cell,) = load_spec("table5").cells(systems=["node-ar"], columns=["covid"], variants=["naive"])
    text = rules(cell, [tried(0.7, ridge=1.0), tried(0.72, ridge=10.0)])
    assert text.count("[[cells]]") == 1
    assert "model = { ridge = 1.0 }" in text
