"""Training, lower precision, compiling, exporting, threads: the same model."""

import copy
import sys
import threading

import pytest
import torch

from difformer.core.diffusivity import KERNELS
from difformer.core.sparse import SparseMatrix
from difformer.nn.inputs import Remembered
from difformer.nn.model import DIFFormer


def test_dropout_acts_in_training_only(make):
    model, x, _ = make({"dropout": 0.5, "input_dropout": 0.2})
    assert torch.equal(model(x), model(x))
    model.train()
    assert not torch.equal(model(x), model(x))


def test_input_dropout_on_sparse_features_drops_values_and_keeps_their_mean(make):
    model, x, _ = make({"input_dropout": 0.5, "norm": "none"})
    sparse = x.abs().to_sparse_csr()
    model.train()
    assert not torch.equal(model(sparse), model(sparse))
    dropped = SparseMatrix.from_csr(sparse).dropout(0.5)
    dense = dropped.csr.to_dense()
    torch.testing.assert_close(dropped.transpose.to_dense(), dense.T)
    kept = dense != 0
    torch.testing.assert_close(dense[kept], 2 * x.abs()[kept])
    assert 0.3 < kept.double().mean() < 0.7


@pytest.mark.parametrize("kernel", sorted(KERNELS))
def test_bfloat16_autocast_stays_close(make, kernel):
    model, x, edges = make({"kernel": kernel, "compare": "input", "num_landmarks": 9})
    model, x = model.float(), x.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = model(x, edges)
    low.float().sum().backward()
    torch.testing.assert_close(low.float(), model(x, edges), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("kernel", ["simple", "sigmoid"])
def test_export_with_a_dynamic_number_of_rows_and_edges(make, kernel):
    model, x, edges = make({"kernel": kernel})
    n, e = torch.export.Dim("n", min=2), torch.export.Dim("e", min=2)
    program = torch.export.export(model, (x, edges), dynamic_shapes=({0: n}, {1: e}))
    _, other, other_edges = make({}, 40, seed=1)
    other_edges = other_edges.unique(dim=1)
    torch.testing.assert_close(program.module()(other, other_edges), model(other, other_edges))
    alone = torch.export.export(model, (x,), dynamic_shapes=({0: n},))
    torch.testing.assert_close(alone.module()(other), model(other))


@pytest.mark.parametrize("kernel", ["sharp", "landmarks"])
@pytest.mark.parametrize("compare", ["first", "input"])
def test_a_calibrated_model_and_its_frozen_form_are_exported(make, kernel, compare):
    learned = {"learn_reach": "shared"} if kernel == "sharp" and compare == "first" else {}
    options = {"kernel": kernel, "compare": compare, "learn_qk": False, "reach": 4.0, **learned}
    model, x, _ = make(options, num_landmarks=9)
    rows = torch.export.Dim("rows", min=2, max=1000)
    for module, example in ((model, x), (model.freeze(x), x[:12] + 0.1)):
        run = torch.export.export(module, (example,), dynamic_shapes=({0: rows},)).module()
        torch.testing.assert_close(run(example), module(example))
        torch.testing.assert_close(run(example[:9]), module(example[:9]))


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


@pytest.fixture
def impatient():
    """Threads that take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("impatient")
def test_threads_that_share_a_memory_or_a_model_get_what_they_asked_for(make):
    model, memory, wrong = make({})[0], Remembered(), []

    def ask(number):
        tensor = torch.full((3,), number)
        found = [memory.get((tensor,), None, lambda: number) for _ in range(3000)]
        wrong.extend(each for each in found if each != number)
        draw = torch.Generator().manual_seed(number)
        x = torch.randn(12, 6, generator=draw, dtype=torch.float64)
        edges = torch.randint(12, (2, 30), generator=draw)
        with torch.no_grad():
            expected = copy.deepcopy(model)(x, edges)
            same = [torch.equal(model(x, edges), expected) for _ in range(150)]
        wrong.extend(number for each in same if not each)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("sparse", [False, True])
def test_inference_mode_works_and_training_goes_on_after_it(sparse):
    torch.manual_seed(0)
    model = DIFFormer(4, 8, 3)
    x, edges = torch.randn(12, 4), torch.randint(12, (2, 30))
    x = x.relu().to_sparse_csr() if sparse else x
    expected = model(x, edges).detach()
    with torch.inference_mode():
        for _ in range(2):
            torch.testing.assert_close(model(x, edges), expected)
        inside = x.to_dense() * 1, edges * 1
        torch.testing.assert_close(model(*inside), expected)
    model(x, edges).sum().backward()
    assert model.input.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("way", ["in place", "data", "numpy"])
def test_a_changed_edge_list_is_seen_however_it_was_changed(make, way):
    model, x, edges = make({}, 12)
    weight, batch = torch.ones(36), torch.arange(12) // 6
    edges[:, 0] = torch.tensor([0, 3])
    with torch.no_grad():
        before = model(x, edges, weight, batch)
        for tensor, change in ((edges, 2), (weight, 5.0), (batch, 2)):
            view = {"in place": tensor, "data": tensor.data, "numpy": tensor.numpy()}[way]
            flat = view.reshape(-1)
            flat[0] += change
            after = model(x, edges, weight, batch)
            fresh = model(x, edges.clone(), weight.clone(), batch.clone())
            assert torch.equal(after, fresh)
            assert not torch.equal(after, before)
            before = after
