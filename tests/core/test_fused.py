"""Fused averages against the plain one: values, every gradient, chunk borders, awkward sizes."""

import pytest
import torch

from difformer.core import fused, tiled
from difformer.core.diffusivity import Sigmoid, Simple, WholeTensorSimple
from difformer.core.euler import StepWeights, average_of_states, euler_step
from difformer.core.graph import Graph

WIDTH = 5
FUSED = pytest.mark.parametrize("kernel", [Simple(), WholeTensorSimple()], ids=["row", "tensor"])


def set_sizes(monkeypatch, chunk, kept=2**23):
    monkeypatch.setattr(tiled, "CHUNK_NUMBERS", chunk * WIDTH)
    monkeypatch.setattr(fused, "KEPT_NUMBERS", kept)


def make(n, d, heads, maps, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    affine = [(draw(heads * d, d), draw(heads * d)) if name in maps else None for name in "qkv"]
    return draw(n, d), affine


def plain_average(kernel, z, affine, heads):
    """summarise, then apply, of queries, keys and values that all exist."""

    def split(a):
        if a is None:
            return z.unsqueeze(0)
        return torch.nn.functional.linear(z, *a).view(z.shape[0], heads, -1).transpose(0, 1)

    return kernel(*map(split, affine)).mean(-3)


def fused_average(kernel, z, affine, heads):
    return average_of_states(z, kernel.closed_form(heads), affine)


def same(fast, plain, inputs):
    """Whether two ways give the same values and gradients."""
    torch.testing.assert_close(fast, plain)
    probe = torch.randn(fast.shape, dtype=fast.dtype)
    grads = [torch.autograd.grad((out * probe).sum(), inputs) for out in (fast, plain)]
    torch.testing.assert_close(*grads)


@FUSED
@pytest.mark.parametrize("n", [1, 2, 63, 257])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("maps", ["qkv", "qk", "v", ""])
@pytest.mark.parametrize(("chunk", "kept"), [(4096, 2**23), (50, 2**23), (50, 0)])
def test_averages_equal_the_plain_form(kernel, n, heads, maps, chunk, kept, monkeypatch):
    set_sizes(monkeypatch, chunk, kept)
    z, affine = make(n, WIDTH, heads, maps)
    plain = plain_average(kernel, z, affine, heads)
    inputs = [z, *(t for a in affine if a for t in a)]
    same(fused_average(kernel, z, affine, heads), plain, inputs)


@pytest.mark.parametrize("kernel", [Simple(), WholeTensorSimple(), None], ids=str)
@pytest.mark.parametrize("n", [1, 63])
@pytest.mark.parametrize("maps", ["qkv", ""])
@pytest.mark.parametrize("pairs", [0.5, 0.0])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("own", "sourced"), [(False, True), (True, False)])
def test_a_step_equals_the_sum_of_its_terms(
    kernel, n, maps, pairs, symmetric, own, sourced, monkeypatch
):
    """With an average that is given, or made in the place of the step."""
    set_sizes(monkeypatch, 50)
    z, affine = make(n, WIDTH, 3, maps)
    first, value, given = (make(n, WIDTH, 1, "", seed)[0] for seed in (1, 2, 3))
    edges = torch.randint(n, (2, 3 * n))
    graph = Graph.from_edges(edges, n, undirected=symmetric).to(z)
    w = StepWeights(0.3, pairs, 0.7, 0.2)
    rest = {"first": first if sourced else None, "value": None if own else value}
    average = given if kernel is None else kernel.closed_form(3)
    fast = euler_step(w, z, average, affine, adjacency=graph.adjacency, **rest)
    p = given if kernel is None else plain_average(kernel, z, affine, 3)
    plain = w.state * z + w.pairs * p + w.neighbours * (graph.dense() @ (z if own else value))
    plain = plain + w.source * first if sourced else plain
    used = [given] if kernel is None else [t for a in affine if a for t in a]
    same(fast, plain, [z, *used, *([first] if sourced else []), *([] if own else [value])])


@FUSED
def test_zero_states_are_defined(kernel):
    z = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
    out = fused_average(kernel, z, [None] * 3, 1)
    out.sum().backward()
    assert torch.equal(out, torch.zeros(4, 3, dtype=torch.float64))
    assert torch.isfinite(z.grad).all()


@FUSED
def test_of_many_rows_only_the_states_a_number_each_and_small_matrices_are_kept(
    kernel, monkeypatch
):
    set_sizes(monkeypatch, 50, kept=0)
    z, affine = make(1000, 4, 1, "qkv")
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        fused_average(kernel, z, affine, 1)
    assert {t.data_ptr() for t in kept if t.numel() > 1000} == {z.data_ptr()}
    assert len([t for t in kept if t.numel() == 1000]) <= 1


@pytest.mark.parametrize("n", [1, 2, 63, 257])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("maps", ["v", ""])
@pytest.mark.parametrize("tile", [128, 512, 20])
def test_the_tied_sigmoid_equals_the_dense_one(n, heads, maps, tile, monkeypatch):
    monkeypatch.setattr(tiled, "TILE", tile)
    monkeypatch.setattr(tiled, "DENSE_SCORES", 0)
    z, affine = make(n, WIDTH, heads, maps)
    v = z if affine[2] is None else torch.nn.functional.linear(z, *affine[2])
    dense = (Sigmoid().weights(z, z) @ v).view(n, -1, 5).mean(1)
    inputs = [z, *(t for a in affine if a for t in a)]
    same(plain_average(Sigmoid(), z, affine, heads), dense, inputs)
