"""What a model remembers: right for every thread, in inference mode, and after any change."""

import copy
import sys
import threading

import pytest
import torch

from difformer.nn.inputs import Remembered
from difformer.nn.model import DIFFormer


@pytest.fixture
def impatient():
    """Threads that take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_four_threads(work):
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.usefixtures("impatient")
def test_threads_that_share_a_memory_get_what_they_asked_for():
    memory = Remembered()
    wrong = []

    def ask(number):
        tensor = torch.full((3,), number)
        for _ in range(3000):
            found = memory.get((tensor,), None, lambda: number)
            if found != number:
                wrong.append(found)

    in_four_threads(ask)
    assert wrong == []


@pytest.mark.usefixtures("impatient")
def test_threads_that_share_a_model_get_their_own_answers():
    torch.manual_seed(0)
    model = DIFFormer(4, 8, 3).eval()
    wrong = []

    def ask(seed):
        draw = torch.Generator().manual_seed(seed)
        x, edges = torch.randn(12, 4, generator=draw), torch.randint(12, (2, 30), generator=draw)
        with torch.no_grad():
            expected = copy.deepcopy(model)(x, edges)
            for _ in range(150):
                if not torch.equal(model(x, edges), expected):
                    wrong.append(seed)

    in_four_threads(ask)
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
def test_a_changed_edge_list_is_seen_however_it_was_changed(way):
    torch.manual_seed(0)
    model = DIFFormer(4, 8, 3).eval()
    x, edges = torch.randn(12, 4), torch.tensor([[0, 1, 2], [3, 4, 5]])
    weight, batch = torch.ones(3), torch.arange(12) // 6
    with torch.no_grad():
        before = model(x, edges, weight, batch)
        for tensor, change in ((edges, 6), (weight, 5.0), (batch, 2)):
            view = {"in place": tensor, "data": tensor.data, "numpy": tensor.numpy()}[way]
            flat = view.reshape(-1)
            flat[0] += change
            after = model(x, edges, weight, batch)
            fresh = model(x, edges.clone(), weight.clone(), batch.clone())
            assert torch.equal(after, fresh)
            assert not torch.equal(after, before)
            before = after


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("value", [1e30, -3e38, 1e19])
def test_features_that_would_overflow_are_one_clear_error(sparse, value):
    model = DIFFormer(4, 8, 3).eval()
    x = torch.randn(6, 4)
    good = model.freeze(x)
    x[2, 1] = value
    x = x.to_sparse_csr() if sparse else x
    for run in (model, good):
        with pytest.raises(ValueError, match=r"^x must lie within ±2e\+16.*scale the columns") as e:
            run(x)
        assert sparse or "at (2, 1)" in str(e.value)
    assert torch.isfinite(model.double()(x.double())).all()
