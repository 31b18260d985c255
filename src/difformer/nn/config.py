"""The model's options: the one place where each name, default and meaning stands. No torch here."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

__all__ = ["DEFAULTS", "DIFFormerConfig"]


def _option(default: Any, text: str, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"help": text, "choices": choices})


@dataclass(frozen=True, kw_only=True)
class DIFFormerConfig:
    """Everything that shapes a DIFFormer, but for its widths."""

    num_layers: int = _option(2, "propagation layers K")
    num_heads: int = _option(1, "heads, averaged")
    kernel: Any = _option(
        "simple",
        "diffusivity: simple is DIFFormer-s, sigmoid is DIFFormer-a",
        ("simple", "sigmoid", "identity", "constant", "softmax", "gaussian"),
    )
    tau: float = _option(0.5, "step size, in (0, 1]")
    learn_tau: bool = _option(False, "learn one step size a layer, starting from tau")
    dropout: float = _option(0.0, "dropout on the states, see dropout-at")
    input_dropout: float = _option(0.0, "dropout on the input features")
    use_weight: bool = _option(True, "layer-wise transformation of values; off: value = state")
    use_graph: bool = _option(True, "use the graph where one is given")
    graph_weight: float | None = _option(
        None, "none: all-pair term + graph term; w: (1 - w) all-pair + w graph"
    )
    activation: str | None = _option(
        None, "non-linearity after each layer; none in the paper", ("relu", "elu", "gelu", "tanh")
    )
    input_activation: str | None = _option(
        "relu",
        "non-linearity of the first state; none: linear, no unit can be cut off",
        ("relu", "elu", "gelu", "tanh"),
    )
    bias: bool = _option(True, "constants in the input and output layers; off: zeros give zeros")
    qk_norm: str = _option(
        "row",
        "simple only: unit rows as in the equations, or the whole-tensor norm of the released code",
        ("row", "tensor"),
    )
    source: float = _option(0.0, "weight in [0, 1) of the first state in every layer's average")
    center: bool = _option(False, "subtract the mean over rows before each layer's norm")
    learn_qk: bool = _option(
        True, "query and key are learned maps of the state; off: the state itself"
    )
    norm: str = _option("all", "where LayerNorm stands", ("all", "input", "none"))
    norm_eps: float = _option(
        1e-5, "what LayerNorm adds to a row's variance; a tiny one makes it blind to scale"
    )
    dropout_at: str = _option(
        "layers",
        "dropout after the input layer and every layer, or only at the two ends",
        ("layers", "ends"),
    )

    def as_dict(self) -> dict[str, Any]:
        """The options as plain values, for saving."""
        return asdict(self)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of all options."""
        return tuple(f.name for f in fields(cls))


DEFAULTS = DIFFormerConfig()
"""The defaults, for signatures that spell the options out."""
