"""The forms of the model that its tests run over, and a small problem for each."""

import pytest
import torch

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
    "activation": {"activation": "relu"},
    "source": {"source": 0.2},
    "center": {"center": True},
    "learned tau": {"learn_tau": True, "tau": 0.3},
    "no norm": {"norm": "none"},
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


@pytest.fixture(params=OPTIONS, ids=str)
def options(request):
    return OPTIONS[request.param]


@pytest.fixture
def make():
    """options -> (model, features (n, p), edges) of n rows."""

    def make(options, n=23, seed=0, p=6, d=8, c=3, **more):
        torch.manual_seed(seed)
        model = DIFFormer(p, d, c, **options, **more).double()
        edges = torch.randint(n, (2, 3 * n))
        return model, torch.randn(n, p, dtype=torch.float64), edges

    return make
