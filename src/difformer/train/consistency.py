"""Consistency over dropout: two passes over the same rows should agree, labelled or not.

    L = mean_s CE(p_s; labels) + α · mean_s 1/n Σ_i ‖p_s,i − p̄'_i‖²

p_s are the class probabilities of S = 2 passes with their own dropout, p̄' their mean sharpened to
temperature T and held constant (Feng et al., "Graph Random Neural Networks for semi-supervised
learning on graphs", NeurIPS 2020, eqs. 5 to 7, with our dropout in place of their node dropping).
The unlabelled rows then train too, which helps when there are few labels per class.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from difformer.data.batch import Batch
from difformer.train.batches import predict
from difformer.train.objective import Objective
from difformer.train.settings import TrainSettings

PASSES = 2


def consistency_loss(
    model: nn.Module, batch: Batch, objective: Objective, settings: TrainSettings, epoch: int
) -> Tensor:
    """The supervised loss averaged over two passes, plus their disagreement; costs two forwards.

    The weight α of the disagreement rises over the first `consistency_ramp` epochs.
    """
    ramp, temperature = settings.consistency_ramp, settings.consistency_temperature
    weight = settings.consistency * (min(1.0, (epoch - 1) / ramp) if ramp else 1)
    predictions = [predict(model, batch) for _ in range(PASSES)]
    loss = torch.stack([objective.loss(p.output, batch) for p in predictions]).mean()
    for prediction in predictions:
        if prediction.penalty is not None:
            loss = loss + prediction.penalty / PASSES
    classes = [p.output.softmax(-1) for p in predictions]
    with torch.no_grad():
        target = torch.stack(classes).mean(0) ** (1 / temperature)
        target /= target.sum(-1, keepdim=True)
    apart = [(p - target).square().sum(-1).mean() for p in classes]
    return loss + weight * torch.stack(apart).mean()
