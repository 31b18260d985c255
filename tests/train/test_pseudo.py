"""Meta Pseudo Labels: helps where that can be proved, turns on wrong labels, resumes to the bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from difformer.data.dataset import Batch, Dataset, Prediction
from difformer.data.split import Split
from difformer.nn.model import DIFFormer
from difformer.train.batches import FullBatch
from difformer.train.companions import MetaPseudoLabels, consistency_loss, cosine, redrawn
from difformer.train.loop import fit
from difformer.train.objective import CrossEntropy, objective_for
from difformer.train.seeding import seeded
from difformer.train.settings import TrainSettings


class Linear(nn.Linear):
    """A linear layer, called as every model is."""

    def forward(self, x: Tensor, *_: Any) -> Tensor:  # type: ignore[override]
        return super().forward(x)


def mixture(
    seed: int, *, n: int = 400, width: int = 40, mean: float = 2.0
) -> tuple[Dataset, Split]:
    """x ~ N(±2 e₁, I) in 40 dimensions, two labels in all.

    The best classifier is right for Φ(2) = 97.7 %; what two points tell of the direction between
    the means is right for about Φ(4/√24) = 79 %. Fitting the classes such a weak classifier gives
    to all points turns the direction towards that of the means (Frei et al., "Self-training
    converts weak learners to strong learners in mixture models", AISTATS 2022).
    """
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    x = torch.randn(n, width, generator=generator)
    x[:, 0] += mean * (2 * y - 1)
    cut = 2 + n // 10
    parts = {"train": range(2), "val": range(2, cut), "test": range(cut, n)}
    return Dataset("mixture", x, y), Split("two labels", **parts)  # type: ignore[arg-type]


# Strong decay keeps the weights small, which is what the theorem asks for; both are trained so.
SETTINGS = TrainSettings(
    epochs=120, lr=0.02, weight_decay=0.3, eval_every=40, threads=1, pseudo_warmup=20
)


def accuracy(seed: int, **changes: Any) -> float:
    data, split = mixture(seed)
    with seeded(seed):
        model = Linear(data.num_features, 2)
    settings = replace(SETTINGS, seed=seed, **changes)
    result = fit(model, FullBatch(data, split), objective_for("multiclass"), split, settings)
    return result.metrics["test"]["accuracy"]


def test_the_student_beats_the_labels_alone_where_pseudo_labels_provably_help() -> None:
    seeds = range(2)
    alone = [accuracy(seed) for seed in seeds]
    taught = [accuracy(seed, pseudo_labels=1.0) for seed in seeds]
    unheard = [accuracy(seed, pseudo_labels=1.0, pseudo_feedback=0.0) for seed in seeds]
    assert all(0.6 < a < 0.9 for a in alone), alone
    assert all(t > a + 0.05 for t, a in zip(taught, alone, strict=True)), (taught, alone)
    assert sum(taught) / 2 > max(0.94, sum(alone) / 2 + 0.08), (taught, alone)
    # The teacher that learns from its student is the better one.
    assert all(t > u for t, u in zip(taught, unheard, strict=True)), (taught, unheard)


def batch_of(data: Dataset, split: Split) -> Batch:
    return FullBatch(data, split).observed()


def taught_by(student: Linear, **changes: Any) -> tuple[MetaPseudoLabels, Any]:
    """Meta Pseudo Labels of a student, and a step of it on a batch."""
    both = MetaPseudoLabels(student, replace(SETTINGS, **changes))
    optimizer = torch.optim.SGD([*student.parameters(), *both.teacher.parameters()], lr=0.01)
    return both, lambda batch: both.training_step(batch, CrossEntropy(), optimizer)


@pytest.mark.parametrize("sign", [1, -1])
def test_feedback_is_positive_for_the_true_classes_and_negative_for_the_opposite(sign: int) -> None:
    data, split = mixture(0)
    batch = batch_of(data, split)
    torch.manual_seed(0)
    both, step = taught_by(Linear(data.num_features, 2), pseudo_labels=1.0, pseudo_warmup=0)
    with torch.no_grad():  # a teacher that knows the direction, or has it the wrong way round
        both.teacher.weight.zero_()
        both.teacher.weight[1, 0] = sign
        both.teacher.bias.zero_()
    before = F.cross_entropy(both.teacher(data.x)[2:], both._guess(batch)[2:])
    guess = both._guess(batch)
    step(batch)
    assert both.h * sign > 0.1
    # Surer of what helped, less sure of what did harm.
    after = F.cross_entropy(both.teacher(data.x)[2:], guess[2:])
    assert float((before - after).detach()) * sign > 0


def test_the_improvement_is_that_of_a_small_step() -> None:
    """h · |g| · |g_l| is how fast the labels' loss falls along the pseudo-labels' step."""
    data, split = mixture(1)
    batch = batch_of(data, split)
    torch.manual_seed(1)
    student = Linear(data.num_features, 2).double()
    batch = replace(batch, x=batch.x.double())
    guess = torch.randint(2, (398,))
    pseudo = F.cross_entropy(student(batch.x)[2:], guess)
    g = torch.autograd.grad(pseudo, list(student.parameters()))
    both = MetaPseudoLabels(student, SETTINGS)
    h = both._improvement(batch, CrossEntropy(), g)

    def labels(step: float) -> Tensor:
        moved = {k: p - step * d for (k, p), d in zip(student.named_parameters(), g, strict=True)}
        out = torch.func.functional_call(student, moved, (batch.x,))
        return F.cross_entropy(out[:2], batch.y[:2])

    fall = (labels(-1e-6) - labels(1e-6)).detach() / 2e-6
    own = torch.autograd.grad(labels(0.0), list(student.parameters()))
    lengths = [torch.cat([p.flatten() for p in part]).norm() for part in (own, g)]
    assert h == pytest.approx(float(fall / (lengths[0] * lengths[1])), rel=1e-5)
    assert cosine(g, g) == pytest.approx(1)
    assert cosine((None,), (torch.ones(2),)) == 0.0


def test_what_is_left_is_the_student_alone(problem) -> None:
    model, result = problem.with_settings(pseudo_labels=1.0, pseudo_warmup=3).fit()
    assert sorted(model.state_dict()) == sorted(problem.model().state_dict())
    assert result.history[-1] != problem.fit()[1].history[-1]


def test_it_trains_any_model_and_leaves_the_loop_s_hooks_in_place() -> None:
    data, split = mixture(0, n=60, width=5)
    objective = objective_for("multiclass")
    settings = replace(SETTINGS, epochs=3, pseudo_labels=1.0, pseudo_warmup=1, weight_decay=0.0)
    for kernel in ("simple", "sigmoid"):
        with seeded(0):
            model = DIFFormer(5, 8, 2, kernel=kernel, dropout=0.3)
        for changes in ({}, {"consistency": 1.0}, {"grad_clip": 0.1}):
            tried = replace(settings, **changes)
            result = fit(model, FullBatch(data, split), objective, split, tried)
            assert result.epochs == 3

    class Penalised(Linear):
        def forward(self, x: Tensor, *_: Any) -> Any:
            return Prediction(super().forward(x), 100 * self.weight.square().sum())

        def parameter_groups(self) -> list[dict[str, Any]]:
            return [{"params": [self.weight], "lr": 0.1}, {"params": [self.bias]}]

    model = Penalised(5, 2)
    before = float(model.weight.detach().norm())
    fit(model, FullBatch(data, split), objective, split, replace(settings, epochs=30))
    assert float(model.weight.detach().norm()) < before


def test_batches_without_labels_or_without_others_are_steps_too() -> None:
    data, split = mixture(0, n=20, width=3)
    batch, student = batch_of(data, split), Linear(3, 2)
    both, step = taught_by(student, pseudo_labels=1.0, pseudo_warmup=0)
    teacher = both.teacher.weight.detach().clone()
    assert step(replace(batch, rows=batch.rows[:0])) > 0
    assert torch.equal(both.teacher.weight, teacher)  # nothing to learn from
    assert step(replace(batch, y=data.y, rows=torch.arange(20))) > 0
    assert not torch.equal(both.teacher.weight, teacher)


def test_a_teacher_is_drawn_anew_and_shares_nothing() -> None:
    student = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    teacher = redrawn(student)
    assert not torch.equal(teacher[0].weight, student[0].weight)
    assert teacher[1].weight is not student[1].weight


def test_what_cannot_be_taught_is_named(problem, toy_dataset) -> None:
    taught = problem.with_settings(pseudo_labels=1.0)
    with pytest.raises(
        ValueError, match="pseudo_labels must be 0 for SquaredError: a pseudo-label"
    ):
        replace(taught, dataset=toy_dataset("regression")).fit()

    class Own(Linear):
        def training_step(self, *_: Any) -> float:
            return 0.0

    with pytest.raises(ValueError, match="pseudo_labels must be 0 for Own: it has its own"):
        taught.fit(model=lambda: Own(5, 3))

    class Fixed(nn.Module):
        def forward(self, x: Tensor, *_: Any) -> Tensor:
            return x[:, :3]

    with pytest.raises(ValueError, match="pseudo_labels must be 0 for Fixed: it does not train"):
        taught.fit(model=Fixed)


def test_with_pseudo_labels_the_weight_of_consistency_rises_too(monkeypatch):
    seen: list[int] = []

    def watched(model: Any, batch: Any, objective: Any, settings: Any, epoch: int) -> Tensor:
        seen.append(epoch)
        return consistency_loss(model, batch, objective, settings, epoch)

    monkeypatch.setattr("difformer.train.companions.consistency_loss", watched)
    accuracy(0, consistency=1.0, epochs=3, eval_every=3, pseudo_labels=1.0, pseudo_warmup=1)
    assert seen == [1, 2, 3]
