"""Steps with two passes, and with a teacher that helps where that can be proved."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from difformer.data.dataset import Batch, Dataset, Prediction
from difformer.data.split import Split
from difformer.nn.model import DIFFormer
from difformer.train.batches import FullBatch
from difformer.train.loop import fit
from difformer.train.objective import CrossEntropy, objective_for
from difformer.train.seeding import seeded
from difformer.train.settings import TrainSettings
from difformer.train.steps import MetaPseudoLabels, consistency_loss, cosine, redrawn


def two_passes(a, b, rows=(0, 1), epoch=1, **settings):
    """The loss of two passes, as two dropout masks would give them."""
    answers = iter([a, b])
    y = torch.tensor([0, 2, -1, -1])[: len(a)]
    batch = Batch(torch.zeros(len(a), 1), y, None, torch.tensor(rows))
    chosen = TrainSettings(**{"consistency_ramp": 0, **settings})
    return consistency_loss(lambda *_: next(answers), batch, CrossEntropy(), chosen, epoch)


def test_two_passes_cost_their_mean_and_their_distance_to_the_sharpened_mean():
    torch.manual_seed(0)
    a, b = torch.randn(2, 4, 3)
    y = torch.tensor([0, 2])
    supervised = (F.cross_entropy(a[:2], y) + F.cross_entropy(b[:2], y)) / 2
    p, q = a.softmax(1), b.softmax(1)
    target = ((p + q) / 2) ** 2
    target = target / target.sum(1, keepdim=True)
    apart = ((p - target).square().sum() + (q - target).square().sum()) / 2 / 4
    torch.testing.assert_close(two_passes(a, b, consistency=0.7), supervised + 0.7 * apart)
    ramp = {"consistency": 5.0, "consistency_ramp": 10}
    first, half, full, after = (float(two_passes(a, b, epoch=e, **ramp)) for e in (1, 6, 11, 12))
    assert first < half < full == after
    assert half - first == pytest.approx((full - first) / 2, rel=1e-4)


def test_no_gradient_flows_through_what_the_passes_agree_on():
    a = torch.zeros(2, 3, requires_grad=True)
    (grad,) = torch.autograd.grad(two_passes(a, a, consistency=1.0), a)
    # At equal probabilities the sharpened mean is the mean: only the supervised part pulls.
    (plain,) = torch.autograd.grad(F.cross_entropy(a, torch.tensor([0, 2])), a)
    torch.testing.assert_close(grad, plain)


def test_the_loop_trains_with_two_passes_and_refuses_them_for_regression(problem, toy_dataset):
    _, plain = problem.fit()
    _, result = problem.with_settings(consistency=1.0, consistency_ramp=0).fit()
    assert result.history[-1]["loss"] != plain.history[-1]["loss"]
    assert result.metrics["test"]["accuracy"] > 0.6
    other = replace(problem, dataset=toy_dataset("regression")).with_settings(consistency=1.0)
    with pytest.raises(ValueError, match="consistency must be 0 for SquaredError"):
        other.fit()


class Linear(nn.Linear):
    """A linear layer, called as every model is."""

    def forward(self, x, *_):
        return super().forward(x)


def mixture(seed, *, n=400, width=40, mean=2.0):
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
    return Dataset("mixture", x, y), Split("two labels", range(2), range(2, cut), range(cut, n))


# Strong decay keeps the weights small, which is what the theorem asks for; both are trained so.
SETTINGS = TrainSettings(
    epochs=120, lr=0.02, weight_decay=0.3, eval_every=40, threads=1, pseudo_warmup=20
)
TAUGHT = replace(SETTINGS, pseudo_labels=1.0, pseudo_warmup=0)


def accuracy(seed, **changes):
    data, split = mixture(seed)
    with seeded(seed):
        model = Linear(data.num_features, 2)
    settings = replace(SETTINGS, seed=seed, **changes)
    result = fit(model, FullBatch(data, split), objective_for("multiclass"), split, settings)
    return result.metrics["test"]["accuracy"]


def test_the_student_beats_the_labels_alone_where_pseudo_labels_provably_help():
    seeds = range(2)
    alone = [accuracy(seed) for seed in seeds]
    taught = [accuracy(seed, pseudo_labels=1.0) for seed in seeds]
    unheard = [accuracy(seed, pseudo_labels=1.0, pseudo_feedback=0.0) for seed in seeds]
    assert all(0.6 < a < 0.9 for a in alone), alone
    assert all(t > a + 0.05 for t, a in zip(taught, alone, strict=True)), (taught, alone)
    assert sum(taught) / 2 > max(0.94, sum(alone) / 2 + 0.08), (taught, alone)
    # The teacher that learns from its student is the better one.
    assert all(t > u for t, u in zip(taught, unheard, strict=True)), (taught, unheard)


def pair(data, split):
    """A student with its teacher, an optimiser of both, and all rows."""
    student = Linear(data.num_features, 2)
    both = MetaPseudoLabels(student, TAUGHT)
    optimizer = torch.optim.SGD([*student.parameters(), *both.teacher.parameters()], lr=0.01)
    return student, both, optimizer, FullBatch(data, split).observed()


@pytest.mark.parametrize("sign", [1, -1])
def test_feedback_is_positive_for_the_true_classes_and_negative_for_the_opposite(sign):
    data, split = mixture(0)
    torch.manual_seed(0)
    _, both, optimizer, batch = pair(data, split)
    with torch.no_grad():  # a teacher that knows the direction, or has it the wrong way round
        both.teacher.weight.zero_()
        both.teacher.weight[1, 0] = sign
        both.teacher.bias.zero_()
    guess = both.guess(batch)
    before = F.cross_entropy(both.teacher(data.x)[2:], guess[2:])
    both.training_step(batch, CrossEntropy(), optimizer)
    assert both.h * sign > 0.1
    # Surer of what helped, less sure of what did harm.
    after = F.cross_entropy(both.teacher(data.x)[2:], guess[2:])
    assert float((before - after).detach()) * sign > 0


def test_the_improvement_is_that_of_a_small_step():
    """h · |g| · |g_l| is how fast the labels' loss falls along the pseudo-labels' step."""
    data, split = mixture(1)
    torch.manual_seed(1)
    student, both, _, batch = pair(data, split)
    student.double()
    batch = replace(batch, x=batch.x.double())
    pseudo = F.cross_entropy(student(batch.x)[2:], torch.randint(2, (398,)))
    g = torch.autograd.grad(pseudo, list(student.parameters()))
    h = both.improvement(batch, CrossEntropy(), g)

    def labels(step):
        moved = {k: p - step * d for (k, p), d in zip(student.named_parameters(), g, strict=True)}
        out = torch.func.functional_call(student, moved, (batch.x,))
        return F.cross_entropy(out[:2], batch.y[:2])

    fall = (labels(-1e-6) - labels(1e-6)).detach() / 2e-6
    own = torch.autograd.grad(labels(0.0), list(student.parameters()))
    lengths = [torch.cat([p.flatten() for p in part]).norm() for part in (own, g)]
    assert h == pytest.approx(float(fall / (lengths[0] * lengths[1])), rel=1e-5)
    assert cosine((None,), (torch.ones(2),)) == 0.0


@pytest.mark.parametrize("changes", [{}, {"consistency": 1.0}, {"grad_clip": 0.1}])
def test_a_teacher_is_beside_any_model_and_leaves_the_loops_hooks_in_place(changes):
    data, split = mixture(0, n=60, width=5)
    settings = replace(TAUGHT, epochs=30, pseudo_warmup=1, weight_decay=0.0, **changes)

    def train(model):
        fit(model, FullBatch(data, split), objective_for("multiclass"), split, settings)
        return model

    with seeded(0):
        model = DIFFormer(5, 8, 2, dropout=0.3)
    names = sorted(model.state_dict())
    assert sorted(train(model).state_dict()) == names  # the student alone is left

    class Penalised(Linear):
        def forward(self, x, *_):
            return Prediction(super().forward(x), 100 * self.weight.square().sum())

        def parameter_groups(self):
            return [{"params": [self.weight], "lr": 0.1}, {"params": [self.bias]}]

    model = Penalised(5, 2)
    before = float(model.weight.detach().norm())
    assert float(train(model).weight.detach().norm()) < before


def test_batches_without_labels_or_without_others_are_steps_too():
    data, split = mixture(0, n=20, width=3)
    _, both, optimizer, batch = pair(data, split)
    teacher = both.teacher.weight.detach().clone()
    none = replace(batch, rows=batch.rows[:0])
    assert both.training_step(none, CrossEntropy(), optimizer) > 0
    assert torch.equal(both.teacher.weight, teacher)  # nothing to learn from
    every = replace(batch, y=data.y, rows=torch.arange(20))
    assert both.training_step(every, CrossEntropy(), optimizer) > 0
    assert not torch.equal(both.teacher.weight, teacher)


def test_a_teacher_is_drawn_anew_and_shares_nothing():
    student = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    teacher = redrawn(student)
    assert not torch.equal(teacher[0].weight, student[0].weight)
    assert teacher[1].weight is not student[1].weight


def test_what_cannot_be_taught_is_named(problem, toy_dataset):
    class Own(Linear):
        def training_step(self, *_):
            return 0.0

    class Fixed(nn.Module):
        def forward(self, x, *_):
            return x[:, :3]

    taught = problem.with_settings(pseudo_labels=1.0)
    numbers = replace(taught, dataset=toy_dataset("regression"))
    for tried, model, why in (
        (numbers, problem.model, "SquaredError: a pseudo-label"),
        (taught, lambda: Own(5, 3), "Own: it has its own"),
        (taught, Fixed, "Fixed: it does not train"),
    ):
        with pytest.raises(ValueError, match=f"pseudo_labels must be 0 for {why}"):
            tried.fit(model=model)


def test_with_pseudo_labels_the_weight_of_consistency_rises_too(monkeypatch):
    seen = []

    def watched(model, batch, objective, settings, epoch):
        seen.append(epoch)
        return consistency_loss(model, batch, objective, settings, epoch)

    monkeypatch.setattr("difformer.train.steps.consistency_loss", watched)
    accuracy(0, consistency=1.0, epochs=3, eval_every=3, pseudo_labels=1.0, pseudo_warmup=1)
    assert seen == [1, 2, 3]
