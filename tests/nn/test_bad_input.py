"""Bad options, widths, input and graphs are named in one line."""

import pytest
import torch

from difformer.core.graph import Graph
from difformer.nn.model import DIFFormer


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_layers": 0}, "num_layers must be a whole number of at least 1, got 0"),
        ({"num_heads": 0}, "num_heads must be a whole number of at least 1, got 0"),
        ({"tau": 0.0}, r"tau must lie in \(0, 1\], got 0.0"),
        ({"tau": 1.5}, r"tau must lie in \(0, 1\], got 1.5"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        ({"source": -0.1}, r"source must lie in \[0, 1\), got -0.1"),
        ({"graph_weight": 2.0}, r"graph_weight must lie in \[0, 1\], got 2.0"),
        ({"kernel": "cosine"}, "kernel must be one of simple, sigmoid"),
        ({"qk_norm": "col"}, "qk_norm must be one of row, tensor, got 'col'"),
        ({"norm_eps": 0.0}, "norm_eps must be a finite number above 0, got 0.0"),
        ({"norm": "batch"}, "norm must be one of all, input, none, got 'batch'"),
        ({"dropout_at": "x"}, "dropout_at must be one of layers, ends, got 'x'"),
        (
            {"num_heads": 2, "learn_qk": False, "use_weight": False},
            "num_heads must be 1 where neither learn_qk nor use_weight",
        ),
        (
            {"activation": "swish"},
            "activation must be one of relu, elu, gelu, tanh or None, got 'swish'",
        ),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        DIFFormer(3, 4, 2, **options)


def test_bad_widths_are_named():
    with pytest.raises(ValueError, match="hidden_channels must be a whole number"):
        DIFFormer(3, 0, 2)


@pytest.mark.parametrize(
    ("x", "kwargs", "message"),
    [
        (torch.zeros(4, 5), {}, r"x must have shape \(n, 6\), got \(4, 5\)"),
        (torch.zeros(6), {}, r"x must have shape \(n, 6\)"),
        (torch.zeros(0, 6), {}, "x must have at least one row"),
        (torch.zeros(2, 6, dtype=torch.int64), {}, "x must be of a floating-point type"),
        (torch.full((2, 6), float("nan")), {}, r"x must be finite, got 12 NaN.*first at \(0, 0\)"),
        (torch.full((2, 6), float("inf")).to_sparse_csr(), {}, "x must be finite"),
        (
            torch.zeros(2, 6),
            {"edge_index": torch.tensor([[0], [2]])},
            "must name rows 0 to 1, got 2",
        ),
        (
            torch.zeros(2, 6),
            {"batch": torch.zeros(3, dtype=torch.int64)},
            r"batch must have shape \(2,\)",
        ),
        (torch.zeros(2, 6), {"batch": torch.zeros(2)}, "batch must hold integers"),
    ],
)
def test_bad_input_is_named(x, kwargs, message):
    model = DIFFormer(6, 8, 3)
    with pytest.raises(ValueError, match=message):
        model(x, **kwargs)


def test_bad_graphs_layers_and_rows_are_named(make):
    model, x, edges = make({})
    graph = Graph.from_edges(edges, 23)
    with pytest.raises(ValueError, match="edge_weight must be None with a Graph"):
        model(x, graph, torch.ones(3))
    with pytest.raises(ValueError, match="Graph of 23 rows, x has 4"):
        model(x[:4], graph)
    with pytest.raises(ValueError, match="layer must lie in 0 to 1, got 2"):
        model.diffusivity(x, layer=2)
    with pytest.raises(ValueError, match="rows must be a list of rows from 0 to 22"):
        model.diffusivity(x, rows=torch.tensor([23]))
