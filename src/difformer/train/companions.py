"""Losses and models beside the trained one: consistency, and Meta Pseudo Labels."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from difformer.data.dataset import Batch, Prediction
from difformer.train.batches import predict
from difformer.train.objective import CrossEntropy, Objective, supervised_loss
from difformer.train.optimizer import parameter_groups
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


Gradients = tuple[Tensor | None, ...]
PseudoLoss = Callable[[Prediction], Tensor]


def companion_for(
    model: nn.Module, settings: TrainSettings, objective: Objective
) -> MetaPseudoLabels | None:
    """What is trained beside a model and takes its steps, or None if the settings ask for nothing.

    Weights are drawn from the global generator.
    """
    if not settings.pseudo_labels:
        return None
    if not isinstance(objective, CrossEntropy):
        what, why = objective, "a pseudo-label is a class"
    elif hasattr(model, "training_step"):
        what, why = model, "it has its own training step"
    elif not _trained(model):
        what, why = model, "it does not train"
    else:
        return MetaPseudoLabels(model, settings)
    raise ValueError(f"pseudo_labels must be 0 for {type(what).__name__}: {why}")


class MetaPseudoLabels(nn.Module):
    """The teacher of a student, and the step of both: four forward and four backward passes.

    The state is the teacher's and the number of steps taken. The student is the model that the loop
    trains, and all that remains when it ends.
    """

    steps: Tensor

    def __init__(self, student: nn.Module, settings: TrainSettings) -> None:
        super().__init__()
        self.teacher = redrawn(student)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.settings = settings
        self.h = 0.0  # of the last step, for callbacks
        self.epoch = 1  # set by the loop
        self._student = (student,)  # in a tuple, so that it is not part of this module's state

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The teacher's parameters, in the groups its model defines."""
        return parameter_groups(self.teacher)

    def training_step(self, batch: Batch, objective: Objective, optimizer: Optimizer) -> float:
        """One step of the student, then one of the teacher; the student's loss."""
        others = torch.ones(batch.x.shape[0], dtype=torch.bool, device=batch.y.device)
        others[batch.rows] = False
        self.steps += 1
        if int(self.steps) <= self.settings.pseudo_warmup or not bool(others.any()):
            return self._labels_alone(batch, objective, optimizer)
        guess = self._guess(batch)[others]

        def pseudo_loss(prediction: Prediction) -> Tensor:
            return F.cross_entropy(prediction.output[others], guess)

        loss, gradient = self._teach(batch, objective, optimizer, pseudo_loss)
        if batch.rows.numel():
            self.h = self._improvement(batch, objective, gradient)
            self._learn(batch, objective, optimizer, pseudo_loss)
        return loss

    def _labels_alone(self, batch: Batch, objective: Objective, optimizer: Optimizer) -> float:
        if batch.rows.numel() == 0:
            return 0.0
        optimizer.zero_grad(set_to_none=True)
        loss = supervised_loss(objective, predict(self._student[0], batch), batch)
        own = self._own_loss(predict(self.teacher, batch), batch, objective)
        (loss + own).backward()
        self._step(optimizer)
        return float(loss.detach())

    def _guess(self, batch: Batch) -> Tensor:
        """ŷ (n,): the teacher's classes, without dropout."""
        self.teacher.eval()
        with torch.no_grad():
            guess = predict(self.teacher, batch).output.argmax(-1)
        self.teacher.train()
        return guess

    def _teach(
        self, batch: Batch, objective: Objective, optimizer: Optimizer, pseudo_loss: PseudoLoss
    ) -> tuple[float, Gradients]:
        """The student's step; its loss, and the gradient of the pseudo-labels' part alone."""
        student, weight = self._student[0], self.settings.pseudo_labels
        parameters = _trained(student)
        optimizer.zero_grad(set_to_none=True)
        prediction = predict(student, batch)
        pseudo = pseudo_loss(prediction)
        gradient = _gradient(pseudo, parameters, keep=bool(batch.rows.numel()))
        loss = weight * float(pseudo.detach())
        if batch.rows.numel():
            supervised = supervised_loss(objective, prediction, batch)
            supervised.backward()
            loss += float(supervised.detach())
        for parameter, part in zip(parameters, gradient, strict=True):
            if part is not None:
                before = parameter.grad
                parameter.grad = weight * part if before is None else before + weight * part
        self._step(optimizer)
        return loss, gradient

    def _improvement(self, batch: Batch, objective: Objective, gradient: Gradients) -> float:
        """h: the cosine of the labels' gradient at the new weights and the pseudo-labels' one."""
        student = self._student[0]
        student.eval()  # the labels' own gradient, not that of one dropout mask
        labels = objective.loss(predict(student, batch).output, batch)
        after = _gradient(labels, _trained(student))
        student.train()
        return cosine(after, gradient)

    def _learn(
        self, batch: Batch, objective: Objective, optimizer: Optimizer, pseudo_loss: PseudoLoss
    ) -> None:
        """The teacher's step."""
        optimizer.zero_grad(set_to_none=True)
        prediction = predict(self.teacher, batch)
        loss = self._own_loss(prediction, batch, objective)
        feedback = self.settings.pseudo_feedback * self.h
        (loss + feedback * pseudo_loss(prediction)).backward()
        self._step(optimizer)

    def _own_loss(self, prediction: Prediction, batch: Batch, objective: Objective) -> Tensor:
        """What the teacher minimises beside the feedback, given one prediction by it."""
        if not self.settings.consistency:
            return supervised_loss(objective, prediction, batch)
        return consistency_loss(self.teacher, batch, objective, self.settings, self.epoch)

    def _step(self, optimizer: Optimizer) -> None:
        # Parameters without a gradient are skipped: one optimiser takes the steps of both.
        if self.settings.grad_clip is not None:
            for model in (self._student[0], self.teacher):
                nn.utils.clip_grad_norm_(model.parameters(), self.settings.grad_clip)
        optimizer.step()


def redrawn(model: nn.Module) -> nn.Module:
    """A copy of a model with new weights, where its modules can draw them; nothing is shared."""
    copy = deepcopy(model)
    for part in copy.modules():
        reset = getattr(part, "reset_parameters", None)
        if reset is not None:
            reset()
    return copy


def cosine(a: Gradients, b: Gradients) -> float:
    """The cosine of two gradients over the same parameters; a missing gradient counts as 0."""
    pairs = [(p, q) for p, q in zip(a, b, strict=True) if p is not None and q is not None]
    product = sum(float((p * q).sum()) for p, q in pairs)
    lengths = [
        sum(float(p.square().sum()) for p in part if p is not None) ** 0.5 for part in (a, b)
    ]
    return product / (lengths[0] * lengths[1]) if all(lengths) else 0.0


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def _gradient(loss: Tensor, parameters: list[nn.Parameter], *, keep: bool = False) -> Gradients:
    found = torch.autograd.grad(loss, parameters, retain_graph=keep, allow_unused=True)
    return cast("Gradients", found)
