"""Rows that meet through landmarks: the matrix, its properties and its sparse form."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from difformer.core import tiled
from difformer.core.diffusivity import Landmarks
from difformer.core.rows import landmark_sample, make_landmarks
from difformer.core.sparse import SparseMatrix


def rows_and_landmarks(n: int, m: int, p: int = 6, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, p, generator=generator, dtype=torch.float64)
    return rows, make_landmarks(rows, m)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.integers(1, 20), st.floats(0.5, 25), st.integers(0, 10**6))
def test_the_weights_are_symmetric_doubly_stochastic_and_positive_semi_definite(n, m, reach, seed):
    rows, marks = rows_and_landmarks(n, m, seed=seed)
    kernel = Landmarks(30.0, reach)
    z, same = kernel.prepare(rows, rows, marks)
    assert same is z
    torch.testing.assert_close(z.sum(1), torch.ones(n, dtype=torch.float64))
    assert ((z > 0).sum(1) <= max(1, -(-reach // 1))).all()
    w = kernel.weights(z, z)
    torch.testing.assert_close(w, w.T)
    torch.testing.assert_close(w.sum(0), torch.ones(n, dtype=torch.float64))
    torch.testing.assert_close(w.sum(1), torch.ones(n, dtype=torch.float64))
    assert torch.linalg.eigvalsh(w).min() > -1e-12
    torch.testing.assert_close(kernel.omega(z, z), w)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 40), st.floats(0.01, 1.0), st.integers(0, 10**6))
def test_every_step_towards_the_average_lowers_the_quadratic_energy(n, tau, seed):
    rows, marks = rows_and_landmarks(n, 7, seed=seed)
    z, _ = Landmarks(30.0, 3.0).prepare(rows, rows, marks)
    w = Landmarks(30.0, 3.0).weights(z, z)
    state = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    moved = (1 - tau) * state + tau * w @ state

    def energy(state):
        return (w * torch.cdist(state, state).square()).sum()

    assert energy(moved) <= energy(state) + 1e-9


@pytest.mark.parametrize("sparse", [False, True])
def test_the_fixed_form_is_the_dense_one_with_its_gradient(sparse, monkeypatch):
    monkeypatch.setattr(tiled, "CHUNK_SCORES", 100)
    rows, marks = rows_and_landmarks(57, 11)
    kernel = Landmarks(30.0, 3.0)
    z, _ = kernel.prepare(rows, rows, marks)
    dense = kernel.weights(z, z)
    made = kernel.fixed(SparseMatrix.from_csr(rows.to_sparse_csr()) if sparse else rows, marks)
    assert made.factors[0].nonzeros == 57 * 3
    torch.testing.assert_close(made.average(torch.eye(57, dtype=torch.float64)), dense)
    value = torch.randn(57, 4, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(made.average(value), dense @ value)
    torch.testing.assert_close(made.block(slice(5, 20)).average(value), (dense @ value)[5:20])
    assert torch.autograd.gradcheck(made.average, (value,))


def test_a_landmark_that_no_row_is_near_has_no_influence():
    kernel = Landmarks()
    known = torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64)
    new = torch.tensor([[0.5, 0.0, 0.5]], dtype=torch.float64)
    value = torch.tensor([[2.0]], dtype=torch.float64)
    torch.testing.assert_close(kernel.apply(new, kernel.summarise(known, value)), value)


def test_landmarks_are_in_the_middle_of_clusters():
    generator = torch.Generator().manual_seed(0)
    centres = F.normalize(torch.randn(8, 16, generator=generator), dim=-1)
    rows = centres.repeat_interleave(40, 0) + 0.05 * torch.randn(320, 16, generator=generator)
    marks = make_landmarks(rows, 24)
    assert (centres @ marks.T).amax(1).min() > 0.98
    torch.testing.assert_close(marks.norm(dim=1), torch.ones(24))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    assert torch.equal(
        make_landmarks(rows, 24), marks
    )  # the same, and no global random number is drawn
    assert torch.equal(torch.get_rng_state(), before)


def test_few_equal_and_zero_rows_have_landmarks():
    assert make_landmarks(torch.zeros(5, 3), 4).shape == (1, 3)
    assert make_landmarks(torch.randn(5, 3), 9).shape == (5, 3)
    equal = make_landmarks(torch.ones(30, 3), 4)
    assert torch.isfinite(equal).all()
    assert landmark_sample(10, 3, 400).tolist() == list(range(10))
    sample = landmark_sample(100_000, 3, 10)
    assert sample.numel() == 200
    assert sample.unique().numel() == 200
