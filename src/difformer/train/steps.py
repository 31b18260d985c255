"""The steps of a model: optimiser, learning rate, early stopping; two passes; a teacher beside it.

The teacher is that of Meta Pseudo Labels: it gives the rows without a label classes to train on,
and learns from what these do for the student.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam, AdamW, Optimizer

from difformer.data.dataset import Batch
from difformer.errors import TrainingError
from difformer.metrics import Metric
from difformer.train.batches import predict
from difformer.train.objective import CrossEntropy, Objective, supervised_loss
from difformer.train.settings import TrainSettings


def make_optimizer(*models: nn.Module, settings: TrainSettings) -> Optimizer | None:
    """Adam over the trainable parameters of these models, or None if there are none."""
    groups = [group for model in models for group in parameter_groups(model)]
    for group in groups:
        group["params"] = [p for p in group["params"] if p.requires_grad]
    if not any(group["params"] for group in groups):
        return None
    kind = Adam if settings.optimizer == "adam" else AdamW
    # One pass over all parameters instead of a dozen small operations for each of them.
    return kind(groups, lr=settings.lr, weight_decay=settings.weight_decay, fused=True)


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """The model's own groups where it has some, else all its parameters as one."""
    own = getattr(model, "parameter_groups", None)
    return own() if own else [{"params": list(model.parameters())}]


def lr_factor(epoch: int, settings: TrainSettings) -> float:
    """What the learning rate is multiplied by in an epoch, counted from 1.

    Rises linearly over the warm-up; then 1, or half a cosine from 1 to 0 over the epochs left.
    """
    if epoch < settings.warmup:
        return epoch / settings.warmup
    if settings.schedule == "constant":
        return 1.0
    left = settings.epochs - settings.warmup
    return 0.5 * (1 + math.cos(math.pi * max(0, epoch - settings.warmup - 1) / max(1, left)))


class Stopping:
    """Keeps the best validation epoch, and counts the epochs since.

    An epoch is better when the monitored metric is; where it is equal, when the validation loss
    is strictly lower; where both are equal the earlier epoch stays. ``patience`` counts from the
    best epoch, so it restarts with every improvement.
    """

    def __init__(self, monitor: Metric, patience: int | None = None) -> None:
        self.monitor, self.patience = monitor, patience
        self.best_epoch: int | None = None
        self._best = (-math.inf, -math.inf)

    def update(self, epoch: int, metrics: Mapping[str, float]) -> bool:
        """Record one epoch's validation metrics; True if it is the best so far."""
        name = self.monitor.name
        if name not in metrics:
            raise ValueError(f"pick_by must be one of {', '.join(metrics)} here, got {name!r}")
        if math.isnan(metrics[name]):
            raise TrainingError(
                f"the validation {name} is nan in epoch {epoch}: "
                "its rows must have known labels, and for roc_auc of both classes"
            )
        score = (self.monitor.better * metrics[name], -metrics["loss"])
        if self.best_epoch is not None and score <= self._best:
            return False
        self.best_epoch, self._best = epoch, score
        return True

    def exhausted(self, epoch: int) -> bool:
        """True once ``patience`` epochs have passed without a better one."""
        if self.patience is None or self.best_epoch is None:
            return False
        return epoch - self.best_epoch >= self.patience


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


def teacher_for(
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
        (student,), labelled = self._student, bool(batch.rows.numel())
        others = torch.ones(batch.x.shape[0], dtype=torch.bool, device=batch.y.device)
        others[batch.rows] = False
        self.steps += 1
        if int(self.steps) <= self.settings.pseudo_warmup or not bool(others.any()):
            if not labelled:
                return 0.0
            optimizer.zero_grad(set_to_none=True)
            loss = supervised_loss(objective, predict(student, batch), batch)
            self._step(loss + self._own_loss(batch, objective)[0], optimizer)
            return float(loss.detach())
        guess = self.guess(batch)[others]
        loss, gradient = self._teach(batch, objective, optimizer, others, guess)
        if labelled:
            self.h = self.improvement(batch, objective, gradient)
            optimizer.zero_grad(set_to_none=True)
            own, output = self._own_loss(batch, objective)
            feedback = self.settings.pseudo_feedback * self.h
            self._step(own + feedback * F.cross_entropy(output[others], guess), optimizer)
        return loss

    def guess(self, batch: Batch) -> Tensor:
        """ŷ (n,): the teacher's classes, without dropout."""
        self.teacher.eval()
        with torch.no_grad():
            guess = predict(self.teacher, batch).output.argmax(-1)
        self.teacher.train()
        return guess

    def _teach(
        self,
        batch: Batch,
        objective: Objective,
        optimizer: Optimizer,
        others: Tensor,
        guess: Tensor,
    ) -> tuple[float, Gradients]:
        """The student's step; its loss, and the gradient of the pseudo-labels' part alone."""
        (student,), weight = self._student, self.settings.pseudo_labels
        parameters, labelled = _trained(student), bool(batch.rows.numel())
        optimizer.zero_grad(set_to_none=True)
        prediction = predict(student, batch)
        pseudo = F.cross_entropy(prediction.output[others], guess)
        gradient = _gradient(pseudo, parameters, keep=labelled)
        loss = weight * float(pseudo.detach())
        if labelled:
            supervised = supervised_loss(objective, prediction, batch)
            loss += float(supervised.detach())
            supervised.backward()  # pyright: ignore[reportUnknownMemberType]
        for parameter, part in zip(parameters, gradient, strict=True):
            if part is not None:
                before = parameter.grad
                parameter.grad = weight * part if before is None else before + weight * part
        self._step(None, optimizer)
        return loss, gradient

    def improvement(self, batch: Batch, objective: Objective, gradient: Gradients) -> float:
        """h: the cosine of the labels' gradient at the new weights and the pseudo-labels' one."""
        (student,) = self._student
        student.eval()  # the labels' own gradient, not that of one dropout mask
        labels = objective.loss(predict(student, batch).output, batch)
        after = _gradient(labels, _trained(student))
        student.train()
        return cosine(after, gradient)

    def _own_loss(self, batch: Batch, objective: Objective) -> tuple[Tensor, Tensor]:
        """What the teacher minimises beside the feedback, and one prediction by it."""
        prediction = predict(self.teacher, batch)
        if not self.settings.consistency:
            return supervised_loss(objective, prediction, batch), prediction.output
        loss = consistency_loss(self.teacher, batch, objective, self.settings, self.epoch)
        return loss, prediction.output

    def _step(self, loss: Tensor | None, optimizer: Optimizer) -> None:
        if loss is not None:
            loss.backward()  # pyright: ignore[reportUnknownMemberType]
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
