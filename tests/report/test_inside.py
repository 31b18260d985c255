"""Inside a model: energies and diffusivities against what they are by definition, and states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from difformer import DIFFormer, Graph
from difformer.core.diffusivity import Simple
from difformer.errors import DifformerError
from difformer.report import inside
from difformer.report.energy import CAUSES, check_energy, energy_blocks, sentences
from difformer.report.inside import flow_between, layer_weights, project, spread, strongest

KERNELS = ["simple", "sigmoid", "sharp", "identity", "constant", "softmax", "gaussian"]


def problem(kernel: Any = "simple", **options: Any) -> tuple[DIFFormer, Tensor, Tensor]:
    """A model in float64, rows and their classes."""
    torch.manual_seed(0)
    model = DIFFormer(5, 8, 3, **{"kernel": kernel, "num_layers": 3, **options}).double().eval()
    return model, torch.randn(23, 5, dtype=torch.float64), torch.arange(23) % 3


def dense(model: DIFFormer, x: Tensor, layer: int) -> Tensor:
    found = model.diffusivity(x, layer=layer)
    assert isinstance(found, Tensor)
    return found


# --- energies --------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [kernel for kernel in KERNELS if kernel != "identity"])
@pytest.mark.parametrize("with_graph", [False, True])
@pytest.mark.parametrize("source", [0.0, 0.2])
def test_the_layers_energies_are_the_models(kernel: str, with_graph: bool, source: float) -> None:
    model, x, _ = problem(kernel, source=source)
    edges = torch.randint(0, 23, (2, 60), generator=torch.Generator().manual_seed(1))
    graph = Graph.from_edges(edges, 23, undirected=True) if with_graph else None
    layers = check_energy(model, x, graph)["layers"]
    ends = torch.tensor([layer["end"] for layer in layers], dtype=torch.float64)
    torch.testing.assert_close(ends, model.energies(x, graph))
    for layer in layers:
        assert layer["bare"] + sum(layer["causes"].values()) == pytest.approx(layer["end"])


@pytest.mark.parametrize("kernel", ["simple", "sigmoid", "constant"])
def test_the_bare_step_descends_where_the_theorem_says(kernel: str) -> None:
    model, x, _ = problem(kernel, tau=0.3)
    for layer in check_energy(model, x)["layers"]:
        assert layer["tau"] <= layer["safe_tau"]
        assert layer["bare_falls"]
        assert layer["bare"] < layer["start"]


def test_where_no_rows_meet_no_bare_step_is_said_to_lower_the_energy() -> None:
    check = check_energy(*problem("identity")[:2])
    assert all(layer["bare"] == layer["start"] for layer in check["layers"])
    assert check["summary"][-1].endswith("before any layer does not raise the energy.")


def test_a_bare_process_has_no_cause_but_scaling() -> None:
    # No learned maps and no norm: what is left is the scaling of rows to unit length.
    bare = problem("constant", learn_qk=False, use_weight=False, norm="none")
    causes = check_energy(*bare[:2])["layers"][0]["causes"]
    assert [causes[name] for name in CAUSES[2:]] == pytest.approx([0, 0], abs=1e-9)


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ([8], "The energy after the only layer is 8: nothing to compare it with."),
        ([8, 4, 2], "The energy falls at every layer, from 8 after the first layer to 2 after the"),
        ([8, 4, 5, 2, 6], "(-25 %), and rises at layers 3, 5."),
        ([2, 4, 8], "The energy rises at every layer, from 2"),
        ([2, 4, 3, 50], "The energy rises from 2 after the first layer to 50 after the last "),
        ([2, 4, 3, 50], "(+2,400 %), and falls at layer 3."),
    ],
)
def test_one_sentence_says_what_the_chart_shows(ends: list[float], words: str) -> None:
    """The chart's visible line is that of which the sentence speaks."""
    model, x, _ = problem(num_layers=len(ends))
    layers = [
        {**layer, "end": end, "falls": None if i == 0 else end <= ends[i - 1]}
        for i, (layer, end) in enumerate(zip(check_energy(model, x)["layers"], ends, strict=True))
    ]
    summary, *rest = sentences(layers)
    assert words in summary
    assert [line.split(":")[0] for line in rest[:-1]] == [
        f"Layer {i}" for i in range(2, len(ends) + 1)
    ]
    note, plot = energy_blocks({"layers": layers, "summary": [summary, *rest]})
    assert note.text == summary
    (shown,) = [line for line in plot.data if line["visible"] is True]
    assert shown["y"] == ends
    assert list(plot.notes) == rest  # folded away below the chart


def test_a_transformation_that_scatters_the_rows_is_named_as_the_cause() -> None:
    model, x, _ = problem(num_layers=2, learn_qk=False, norm="none", tau=0.9, num_heads=1)
    with torch.no_grad():
        value: Any = model.layers[1].value
        value.weight.copy_(-20 * torch.randn(8, 8, dtype=torch.float64))
        value.bias.zero_()
    check = check_energy(model, x)
    assert check["holds"] is check["layers"][1]["falls"]
    assert "Layer 2" in check["summary"][1]


def test_a_diffusivity_without_an_energy_is_an_error() -> None:
    class Own(Simple):
        name = "own"

        def f(self, z2: Tensor) -> Tensor:
            raise NotImplementedError("the own diffusivity states no energy: it has no f")

    with pytest.raises(DifformerError, match="cannot be computed.*no f"):
        check_energy(*problem(Own())[:2])


# --- diffusivities, against the dense matrix that is never made ------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("heads", [1, 3])
def test_flows_spreads_and_strongest_pairs_are_those_of_the_dense_matrix(
    kernel: str, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inside, "CHUNK", 100)  # a few rows at a time
    model, x, y = problem(kernel, num_heads=heads, learn_qk=True)
    y[4] = -1
    for layer, weights in enumerate(layer_weights(model, x)):
        s = dense(model, x, layer)
        flow, within, _ = flow_between(weights, y)
        wanted = [[s[y == a][:, y == b].sum(1).mean() for b in range(3)] for a in range(3)]
        torch.testing.assert_close(flow, torch.tensor(wanted, dtype=s.dtype))
        same = (y.unsqueeze(0) == y.unsqueeze(1)) & (y >= 0)
        assert within == pytest.approx(float((s * same).sum(1)[y >= 0].mean()))
        rows = torch.tensor([2, 5])
        torch.testing.assert_close(spread(weights, rows), 1 / s[rows].square().sum(1))
        pairs = s.clone().fill_diagonal_(-1)
        for some in (torch.arange(23), torch.tensor([3, 9, 11, 20])):
            target, source, weight = strongest(weights, k=40, rows=some)
            best = pairs[some][:, some].flatten().topk(min(40, len(some) ** 2)).values.float()
            torch.testing.assert_close(weight, best[best > 0])
            torch.testing.assert_close(s[target, source].float(), weight)
            assert {*target.tolist(), *source.tolist()} <= set(some.tolist())


def test_uniform_weights_give_a_class_no_more_and_one_without_rows_is_nan() -> None:
    model, x, y = problem("constant")
    _, within, alike = flow_between(layer_weights(model, x)[0], y)
    assert within == pytest.approx(alike)
    y[y == 1] = 2
    flow, within, _ = flow_between(layer_weights(model, x)[0], y)
    assert flow.isnan().all(1).tolist() == [False, True, False]
    assert not bool(flow[[0, 2]].isnan().any())
    assert 0 < within <= 1


@pytest.mark.parametrize(("kernel", "wanted"), [("constant", 23.0), ("identity", 1.0)])
def test_effective_neighbours_run_from_one_to_all_rows(kernel: str, wanted: float) -> None:
    model, x, _ = problem(kernel)
    found = spread(layer_weights(model, x)[0], torch.tensor([2, 5]))
    torch.testing.assert_close(found, torch.full_like(found, wanted))


# --- states ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["pca", "tsne"])
def test_states_on_one_line_are_not_drawn_on_one_line(how: str) -> None:
    place = torch.randn(80, 1, generator=torch.Generator().manual_seed(0))
    drawn = project(place @ torch.randn(1, 4, generator=torch.Generator().manual_seed(1)), how)
    assert bool(drawn.isfinite().all())
    height = drawn[:, 1]
    assert float(height.max() - height.min()) > 0.02 * float(drawn[:, 0].max() - drawn[:, 0].min())
    assert height.unique().numel() > 3
    # Across, rows keep their order and their distances.
    across = np.corrcoef(drawn[:, 0].numpy(), place[:, 0].numpy())[0, 1]
    assert abs(across) == pytest.approx(1)


def test_states_in_a_plane_are_drawn_to_scale() -> None:
    state = torch.randn(80, 2, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(torch.pdist(project(state, "pca")), torch.pdist(state))


def test_rows_with_known_influences_have_their_image(monkeypatch: pytest.MonkeyPatch) -> None:
    from difformer.data.registry import load_dataset

    monkeypatch.setattr(inside, "MOST_IMAGES", 10)
    found = inside.row_images(load_dataset("digits"), list(range(100)), first=[3, 5, 8])
    assert found is not None
    shown = [i for i, uri in enumerate(found) if uri]
    assert {3, 5, 8} < set(shown)
    assert len(shown) <= 10
