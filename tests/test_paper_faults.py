"""Where the paper disagrees with itself or with its released code: each fault held out by a test.

The numbers are those of the list in docs/reproduce.md.
"""

import pytest
import torch
from torch.nn import functional as F

from difformer import DIFFormer, Graph, load_dataset
from difformer.core.diffusivity import FLOOR, Simple, WholeTensorSimple
from difformer.train.objective import objective_for


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_1_queries_and_keys_have_unit_rows_so_weights_do_not_fade_with_the_number_of_rows():
    spread = {}
    for n in (100, 1000):
        q, k = draw(1, n, 4), draw(1, n, 4, seed=1)
        for kernel in (Simple(), WholeTensorSimple()):
            spread[type(kernel), n] = (kernel.weights(q, k) * n).std()
    assert spread[Simple, 1000] == pytest.approx(float(spread[Simple, 100]), rel=0.1)
    assert spread[WholeTensorSimple, 1000] < spread[WholeTensorSimple, 100] / 5


def test_2_the_numerator_holds_the_sum_of_all_values_not_n_times_the_own_one():
    q, k, v = draw(1, 5, 3), draw(1, 5, 3, seed=1), draw(1, 5, 2, seed=2)
    out = Simple()(q, k, v)
    keys, queries = F.normalize(k, dim=-1), F.normalize(q, dim=-1)
    mass = 5 + queries @ keys.sum(1, keepdim=True).mT
    right = (v.sum(1, keepdim=True) + queries @ (keys.mT @ v)) / mass
    printed = (5 * v + queries @ (keys.mT @ v)) / mass  # Algorithm 2
    torch.testing.assert_close(out, right, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(out, printed, rtol=1e-2)


def test_3_f_holds_on_all_of_0_to_4():
    a = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    z2 = (a[0] - a[1]).square().sum()
    assert z2 == 4
    assert Simple().f(z2.double()).item() == pytest.approx(FLOOR)
    assert Simple().f(torch.linspace(0, 4, 50)).min() >= 0


def test_4_graph_and_attention_are_added_or_mixed_as_named():
    x, edges = draw(6, 3), torch.tensor([[0, 1, 2], [1, 2, 0]])
    outputs = {}
    for w in (None, 0.0, 0.5, 1.0):
        torch.manual_seed(0)
        model = DIFFormer(3, 4, 2, num_layers=1, norm="none", use_weight=False, graph_weight=w)
        model = model.double()
        z, outputs[w] = model.states(x, edges)
    attention, graph = outputs[0.0] - 0.5 * z, outputs[1.0] - 0.5 * z
    torch.testing.assert_close(outputs[None], 0.5 * z + attention + graph)
    torch.testing.assert_close(outputs[0.5], 0.5 * z + (attention + graph) / 2)


def test_5_plotted_attention_sums_to_one_and_is_the_layers_own():
    torch.manual_seed(0)
    model = DIFFormer(3, 4, 2, num_layers=1, norm="none", use_weight=False, tau=1.0).double()
    x = draw(9, 3)
    s = model.diffusivity(x)
    torch.testing.assert_close(s.sum(1), torch.ones(9, dtype=torch.float64))
    first, last = model.states(x)
    torch.testing.assert_close(s @ first, last)


def test_6_graphs_of_a_batch_do_not_mix():
    torch.manual_seed(0)
    model = DIFFormer(3, 4, 2).double()
    x, batch = draw(7, 3), torch.tensor([0, 0, 0, 1, 1, 1, 1])
    together = model(x, batch=batch)
    torch.testing.assert_close(together[:3], model(x[:3]))
    torch.testing.assert_close(together[3:], model(x[3:]))


def test_7_the_split_behind_the_published_figures_is_not_the_public_one():
    cora = load_dataset("cora")
    released, public = cora.split("released"), cora.split("public")
    assert (len(released.train), len(released.val), len(released.test)) == (140, 500, 1000)
    assert released.train.tolist() != public.train.tolist()


def test_8_chickenpox_has_521_weeks(data_root):
    data = load_dataset("chickenpox", data_root)
    assert data.num_snapshots + data.x.shape[1] == 521  # the first four weeks are only features


def test_9_a_query_that_every_key_opposes_has_a_defined_average():
    q = torch.tensor([[[0.0, -1.0]]])
    k = torch.tensor([[[0.0, 1.0]]]).expand(1, 4, 2)
    v = torch.arange(4.0).view(1, 4, 1)
    torch.testing.assert_close(Simple()(q, k, v), torch.tensor([[[1.5]]]))


def test_10_a_loss_of_mismatched_shapes_is_refused_instead_of_broadcast():
    from difformer.data.dataset import Batch

    y = draw(5)
    batch = Batch(draw(5, 1), y, None, torch.arange(5))
    with pytest.raises(ValueError, match="shape"):
        objective_for("regression").loss(draw(5, 1, seed=1), batch)


def test_an_isolated_row_gets_nothing_from_the_graph_and_no_nan():
    graph = Graph.from_edges(torch.tensor([[0], [1]]), 3)
    assert torch.equal(graph.propagate(torch.ones(3, 1))[2], torch.zeros(1))
