"""Published tables as data: every spec is whole, and a wrong one says where."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import difformer
from difformer_paper.specs import Spec, list_specs, load_spec, parse_spec

SOURCE = Path(difformer.__file__).parent.parent
TOY = """
title = "Toy"
metric = "accuracy"
percent = true
systems = ["mlp", "difformer-s"]
[columns.digits]
[columns.few]
dataset = "digits"
metric = "macro_f1"
[protocols.random]
splits = ["random:0", "random:1"]
seeds = [0, 1]
[variants.default]
systems = ["mlp"]
[variants.depth]
systems = ["difformer-s"]
train = { epochs = 7 }
grid = { num_layers = [1, 2], tau = [0.5] }
choose = { lr = [0.1, 0.2] }
lowest = "default"
[[cells]]
systems = ["difformer-s"]
columns = ["few"]
model = { dropout = 0.1, num_layers = 9 }
seeds = [3]
note = "fewer seeds"
[published.mlp]
digits = [90.5, 1.5]
few = "out of memory"
"""


@pytest.fixture(scope="module")
def toy() -> Spec:
    return parse_spec("toy", TOY)


@pytest.mark.parametrize("name", list_specs())
def test_every_spec_is_valid_and_its_cells_can_be_made(name: str) -> None:
    spec = load_spec(name)
    cells = spec.cells()
    assert cells
    assert len({cell.name for cell in cells}) == len(cells)
    assert set(spec.published) <= set(spec.systems)
    assert all(e.seeds == cell.seeds for cell in cells for e in cell.experiments())
    # A row that a reason would point at shows its own only where its figures are short.
    assert not any(why.startswith("as for") for why in spec.reasons.values())


def test_table_two_has_the_published_figures_of_both_difformers() -> None:
    published = load_spec("table2").published
    columns = ("cora", "citeseer", "pubmed")
    simple, sigmoid = ([published[f"difformer-{k}"][c] for c in columns] for k in "sa")
    assert simple == [(85.9, 0.4), (73.5, 0.3), (81.8, 0.3)]
    assert sigmoid == [(84.1, 0.6), (75.7, 0.3), (80.5, 1.2)]


def test_table_two_holds_the_released_settings_with_both_norms() -> None:
    cells = {cell.name: cell for cell in load_spec("table2").cells()}
    for variant, norm in (("released", "tensor"), ("paper", "row")):
        (experiment,) = cells[f"citeseer.difformer-s.{variant}.released"].experiments()
        assert experiment.model["qk_norm"] == norm
        assert (experiment.model["num_layers"], experiment.model["tau"]) == (4, 0.5)
        assert (experiment.train.weight_decay, experiment.train.lr) == (1.0, 0.001)
        assert experiment.split == "released"


def test_a_grid_is_a_variant_for_each_combination_and_stands_against_rules(toy: Spec) -> None:
    assert list(toy.variants) == [
        "default",
        "depth:num_layers=1,tau=0.5",
        "depth:num_layers=2,tau=0.5",
    ]
    cells = {cell.name: cell for cell in toy.cells(systems=["difformer-s"])}
    cell = cells["few.difformer-s.depth:num_layers=2,tau=0.5.random"]
    assert cell.model == {"dropout": 0.1, "num_layers": 2, "tau": 0.5}
    assert (cell.train, cell.note, cell.dataset) == ({"epochs": 7}, "fewer seeds", "digits")
    assert [(e.split, e.seeds) for e in cell.experiments()] == [
        ("random:0", (3,)),
        ("random:1", (3,)),
    ]
    depth = toy.variants["depth:num_layers=2,tau=0.5"]
    assert (depth["choose"], depth["lowest"]) == ({"lr": [0.1, 0.2]}, "default")
    assert {cell.system for cell in toy.cells(variants=["default"])} == {"mlp"}
    assert len(toy.cells()) == 2 + 4
    assert toy.published["mlp"] == {"digits": (90.5, 1.5), "few": "out of memory"}
    assert toy.metric_of("digits") == "accuracy"
    assert toy.metric_of("few") == "macro_f1"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "Toy"', 'titel = "Toy"', "spec toy has no key 'titel'"),
        ('metric = "accuracy"', "", "spec toy must give metric"),
        ("train = { epochs = 7 }", "train = { epoch = 7 }", "difformer-s.*no key 'epoch'"),
        ('columns = ["few"]', 'columns = ["fwe"]', "columns must be among digits, few, got 'fwe'"),
        ("seeds = [3]", "sedes = [3]", "no key 'sedes'"),
        ('dataset = "digits"', 'dataset = "digit"', "dataset must be among"),
        ('systems = ["mlp"]', 'systems = ["lmp"]', "systems must be among"),
        ("[columns.digits]", "[columns.digits", "spec toy is not TOML"),
        ("few = ", "fwe = ", "no key 'fwe'"),
        ("lr = [0.1, 0.2]", "lr = 0.1", "choose.lr must be a list of values, got 0.1"),
        (
            "seeds = [3]",
            "choose = { lr = 1 }",
            r"\[\[cells\]\]: choose.lr must be a list of values",
        ),
        ('lowest = "default"', 'lowest = "best"', "lowest must be among default.*, got 'best'"),
    ],
)
def test_a_wrong_spec_names_what_is_wrong(old: str, new: str, message: str) -> None:
    assert old in TOY
    with pytest.raises(ValueError, match=message):
        parse_spec("toy", TOY.replace(old, new))


def test_an_unknown_choice_lists_the_known_ones(toy: Spec) -> None:
    with pytest.raises(ValueError, match="models must be among mlp, difformer-s, got 'gcn'"):
        toy.cells(systems=["gcn"])
    with pytest.raises(ValueError, match="table must be one of .*table2.*, got 'table99'"):
        load_spec("table99")


def test_reading_the_specs_does_not_import_torch() -> None:
    code = (
        "import sys; from difformer_paper.specs import load_spec, list_specs;"
        "[load_spec(n) for n in list_specs()]; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=SOURCE)
