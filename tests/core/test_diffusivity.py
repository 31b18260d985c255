"""Every diffusivity, tested by one battery against its dense form."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from difformer.core import tiled
from difformer.core.diffusivity import (
    KERNELS,
    Diffusivity,
    Gaussian,
    Landmarks,
    Sharp,
    Sigmoid,
    Simple,
    WholeTensorSimple,
    make_diffusivity,
)
from difformer.core.rows import squared_distances


class Inverse(Diffusivity):
    """A user's own: ω = 1 / (1 + ‖q − k‖²)."""

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        return 1 / (1 + squared_distances(q, k))


ALL = {name: cls() for name, cls in KERNELS.items()}
ALL |= {
    "simple-tensor": WholeTensorSimple(),
    "gaussian-wide": Gaussian(0.16),
    "sharp-tuned": Sharp().tuned(
        torch.tensor(1.5, dtype=torch.float64), torch.tensor(0.1, dtype=torch.float64)
    ),
    "gaussian-reach": Gaussian(1.5, 4.0),
    "custom": Inverse(),
}
SIZES = [(1, 1), (2, 2), (63, 63), (257, 257), (63, 257), (257, 2)]


def make_qkv(n: int, m: int, heads: int = 2, d: int = 5, e: int = 3, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((heads, n, d), (heads, m, d), (heads, m, e))
    return [
        torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes
    ]


def prepared(diffusivity: Diffusivity, n: int, m: int, **options):
    """Queries, keys and values as the diffusivity takes them, the keys as known rows."""
    q, k, v = make_qkv(n, m, **options)
    if not diffusivity.prepares:
        return [q, k, v]
    ready = (diffusivity.prepare(t, t, k)[0].detach().requires_grad_() for t in (q, k))
    return [*ready, v]


@pytest.fixture(params=ALL, ids=str)
def diffusivity(request) -> Diffusivity:
    return ALL[request.param]


@pytest.fixture(params=["one tile", "many tiles"])
def tile_size(request, monkeypatch):
    """Run with tiles far smaller than the data, too, so that their borders are crossed."""
    if request.param == "many tiles":
        monkeypatch.setattr(tiled, "TILE", 10)
        monkeypatch.setattr(tiled, "DENSE_SCORES", 0)
        monkeypatch.setattr(tiled, "CHUNK_SCORES", 600)


@pytest.mark.usefixtures("tile_size")
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_apply_equals_dense_weights_in_value_and_gradient(diffusivity, n, m):
    if diffusivity.local and n != m:
        with pytest.raises(ValueError, match="as many queries as keys"):
            diffusivity(*prepared(diffusivity, n, m))
        return
    q, k, v = prepared(diffusivity, n, m)
    fast = diffusivity(q, k, v)
    dense = diffusivity.weights(q, k) @ v
    torch.testing.assert_close(fast, dense, rtol=1e-10, atol=1e-12)
    probe = torch.randn(fast.shape, generator=torch.Generator().manual_seed(1), dtype=fast.dtype)
    inputs = (q, k, v)
    options = {"allow_unused": True, "materialize_grads": True}
    fast_grads = torch.autograd.grad((fast * probe).sum(), inputs, **options)
    dense_grads = torch.autograd.grad((dense * probe).sum(), inputs, **options)
    torch.testing.assert_close(fast_grads, dense_grads, rtol=1e-8, atol=1e-11)


def test_rows_of_weights_sum_to_one_are_not_negative_and_can_be_had_alone(diffusivity):
    q, k, _ = prepared(diffusivity, 63, 63)
    weights = diffusivity.weights(q, k)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 63, dtype=torch.float64))
    assert (weights >= 0).all()
    rows = torch.tensor([3, 0, 19])
    torch.testing.assert_close(diffusivity.weights_of(rows, q, k), weights[:, rows])


@pytest.mark.parametrize("cut", [1, 20, 62])
def test_context_is_additive(diffusivity, cut):
    q, k, v = prepared(diffusivity, 63, 63)
    parts = [
        diffusivity.summarise(k[:, s], v[:, s], q[:, s]) for s in (slice(cut), slice(cut, None))
    ]
    whole = diffusivity.summarise(k, v, q)
    merged = parts[0] + parts[1]
    for name, tensor in whole.tensors().items():
        torch.testing.assert_close(merged.tensors()[name], tensor)
    torch.testing.assert_close(diffusivity.apply(q, merged), diffusivity.apply(q, whole))


def test_contexts_of_different_kinds_do_not_add():
    q, k, v = make_qkv(3, 3)
    with pytest.raises(TypeError, match="cannot add"):
        Simple().summarise(k, v, q) + WholeTensorSimple().summarise(k, v, q)


def test_permuting_rows_permutes_the_output_and_single_precision_is_close(diffusivity, tile_size):
    q, k, v = (t.detach() for t in prepared(diffusivity, 63, 63))
    expected = diffusivity(q, k, v)
    order = torch.randperm(63, generator=torch.Generator().manual_seed(3))
    moved = diffusivity(q[:, order], k[:, order], v[:, order])
    torch.testing.assert_close(moved, expected[:, order])
    out = diffusivity(q.float(), k.float(), v.float())
    torch.testing.assert_close(out.double(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", [n for n in ALL if n not in ("custom", "identity", "landmarks")])
def test_delta_is_the_integral_of_f(name):
    diffusivity = ALL[name]
    z2 = torch.linspace(0, 4, 41, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(diffusivity.delta(z2).sum(), z2)
    torch.testing.assert_close(slope, diffusivity.f(z2.detach()))
    f = diffusivity.f(z2.detach())
    assert (f >= 0).all(), "f must not be negative on [0, 4]"
    assert (f.diff() <= 1e-15).all(), "f must not increase"


@pytest.mark.parametrize("name", ["simple", "sigmoid", "gaussian"])
def test_f_of_a_distance_is_omega_on_unit_vectors(name):
    z = torch.nn.functional.normalize(torch.randn(1, 9, 4, dtype=torch.float64), dim=-1)
    torch.testing.assert_close(ALL[name].omega(z, z), ALL[name].f(squared_distances(z, z)))


@pytest.mark.usefixtures("tile_size")
def test_a_query_whose_sigmoids_all_underflow_gets_the_uniform_average_and_finite_gradients():
    q = torch.full((1, 30, 4), -60.0, requires_grad=True)
    k = torch.full((1, 30, 4), 60.0, requires_grad=True)
    v = torch.randn(1, 30, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    out = Sigmoid()(q, k, v)
    torch.testing.assert_close(out, v.mean(1, keepdim=True).expand(1, 30, 2), rtol=1e-4, atol=1e-5)
    grads = torch.autograd.grad(out.square().sum(), (q, k, v))
    assert all(torch.isfinite(g).all() for g in grads)


def test_zeros_are_defined_and_large_scores_do_not_overflow():
    v = torch.randn(1, 4, 2)
    for name, size in (("simple", 0.0), ("softmax", 60.0), ("gaussian", 60.0)):
        q = torch.full((1, 4, 3), size)
        out = ALL[name](q, q, v)
        torch.testing.assert_close(out, v.mean(1, keepdim=True).expand(1, 4, 2))
        assert torch.isfinite(ALL[name].weights(q, q)).all()


ONES = torch.ones(1, 2, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_diffusivity("gauss"), r"one of simple, sigmoid.*got 'gauss'"),
        (lambda: make_diffusivity("simple", "column"), "qk_norm must be 'row' or 'tensor'"),
        (lambda: Gaussian(0), "sharpness must be positive, got 0"),
        (lambda: Gaussian(reach=1.0), "reach must be above 1"),
        (lambda: Sharp(0), "sharpness must be positive, got 0"),
        (lambda: Sharp(1.0, -1), "reach must be positive, got -1"),
        (lambda: Landmarks(40.0, 0), "reach must be positive, got 0"),
        (lambda: Landmarks().prepare(ONES, ONES), "known must be given"),
        (lambda: WholeTensorSimple().summarise(ONES, ONES), "q must be given"),
    ],
)
def test_bad_knobs_and_missing_rows_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_computes_the_same_average():
    q, k, v = (t.detach().float() for t in make_qkv(32, 48, d=16, e=16))
    torch.testing.assert_close(
        tiled._sigmoid_flex(q, k, v), Sigmoid().weights(q, k) @ v, rtol=1e-5, atol=1e-6
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 10**6))
def test_output_lies_within_the_values(n, m, seed):
    for name, diffusivity in ALL.items():
        if name == "identity":
            continue
        q, k, v = prepared(diffusivity, n, m, seed=seed)
        out = diffusivity(q, k, v)
        assert (out <= v.amax(-2, keepdim=True) + 1e-9).all(), name
        assert (out >= v.amin(-2, keepdim=True) - 1e-9).all(), name


def tiles_made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each tile of scores, as they are made; every average is in tiles."""
    monkeypatch.setattr(tiled, "DENSE_SCORES", 0)
    made: list[int] = []
    tile = tiled.sigmoid_tile

    def watched(q: Tensor, k: Tensor, buffer: Tensor) -> Tensor:
        made.append(q.shape[0])
        return tile(q, k, buffer)

    monkeypatch.setattr(tiled, "sigmoid_tile", watched)
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "m"), [(2, 3), (63, 257), (257, 63)])
def test_scores_too_small_to_bend_the_sigmoid_need_no_tile(monkeypatch, dtype, n, m):
    made = tiles_made(monkeypatch)
    q, k, v = make_qkv(n, m)
    eps = torch.finfo(dtype).eps
    edge = (12 * eps) ** (1 / 3)  # the largest such score
    largest = [t.detach().norm(dim=-1).max() for t in (q, k)]
    q, k = ((t.detach() * (0.999 * edge) ** 0.5 / s) for t, s in zip((q, k), largest, strict=True))
    probe = torch.randn(2, n, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def average(q: Tensor, k: Tensor, v: Tensor, dense: bool) -> tuple[Tensor, ...]:
        inputs = [t.detach().clone().requires_grad_() for t in (q, k, v)]
        out = Sigmoid().weights(*inputs[:2]) @ inputs[2] if dense else Sigmoid()(*inputs)
        return out, *torch.autograd.grad((out * probe.to(out)).sum(), inputs)

    fast = average(q.to(dtype), k.to(dtype), v.to(dtype), dense=False)
    assert not made
    slope = edge**2 / 4  # what the gradient of a query or a key may miss
    allowed = [20 * eps, 20 * eps + slope, 20 * eps + slope, 20 * eps]
    exact = average(q, k, v, dense=True)
    for mine, dense, share in zip(fast, exact, allowed, strict=True):
        tolerance = share * dense.abs().max().item()
        torch.testing.assert_close(mine.double(), dense, rtol=0, atol=tolerance)
    average(q.to(dtype) * 1.01, k.to(dtype), v.to(dtype), dense=False)
    assert made


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("some", [[], [0], [3, 40, 62]])
def test_rows_without_a_gradient_cost_no_tile_in_the_backward_pass(monkeypatch, tied, some):
    made = tiles_made(monkeypatch)
    q, k, v = make_qkv(63, 63, heads=1)
    inputs = [q, v] if tied else [q, k, v]
    k = q if tied else k
    probe = torch.zeros(1, 63, 3, dtype=torch.float64)
    probe[:, some] = torch.randn(1, len(some), 3, dtype=torch.float64)
    out = Sigmoid()(q, k, v)
    made.clear()
    grads = torch.autograd.grad((out * probe).sum(), inputs)
    assert sum(made) == len(some)
    dense = torch.autograd.grad((Sigmoid().weights(q, k) @ v * probe).sum(), inputs)
    torch.testing.assert_close(grads, dense)
