"""The model's options: each name, default and meaning, in one place. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from difformer.settings import COUNT, POSITIVE, RATE, Options, option, unit_interval, whole

ACTIVATIONS = ("relu", "elu", "gelu", "tanh")


@dataclass(frozen=True, kw_only=True)
class DIFFormerConfig(Options):
    """Every option of a DIFFormer except its widths."""

    num_layers: int = option(2, "propagation layers K", COUNT)
    num_heads: int = option(1, "heads, averaged", COUNT)
    kernel: Any = option(
        "simple",
        "diffusivity: simple is DIFFormer-s, sigmoid is DIFFormer-a, sharp cuts off far pairs, "
        "landmarks does so in linear time",
        ("simple", "sigmoid", "sharp", "landmarks", "identity", "constant", "softmax", "gaussian"),
    )
    sharpness: float | None = option(
        None,
        "sharp, landmarks and gaussian: how steeply far pairs are cut off; none: 40, gaussian 1",
        POSITIVE,
    )
    reach: float | None = option(
        None,
        "sharp, landmarks and gaussian: how many partners or landmarks a row has, by weight; "
        "none: 10, landmarks 3, gaussian: one width for all rows",
        POSITIVE,
    )
    exact_rows: int = option(
        60_000,
        "sharp by input features: compare all pairs up to this many rows, beyond it only near rows",
        whole(0),
    )
    learn_reach: str | None = option(
        None,
        "sharp only: learn a factor of the sharpness and a shift of the calibrated offsets, "
        "for each layer or shared by all",
        ("layer", "shared"),
    )
    num_landmarks: int = option(400, "landmarks only: how many there are", COUNT)
    compare: str = option(
        "state",
        "what rows are compared by: each layer's state, the first state without dropout, or the "
        "input features",
        ("state", "first", "input"),
    )
    tau: float = option(0.5, "step size, in (0, 1]", unit_interval(zero=False, one=True))
    learn_tau: bool = option(False, "learn one step size per layer, starting from tau")
    dropout: float = option(0.0, "dropout on the states, see dropout-at", RATE)
    input_dropout: float = option(0.0, "dropout on the input features", RATE)
    use_weight: bool = option(True, "layer-wise transformation of values; off: value = state")
    self_weight: bool = option(False, "a row's own state gets a separate learned map")
    residual: bool = option(False, "a layer adds to the state instead of replacing it")
    use_graph: bool = option(True, "use the graph where one is given")
    graph_weight: float | None = option(
        None,
        "none: all-pair term + graph term; w: (1 - w) all-pair + w graph",
        unit_interval(zero=True, one=True),
    )
    graph_norm: str = option(
        "symmetric",
        "symmetric: D^-1/2 A D^-1/2; row: the mean over a row's neighbours, without itself",
        ("symmetric", "row"),
    )
    activation: str | None = option(
        None, "non-linearity after each layer; none in the paper", ACTIVATIONS
    )
    input_activation: str | None = option(
        "relu",
        "non-linearity of the first state; none: linear",
        ACTIVATIONS,
    )
    bias: bool = option(True, "constants in the input and output layers; off: zeros give zeros")
    qk_norm: str = option(
        "row",
        "simple only: unit rows as in the equations, or the whole-tensor norm of the released code",
        ("row", "tensor"),
    )
    source: float = option(
        0.0, "weight in [0, 1) of the first state in every layer's average", RATE
    )
    center: bool = option(False, "subtract the mean over rows before each layer's norm")
    learn_qk: bool = option(
        True, "query and key are learned maps of the state; off: the state itself"
    )
    qk_init: str = option(
        "random",
        "initial learned queries and keys: random maps, or the identity",
        ("random", "identity"),
    )
    norm: str = option("all", "where LayerNorm is applied", ("all", "input", "none"))
    norm_eps: float = option(
        1e-5,
        "what LayerNorm adds to a row's variance; a tiny value makes it invariant to scale",
        POSITIVE,
    )
    dropout_at: str = option(
        "layers",
        "dropout after the input layer and every layer, or only at the two ends",
        ("layers", "ends"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compare == "state" and (
            self.kernel == "landmarks" or getattr(self.kernel, "anchored", False)
        ):
            raise ValueError(
                "compare must be first or input with kernel landmarks, which are rows of the "
                "input, got 'state'"
            )
        if self.learn_reach is not None and not (
            self.kernel == "sharp" or hasattr(self.kernel, "tuned")
        ):
            raise ValueError(
                f"learn_reach must be none unless kernel is sharp, got {self.kernel!r}"
            )
        if self.num_heads > 1 and not self.learn_qk and not self.use_weight:
            raise ValueError(
                "num_heads must be 1 where neither learn_qk nor use_weight is set: all heads would "
                f"be the same, got {self.num_heads}"
            )


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
