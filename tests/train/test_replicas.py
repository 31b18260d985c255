"""Copies trained at once are the model itself: same outputs, same gradients, same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from difformer.core.graph import Graph
from difformer.nn.model import DIFFormer
from difformer.train import replicas
from difformer.train.replicas import averages, fit_replicas, is_linear

LINEAR = {"input_activation": None, "norm": "none", "use_weight": False, "learn_qk": False}
RELU = {"norm": "input", "use_weight": False, "learn_qk": False, "dropout_at": "ends"}
SHARP = {"kernel": "sharp", "compare": "input", "reach": 3.0, "source": 0.1, "tau": 0.8}
FORMS = {
    "linear": {**LINEAR, "kernel": "identity"},
    "sharp linear": {**LINEAR, **SHARP, "num_layers": 3},
    "relu": {**RELU, "kernel": "identity"},
    "sharp relu": {**RELU, **SHARP, "num_layers": 3},
    "no bias": {**RELU, **SHARP, "bias": False},
}


def losses(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(output, y, reduction="none")


def problem(seed: int = 0, n: int = 23) -> tuple[torch.Tensor, torch.Tensor, Graph]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (n,), generator=generator)
    edges = torch.randint(n, (2, 40), generator=generator)
    return x, y, Graph.from_edges(edges, n, undirected=True, self_loops=True)


def make(options: dict, width: int = 7) -> DIFFormer:
    torch.manual_seed(1)
    width = 3 if options.get("norm") == "none" else width
    return DIFFormer(5, width, 3, **options).double()


def train(model: DIFFormer, x: torch.Tensor, graph: Graph | None, rows: list, **changes: Any):
    settings = {"epochs": 4, "lr": 0.05, "weight_decay": 0.01, "seed": 0, **changes}
    y = settings.pop("y", problem()[1])
    return fit_replicas(model, x, graph, losses, y, [torch.tensor(r) for r in rows], **settings)


@pytest.mark.parametrize("with_graph", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_outputs_are_those_of_the_model_with_the_same_weights(name: str, with_graph: bool) -> None:
    x, _, graph = problem()
    model, given = make(FORMS[name]), graph if with_graph else None
    found = train(model, x, given, [[0, 3, 5, 9], [3, 9, 11, 20]])
    assert found.rows.tolist() == [0, 3, 5, 9, 11, 20]
    for copy, state in enumerate(found.states):
        model.load_state_dict(state, strict=True)
        expected = model.eval()(x, given)[found.rows]
        torch.testing.assert_close(found.outputs[copy], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["relu", "sharp relu"])
def test_training_is_that_of_the_model_alone(name: str) -> None:
    """Adam on the model's own loss, from the same start, ends with the same weights."""
    x, y, graph = problem()
    rows = [0, 3, 5, 9]
    model = make({**FORMS[name], "norm_eps": 1e-3})
    start = train(model, x, graph, [rows], epochs=0, lr=0.1, seed=3)
    model.load_state_dict(start.states[0])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, weight_decay=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        losses(model(x, graph)[rows], y[rows]).mean().backward()
        optimizer.step()
    # Another copy beside it changes nothing.
    found = train(model, x, graph, [rows, [1, 2, 7]], lr=0.1, seed=3)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(found.states[0][key], value, atol=1e-5, rtol=1e-4)


def test_a_linear_model_reaches_the_optimum_of_logistic_regression() -> None:
    from sklearn.linear_model import LogisticRegression

    x, y, _ = problem(n=60)
    model, rows = make(FORMS["linear"]), [list(range(60))]
    found = train(model, x, None, rows, y=y, epochs=1500, weight_decay=0.1)
    # Adam's decay is half the squared norm times the rate, on the mean loss; also on the constants.
    ones = torch.cat([x, torch.ones(60, 1, dtype=x.dtype)], 1).numpy()
    peer = LogisticRegression(C=1 / (60 * 0.1), fit_intercept=False, tol=1e-10, max_iter=1000)
    expected = peer.fit(ones, y.numpy()).predict_proba(ones)
    got = found.outputs[0].softmax(1).numpy()
    assert abs(got - expected).max() < 1e-3


@pytest.mark.parametrize("name", ["linear", "sharp linear"])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_scaled_model_is_a_linear_one_on_standardised_averages(
    name: str, sparse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folded weights give the outputs of a regression on (D X - mean) / deviation."""
    x, _, graph = problem()
    x[:, 3] = 0.0  # a constant column says nothing, and must not divide by zero
    given = x.to_sparse_csr() if sparse else x
    model, rows = make(FORMS[name]), [[0, 3, 5, 9, 17]]
    settings: dict[str, Any] = {"epochs": 30, "weight_decay": 0.1, "also": torch.tensor([1, 2])}
    monkeypatch.setattr(replicas, "BLOCK_NUMBERS", 46)  # two columns at once
    found = train(model, given, graph, rows, scaled=True, **settings)
    whole = model.eval().diffuse(x, x, graph)
    flat = ((whole - whole.mean(0)) / whole.std(0)).nan_to_num(0.0)
    expected = train(make(FORMS["linear"]), flat, None, rows, **settings)
    torch.testing.assert_close(found.outputs, expected.outputs, atol=1e-9, rtol=1e-9)
    model.load_state_dict(found.states[0])
    again = model.eval()(x, graph)[found.rows]
    torch.testing.assert_close(again, found.outputs[0], atol=1e-8, rtol=1e-8)


def test_dropout_is_decided_by_the_seed_and_leaves_the_global_generator_alone() -> None:
    x, _, _ = problem()
    model = make({**FORMS["sharp relu"], "dropout": 0.5, "input_dropout": 0.2})
    before = torch.get_rng_state()
    first, again, other = (train(model, x, None, [range(10)], seed=s).outputs for s in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("name", ["sharp relu", "sharp linear", "relu", "linear"])
def test_sparse_features_train_as_dense_ones(name: str) -> None:
    x, _, graph = problem()
    x, model = x * (x > 0.5), make(FORMS[name])
    both = (train(model, t, graph, [range(8)], weight_decay=0) for t in (x, x.to_sparse_csr()))
    dense, thin = (each.outputs for each in both)
    torch.testing.assert_close(dense, thin, atol=1e-5, rtol=1e-4)


def test_only_averaging_models_are_taken() -> None:
    model = make({"kernel": "simple"})
    assert not averages(model.config)
    with pytest.raises(ValueError, match="only average"):
        train(model, problem()[0], None, [range(5)])
    assert is_linear(make(FORMS["sharp linear"]).config)
    assert not is_linear(make(FORMS["sharp relu"]).config)
