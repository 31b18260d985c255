"""In which settings the rows of a table differ from another variant."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from difformer_paper.measure import read_results
from difformer_paper.specs import load_spec
from difformer_paper.tables import View
from difformer_paper.verdicts import differing_settings

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def agreement() -> dict[str, str]:
    """What is said of agreement in Table 2, by network."""
    found = read_results(REPOSITORY / "results", "table2")
    view = View(load_spec("table2"), found, systems=["difformer-s"], variants=["agreement"])
    (item,) = differing_settings(view, "stable").splitlines()
    columns = item.split(": ", 1)[1].rstrip(".").split("; ")
    return {text.split()[0]: text.split(maxsplit=1)[1] for text in columns}


def test_every_setting_that_differs_is_named_with_its_value(agreement: dict[str, str]) -> None:
    cells = {
        variant: load_spec("table2").cells(
            systems=["difformer-s"],
            columns=["citeseer"],
            variants=[variant],
            protocols=["released"],
        )[0]
        for variant in ("agreement", "stable")
    }
    ours, theirs = (cell.experiments()[0] for cell in cells.values())
    options = {**vars(ours.train), **ours.model}
    other = {**vars(theirs.train), **theirs.model}
    changed = {key: str(value) for key, value in options.items() if other[key] != value}
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
