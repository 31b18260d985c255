"""A frozen model answers for a row by the row alone, and agrees with the run it was frozen from."""

from contextlib import suppress

import pytest
import torch

from difformer.core.diffusivity import KERNELS
from difformer.core.graph import Graph
from difformer.errors import ModelFileError
from difformer.nn.frozen import FrozenDIFFormer
from difformer.nn.model import DIFFormer
from difformer.tensorfiles import write_tensors

OPTIONS = {name: {"kernel": name} for name in KERNELS if name != "landmarks"} | {
    "landmarks": {"kernel": "landmarks", "compare": "first", "num_landmarks": 9, "reach": 3.0},
    "neighbours' mean": {"graph_norm": "row"},
    "tensor norm": {"qk_norm": "tensor"},
    "center and source": {"center": True, "source": 0.3},
    "heads": {"num_heads": 3, "use_weight": False},
    "no constants": {"bias": False, "norm": "none", "input_activation": None},
}


@pytest.fixture(params=OPTIONS, ids=str)
def options(request):
    return OPTIONS[request.param]


def make(options, n=30, **more):
    torch.manual_seed(0)
    model = DIFFormer(5, 8, 3, **options, **more).double().eval()
    return model, torch.randn(n, 5, dtype=torch.float64)


def test_known_rows_with_all_their_edges_get_their_transductive_answer(options):
    model, x = make(options)
    edges = torch.randint(30, (2, 90))
    for self_loops in (False, True):
        graph = Graph.from_edges(edges, 30, undirected=True, self_loops=self_loops)
        own = graph.edge_index
        if self_loops:
            own = own[:, own[0] != own[1]]
        torch.testing.assert_close(model.freeze(x, graph)(x, own), model(x, graph))


@pytest.mark.parametrize("count", [7, 100])
def test_new_rows_that_are_joined_move_one_another(options, count):
    # Known rows given as new ones, joined to one another under their new numbers, have the values
    # and degrees that they have in the run: their answers are those of the run.
    model, x = make(options, n=130)
    graph = Graph.from_edges(torch.randint(130, (2, 1500)), 130, undirected=True, self_loops=True)
    some = torch.arange(130)[-count:]
    place = torch.arange(130)
    place[some] = 130 + torch.arange(count)
    source, target = graph.edge_index
    mine = (target >= 130 - count) & (source != target)
    edges = torch.stack([place[source], place[target] - 130])[:, mine]
    assert bool((edges[0] >= 130).any())
    frozen = model.freeze(x, graph)
    torch.testing.assert_close(frozen(x[some], edges), model(x, graph)[some])
    known = model.passages(x, graph)[-1].before
    # A pair of known rows weighs what it weighs where the source has its old number.
    old = torch.stack([source, place[target] - 130])[:, mine]
    weights = frozen.weights(x[some], known, edges)
    from_known = torch.ones(130, dtype=torch.bool)
    from_known[some] = False
    expected = frozen.weights(x[some], known, old)
    torch.testing.assert_close(weights[:, from_known], expected[:, from_known])


@pytest.mark.parametrize("kernel", ["simple", "sigmoid", "constant"])
@pytest.mark.parametrize("width", [8, 24, 64, 304])
def test_a_row_has_the_same_bits_alone_in_any_batch_and_in_any_order(kernel, width):
    torch.manual_seed(0)
    model = DIFFormer(5, width, 3, kernel=kernel).double().eval()
    frozen = model.freeze(torch.randn(31, 5, dtype=torch.float64))
    new = torch.randn(70, 5, dtype=torch.float64)
    together = frozen(new)
    order = torch.randperm(70)
    assert torch.equal(frozen(new[order]), together[order])
    for size in (1, 2, 7, 63, 64, 65):
        assert torch.equal(torch.cat([frozen(rows) for rows in new.split(size)]), together)


def test_a_row_with_edges_has_the_same_bits_alone():
    model, x = make({})
    frozen = model.freeze(x, torch.randint(30, (2, 60)))
    new = torch.randn(70, 5, dtype=torch.float64)
    edges = torch.stack([torch.randint(30, (200,)), torch.randint(70, (200,))])
    together = frozen(new, edges)
    for row in (0, 13, 69):
        own = edges[:, edges[1] == row].clone()
        own[1] = 0
        assert torch.equal(frozen(new[row : row + 1], own)[0], together[row])


def test_later_changes_to_the_model_do_not_reach_it():
    model, x = make({})
    frozen = model.freeze(x)
    before = frozen(x)
    with torch.no_grad():
        model.output.weight.add_(1)
    assert torch.equal(frozen(x), before)


@pytest.mark.parametrize("with_graph", [False, True])
def test_save_and_load_are_exact(options, with_graph, tmp_path):
    model, x = make(options)
    frozen = model.freeze(x, torch.randint(30, (2, 60)) if with_graph else None)
    frozen.save(tmp_path / "f.safetensors")
    loaded = FrozenDIFFormer.load(tmp_path / "f.safetensors")
    edges = torch.tensor([[1, 2], [0, 0]]) if with_graph else None
    new = torch.randn(3, 5, dtype=torch.float64)
    assert torch.equal(loaded(new, edges), frozen(new, edges))
    assert loaded.numel == frozen.numel


@pytest.mark.parametrize("kernel", KERNELS)
def test_frozen_tensors_of_another_shape_are_refused_or_change_nothing(kernel, tmp_path):
    more = {"sharp": {"reach": 3.0}, "landmarks": {"compare": "first"}}.get(kernel, {})
    model = DIFFormer(5, 8, 3, kernel=kernel, **more).double().eval()
    x = torch.randn(12, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    frozen = model.freeze(x)
    tensors, description = frozen.pack()
    for name in [name for name in tensors if name.startswith("layer.")]:
        whole = tensors[name]
        for other in (whole.reshape(-1), whole[:0] if whole.ndim else whole[None], whole[None]):
            forged = {**tensors, name: other.contiguous()}
            write_tensors(tmp_path / "frozen", "frozen", forged, description)
            with suppress(ModelFileError):
                found = FrozenDIFFormer.load(tmp_path / "frozen")
                assert torch.equal(found(x), frozen(x)), (name, other.shape)


def test_simple_keeps_under_200_kb_whatever_the_number_of_rows(tmp_path):
    model = DIFFormer(5, 64, 3, num_layers=8)
    sizes = []
    for rows in (100, 5000):
        frozen = model.freeze(torch.randn(rows, 5))
        assert frozen.numel == 8 * (64 * 64 + 2 * 64 + 1)
        sizes.append(frozen.numel * 4)
    assert sizes[0] == sizes[1] < 200_000


def test_sparse_rows_and_encode(options):
    model, x = make(options)
    frozen = model.freeze(x)
    torch.testing.assert_close(frozen(x.to_sparse_csr()), frozen(x))
    torch.testing.assert_close(model.output(frozen.encode(x)), frozen(x))


def test_export_with_a_dynamic_number_of_rows():
    model, x = make({})
    frozen = model.freeze(x)
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(frozen, (x,), dynamic_shapes=({0: rows},))
    new = torch.randn(77, 5, dtype=torch.float64)
    torch.testing.assert_close(program.module()(new), frozen(new))


@pytest.mark.parametrize("self_loops", [True, False])
def test_an_exported_frozen_model_treats_a_row_without_edges_as_it_does(self_loops):
    model, x = make({})
    edges = torch.randint(30, (2, 90))
    frozen = model.freeze(x, Graph.from_edges(edges, 30, undirected=True, self_loops=self_loops))
    new = torch.randn(7, 5, dtype=torch.float64)
    exported = torch.export.export(frozen, (new,)).module()
    torch.testing.assert_close(exported(new), frozen(new))


def test_bad_edges_are_named():
    model, x = make({})
    with pytest.raises(ValueError, match="frozen without a graph"):
        model.freeze(x)(x, torch.zeros(2, 1, dtype=torch.int64))
    frozen = model.freeze(x, torch.randint(30, (2, 60)))
    with pytest.raises(ValueError, match="known and new rows 0 to 31 in line 0"):
        frozen(x[:2], torch.tensor([[32], [0]]))
    with pytest.raises(ValueError, match="new rows 0 to 1 in line 1"):
        frozen(x[:2], torch.tensor([[0], [2]]))
    with pytest.raises(ValueError, match=r"edge_index must have shape \(2, e\)"):
        frozen(x[:2], torch.tensor([0]))
