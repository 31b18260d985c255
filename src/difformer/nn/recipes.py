"""Named forms of the model: which structure, not which learning rate. No torch here."""

from __future__ import annotations

from typing import Any

__all__ = ["ALONE_RECIPE", "DEFAULT_RECIPE", "RECIPES"]

RECIPES: dict[str, dict[str, Any]] = {
    # Damped diffusion with a source. States are not normalised between layers and start out
    # non-negative, and every step is a convex combination of non-negative states: so q̃·k̃ lies in
    # [0, 1], the mass of a row in [n, 2 n], and nothing can amplify a vanishing difference. The
    # source keeps the minimum of the energy away from total collapse.
    "stable": {
        "num_layers": 8,
        "tau": 0.9,
        "source": 0.1,
        "graph_weight": 0.9,
        "learn_qk": False,
        "use_weight": False,
        "norm": "input",
        # Row-normalised words give rows a variance far below LayerNorm's usual 1e-5, which then
        # stands in for it: weight decay shrinks the states themselves, and at the released decay
        # they vanish. With a norm invariant to scale, the same decay is harmless.
        "norm_eps": 1e-12,
        "dropout_at": "ends",
        "dropout": 0.5,
        "input_dropout": 0.5,
    },
    # Without a graph the mean of all rows is the only neighbour, and eight steps towards it leave
    # little of a row: two short steps and a strong source (docs/estimators.md has the figures).
    "alone": {
        "num_layers": 2,
        "tau": 0.5,
        "source": 0.33,
        "learn_qk": False,
        "use_weight": False,
        "norm": "input",
        "dropout_at": "ends",
        "dropout": 0.5,
        "input_dropout": 0.2,
    },
    # Few lags of a series at a small width. LayerNorm would throw away the level and the spread of
    # a row, two of its few numbers and those a forecast needs; the source keeps a node's own past.
    "forecast": {
        "num_layers": 2,
        "tau": 0.5,
        "source": 0.5,
        "graph_weight": 0.5,
        "use_weight": False,
        "norm": "none",
    },
    # Very short series. At width 4 a ReLU cuts off a random half of what a lag says, and a bias
    # learns the trend of the few days it saw: neither is used, so a forecast from zeros (the mean,
    # of a standardised series) is zero.
    "linear": {
        "num_layers": 2,
        "tau": 0.5,
        "graph_weight": 0.5,
        "use_weight": False,
        "norm": "none",
        "input_activation": None,
        "bias": False,
    },
    # The equations of appendix E as printed.
    "paper": {"num_layers": 8, "tau": 0.5, "use_weight": False, "qk_norm": "row"},
    # What the released code computes: the norm of the whole tensor, so weights all but uniform.
    "released": {"num_layers": 8, "tau": 0.5, "use_weight": False, "qk_norm": "tensor"},
}
"""Options of `DIFFormerConfig` by recipe; whatever a recipe does not name keeps its default."""

DEFAULT_RECIPE = "stable"
"""The default recipe."""
ALONE_RECIPE = "alone"
"""The default recipe for rows without a graph."""
