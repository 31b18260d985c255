"""Training, lower precision, compiling and exporting: the same model."""

import pytest
import torch

from difformer.core.diffusivity import KERNELS
from difformer.core.sparse import SparseMatrix


def test_dropout_acts_in_training_only(make):
    model, x, _ = make({"dropout": 0.5, "input_dropout": 0.2})
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_input_dropout_on_sparse_features_drops_values_and_keeps_their_mean(make):
    model, x, _ = make({"input_dropout": 0.5, "norm": "none"})
    sparse = x.abs().to_sparse_csr()
    assert not torch.equal(model(sparse), model(sparse))
    matrix = SparseMatrix.from_csr(sparse)
    dropped = matrix.dropout(0.5)
    dense = dropped.csr.to_dense()
    torch.testing.assert_close(dropped.transpose.to_dense(), dense.T)
    kept = dense != 0
    torch.testing.assert_close(dense[kept], 2 * x.abs()[kept])
    assert 0.3 < kept.double().mean() < 0.7


@pytest.mark.parametrize("kernel", sorted(KERNELS))
def test_bfloat16_autocast_stays_close(make, kernel):
    model, x, edges = make({"kernel": kernel, "compare": "input", "num_landmarks": 9})
    model, x = model.float(), x.float()
    model(x)  # landmarks are chosen in full precision
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = model(x, edges)
    low.float().sum().backward()
    torch.testing.assert_close(low.float(), model(x, edges), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("kernel", ["simple", "sigmoid"])
def test_export_with_a_dynamic_number_of_rows(make, kernel):
    model, x, edges = make({"kernel": kernel})
    model.eval()
    n, e = torch.export.Dim("n", min=2), torch.export.Dim("e", min=2)
    program = torch.export.export(model, (x, edges), dynamic_shapes=({0: n}, {1: e}))
    _, other, other_edges = make({}, 40, seed=1)
    other_edges = other_edges.unique(dim=1)
    torch.testing.assert_close(program.module()(other, other_edges), model(other, other_edges))
    alone = torch.export.export(model, (x,), dynamic_shapes=({0: n},))
    torch.testing.assert_close(alone.module()(other), model(other))


def test_torch_compile_gives_the_same_output_and_gradients(make):
    model, x, edges = make({"kernel": "simple"})
    edges = edges.unique(dim=1)
    compiled = torch.compile(model, backend="aot_eager")
    torch.testing.assert_close(compiled(x, edges), model(x, edges))
    grads = [
        torch.autograd.grad(f(x, edges).square().sum(), list(model.parameters()))
        for f in (compiled, model)
    ]
    torch.testing.assert_close(*grads)
