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
FIXED = {"kernel": "sharp", "compare": "input", "learn_qk": False, "reach": 4.0}
LANDMARKS = {**OPTIONS["landmarks"], "compare": "input", "learn_qk": False}


@pytest.fixture(params=OPTIONS, ids=str)
def options(request):
    return OPTIONS[request.param]


def random_graph(n, e, **options):
    return Graph.from_edges(torch.randint(n, (2, e)), n, undirected=True, **options)


@pytest.mark.parametrize("self_loops", [False, True])
def test_known_rows_with_all_their_edges_get_their_transductive_answer(make, options, self_loops):
    model, x, _ = make(options, 30)
    graph = random_graph(30, 90, self_loops=self_loops)
    own = graph.edge_index
    own = own[:, own[0] != own[1]] if self_loops else own
    frozen = model.freeze(x, graph)
    torch.testing.assert_close(frozen(x, own), model(x, graph))
    torch.testing.assert_close(frozen(x.to_sparse_csr()), frozen(x))
    torch.testing.assert_close(model.output(frozen.encode(x)), frozen(x))


@pytest.mark.parametrize("count", [7, 100])
def test_new_rows_that_are_joined_move_one_another(make, options, count):
    # Known rows given as new ones, joined to one another under their new numbers, have the values
    # and degrees that they have in the run: their answers are those of the run.
    model, x, _ = make(options, 130)
    graph = random_graph(130, 1500, self_loops=True)
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
    weights, expected = (frozen.weights(x[some], known, each) for each in (edges, old))
    torch.testing.assert_close(weights[:, :-count], expected[:, :-count])


@pytest.mark.parametrize(
    "options",
    [
        *({"kernel": kernel} for kernel in ("simple", "sigmoid", "constant")),
        *({**FIXED, "compare": compare} for compare in ("state", "first", "input")),
        *({**LANDMARKS, "compare": compare} for compare in ("first", "input")),
    ],
    ids=str,
)
@pytest.mark.parametrize("width", [8, 24, 64, 304])
def test_a_row_has_the_same_bits_alone_in_any_batch_and_in_any_order(options, width):
    torch.manual_seed(0)
    model = DIFFormer(6, width, 3, **options).double().eval()
    frozen = model.freeze(torch.randn(31, 6, dtype=torch.float64))
    new = torch.randn(70, 6, dtype=torch.float64)
    together = frozen(new)
    order = torch.randperm(70)
    assert torch.equal(frozen(new[order]), together[order])
    for size in (1, 2, 7, 63, 64, 65):
        assert torch.equal(torch.cat([frozen(rows) for rows in new.split(size)]), together)


def test_a_row_with_edges_has_the_same_bits_alone(make):
    model, x, _ = make({}, 30)
    frozen = model.freeze(x, torch.randint(30, (2, 60)))
    new = torch.randn(70, 6, dtype=torch.float64)
    edges = torch.stack([torch.randint(30, (200,)), torch.randint(70, (200,))])
    together = frozen(new, edges)
    for row in (0, 13, 69):
        own = edges[:, edges[1] == row].clone()
        own[1] = 0
        assert torch.equal(frozen(new[row : row + 1], own)[0], together[row])


def test_later_changes_to_the_model_do_not_reach_it(make):
    model, x, _ = make({})
    frozen = model.freeze(x)
    before = frozen(x)
    with torch.no_grad():
        model.output.weight.add_(1)
    assert torch.equal(frozen(x), before)


@pytest.mark.parametrize("options", [*OPTIONS.values(), FIXED, LANDMARKS], ids=str)
@pytest.mark.parametrize("with_graph", [False, True])
def test_save_and_load_are_exact(make, options, with_graph, tmp_path):
    model, x, _ = make(options, 30)
    frozen = model.freeze(x, torch.randint(30, (2, 60)) if with_graph else None)
    frozen.save(tmp_path / "f.safetensors")
    loaded = FrozenDIFFormer.load(tmp_path / "f.safetensors")
    edges = torch.tensor([[1, 2], [0, 0]]) if with_graph else None
    new = torch.randn(3, 6, dtype=torch.float64)
    assert torch.equal(loaded(new, edges), frozen(new, edges))
    assert loaded.float().numel == frozen.numel


@pytest.mark.parametrize("kernel", KERNELS)
def test_frozen_tensors_of_another_shape_are_refused_or_change_nothing(make, kernel, tmp_path):
    more = {"sharp": {"reach": 3.0}, "landmarks": {"compare": "first"}}.get(kernel, {})
    model, x, _ = make({"kernel": kernel, **more}, 12)
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


@pytest.mark.parametrize("rows", [100, 5000])
def test_it_keeps_no_row_where_a_context_is_a_few_sums_and_shared_rows_once(rows):
    x = torch.randn(rows, 6)
    assert DIFFormer(6, 64, 3, num_layers=8).freeze(x).numel == 8 * (64 * 64 + 2 * 64 + 1)
    assert DIFFormer(6, 8, 3, **LANDMARKS).freeze(x).numel == 2 * 9 * (8 + 1)
    if rows == 100:
        assert DIFFormer(6, 8, 3, **FIXED).freeze(x).numel == rows * 7 + 2 * rows * 8


@pytest.mark.parametrize("self_loops", [None, True, False])
def test_an_exported_frozen_model_answers_for_any_number_of_rows(make, self_loops):
    model, x, _ = make({}, 30)
    graph = None if self_loops is None else random_graph(30, 90, self_loops=self_loops)
    frozen, new = model.freeze(x, graph), torch.randn(77, 6, dtype=torch.float64)
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(frozen, (x,), dynamic_shapes=({0: rows},))
    torch.testing.assert_close(program.module()(new), frozen(new))


def test_bad_edges_are_named(make):
    model, x, _ = make({}, 30)
    with pytest.raises(ValueError, match="frozen without a graph"):
        model.freeze(x)(x, torch.zeros(2, 1, dtype=torch.int64))
    frozen = model.freeze(x, torch.randint(30, (2, 60)))
    for edges, message in (
        ([[32], [0]], "known and new rows 0 to 31 in line 0"),
        ([[0], [2]], "new rows 0 to 1 in line 1"),
        ([0], r"edge_index must have shape \(2, e\)"),
    ):
        with pytest.raises(ValueError, match=message):
            frozen(x[:2], torch.tensor(edges))
