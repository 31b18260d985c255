"""The forms of the model that its tests run over, and a small problem for each."""

import pytest
import torch

from difformer.nn.layer import Tuning
from difformer.nn.model import DIFFormer

OPTIONS = {
    "plain": {},
    "sigmoid": {"kernel": "sigmoid"},
    "softmax": {"kernel": "softmax"},
    "sharp": {"kernel": "sharp", "sharpness": 40.0, "reach": 4.0},
    "neighbours' mean": {"graph_norm": "row", "kernel": "identity", "self_weight": True},
    "own weight": {"self_weight": True, "residual": True, "activation": "relu"},
    "gaussian": {"kernel": "gaussian"},
    "constant": {"kernel": "constant"},
    "identity": {"kernel": "identity"},
    "tensor norm": {"qk_norm": "tensor"},
    "heads": {"num_heads": 3},
    "heads without weight": {"num_heads": 3, "use_weight": False},
    "no weight": {"use_weight": False},
    "mixed graph": {"graph_weight": 0.5},
    "source": {"source": 0.2},
    "center": {"center": True},
    "learned tau": {"learn_tau": True, "tau": 0.3},
    "stable": {
        "learn_qk": False,
        "use_weight": False,
        "norm": "input",
        "source": 0.1,
        "graph_weight": 0.9,
        "dropout_at": "ends",
        "tau": 0.9,
    },
    "linear": {"norm": "none", "input_activation": None, "bias": False},
    "state as query": {"learn_qk": False, "num_heads": 2},
    "all": {
        "num_heads": 2,
        "source": 0.1,
        "center": True,
        "activation": "elu",
        "graph_weight": 0.3,
    },
}
FIXED = {"kernel": "sharp", "learn_qk": False}
MARKS = {"kernel": "landmarks", "num_landmarks": 9}
COMPARED = [
    {"kernel": "sharp", "num_heads": 2, "center": True},
    {**FIXED, "graph_weight": 0.4},
    {**FIXED, "use_weight": False, "source": 0.2, "norm": "input"},
    {**FIXED, "num_heads": 2},
    {**FIXED, "learn_reach": "layer"},
    {**FIXED, "self_weight": True, "residual": True, "graph_weight": 1.0},
    {"kernel": "sharp", "learn_reach": "shared", "num_heads": 2, "sharpness": 8.0},
    {"kernel": "sharp", "qk_init": "identity", "num_heads": 2, "learn_reach": "layer"},
    MARKS,
    {"kernel": "landmarks", "num_landmarks": 50, "num_heads": 2, "center": True},
    {**MARKS, "learn_qk": False, "graph_weight": 0.4},
    {**MARKS, "qk_init": "identity"},
    {"kernel": "gaussian", "learn_qk": False, "sharpness": 2.0},
    {"kernel": "gaussian", "learn_qk": False, "reach": None, "center": True},
    {"kernel": "simple", "learn_qk": False, "self_weight": True},
    {"kernel": "sigmoid", "residual": True, "center": True},
    {"kernel": "softmax", "learn_qk": False, "source": 0.1},
]
# Landmarks are rows of the input: they cannot be compared with states.
EVERY_FORM = [
    *OPTIONS.values(),
    *(
        {"num_layers": 3, "reach": 4.0, "compare": compare, **form}
        for compare in ("state", "first", "input")
        for form in COMPARED
        if (form["kernel"], compare) != ("landmarks", "state")
    ),
]


@pytest.fixture(params=OPTIONS, ids=str)
def options(request):
    return OPTIONS[request.param]


def make_model(options, n=23, seed=0, **more):
    """A model away from where it starts, features (n, 6) and edges of n rows."""
    torch.manual_seed(seed)
    model = DIFFormer(6, 8, 3, **options, **more).double().eval()
    x, edges = torch.randn(n, 6, dtype=torch.float64), torch.randint(n, (2, 3 * n))
    model.choose_landmarks(x)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, Tuning):
                module.log_scale += 0.4 * torch.randn(())
                module.shift += 0.1 * torch.randn(())
    return model, x, edges


@pytest.fixture
def make():
    return make_model
