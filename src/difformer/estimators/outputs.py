"""Many outputs in one table of logits: cut apart, compared and turned into probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from difformer.data.batch import Batch
from difformer.train.objective import Monitor

__all__ = ["MultiCrossEntropy"]


@dataclass(frozen=True)
class MultiCrossEntropy:
    """Softmax cross-entropy of several outputs, each with its own classes. O(n Σ c).

    loss = mean over the known (i, k) of CE(output_i[block k], y_ik), weighted by batch.weight_i

    Shapes: output (n, Σ c_k) logits, y (n, t) class numbers as floats, nan for unknown.
    """

    widths: tuple[int, ...]
    monitor: Monitor = Monitor("accuracy", "max")

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        total, mass = output.new_zeros(()), output.new_zeros(())
        for logits, column in zip(output.split(self.widths, 1), batch.y.T, strict=True):
            rows = batch.rows[~column[batch.rows].isnan()]
            each = functional.cross_entropy(logits[rows], column[rows].long(), reduction="none")
            weight = torch.ones_like(each) if batch.weight is None else batch.weight[rows].to(each)
            total, mass = total + (each * weight).sum(), mass + weight.sum()
        return total / mass

    def metrics(self, output: Tensor, y: Tensor, rows: Tensor) -> dict[str, float]:
        losses: list[Tensor] = []
        hits: list[Tensor] = []
        for logits, column in zip(output.detach().split(self.widths, 1), y.T, strict=True):
            known = rows[~column[rows].isnan()]
            target = column[known].long()
            losses.append(functional.cross_entropy(logits[known], target, reduction="none"))
            hits.append((logits[known].argmax(1) == target).double())
        return {"loss": float(torch.cat(losses).mean()), "accuracy": float(torch.cat(hits).mean())}
