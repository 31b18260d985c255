"""What rows are compared by: the states, the first state, the input features."""

import copy

import pytest
import torch

from difformer.core import fixed, tiled
from difformer.core.sparse import SparseMatrix
from difformer.nn.model import DIFFormer
from difformer.train.chunks import predict_in_chunks
from difformer.train.processes import Comm
from difformer.train.sharded import ShardedDIFFormer
from tests.nn.conftest import make_model
from tests.nn.equations import transcription

N = 23


def make(**options):
    return make_model({"num_layers": 3, "reach": 4.0, **options})[:2]


@pytest.mark.parametrize("kernel", ["simple", "sigmoid", "sharp"])
def test_features_that_are_compared_get_the_gradients_of_the_equations(kernel):
    model, x = make(kernel=kernel, compare="input", learn_qk=False)
    x.requires_grad_()
    probe = torch.randn(N, 3, dtype=torch.float64)
    fast, plain = (
        torch.autograd.grad((y * probe).sum(), x) for y in (model(x), transcription(model, x))
    )
    torch.testing.assert_close(fast, plain)


@pytest.mark.parametrize("compare", ["first", "input"])
@pytest.mark.parametrize("learn_qk", [True, False])
def test_dropout_does_not_change_what_is_compared(compare, learn_qk):
    options = {"dropout": 0.5, "input_dropout": 0.3, "compare": compare, "learn_qk": learn_qk}
    model, x = make(kernel="sharp", **options)
    quiet = model.passages(x)[0].project()[:2]
    model.train()
    noisy = model.passages(x)[0].project()
    torch.testing.assert_close(noisy[:2], quiet)
    assert not torch.equal(noisy[2], model.passages(x)[0].project()[2])


def test_a_fixed_comparison_is_made_once_for_the_same_features(monkeypatch):
    model, x = make(kernel="sharp", compare="input", learn_qk=False)
    made = []
    real = type(model.layers[0].diffusivity).fixed
    monkeypatch.setattr(
        type(model.layers[0].diffusivity), "fixed", lambda *a: made.append(1) or real(*a)
    )
    first = model(x)
    torch.testing.assert_close(model(x), first)
    assert len(made) == 1
    x.mul_(torch.linspace(1, 2, 6))
    assert not torch.allclose(model(x), first)
    assert len(made) == 2


def test_a_fixed_comparison_of_many_rows_is_sparse_and_close_to_the_exact_one(monkeypatch):
    model, x = make(kernel="sharp", compare="input", learn_qk=False)
    expected = transcription(model, x)
    monkeypatch.setattr(fixed, "DENSE_ROWS", 5)
    monkeypatch.setattr(tiled, "CHUNK_SCORES", 100)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-3)
    assert isinstance(model.fixed_average(x).factors[0], SparseMatrix)
    out = model(x)
    torch.testing.assert_close(predict_in_chunks(model, x, chunk=7), out)
    torch.testing.assert_close(ShardedDIFFormer(model, Comm())(x), out)


@pytest.mark.parametrize("compare", ["first", "input"])
def test_landmarks_are_chosen_once_saved_and_loaded(compare, tmp_path):
    torch.manual_seed(0)
    model = DIFFormer(6, 8, 3, kernel="landmarks", compare=compare, num_landmarks=30, reach=3.0)
    assert model.wants_landmarks
    x, other = torch.randn(23, 6), torch.randn(50, 6)
    out = model.eval()(x)
    assert model.num_landmarks == 23  # no more than there are rows
    kept = model.landmarks.clone()
    model(other)
    assert torch.equal(model.landmarks, kept)
    model.save(tmp_path / "model.safetensors")
    again = DIFFormer.load(tmp_path / "model.safetensors").eval()
    assert again.num_landmarks == 23
    assert torch.equal(again(x), out)
    frozen = model.freeze(x)
    frozen.save(tmp_path / "frozen.safetensors")
    assert torch.equal(type(frozen).load(tmp_path / "frozen.safetensors")(other), frozen(other))


@pytest.mark.parametrize(
    ("learned", "tunings"),
    [
        ({"learn_qk": False, "learn_reach": "layer"}, 3),
        ({"learn_qk": False, "learn_reach": "shared"}, 1),
        ({"qk_init": "identity"}, 0),
    ],
    ids=str,
)
def test_what_is_learned_starts_at_the_calibrated_values_and_the_rows_themselves(learned, tunings):
    plain, x = make(kernel="sharp", compare="input", learn_qk=False)
    options = {"kernel": "sharp", "compare": "input", "reach": 4.0, "num_layers": 3, **learned}
    model = DIFFormer(6, 8, 3, **options).double().eval()
    names = [name for name, _ in model.named_parameters() if "tuning" in name]
    assert len(names) == 2 * tunings
    kept = {n: t for n, t in plain.state_dict().items() if n in model.state_dict()}
    model.load_state_dict(kept, strict=False)
    torch.testing.assert_close(model(x), plain(x))
    for name, parameter in model.named_parameters():
        if name in names:
            parameter.data += 1.0
            assert not torch.allclose(copy.deepcopy(model)(x), plain(x))
    model.reset_parameters()
    model.load_state_dict(kept, strict=False)
    torch.testing.assert_close(model(x), plain(x))
