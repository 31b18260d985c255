"""Theorem 1 on a model's own states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from difformer import DIFFormer, Graph
from difformer.core.diffusivity import Simple
from difformer.errors import DifformerError
from difformer.report.energy import check_energy, energy_blocks


def problem(**options: Any) -> tuple[DIFFormer, Tensor]:
    torch.manual_seed(0)
    return DIFFormer(5, 8, 3, **{"num_layers": 4, **options}).double().eval(), torch.randn(
        30, 5, dtype=torch.float64
    )


def a_graph() -> Graph:
    edges = torch.randint(0, 30, (2, 60), generator=torch.Generator().manual_seed(1))
    return Graph.from_edges(edges, 30, undirected=True)


@pytest.mark.parametrize(
    "kernel", ["simple", "sigmoid", "sharp", "constant", "softmax", "gaussian"]
)
@pytest.mark.parametrize("with_graph", [False, True])
@pytest.mark.parametrize("source", [0.0, 0.2])
def test_the_layers_energies_are_the_models(kernel: str, with_graph: bool, source: float) -> None:
    model, x = problem(kernel=kernel, source=source)
    graph = a_graph() if with_graph else None
    check = check_energy(model, x, graph)
    torch.testing.assert_close(
        torch.tensor([layer.end for layer in check.layers], dtype=torch.float64),
        model.energies(x, graph),
    )


@pytest.mark.parametrize("kernel", ["simple", "sigmoid", "constant"])
def test_the_bare_step_descends_where_the_theorem_says(kernel: str) -> None:
    model, x = problem(kernel=kernel, tau=0.3)
    for layer in check_energy(model, x).layers:
        assert layer.tau <= layer.safe_tau
        assert layer.bare_falls
        assert layer.bare < layer.start


def test_where_no_rows_meet_no_bare_step_is_said_to_lower_the_energy() -> None:
    model, x = problem(kernel="identity")
    check = check_energy(model, x)
    assert all(layer.bare == layer.start for layer in check.layers)
    assert check.sentences()[-1].endswith("before any layer does not raise the energy.")


def test_the_causes_add_up_and_a_bare_process_has_none_but_scaling() -> None:
    model, x = problem(activation="relu", center=True)
    for layer in check_energy(model, x).layers:
        assert layer.bare + sum(layer.causes.values()) == pytest.approx(layer.end)
    # No learned maps and no norm: what is left is the scaling of rows to unit length.
    model, x = problem(learn_qk=False, use_weight=False, norm="none", kernel="constant")
    causes = check_energy(model, x).layers[0].causes
    assert causes["layer-wise transformation"] == pytest.approx(0, abs=1e-9)
    assert causes["centring, norm and activation"] == pytest.approx(0, abs=1e-9)


def test_a_transformation_that_scatters_the_rows_is_named_as_the_cause() -> None:
    model, x = problem(num_layers=2, learn_qk=False, norm="none", tau=0.9, num_heads=1)
    with torch.no_grad():
        value: Any = model.layers[1].value
        value.weight.copy_(-20 * torch.randn(8, 8, dtype=torch.float64))
        value.bias.zero_()
    check = check_energy(model, x)
    assert "Layer 2" in check.sentences()[0]
    assert check.to_json()["layers"][1]["falls"] in (True, False)


def test_one_layer_is_said_to_have_nothing_before_it() -> None:
    model, x = problem(num_layers=1)
    check = check_energy(model, x)
    assert check.holds
    assert check.layers[0].falls is None
    assert "only layer" in check.summary


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ([8, 4, 2], "The energy falls at every layer, from 8 after the first layer to 2 after the"),
        ([8, 4, 5, 2, 6], "(-25 %), and rises at layers 3, 5."),
        ([2, 4, 8], "The energy rises at every layer, from 2"),
        ([2, 4, 3, 50], "The energy rises from 2 after the first layer to 50 after the last "),
        ([2, 4, 3, 50], "(+2,400 %), and falls at layer 3."),
    ],
)
def test_one_sentence_says_what_the_chart_shows(ends: list[float], words: str) -> None:
    """The chart's visible line is that of which the sentence speaks."""
    model, x = problem(num_layers=len(ends))
    check = check_energy(model, x)
    layers = [
        replace(layer, end=end, falls=None if i == 0 else end <= ends[i - 1])
        for i, (layer, end) in enumerate(zip(check.layers, ends, strict=True))
    ]
    check = replace(check, layers=tuple(layers))
    assert words in check.summary
    note, plot = energy_blocks(check)
    assert note.text == check.summary
    (shown,) = [line for line in plot.data if line["visible"] is True]
    assert shown["y"] == ends
    # The rest is folded away below the chart.
    assert list(plot.notes) == check.sentences()


def test_a_diffusivity_without_an_energy_is_an_error() -> None:
    class Own(Simple):
        name = "own"

        def f(self, z2: Tensor) -> Tensor:
            raise NotImplementedError("the own diffusivity states no energy: it has no f")

    model, x = problem(kernel=Own())
    with pytest.raises(DifformerError, match="cannot be computed.*no f"):
        check_energy(model, x)
