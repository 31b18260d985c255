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
@pytest.mark.parametrize("n", [1, 2, 63])
def test_step_is_equation_3_with_the_weights_of_equation_6(kernel, n):
    z = random_states(n, 4, seed=1)
    diffusivity = KERNELS[kernel]()
    omega = diffusivity.f(squared_distances(z, z))
    if kernel == "identity":
        omega = torch.eye(n, dtype=torch.float64)
    s = omega / omega.sum(1, keepdim=True)
    expected = (1 - 0.3 * s.sum(1, keepdim=True)) * z + 0.3 * s @ z
    torch.testing.assert_close(Diffusion(kernel, tau=0.3).step(z), expected)


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


descent_cases = {
    "kernel": st.sampled_from(KERNEL_NAMES),
    "n": st.integers(1, 30),
    "d": st.integers(1, 6),
    "seed": st.integers(0, 10**6),
    "weight": st.floats(1e-3, 10),
}


@settings(max_examples=120, deadline=None)
@given(**descent_cases, source_weight=st.sampled_from([0.0, 0.5, 20.0]), relu=st.booleans())
def test_theorem_1_descent(kernel, n, d, seed, weight, source_weight, relu):
    z = random_states(n, d, seed)
    z = z.abs() if relu else z
    proximal = relu_proximal if relu else None
    process = Diffusion(kernel, source_weight=source_weight, proximal=proximal)
    first = z
    before = None
    for _ in range(4):
        tau = process.safe_tau(z, weight)
        assume(tau > 1e-6)
        step = Diffusion(kernel, tau=tau, source_weight=source_weight, proximal=proximal)
        moved = step.step(z, first)
        now = step.energy(moved, z, weight, first)
        if before is not None:
            assert now <= before + 1e-9 * before.abs() + 1e-12
        before, z = now, moved


@settings(max_examples=80, deadline=None)
@given(**descent_cases, scale=st.sampled_from([None, 0.1, 3.0]))
def test_theorem_1_descent_with_a_graph(kernel, n, d, seed, weight, scale):
    z, graph = random_states(n, d, seed), random_graph(n, seed)
    before = None
    for _ in range(4):
        tau = Diffusion(kernel, graph=graph, graph_scale=scale).safe_tau(z, weight)
        assume(tau > 1e-6)
        step = Diffusion(kernel, tau=tau, graph=graph, graph_scale=scale)
        moved = step.step(z)
        now = step.energy(moved, z, weight)
        if before is not None:
            assert now <= before + 1e-9 * before.abs() + 1e-12
        before, z = now, moved


def test_the_guarantee_is_a_real_bound():
    # A step far beyond the guaranteed one does raise the energy: the check can fail.
    z = random_states(20, 3, seed=5)
    tiny = 1e-4
    assert Diffusion("simple").safe_tau(z, tiny) < 0.02
    report = Diffusion("simple", tau=1.0).check_descent(z, 1, tiny)
    start = tiny * KERNELS["simple"]().pair_penalty(z)
    assert report.energies[0] > start


def test_check_descent_says_where_it_holds():
    z = random_states(20, 3, seed=5)
    report = Diffusion("sigmoid", tau=0.5).check_descent(z, 6, weight=1.0)
    assert report.holds
    assert report.energies.shape == (6,)
    assert 0.5 <= report.guaranteed < 1


def test_paper_coupling_is_equation_11():
    z, graph = random_states(8, 3, 3), random_graph(8, 3)
    omega = KERNELS["simple"]().f(squared_distances(z, z))
    s, a = omega / omega.sum(1, keepdim=True), graph.dense()
    both = s + a
    expected = (1 - 0.25 * both.sum(1, keepdim=True)) * z + 0.25 * both @ z
    process = Diffusion("simple", tau=0.5, graph=graph, coupling="paper")
    torch.testing.assert_close(process.step(z), expected)


def test_joint_coupling_is_equation_11_where_all_masses_agree():
    # A ring has Ã 1 = 1, a constant diffusivity has mass n: then both forms are one.
    ring = torch.stack([torch.arange(6), (torch.arange(6) + 1) % 6])
    graph = Graph.from_edges(ring, 6, undirected=True).to(torch.zeros((), dtype=torch.float64))
    z = random_states(6, 3, 0)
    joint = Diffusion("constant", graph=graph).step(z)
    torch.testing.assert_close(joint, Diffusion("constant", graph=graph, coupling="paper").step(z))


def test_mlp_gcn_and_gat_are_special_cases():
    z, graph = random_states(9, 3, 4), random_graph(9, 4)
    # MLP: only self-loops, nothing moves.
    torch.testing.assert_close(Diffusion("identity").step(z), z)
    # GCN: the identity diffusivity contributes no flow, eq. 11 leaves that of Ã (eq. 32, step τ/2).
    a = graph.dense()
    expected = (1 - 0.5 * a.sum(1, keepdim=True)) * z + 0.5 * a @ z
    process = Diffusion("identity", tau=1.0, graph=graph, coupling="paper")
    torch.testing.assert_close(process.step(z), expected)
    # GAT: the diffusivity on the edges alone (eq. 33); a row without edges stays.
    omega = KERNELS["sigmoid"]().f(squared_distances(z, z)) * (a > 0)
    mass = omega.sum(1, keepdim=True)
    moved = torch.where(mass > 0, omega @ z / mass.clamp_min(1e-12), z)
    process = Diffusion("sigmoid", tau=0.4, graph=graph, edges_only=True)
    torch.testing.assert_close(process.step(z), 0.6 * z + 0.4 * moved)


def test_trajectory_starts_with_the_states_and_has_every_step():
    z = random_states(5, 2, 0)
    states = Diffusion("simple").trajectory(z, 3)
    assert len(states) == 4
    assert states[0] is z
    torch.testing.assert_close(states[2], Diffusion("simple").step(states[1]))


def test_without_a_source_the_states_collapse_and_with_one_they_do_not():
    z = random_states(15, 3, 0)
    plain = Diffusion("simple", tau=0.5).trajectory(z, 60)[-1]
    held = Diffusion("simple", tau=0.5, source_weight=15.0).trajectory(z, 60)[-1]
    assert plain.std(0).max() < 1e-6
    assert held.std(0).min() > 0.05


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"tau must lie in \(0, 1\], got 0"):
        Diffusion("simple", tau=0)
    with pytest.raises(ValueError, match="kernel must be one of"):
        Diffusion("nothing")
    with pytest.raises(ValueError, match="coupling must be"):
        Diffusion("simple", coupling="other")
    with pytest.raises(ValueError, match="source_weight must not be negative"):
        Diffusion("simple", source_weight=-1)
    with pytest.raises(ValueError, match="graph must be given"):
        Diffusion("simple", edges_only=True)
    with pytest.raises(ValueError, match="ball of radius 1 for the simple diffusivity"):
        Diffusion("simple").trajectory(torch.full((3, 2), 5.0), 1)
    with pytest.raises(ValueError, match="z must be finite"):
        Diffusion("sigmoid").trajectory(torch.tensor([[float("nan")]]), 1)
    with pytest.raises(ValueError, match=r"z must have shape \(n, d\)"):
        Diffusion("sigmoid").trajectory(torch.zeros(0, 2), 1)
    with pytest.raises(ValueError, match="weight must be positive"):
        Diffusion("simple").safe_tau(torch.ones(3, 2), 0.0)


@pytest.mark.parametrize("coupling", ["joint", "paper"])
@pytest.mark.parametrize("edges_only", [False, True])
@pytest.mark.parametrize("with_graph", [False, True])
@pytest.mark.parametrize("sourced", [False, True])
def test_a_constant_state_that_is_its_own_source_stays(coupling, edges_only, with_graph, sourced):
    if edges_only and not with_graph:
        return
    z = torch.full((6, 2), 0.3, dtype=torch.float64)
    # A ring and a row without edges.
    ring = torch.stack([torch.arange(5), (torch.arange(5) + 1) % 5])
    graph = Graph.from_edges(ring, 6, undirected=True).to(z) if with_graph else None
    process = Diffusion(
        "sigmoid", graph=graph, source_weight=2.0, coupling=coupling, edges_only=edges_only
    )
    torch.testing.assert_close(process.step(z, z if sourced else None), z)


@pytest.mark.parametrize("coupling", ["joint", "paper"])
@pytest.mark.parametrize("edges_only", [False, True])
def test_a_step_with_a_source_equals_the_dense_average(coupling, edges_only):
    z, first, graph = random_states(7, 3, 0), random_states(7, 3, 1), random_graph(7, seed=1)
    process = Diffusion(
        "sigmoid", tau=0.4, graph=graph, source_weight=2.0, coupling=coupling, edges_only=edges_only
    )
    a = graph.dense()
    omega = KERNELS["sigmoid"]().f(squared_distances(z, z))
    if edges_only:
        omega = omega * (a > 0)
    elif coupling == "joint":
        omega = omega + 7 * a
    average = (omega @ z + 2 * first) / (omega.sum(1, keepdim=True) + 2)
    expected = z + 0.4 * (average - z)
    if coupling == "paper" and not edges_only:
        expected = z + 0.2 * (average - z + a @ z - a.sum(1, keepdim=True) * z)
    torch.testing.assert_close(process.step(z, first), expected)
