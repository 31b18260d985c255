"""Separate graphs in one batch: each gets exactly what it gets alone."""

import pytest
import torch
from torch_geometric.data import Batch, Data

from difformer.nn.model import DIFFormer
from tests.nn.conftest import EVERY_FORM


@pytest.mark.parametrize("options", EVERY_FORM, ids=str)
@pytest.mark.parametrize(("sizes", "shuffled"), [((4, 4, 4), False), ((1, 5, 5, 2), True)])
def test_a_graph_in_a_batch_gets_exactly_what_it_gets_alone(make, options, sizes, shuffled):
    n = sum(sizes)
    model, x, _ = make(options, n)
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    if shuffled:
        batch = batch[torch.randperm(n)]
    edges = torch.randint(n, (2, 200))
    edges = edges[:, batch[edges[0]] == batch[edges[1]]]
    together = model(x, edges, batch=batch)
    for graph_id in range(len(sizes)):
        rows = (batch == graph_id).nonzero().squeeze(1)
        inside = batch[edges[0]] == graph_id
        own = torch.searchsorted(rows, edges[:, inside])
        torch.testing.assert_close(together[rows], model(x[rows], own))


def test_diffusivity_is_zero_between_graphs(make, options):
    model, x, _ = make(options, 9)
    batch = torch.tensor([0, 1, 2] * 3)
    s = model.diffusivity(x, batch=batch)
    assert s[batch[:, None] != batch].abs().max() == 0
    torch.testing.assert_close(s.sum(1), torch.ones(9, dtype=torch.float64))


def test_a_data_of_pytorch_geometric_may_be_given_whole():
    torch.manual_seed(0)
    model = DIFFormer(4, 8, 3).double().eval()
    graphs = [
        Data(
            x=torch.randn(n, 4, dtype=torch.float64),
            edge_index=torch.randint(n, (2, 9)),
            edge_weight=torch.rand(9, dtype=torch.float64),
        )
        for n in (5, 7)
    ]
    each = [model(data.x, data.edge_index, data.edge_weight) for data in graphs]
    assert torch.equal(model(graphs[0]), each[0])
    assert torch.equal(model.encode(graphs[0]), model.encode(*graphs[0].to_dict().values()))
    torch.testing.assert_close(model(Batch.from_data_list(graphs)), torch.cat(each))
    torch.testing.assert_close(model(Data(x=graphs[0].x)), model(graphs[0].x))
    with pytest.raises(ValueError, match="must be left out with a Data"):
        model(graphs[0], graphs[0].edge_index)
    with pytest.raises(ValueError, match="x must be a tensor, or a Data with x, got dict"):
        model({})
