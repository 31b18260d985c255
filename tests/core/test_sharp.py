"""What cuts off far pairs: the calibration of rows, the weights kept once, near rows, landmarks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from difformer.core import fixed, tiled
from difformer.core.diffusion import Diffusion
from difformer.core.diffusivity import Gaussian, Landmarks, Sharp
from difformer.core.fixed import FixedAverage
from difformer.core.rows import (
    landmark_sample,
    make_landmarks,
    near_rows,
    offsets_for_reach,
    squared_distances,
)
from difformer.core.sparse import SparseMatrix

WHOLE = [slice(0, 131), slice(40, 99), slice(130, 131), slice(7, 7)]


def dense(made: FixedAverage, m: int) -> torch.Tensor:
    """Ŝ (n, m) of a fixed average."""
    return made.average(torch.eye(m, dtype=torch.float64))


def clustered(n: int, p: int = 12, seed: int = 0, spread: float = 0.5, count: int = 10):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(count, p, generator=generator, dtype=torch.float64)
    near = torch.randn(n, p, generator=generator, dtype=torch.float64)
    return centres[torch.randint(count, (n,), generator=generator)] + spread * near


def sparsely(rows: torch.Tensor):
    """Rows with many zeros and a row of zeros, dense and sparse."""
    rows = rows * (torch.rand(rows.shape, generator=torch.Generator().manual_seed(0)) < 0.4)
    rows[5] = 0
    return rows, SparseMatrix.from_csr(rows.to_sparse_csr())


@pytest.mark.parametrize("sharpness", [0.5, 5.0, 40.0, 1000.0])
@pytest.mark.parametrize("reach", [0.01, 1.0, 10.0, 62.5])
def test_the_mass_of_every_row_is_the_reach(sharpness, reach):
    rows = F.normalize(clustered(63), dim=-1)
    rows = torch.cat([rows, rows[:1], torch.zeros(1, 12)])  # equal rows, and a row of zeros
    scores = rows @ rows.T
    t = offsets_for_reach(scores, sharpness, reach)
    mass = torch.sigmoid(sharpness * (scores - t)).sum(1)
    torch.testing.assert_close(mass, torch.full_like(mass, reach), rtol=1e-6, atol=0)


@pytest.mark.parametrize("reach", [5.0, 7.0, 1e6])
def test_a_reach_of_all_rows_or_more_gives_equal_weights(reach):
    kernel = Sharp(40.0, reach)
    weights = kernel.weights(*kernel.prepare(*[clustered(5)] * 2))
    torch.testing.assert_close(weights, torch.full((5, 5), 0.2, dtype=torch.float64))


def test_omega_is_the_equation_and_symmetric():
    rows = clustered(40)
    q, k = Sharp(30.0, 6.0).prepare(rows, rows)
    assert q is k
    unit, t = F.normalize(rows, dim=-1), q[:, -1:]
    torch.testing.assert_close(q[:, :-1], unit)
    omega = Sharp(30.0, 6.0).omega(q, k)
    torch.testing.assert_close(omega, torch.sigmoid(30 * (unit @ unit.T - (t + t.T) / 2)))
    torch.testing.assert_close(omega, omega.T)


def test_a_new_row_is_calibrated_by_the_known_ones_alone():
    known, new = clustered(50), clustered(7, seed=1)
    kernel = Sharp(40.0, 5.0)
    prepared = kernel.prepare(known, known)[0]
    together = kernel.prepare(new, new, known)[0]
    torch.testing.assert_close(together[2:3], kernel.prepare(new[2:3], new[2:3], known)[0])
    torch.testing.assert_close(together, kernel.prepare(new, new, prepared)[0])
    # A known row that comes again gets the offset it had.
    torch.testing.assert_close(kernel.prepare(known[:4], known[:4], known)[0], prepared[:4])


def tuned(sharpness, reach):
    scale, shift = torch.tensor([0.7, 0.05], dtype=torch.float64)
    return Sharp(sharpness, reach).tuned(scale, shift)


@pytest.mark.parametrize("make", [Sharp, tuned, Gaussian])
def test_the_penalty_with_a_number_per_row_has_omega_as_its_slope(make):
    z = F.normalize(clustered(15, 4), dim=-1)
    kernel = make(20.0, 4.0)
    q, k = kernel.prepare(z, z)
    z2 = squared_distances(z, z).requires_grad_()
    here = kernel.at(z)
    pair = kernel.join(q[:, -1:], q[:, -1:].T)
    penalty = kernel.delta(z2, pair).sum()
    torch.testing.assert_close(torch.autograd.grad(penalty, z2)[0], kernel.omega(q, k))
    torch.testing.assert_close(here.pair_penalty(z), penalty.detach())
    torch.testing.assert_close(Diffusion(here).energy(z, z, 0.5), penalty.detach() / 2)
    pull, mass = here.pair_sums(z)
    torch.testing.assert_close(pull, kernel.omega(q, k) @ z)
    torch.testing.assert_close(mass.squeeze(1), kernel.omega(q, k).sum(1))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([Sharp, tuned, Gaussian]),
    st.integers(2, 25),
    st.floats(1, 60),
    st.floats(1.1, 20),
    st.integers(0, 10**6),
)
def test_theorem_1_descent_with_a_number_per_row(make, n, sharpness, reach, seed):
    z = F.normalize(clustered(n, 4, seed), dim=-1)
    kernel = make(sharpness, reach).at(z)  # offsets and widths stay, the states move
    before = None
    for _ in range(4):
        step = Diffusion(kernel, tau=Diffusion(kernel).safe_tau(z, 0.5))
        moved = step.step(z)
        now = step.energy(moved, z, 0.5)
        if before is not None:
            assert now <= before + 1e-9 * before.abs() + 1e-12
        before, z = now, moved


@pytest.mark.parametrize(("sharpness", "reach"), [(10.0, 3.0), (40.0, 10.0), (160.0, 3.0)])
def test_offsets_in_an_exported_program_are_those_of_the_model(sharpness, reach) -> None:
    """It cannot stop when all rows are done, and must have taken enough steps by then."""

    class Calibrated(torch.nn.Module):
        def forward(self, scores: torch.Tensor) -> torch.Tensor:
            return offsets_for_reach(scores, sharpness, reach)

    rows = F.normalize(clustered(300, 8), dim=-1)
    scores = rows[:60] @ rows.mT
    program = torch.export.export(Calibrated(), (scores,)).module()
    expected = offsets_for_reach(scores, sharpness, reach)
    torch.testing.assert_close(program(scores), expected, atol=1e-9, rtol=0)


def test_a_gaussian_with_a_reach_has_that_mass_and_is_symmetric():
    rows, kernel = clustered(40), Gaussian(reach=6.0)
    q, k = kernel.prepare(rows, rows)
    width, square = q[:, -1:], squared_distances(rows, rows)
    mass = torch.exp(-square / (2 * width.square())).sum(1)
    torch.testing.assert_close(mass, torch.full_like(mass, 6.0), rtol=1e-6, atol=0)
    expected = torch.exp(-square / (2 * width * width.T))
    torch.testing.assert_close(kernel.omega(q, k), expected)
    torch.testing.assert_close(kernel.weights(q, k), expected / expected.sum(1, keepdim=True))
    wide = Gaussian(reach=50.0)
    weights = wide.weights(*wide.prepare(rows, rows))
    torch.testing.assert_close(weights, torch.full_like(weights, 1 / 40), rtol=1e-3, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.0, 1e-9, 1.0, 1e9])
@pytest.mark.parametrize(("copies", "others"), [(1, 0), (6, 0), (6, 20)])
def test_equal_rows_of_a_gaussian_with_a_reach_have_equal_weights(dtype, scale, copies, others):
    """Rounding leaves a distance between them, which must not set their width."""
    generator = torch.Generator().manual_seed(0)
    row, rest = torch.randn(1, 5, generator=generator), torch.randn(others, 5, generator=generator)
    rows = (torch.cat([row.expand(copies, 5), rest]) * scale).to(dtype).requires_grad_()
    value = torch.randn(len(rows), 3, generator=generator).to(dtype)
    kernel = Gaussian(reach=4.0)
    out = kernel(*kernel.prepare(rows, rows), value)
    equal = len(rows) if scale == 0 else copies
    expected = value[:equal].mean(0).expand(copies, 3)
    torch.testing.assert_close(out[:copies], expected, rtol=0, atol=1e-3)
    (grad,) = torch.autograd.grad(out[:copies].square().sum(), rows)
    # No pair of equal rows pulls, and no other pair has a weight.
    assert (grad.abs() * (scale or 1) < 0.1).all()


@pytest.fixture
def many_tiles(monkeypatch):
    monkeypatch.setattr(fixed, "DENSE_ROWS", 10)
    monkeypatch.setattr(tiled, "CHUNK_SCORES", 5000)


@pytest.mark.usefixtures("many_tiles")
@pytest.mark.parametrize("sharpness", [10.0, 40.0])
@pytest.mark.parametrize("partners", [5, 30, 256])
def test_fixed_weights_lose_no_more_of_a_row_than_is_said(sharpness, partners, monkeypatch):
    monkeypatch.setattr(fixed, "PARTNERS", partners)
    rows, kernel = clustered(331), Sharp(sharpness, 6.0)
    exact = kernel.weights(*kernel.prepare(rows, rows))
    made = kernel.fixed(rows)
    (matrix,) = made.factors
    kept = matrix.csr.to_dense()
    lost = (exact * (kept == 0)).sum(1, keepdim=True)
    share = next(s for s in fixed.LOST if float(made.rest.max()) <= s)
    assert (lost <= share).all()
    torch.testing.assert_close(lost, made.rest)
    torch.testing.assert_close(kept, exact * (kept > 0))
    torch.testing.assert_close(dense(made, 331).sum(1), torch.ones(331, dtype=torch.float64))
    # Ŝ V is off by at most the lost share on each side.
    value = torch.rand(331, 3, dtype=torch.float64)
    assert ((made.average(value) - exact @ value).abs() <= lost).all()
    if sharpness == 40.0 and partners == 256:
        assert share == fixed.LOST[0]
        assert matrix.nonzeros < 331 * 80


def test_few_rows_are_kept_dense_and_exact():
    rows, kernel = clustered(60), Sharp(40.0, 6.0)
    exact = kernel.weights(*kernel.prepare(rows, rows))
    torch.testing.assert_close(kernel.fixed(rows).factors, (exact,))


@pytest.mark.parametrize(
    "kernel",
    [Sharp(40.0, 6.0), Sharp(40.0, 3.0, exact_rows=10), Landmarks(30.0, 3.0)],
    ids=["pairs", "near", "landmarks"],
)
@pytest.mark.usefixtures("many_tiles")
def test_fixed_forms_have_their_gradients_their_parts_and_sparse_features(kernel):
    rows, sparse = sparsely(clustered(131))
    marks = make_landmarks(rows, 11)
    made = kernel.fixed(rows, marks)
    whole = dense(made, 131)
    torch.testing.assert_close(whole.sum(1), torch.ones(131, dtype=torch.float64))
    torch.testing.assert_close(dense(kernel.fixed(sparse, marks), 131), whole)
    value = torch.randn(131, 2, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(made.average(value).square().sum(), value)
    torch.testing.assert_close(grad, 2 * whole.T @ (whole @ value))
    for part in WHOLE:
        block = made.block(part)
        torch.testing.assert_close(dense(block, 131), whole[part])
        half = slice(0, (part.stop - part.start) // 2)
        torch.testing.assert_close(dense(block.block(half), 131), whole[part][half])
        if isinstance(kernel, Sharp) and kernel.exact_rows > 10:
            offset = kernel.fixed_offsets(rows, slice(0, 131))
            torch.testing.assert_close(kernel.fixed_offsets(rows, part), offset[part])
            torch.testing.assert_close(
                dense(kernel.fixed_rows(rows, part, offset), 131), whole[part]
            )


@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 2), (63, 5), (257, 10)])
def test_near_rows_are_exact_with_all_cells_probed(n, k):
    rows = clustered(n, spread=0.2)
    found = near_rows(rows, k, probes=n)
    unit = F.normalize(rows, dim=-1)
    torch.testing.assert_close(found.score, (unit @ unit.T).topk(k, dim=1).values)
    torch.testing.assert_close((unit @ unit.T).gather(1, found.row), found.score)


def test_few_cells_find_almost_all_neighbours_of_clustered_rows_dense_or_sparse():
    rows = clustered(3000, spread=0.2)
    found, exact = near_rows(rows, 10, probes=8), near_rows(rows, 10, probes=3000)
    hits = (found.row[:, :, None] == exact.row[:, None]).any(1).double().mean()
    assert hits > 0.99
    rows, sparse = sparsely(rows[:120])
    found = near_rows(sparse, 4, probes=5)
    torch.testing.assert_close(found.score, near_rows(rows, 4, probes=5).score)


def test_weights_of_near_rows_are_those_of_the_found_pairs_and_say_what_they_miss() -> None:
    rows, kernel = clustered(250, spread=0.2, count=30), Sharp(40.0, 3.0, exact_rows=10)
    made = kernel.fixed(rows)
    assert (made.factors[-1].coo[1] != torch.arange(250)).any()  # kept in the order of cells
    unit, t = F.normalize(rows, dim=-1), made.offset
    omega = torch.sigmoid(40.0 * (unit @ unit.T - (t + t.T) / 2))
    exact = omega / omega.sum(1, keepdim=True)
    near = near_rows(rows, 12)
    missed = 1 - exact.gather(1, near.row).sum(1)
    assert made.missed == pytest.approx(float(missed.mean()))
    assert 0 < made.missed < 0.1
    pairs = torch.zeros_like(omega).scatter_(1, near.row, omega.gather(1, near.row))
    pairs = pairs / pairs.sum(1, keepdim=True)
    kept = dense(made, 250) - made.rest / 250
    torch.testing.assert_close(kept, torch.where(kept > 1e-12, pairs, 0.0), rtol=1e-6, atol=1e-9)
    # An average moves by at most the missed and the evenly spread share of the weights.
    value = torch.rand(250, 3, dtype=torch.float64)
    gap = (made.average(value) - exact @ value).abs().amax(1)
    assert (gap <= missed + made.rest.squeeze(1) + 1e-12).all()


def rows_and_landmarks(n: int, m: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, 6, generator=generator, dtype=torch.float64)
    return rows, make_landmarks(rows, m)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.integers(1, 20), st.floats(0.5, 25), st.integers(0, 10**6))
def test_weights_by_landmarks_are_symmetric_doubly_stochastic_and_lower_the_energy(
    n, m, reach, seed
):
    rows, marks = rows_and_landmarks(n, m, seed)
    kernel = Landmarks(30.0, reach)
    z, same = kernel.prepare(rows, rows, marks)
    assert same is z
    torch.testing.assert_close(z.sum(1), torch.ones(n, dtype=torch.float64))
    assert ((z > 0).sum(1) <= max(1, -(-reach // 1))).all()
    w = kernel.weights(z, z)
    torch.testing.assert_close(w, w.T)
    torch.testing.assert_close(w.sum(0), torch.ones(n, dtype=torch.float64))
    assert torch.linalg.eigvalsh(w).min() > -1e-12
    torch.testing.assert_close(kernel.omega(z, z), w)
    torch.testing.assert_close(dense(kernel.fixed(rows, marks), n), w)
    state = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    energies = [
        (w * torch.cdist(each, each).square()).sum()
        for each in (state, *((1 - tau) * state + tau * w @ state for tau in (0.1, 0.5, 1.0)))
    ]
    assert max(energies[1:]) <= energies[0] + 1e-9


def test_a_landmark_that_no_row_is_near_has_no_influence():
    kernel = Landmarks()
    known = torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64)
    new = torch.tensor([[0.5, 0.0, 0.5]], dtype=torch.float64)
    value = torch.tensor([[2.0]], dtype=torch.float64)
    torch.testing.assert_close(kernel.apply(new, kernel.summarise(known, value)), value)


def test_landmarks_are_in_the_middle_of_clusters_and_draw_no_global_number():
    generator = torch.Generator().manual_seed(0)
    centres = F.normalize(torch.randn(8, 16, generator=generator), dim=-1)
    rows = centres.repeat_interleave(40, 0) + 0.05 * torch.randn(320, 16, generator=generator)
    before = torch.get_rng_state()
    marks = make_landmarks(rows, 24)
    assert torch.equal(torch.get_rng_state(), before)
    assert (centres @ marks.T).amax(1).min() > 0.98
    torch.testing.assert_close(marks.norm(dim=1), torch.ones(24))
    assert torch.equal(make_landmarks(rows, 24), marks)


def test_few_equal_and_zero_rows_have_landmarks():
    assert make_landmarks(torch.zeros(5, 3), 4).shape == (1, 3)
    assert make_landmarks(torch.randn(5, 3), 9).shape == (5, 3)
    assert torch.isfinite(make_landmarks(torch.ones(30, 3), 4)).all()
    assert landmark_sample(10, 3, 400).tolist() == list(range(10))
    assert landmark_sample(100_000, 3, 10).unique().numel() == 200
