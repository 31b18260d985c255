"""What a model shows of itself: states, diffusivities and energies."""

import pytest
import torch
from torch.nn import functional as F

from difformer.core.diffusivity import KERNELS


def test_states_encode_and_output_belong_together(make, options):
    model, x, edges = make(options, num_layers=3)
    states = model.states(x, edges)
    assert len(states) == 4
    assert torch.equal(states[-1], model.encode(x, edges))
    assert torch.equal(model.output(states[-1]), model(x, edges))


def test_diffusivity_of_some_rows_and_of_the_strongest(make, options, monkeypatch):
    monkeypatch.setattr("difformer.nn.exchange.ROW_SCORES", 50)
    model, x, _ = make(options)
    dense = model.diffusivity(x, layer=1)
    torch.testing.assert_close(dense.sum(1), torch.ones(23, dtype=torch.float64))
    rows = torch.tensor([5, 2, 22])
    torch.testing.assert_close(model.diffusivity(x, layer=1, rows=rows), dense[rows])
    weights, columns = model.diffusivity(x, layer=1, top_k=4)
    torch.testing.assert_close(weights, dense.topk(4).values)
    torch.testing.assert_close(dense.gather(1, columns), weights)


def test_energies_are_one_per_layer_and_finite(make, options):
    model, x, edges = make(options, num_layers=3)
    for graph in (None, edges):
        energies = model.energies(x, graph)
        assert energies.shape == (3,)
        assert torch.isfinite(energies).all()


@pytest.mark.parametrize("kernel", ["sharp", "sigmoid", "landmarks"])
@pytest.mark.parametrize("learn_qk", [False, True])
def test_energy_is_quadratic_where_states_are_not_compared(make, kernel, learn_qk):
    options = {"kernel": kernel, "compare": "input", "learn_qk": learn_qk, "reach": 4.0}
    model, x, _ = make(options, num_layers=2)
    passage = model.passages(x)[0]
    before, after = F.normalize(passage.before), F.normalize(passage.after)
    q, k, _ = passage.project()
    omega = passage.layer.diffusivity.omega(q, k)[0]
    expected = (after - before).square().sum()
    expected = expected + (omega * torch.cdist(after, after).square()).sum() / 23
    torch.testing.assert_close(model.energies(x)[0], expected)


def test_energy_of_a_sharp_layer_has_the_offsets_of_the_states_it_was_given(make):
    model, x, _ = make({"kernel": "sharp", "reach": 4.0, "learn_qk": False}, num_layers=2)
    kernel = model.layers[0].diffusivity
    before, after = (F.normalize(z) for z in model.states(x)[1:3])
    expected = kernel.at(before).pair_penalty(after) / 23 + (after - before).square().sum()
    torch.testing.assert_close(model.energies(x)[1], expected)


def test_energy_of_a_layer_is_equation_4_on_unit_rows(make):
    model, x, _ = make({"kernel": "sigmoid"})
    before, after = (F.normalize(z) for z in model.states(x)[:2])
    pairs = KERNELS["sigmoid"]().delta(torch.cdist(after, after).square()).sum()
    expected = (after - before).square().sum() + pairs / 23
    torch.testing.assert_close(model.energies(x)[0], expected)
