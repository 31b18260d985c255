"""A fitted member of the average: a view of the features and a frozen model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from difformer.core.diffusivity import Diffusivity
from difformer.estimators.choice import Member
from difformer.estimators.rows import to_tensor
from difformer.estimators.views import View
from difformer.nn.frozen import FrozenDIFFormer
from difformer.nn.layer import DiffusionLayer


@dataclass(frozen=True)
class FittedMember:
    """One model that predicts; several are averaged by their weights.

    Args:
        name: the name of its form and of its view of the features.
        temperature: its outputs are divided by this before they become probabilities.
    """

    name: str
    view: View
    frozen: FrozenDIFFormer
    weight: float = 1.0
    temperature: float = 1.0

    @property
    def meets(self) -> bool:
        """Whether rows influence one another in it."""
        layer = self.frozen.model.layers[-1]
        assert isinstance(layer, DiffusionLayer)
        return self.frozen.num_known is not None or not layer.diffusivity.local

    def seen(self, features: Any) -> Tensor:
        """Encoded features through its view, dense, in float64."""
        return to_tensor(self.view.apply(features), torch.float64).to_dense()

    def run(
        self, features: Any, edges: Tensor | None, weight: Tensor | None, *, encode: bool = False
    ) -> Tensor:
        """Outputs (m, outputs) of new rows, or their states; edges from rows of fit to these."""
        run = self.frozen.encode if encode else self.frozen.forward
        return run(self.seen(features), *self._used(edges, weight))

    def weights(
        self, features: Any, before: Tensor, edges: Tensor | None, weight: Tensor | None
    ) -> Tensor:
        """The weight (m, n) of each row of fit in the last step of each new row.

        `before` (n, hidden_channels) are the states of the rows of fit before that step.
        """
        return self.frozen.weights(self.seen(features), before, *self._used(edges, weight))

    def _used(
        self, edges: Tensor | None, weight: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """The edges, unless the model was fitted without a graph."""
        return (None, None) if self.frozen.num_known is None else (edges, weight)

    def pack(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Its tensors and its description, for a part of a file."""
        tensors, described = self.frozen.pack()
        tensors = {f"frozen.{name}": tensor for name, tensor in tensors.items()}
        tensors |= {f"view.{name}": tensor for name, tensor in self.view.tensors().items()}
        own = {"name": self.name, "weight": self.weight, "temperature": self.temperature}
        return tensors, {**own, "view": self.view.kind, "frozen": described}

    @classmethod
    def unpack(
        cls,
        path: Path,
        tensors: dict[str, Tensor],
        described: dict[str, Any],
        kernel: Diffusivity | None,
    ) -> FittedMember:
        """The member that `pack` described."""
        parts: dict[str, dict[str, Tensor]] = {"frozen": {}, "view": {}}
        for name, tensor in tensors.items():
            part, _, own = name.partition(".")
            parts[part][own] = tensor
        return cls(
            str(described["name"]),
            View.from_tensors(described["view"], parts["view"]),
            FrozenDIFFormer.unpack(path, parts["frozen"], described["frozen"], kernel=kernel),
            float(described["weight"]),
            float(described["temperature"]),
        )


def freeze_member(member: Member, x: Tensor) -> tuple[FittedMember, Tensor, list[Tensor]]:
    """Keep what predictions for new rows need, in float64: their bits are then the same anywhere.

    Args:
        x: (n, p) features through the member's view, float64.

    Returns:
        the member, the outputs (n, outputs) of the rows of fit, and their last two states.
    """
    model, graph = member.model.cpu().double().eval(), member.form.graph
    doubled = None if graph is None else graph.to(torch.zeros(0, dtype=torch.float64))
    with torch.no_grad():
        passages = model.passages(x, doubled)
        output = model.output(passages[-1].after)
    frozen = FrozenDIFFormer.from_passages(model, passages)
    fitted = FittedMember(member.form.key, member.view, frozen, member.weight, member.temperature)
    return fitted, output, [passages[-1].before, passages[-1].after]
