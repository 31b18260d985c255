"""The sharp diffusivity: its reach, its fixed form and its place among the others."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from difformer.core import fixed, tiled
from difformer.core.diffusion import Diffusion
from difformer.core.diffusivity import Gaussian, Sharp
from difformer.core.fixed import FixedAverage, FixedWeights
from difformer.core.rows import offsets_for_reach, squared_distances
from difformer.core.sparse import SparseMatrix


def dense(made: FixedAverage, m: int) -> torch.Tensor:
    """Ŝ (n, m) of a fixed average."""
    return made.average(torch.eye(m, dtype=torch.float64))


def clustered(n: int, p: int = 12, seed: int = 0, dtype: torch.dtype = torch.float64):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(10, p, generator=generator, dtype=dtype)
    near = torch.randn(n, p, generator=generator, dtype=dtype)
    return centres[torch.randint(10, (n,), generator=generator)] + 0.5 * near


@pytest.mark.parametrize("sharpness", [0.5, 5.0, 40.0, 1000.0])
@pytest.mark.parametrize("reach", [0.01, 1.0, 10.0, 62.5])
def test_the_mass_of_every_row_is_the_reach(sharpness, reach):
    rows = F.normalize(clustered(63), dim=-1)
    scores = rows @ rows.T
    t = offsets_for_reach(scores, sharpness, reach)
    mass = torch.sigmoid(sharpness * (scores - t)).sum(1)
    torch.testing.assert_close(mass, torch.full_like(mass, reach), rtol=1e-6, atol=0)


@pytest.mark.parametrize("reach", [5.0, 7.0, 1e6])
def test_a_reach_of_all_rows_or_more_gives_equal_weights(reach):
    q, k = Sharp(40.0, reach).prepare(*[clustered(5)] * 2)
    torch.testing.assert_close(
        Sharp(40.0, reach).weights(q, k), torch.full((5, 5), 0.2, dtype=torch.float64)
    )


def test_equal_rows_and_zero_rows_have_an_offset():
    rows = torch.cat([torch.ones(4, 3), torch.zeros(4, 3)]).double()
    q, k = Sharp(40.0, 2.0).prepare(rows, rows)
    mass = torch.sigmoid(40.0 * (q[:, :-1] @ k[:, :-1].T - q[:, -1:])).sum(1)
    torch.testing.assert_close(mass, torch.full((8,), 2.0, dtype=torch.float64))


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
    pair = here.join(q[:, -1:], q[:, -1:].T)
    (slope,) = torch.autograd.grad(kernel.delta(z2, pair).sum(), z2)
    torch.testing.assert_close(slope, kernel.omega(q, k))
    expected = kernel.delta(z2, pair).sum().detach()
    torch.testing.assert_close(here.pair_penalty(z), expected)
    torch.testing.assert_close(Diffusion(here).energy(z, z, 0.5), expected / 2)
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
        tau = Diffusion(kernel).safe_tau(z, 0.5)
        step = Diffusion(kernel, tau=tau)
        moved = step.step(z)
        now = step.energy(moved, z, 0.5)
        if before is not None:
            assert now <= before + 1e-9 * before.abs() + 1e-12
        before, z = now, moved


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
    assert isinstance(matrix, SparseMatrix)
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
    made = kernel.fixed(rows)
    assert isinstance(made.factors[0], torch.Tensor)
    torch.testing.assert_close(made.factors[0], kernel.weights(*kernel.prepare(rows, rows)))


@pytest.mark.usefixtures("many_tiles")
def test_sparse_features_give_the_same_weights_as_dense_ones():
    rows = clustered(120)
    rows = rows * (torch.rand(120, 12, generator=torch.Generator().manual_seed(0)) < 0.4)
    rows[5] = 0
    sparse = SparseMatrix.from_csr(rows.to_sparse_csr())
    kernel = Sharp(40.0, 6.0)
    torch.testing.assert_close(dense(kernel.fixed(sparse), 120), dense(kernel.fixed(rows), 120))


@pytest.mark.usefixtures("many_tiles")
def test_a_part_of_the_rows_is_a_part_of_the_whole():
    rows, kernel = clustered(131), Sharp(40.0, 6.0)
    whole = dense(kernel.fixed(rows), 131)
    offset = kernel.fixed_offsets(rows, slice(0, 131))
    for part in (slice(0, 131), slice(40, 99), slice(130, 131), slice(7, 7)):
        made = kernel.fixed_rows(rows, part, offset)
        torch.testing.assert_close(dense(made, 131), whole[part])
        torch.testing.assert_close(dense(kernel.fixed(rows).block(part), 131), whole[part])


@pytest.mark.usefixtures("many_tiles")
def test_the_gradient_of_a_fixed_average_is_that_of_its_dense_form():
    made = Sharp(40.0, 6.0).fixed(clustered(50))
    assert isinstance(made, FixedWeights)
    value = torch.randn(50, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(made.average, (value,))


def test_a_gaussian_with_a_reach_has_that_mass_and_is_symmetric():
    rows, kernel = clustered(40), Gaussian(reach=6.0)
    q, k = kernel.prepare(rows, rows)
    width, square = q[:, -1:], squared_distances(rows, rows)
    mass = torch.exp(-square / (2 * width.square())).sum(1)
    torch.testing.assert_close(mass, torch.full_like(mass, 6.0), rtol=1e-6, atol=0)
    expected = torch.exp(-square / (2 * width * width.T))
    torch.testing.assert_close(kernel.omega(q, k), expected)
    torch.testing.assert_close(kernel.omega(q, k), kernel.omega(q, k).T)
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
    q, k = kernel.prepare(rows, rows)
    out = kernel(q, k, value)
    equal = len(rows) if scale == 0 else copies
    expected = value[:equal].mean(0).expand(copies, 3)
    torch.testing.assert_close(out[:copies], expected, rtol=0, atol=1e-3)
    (grad,) = torch.autograd.grad(out[:copies].square().sum(), rows)
    # No pair of equal rows pulls, and no other pair has a weight.
    assert (grad.abs() * (scale or 1) < 0.1).all()


@pytest.mark.parametrize(("sharpness", "reach"), [(10.0, 3.0), (40.0, 10.0), (160.0, 3.0)])
def test_offsets_in_an_exported_program_are_those_of_the_model(
    sharpness: float, reach: float
) -> None:
    """It cannot stop when all rows are done, and must have taken enough steps by then."""

    class Calibrated(torch.nn.Module):
        def forward(self, scores: torch.Tensor) -> torch.Tensor:
            return offsets_for_reach(scores, sharpness, reach)

    rows = F.normalize(clustered(300, 8), dim=-1)
    scores = rows[:60] @ rows.mT
    program = torch.export.export(Calibrated(), (scores,)).module()
    torch.testing.assert_close(
        program(scores), offsets_for_reach(scores, sharpness, reach), atol=1e-9, rtol=0
    )
