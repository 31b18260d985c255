"""Near rows found through cells, and the sharp weights that rest on them."""

import pytest
import torch
from torch.nn import functional as F

from difformer.core.diffusivity import Sharp
from difformer.core.fixed import FixedAverage
from difformer.core.rows import near_rows
from difformer.core.sparse import SparseMatrix
from difformer.nn.model import DIFFormer


def dense(made: FixedAverage, m: int) -> torch.Tensor:
    """Ŝ (n, m) of a fixed average."""
    return made.average(torch.eye(m, dtype=torch.float64))


def clustered(n: int, p: int = 12, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(30, p, generator=generator, dtype=torch.float64)
    near = torch.randn(n, p, generator=generator, dtype=torch.float64)
    return centres[torch.randint(30, (n,), generator=generator)] + 0.2 * near


@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 2), (63, 5), (257, 10)])
def test_with_all_cells_probed_it_is_exact(n, k):
    rows = clustered(n)
    found = near_rows(rows, k, probes=n)
    unit = F.normalize(rows, dim=-1)
    best = (unit @ unit.T).topk(k, dim=1)
    torch.testing.assert_close(found.score, best.values)
    torch.testing.assert_close((unit @ unit.T).gather(1, found.row), found.score)


def test_few_cells_find_almost_all_neighbours_of_clustered_rows():
    rows = clustered(3000)
    found, exact = near_rows(rows, 10, probes=8), near_rows(rows, 10, probes=3000)
    hits = (found.row[:, :, None] == exact.row[:, None]).any(1).double().mean()
    assert hits > 0.99


def test_sparse_rows_have_the_neighbours_of_dense_ones():
    rows = clustered(120) * (torch.rand(120, 12, generator=torch.Generator().manual_seed(0)) < 0.5)
    rows[7] = 0
    sparse = near_rows(SparseMatrix.from_csr(rows.to_sparse_csr()), 4, probes=5)
    torch.testing.assert_close(sparse.score, near_rows(rows, 4, probes=5).score)


def test_what_is_missed_is_said_and_bounds_the_error():
    rows, kernel = clustered(250), Sharp(40.0, 3.0, exact_rows=10)
    made = kernel.fixed(rows)
    unit, t = F.normalize(rows, dim=-1), made.offset
    omega = torch.sigmoid(40.0 * (unit @ unit.T - (t + t.T) / 2))
    exact = omega / omega.sum(1, keepdim=True)
    near = near_rows(rows, 12)
    missed = 1 - exact.gather(1, near.row).sum(1)
    assert made.missed == pytest.approx(float(missed.mean()))
    assert 0 < made.missed < 0.1
    torch.testing.assert_close(dense(made, 250).sum(1), torch.ones(250, dtype=torch.float64))
    # An average moves by at most the missed and the evenly spread share of the weights.
    value = torch.rand(250, 3, dtype=torch.float64)
    gap = (made.average(value) - exact @ value).abs().amax(1)
    assert (gap <= missed + made.rest.squeeze(1) + 1e-12).all()


def test_where_all_rows_are_found_it_is_the_exact_form():
    rows = clustered(60)
    exact = dense(Sharp(40.0, 20.0).fixed(rows), 60)
    made = Sharp(40.0, 20.0, exact_rows=10).fixed(rows)  # 4 · 20 rows are searched: all
    assert made.missed == pytest.approx(0, abs=1e-12)
    assert made.rest.max() <= 0.1
    assert ((dense(made, 60) - exact).abs().sum(1, keepdim=True) <= 2 * made.rest + 1e-12).all()


def test_a_model_trains_and_freezes_on_near_rows():
    torch.manual_seed(0)
    rows = clustered(300)
    options = {"compare": "input", "learn_qk": False}
    exact = DIFFormer(12, 8, 3, kernel=Sharp(40.0, 3.0), **options).double().eval()
    near = DIFFormer(12, 8, 3, kernel=Sharp(40.0, 3.0, exact_rows=10), **options).double().eval()
    near.load_state_dict(exact.state_dict())
    near(rows).sum().backward()
    assert near.input.weight.grad.isfinite().all()
    assert (near(rows) - exact(rows)).abs().max() < 0.3 * exact(rows).std()
    assert near.freeze(rows)(rows[:5]).shape == (5, 3)


def sharp_weights_of_found_pairs(rows: torch.Tensor, kernel: Sharp) -> torch.Tensor:
    """Ŝ in the rows' own order, written out pair by pair; nothing is spread."""
    found = near_rows(rows, min(len(rows), round(4 * kernel.reach)))
    t = kernel.fixed(rows).offset
    omega = torch.zeros(len(rows), len(rows), dtype=rows.dtype)
    for i in range(len(rows)):
        for j, score in zip(found.row[i].tolist(), found.score[i], strict=True):
            if score > -2:
                omega[i, j] = torch.sigmoid(40 * (score - (t[i] + t[j]) / 2))
    return omega / omega.sum(1, keepdim=True)


def test_weights_of_near_rows_stand_for_the_rows_as_they_were_given() -> None:
    """They are kept in the order of the cells, which nobody sees."""
    rows, kernel = clustered(173), Sharp(40.0, 3.0, exact_rows=10)
    made = kernel.fixed(rows)
    assert (made.factors[-1].coo[1] != torch.arange(173)).any()
    expected = sharp_weights_of_found_pairs(rows, kernel)
    whole = dense(made, 173)
    kept = whole - made.rest / 173
    torch.testing.assert_close(kept, torch.where(kept > 1e-12, expected, 0.0), rtol=1e-6, atol=1e-9)
    value = torch.randn(173, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(made.average, (value,))
    for part in (slice(0, 173), slice(31, 90), slice(172, 173), slice(5, 5)):
        block = made.block(part)
        torch.testing.assert_close(dense(block, 173), whole[part])
        half = slice(0, (part.stop - part.start) // 2)
        torch.testing.assert_close(dense(block.block(half), 173), whole[part][half])
