"""What a model shows of itself: states, diffusivities and energies."""

import torch
from torch.nn import functional as F

from difformer.core.diffusivity import KERNELS


def test_states_encode_and_output_belong_together(make, options):
    model, x, edges = make(options, num_layers=3)
    states = model.states(x, edges)
    assert len(states) == 4
    assert torch.equal(states[-1], model.encode(x, edges))
    assert torch.equal(model.output(states[-1]), model(x, edges))


def test_diffusivity_rows_sum_to_one_and_reproduce_the_layer(make, options):
    model, x, _ = make(
        {
            **options,
            "norm": "none",
            "center": False,
            "source": 0.0,
            "activation": None,
            "use_weight": False,
            "tau": 1.0,
            "learn_qk": True,
            "learn_tau": False,
            "self_weight": False,
            "residual": False,
        }
    )
    for layer in (0, 1, -1):
        s = model.diffusivity(x, layer=layer)
        torch.testing.assert_close(s.sum(1), torch.ones(23, dtype=torch.float64))
        states = model.states(x)
        torch.testing.assert_close(s @ states[layer % 2], states[layer % 2 + 1])


def test_diffusivity_of_some_rows_and_of_the_strongest(make, options, monkeypatch):
    monkeypatch.setattr("difformer.nn.model.ROW_SCORES", 50)
    model, x, _ = make(options)
    dense = model.diffusivity(x, layer=1)
    rows = torch.tensor([5, 2, 22])
    torch.testing.assert_close(model.diffusivity(x, layer=1, rows=rows), dense[rows])
    weights, columns = model.diffusivity(x, layer=1, top_k=4)
    torch.testing.assert_close(weights, dense.topk(4).values)
    torch.testing.assert_close(dense.gather(1, columns), weights)


def test_energies_are_one_a_layer_and_finite(make, options):
    model, x, edges = make(options, num_layers=3)
    for graph in (None, edges):
        energies = model.energies(x, graph)
        assert energies.shape == (3,)
        assert torch.isfinite(energies).all()


def test_energy_of_a_layer_is_equation_4_on_unit_rows(make):
    model, x, _ = make({"kernel": "sigmoid"})
    before, after = (F.normalize(z) for z in model.states(x)[:2])
    pairs = KERNELS["sigmoid"]().delta(torch.cdist(after, after).square()).sum()
    expected = (after - before).square().sum() + pairs / 23
    torch.testing.assert_close(model.energies(x)[0], expected)
