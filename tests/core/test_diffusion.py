"""The bare process and its energies: closed forms, and Theorem 1's descent as a property."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from difformer.core.diffusion import Diffusion, relu_proximal
from difformer.core.diffusivity import KERNELS
from difformer.core.graph import Graph
from difformer.core.rows import squared_distances

# Landmarks have no function of the distance: their energy is quadratic.
KERNEL_NAMES = sorted(set(KERNELS) - {"landmarks"})


def random_states(n: int, d: int, seed: int, radius: float = 1.0):
    generator = torch.Generator().manual_seed(seed)
    z = torch.nn.functional.normalize(torch.randn(n, d, generator=generator, dtype=torch.float64))
    return z * radius * torch.rand(n, 1, generator=generator, dtype=torch.float64)


def random_graph(n: int, seed: int) -> Graph:
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(n, (2, 2 * n), generator=generator)
    return Graph.from_edges(edges, n, undirected=True, self_loops=False).to(
        torch.zeros((), dtype=torch.float64)
    )


@pytest.mark.parametrize("kernel", KERNEL_NAMES)
@pytest.mark.parametrize("coupling", [None, "joint", "paper", "edges"])
@pytest.mark.parametrize(("n", "sourced"), [(1, 0.0), (2, 0.0), (9, 0.0), (9, 2.0), (63, 2.0)])
def test_a_step_is_the_average_of_equations_3_11_19_and_33(kernel, coupling, n, sourced):
    z, first = random_states(n, 4, seed=1), random_states(n, 4, seed=2)
    graph = random_graph(n, seed=4) if coupling else None
    options = {"edges": {"edges_only": True}, "paper": {"coupling": "paper"}}.get(coupling, {})
    process = Diffusion(kernel, tau=0.4, graph=graph, source_weight=sourced, **options)
    a = graph.dense() if graph else torch.zeros(n, n, dtype=torch.float64)
    omega = KERNELS[kernel]().f(squared_distances(z, z))
    if coupling == "edges":  # GAT
        omega = omega * (a > 0)
    elif kernel == "identity":  # MLP without a graph, GCN with the paper's coupling
        omega = torch.eye(n, dtype=torch.float64)
    if coupling == "joint":
        omega = omega + n * a
    mass = omega.sum(1, keepdim=True) + sourced
    # A row without edges and without a source stays.
    average = torch.where(mass > 0, (omega @ z + sourced * first) / mass, z)
    expected = z + 0.4 * (average - z)
    if coupling == "paper":
        expected = z + 0.2 * (average - z + a @ z - a.sum(1, keepdim=True) * z)
    torch.testing.assert_close(process.step(z, first), expected)


@pytest.mark.parametrize("kernel", KERNEL_NAMES)
@pytest.mark.parametrize("n", [1, 2, 63, 257])
def test_pair_penalty_equals_the_double_sum(kernel, n):
    z = random_states(n, 5, seed=2)
    diffusivity = KERNELS[kernel]()
    expected = diffusivity.delta(squared_distances(z, z)).sum()
    torch.testing.assert_close(diffusivity.pair_penalty(z), expected, rtol=1e-9, atol=1e-8)


def test_energy_is_equation_4_and_equation_19():
    z, before, graph = random_states(7, 3, 0), random_states(7, 3, 1), random_graph(7, seed=1)
    move = (z - before).square().sum()
    pairs = KERNELS["sigmoid"]().delta(squared_distances(z, z)).sum()
    edges = (graph.dense() * squared_distances(z, z)).sum()
    torch.testing.assert_close(Diffusion("sigmoid").energy(z, before, 0.3), move + 0.3 * pairs)
    process = Diffusion("sigmoid", graph=graph, graph_scale=2.0)
    expected = move + 0.15 * (pairs + 2 * edges)
    torch.testing.assert_close(process.energy(z, before, 0.3), expected)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(KERNEL_NAMES),
    st.integers(1, 30),
    st.integers(1, 6),
    st.integers(0, 10**6),
    st.floats(1e-3, 10),
    st.sampled_from(
        [
            {},
            {"source_weight": 0.5},
            {"source_weight": 20.0},
            {"proximal": relu_proximal},
            {"proximal": relu_proximal, "source_weight": 0.5},
            {"graph_scale": None},
            {"graph_scale": 0.1},
            {"graph_scale": 3.0},
        ]
    ),
)
def test_theorem_1_descent(kernel, n, d, seed, weight, options):
    z = random_states(n, d, seed)
    z = z.abs() if "proximal" in options else z
    graph = random_graph(n, seed) if "graph_scale" in options else None
    first, before = z, None
    for _ in range(4):
        tau = Diffusion(kernel, graph=graph, **options).safe_tau(z, weight)
        assume(tau > 1e-6)
        step = Diffusion(kernel, tau=tau, graph=graph, **options)
        moved = step.step(z, first)
        now = step.energy(moved, z, weight, first)
        if before is not None:
            assert now <= before + 1e-9 * before.abs() + 1e-12
        before, z = now, moved


def test_check_descent_says_where_it_holds_and_what_is_guaranteed_is_a_real_bound():
    z = random_states(20, 3, seed=5)
    report = Diffusion("sigmoid", tau=0.5).check_descent(z, 6, weight=1.0)
    assert report.holds
    assert report.energies.shape == (6,)
    assert 0.5 <= report.guaranteed < 1
    # A step far beyond the guaranteed one does raise the energy: the check can fail.
    tiny = 1e-4
    assert Diffusion("simple").safe_tau(z, tiny) < 0.02
    report = Diffusion("simple", tau=1.0).check_descent(z, 1, tiny)
    assert report.energies[0] > tiny * KERNELS["simple"]().pair_penalty(z)


def test_without_a_source_the_states_collapse_and_with_one_they_do_not():
    z = random_states(15, 3, 0)
    states = Diffusion("simple", tau=0.5).trajectory(z, 60)
    assert len(states) == 61
    assert states[0] is z
    plain = states[-1]
    held = Diffusion("simple", tau=0.5, source_weight=15.0).trajectory(z, 60)[-1]
    assert plain.std(0).max() < 1e-6
    assert held.std(0).min() > 0.05


NAN = torch.tensor([[float("nan")]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Diffusion("simple", tau=0), r"tau must lie in \(0, 1\], got 0"),
        (lambda: Diffusion("nothing"), "kernel must be one of"),
        (lambda: Diffusion("simple", coupling="other"), "coupling must be"),
        (lambda: Diffusion("simple", source_weight=-1), "source_weight must not be negative"),
        (lambda: Diffusion("simple", edges_only=True), "graph must be given"),
        (
            lambda: Diffusion("simple").trajectory(torch.full((3, 2), 5.0), 1),
            "ball of radius 1 for the simple diffusivity",
        ),
        (lambda: Diffusion("sigmoid").trajectory(NAN, 1), "z must be finite"),
        (
            lambda: Diffusion("sigmoid").trajectory(torch.zeros(0, 2), 1),
            r"z must have shape \(n, d\)",
        ),
        (lambda: Diffusion("simple").safe_tau(torch.ones(3, 2), 0.0), "weight must be positive"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
