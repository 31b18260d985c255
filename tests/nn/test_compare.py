"""What rows are compared by: the states, the first state, the input features."""

import copy

import pytest
import torch

from difformer.core import fixed, tiled
from difformer.core.graph import Graph
from difformer.core.sparse import SparseMatrix
from difformer.nn.layer import Tuning
from difformer.nn.model import DIFFormer
from difformer.train.chunks import predict_in_chunks
from difformer.train.processes import Comm
from difformer.train.sharded import ShardedDIFFormer
from tests.nn.equations import transcription

N = 23


def make(**options):
    torch.manual_seed(0)
    model = DIFFormer(6, 8, 3, **{"num_layers": 3, "reach": 4.0, **options}).double().eval()
    x = torch.randn(N, 6, dtype=torch.float64)
    model.choose_landmarks(x)
    with torch.no_grad():  # away from where they start
        for module in model.modules():
            if isinstance(module, Tuning):
                module.log_scale += 0.4 * torch.randn(())
                module.shift += 0.1 * torch.randn(())
    return model, x


FORMS = [
    {"kernel": "sharp"},
    {"kernel": "sharp", "num_heads": 2, "center": True},
    {"kernel": "sharp", "learn_qk": False, "graph_weight": 0.4},
    {"kernel": "sharp", "learn_qk": False, "use_weight": False, "source": 0.2, "norm": "input"},
    {"kernel": "sharp", "learn_qk": False, "num_heads": 2},
    {"kernel": "landmarks", "num_landmarks": 9},
    {"kernel": "landmarks", "num_landmarks": 50, "num_heads": 2, "center": True},
    {"kernel": "landmarks", "num_landmarks": 9, "learn_qk": False, "graph_weight": 0.4},
    {"kernel": "sharp", "learn_qk": False, "learn_reach": "layer"},
    {"kernel": "sharp", "learn_reach": "shared", "num_heads": 2, "sharpness": 8.0},
    {"kernel": "sharp", "qk_init": "identity", "num_heads": 2, "learn_reach": "layer"},
    {"kernel": "landmarks", "num_landmarks": 9, "qk_init": "identity"},
    {"kernel": "gaussian", "learn_qk": False, "sharpness": 2.0},
    {"kernel": "simple", "learn_qk": False, "self_weight": True},
    {"kernel": "sigmoid", "residual": True, "center": True},
    {
        "kernel": "sharp",
        "learn_qk": False,
        "self_weight": True,
        "residual": True,
        "graph_weight": 1.0,
    },
    {"kernel": "identity", "self_weight": True, "residual": True, "activation": "relu"},
    {"kernel": "softmax", "learn_qk": False, "source": 0.1},
    {"kernel": "gaussian", "learn_qk": False, "reach": None, "center": True},
]
EVERY_FORM = pytest.mark.parametrize(
    "options",
    [
        {"compare": compare, **form}
        for compare in ("state", "first", "input")
        for form in FORMS
        # Landmarks are rows of the input: they cannot be compared with states.
        if (form["kernel"], compare) != ("landmarks", "state")
    ],
    ids=str,
)


@EVERY_FORM
def test_every_path_is_the_equations(options):
    model, x = make(**options)
    graph = Graph.from_edges(torch.randint(N, (2, 60)), N, undirected=True).to(x)
    expected = transcription(model, x, graph.dense())
    torch.testing.assert_close(model(x, graph), expected)
    torch.testing.assert_close(model(x.to_sparse_csr(), graph), expected)
    torch.testing.assert_close(predict_in_chunks(model, x, graph, chunk=7), expected)
    torch.testing.assert_close(
        predict_in_chunks(model, x.to_sparse_csr(), graph, chunk=7), expected
    )
    alone = transcription(model, x)
    torch.testing.assert_close(ShardedDIFFormer(model, Comm())(x), alone)
    # A row that is known already is moved as it was.
    frozen = model.freeze(x)
    torch.testing.assert_close(frozen(x[:5]), alone[:5])
    if model.config.kernel != "identity":
        states = model.states(x)
        compared = model.passages(x)[-1].compared
        torch.testing.assert_close(
            frozen.weights(x[:5], states[-2], compared=compared),
            model.diffusivity(x, layer=-1, rows=torch.arange(5)),
        )
        own = model.passages(x)[1]
        q, k, _ = own.project()
        torch.testing.assert_close(
            model.diffusivity(x, layer=1), own.layer.diffusivity.weights(q, k).mean(0)
        )


@EVERY_FORM
def test_gradients_are_those_of_the_equations(options):
    model, x = make(**options)
    probe = torch.randn(N, 3, dtype=torch.float64)
    both = []
    for run in (model, lambda x: transcription(model, x)):
        model.zero_grad()
        (run(x) * probe).sum().backward()
        both.append([torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()])
    torch.testing.assert_close(*both)


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


CALIBRATED = pytest.mark.parametrize(
    ("kernel", "compare"),
    [
        ("sharp", "state"),
        ("sharp", "first"),
        ("sharp", "input"),
        ("landmarks", "first"),
        ("landmarks", "input"),
    ],
)


@CALIBRATED
@pytest.mark.parametrize("learn_qk", [True, False])
def test_a_graph_in_a_batch_gets_what_it_gets_alone(compare, learn_qk, kernel):
    model, x = make(kernel=kernel, compare=compare, learn_qk=learn_qk, num_landmarks=9)
    batch = torch.tensor([0] * 3 + [1] * 9 + [2] * 9 + [3] * 2)
    together = model(x, batch=batch)
    for number in range(4):
        torch.testing.assert_close(together[batch == number], model(x[batch == number]))


@CALIBRATED
def test_a_new_row_has_the_same_bits_alone_and_in_any_batch(compare, kernel):
    model, x = make(kernel=kernel, compare=compare, learn_qk=False, num_landmarks=9)
    frozen, new = model.freeze(x), torch.randn(70, 6, dtype=torch.float64)
    whole = frozen(new)
    for rows in ([3], [69, 3, 5], list(range(69, -1, -1))):
        assert torch.equal(frozen(new[rows]), whole[rows])


def test_frozen_rows_that_all_layers_compare_are_kept_once(tmp_path):
    model, x = make(kernel="sharp", compare="input", learn_qk=False)
    frozen = model.freeze(x)
    assert frozen.numel == N * 7 + 3 * N * 8
    frozen.save(tmp_path / "frozen.safetensors")
    again = type(frozen).load(tmp_path / "frozen.safetensors")
    assert again.numel == frozen.numel
    assert torch.equal(again(x), frozen(x))
    assert again.float().numel == frozen.numel


def test_knobs_reach_the_layers_and_an_object_keeps_its_own():
    model, _ = make(kernel="sharp", sharpness=7.0)
    assert (model.layers[2].diffusivity.sharpness, model.layers[2].diffusivity.reach) == (7.0, 4.0)
    kernel = type(model.layers[0].diffusivity)(3.0, 2.0)
    assert make(kernel=kernel, sharpness=9.0)[0].layers[0].diffusivity is kernel


@pytest.mark.parametrize(
    "options",
    [
        {"self_weight": True, "residual": True},
        {"learn_reach": "layer", "learn_qk": False},
        {"learn_reach": "shared", "qk_init": "identity"},
    ],
    ids=str,
)
def test_a_sharp_model_saves_and_loads(options, tmp_path):
    model, x = make(kernel="sharp", compare="input", sharpness=7.0, **options)
    model.save(tmp_path / "model.safetensors")
    again = DIFFormer.load(tmp_path / "model.safetensors")
    assert again.config == model.config
    assert torch.equal(again(x), model(x))


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


def test_a_frozen_landmark_model_keeps_no_row():
    options = {"kernel": "landmarks", "compare": "input", "num_landmarks": 9, "learn_qk": False}
    for n in (20, 200):
        model = DIFFormer(6, 8, 3, **options)
        assert model.freeze(torch.randn(n, 6)).numel == 2 * 9 * (8 + 1)


def test_what_is_learned_starts_at_the_calibrated_values_and_the_rows_themselves():
    plain, x = make(kernel="sharp", compare="input", learn_qk=False)
    torch.manual_seed(0)
    options = {"kernel": "sharp", "compare": "input", "reach": 4.0, "num_layers": 3}
    for learned in (
        {"learn_qk": False, "learn_reach": "layer"},
        {"learn_qk": False, "learn_reach": "shared"},
        {"qk_init": "identity"},
    ):
        model = DIFFormer(6, 8, 3, **options, **learned).double().eval()
        kept = {n: t for n, t in plain.state_dict().items() if n in model.state_dict()}
        model.load_state_dict(kept, strict=False)
        torch.testing.assert_close(model(x), plain(x))
        for parameter in model.parameters():
            parameter.data += 1.0
        model.reset_parameters()
        model.load_state_dict(kept, strict=False)
        torch.testing.assert_close(model(x), plain(x))


def test_a_shared_tuning_is_one_pair_of_parameters_and_each_layer_may_have_its_own():
    shared, x = make(kernel="sharp", learn_reach="shared")
    own, _ = make(kernel="sharp", learn_reach="layer")
    names = [n for n, _ in own.named_parameters() if "tuning" in n]
    assert [n for n, _ in shared.named_parameters() if "tuning" in n] == [
        "tuning.log_scale",
        "tuning.shift",
    ]
    assert len(names) == 2 * len(own.layers)
    copied = copy.deepcopy(shared)
    with torch.no_grad():
        copied.tuning.log_scale += 1.0
    assert not torch.allclose(copied(x), shared(x))


def test_learned_offsets_of_another_kernel_are_refused():
    with pytest.raises(ValueError, match="learn_reach must be none unless kernel is sharp"):
        DIFFormer(6, 8, 3, kernel="simple", learn_reach="layer")


def test_landmarks_of_states_are_refused():
    with pytest.raises(ValueError, match="compare must be first or input with kernel landmarks"):
        DIFFormer(6, 8, 3, kernel="landmarks")


@pytest.mark.parametrize("kernel", ["sharp", "landmarks"])
@pytest.mark.parametrize("compare", ["first", "input"])
def test_a_model_and_its_frozen_form_are_exported(kernel, compare):
    learned = {"learn_reach": "shared"} if kernel == "sharp" and compare == "first" else {}
    model, x = make(
        kernel=kernel, compare=compare, learn_qk=False, num_landmarks=9, num_layers=2, **learned
    )
    rows = torch.export.Dim("rows", min=2, max=1000)
    frozen, new = model.freeze(x), torch.randn(12, 6, dtype=torch.float64)
    for module, example in ((model, x), (frozen, new)):
        expected = module(example)
        run = torch.export.export(module, (example,), dynamic_shapes=({0: rows},)).module()
        torch.testing.assert_close(run(example), expected)
        torch.testing.assert_close(run(example[:9]), module(example[:9]))
