"""recipe="auto": held-out labels decide which forms of the model answer, and how much."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, load_wine, make_moons
from sklearn.linear_model import LogisticRegression

from difformer import DIFFormerClassifier, DIFFormerRegressor
from difformer.data.split import Split
from difformer.estimators.choice import Candidate, Form, Training


def moons(labels: int = 3, n: int = 240) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X, y = make_moons(n, noise=0.08, random_state=0)
    known = np.concatenate([np.flatnonzero(y == c)[:labels] for c in (0, 1)])
    few = np.full(n, -1)
    few[known] = y[known]
    return X, y, few


def test_rows_that_lie_together_teach_one_another() -> None:
    """Three labels per digit: neighbours tell far more than a line through the labels does."""
    X, y = (part[:600] for part in load_digits(return_X_y=True))
    few = np.full(600, -1)
    for digit in range(10):
        few[np.flatnonzero(y == digit)[:3]] = digit
    chosen = DIFFormerClassifier(random_state=0).fit(X, few)
    labelled = few >= 0
    line = LogisticRegression(max_iter=1000).fit(X[labelled] / 16, y[labelled])
    assert "sharp" in chosen.members_[0].name
    gained = chosen.transduction_[~labelled] == y[~labelled]
    assert gained.mean() > line.score(X[~labelled] / 16, y[~labelled]) + 0.03


def unlike(n: int = 200) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Features, classes, few labels and edges, all of which join rows of other classes."""
    generator = np.random.default_rng(0)
    y = np.arange(n) % 2
    X = generator.normal(size=(n, 4)) + 0.6 * y[:, None]
    left, right = np.flatnonzero(y == 0), np.flatnonzero(y == 1)
    edges = np.stack([generator.choice(left, 800), generator.choice(right, 800)])
    return X, y, np.where(generator.random(n) < 0.4, y, -1), edges


def test_unlike_neighbours_are_told_apart() -> None:
    """Neighbours are of the other class: averaging cannot learn it, a map of its own can."""
    X, y, few, edges = unlike()
    model = DIFFormerClassifier(random_state=0).fit(X, few, edges)
    assert any("transforming" in member.name for member in model.members_)
    assert (model.transduction_ == y)[few < 0].mean() > 0.9


def test_a_form_that_is_probed_and_then_trained_on_is_kept_in_two_folders(tmp_path) -> None:
    """Both fits are resumed each by itself, and to the same bits as without a folder."""
    X, _, few, edges = unlike()
    quick = {"epochs": 80, "random_state": 0}
    kept = DIFFormerClassifier(checkpoint=tmp_path, **quick).fit(X, few, edges)
    epochs = {path.name.split(", ")[-1] for path in tmp_path.glob("transforming*validated")}
    assert len(epochs) > 1
    alone = DIFFormerClassifier(**quick).fit(X, few, edges)
    again = DIFFormerClassifier(checkpoint=tmp_path, **quick).fit(X, few, edges)
    assert (kept.label_distributions_ == alone.label_distributions_).all()
    assert (again.label_distributions_ == alone.label_distributions_).all()


def test_ctrl_c_while_a_form_is_trained_ends_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop stops after its epoch: a form trained that far must not count as tried."""
    trained = Training.fit

    def interrupted(self: Training, form: Form, split: Split) -> Candidate:
        found = trained(self, form, split)
        return replace(found, result=replace(found.result, stopped="interrupted"))

    monkeypatch.setattr(Training, "fit", interrupted)
    X, _, few, edges = unlike()
    with pytest.raises(KeyboardInterrupt):
        DIFFormerClassifier(random_state=0).fit(X, few, edges)


def test_many_labels_teach_a_bent_boundary() -> None:
    """Two of six columns decide together: no sum of functions of single columns can tell."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(700, 6))
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    few = np.where(np.arange(700) < 350, y, -1)
    model = DIFFormerClassifier(random_state=0).fit(X, few)
    assert "long" in model.members_[0].name
    assert (model.transduction_ == y)[few < 0].mean() > 0.9
    assert model.choice_.startswith("tried ")


def test_a_class_may_lie_in_a_ring_around_another() -> None:
    """Ten labels per class: no column by itself tells, how near a row is to others does."""
    generator = np.random.default_rng(0)
    y = np.arange(600) % 2
    X = generator.normal(size=(600, 8)) * np.where(y == 1, 2.0, 0.7)[:, None]
    few = np.where(np.arange(600) < 20, y, -1)
    model = DIFFormerClassifier(random_state=0).fit(X, few)
    assert model.members_[0].name.endswith("near")
    assert (model.transduction_ == y)[few < 0].mean() > 0.93


def test_a_graph_that_joins_like_rows_is_averaged_over() -> None:
    """Rows say next to nothing, their neighbours are of their class: averages answer."""
    generator = np.random.default_rng(0)
    n = 300
    y = np.arange(n) % 3
    X = np.eye(3)[y] + 2.5 * generator.normal(size=(n, 3))
    source = generator.integers(n, size=1500)
    target = (source + 3 * generator.integers(1, n // 3, size=1500)) % n
    few = np.where(np.arange(n) < 30, y, -1)
    model = DIFFormerClassifier(random_state=0).fit(X, few, np.stack([source, target]))
    assert sum(m.weight for m in model.members_ if m.name.startswith("graph")) > 0.5
    assert (model.transduction_ == y)[30:].mean() > 0.9


def test_rows_that_are_all_equal_are_not_compared_with_one_another() -> None:
    """Three distinct rows: a row's partners would be its copies, thousands of them."""
    X = np.eye(3)[np.arange(90) % 3]
    few = np.where(np.arange(90) < 30, np.arange(90) % 3, -1)
    model = DIFFormerClassifier(random_state=0).fit(X, few)
    assert not any("sharp" in name for name in model.candidates_)
    assert (model.transduction_ == np.arange(90) % 3).all()


def test_the_same_seed_gives_the_same_bits_and_the_global_generator_is_left_alone() -> None:
    X, _, few = moons()
    before = torch.get_rng_state()
    first = DIFFormerClassifier(random_state=3).fit(X, few)
    assert torch.equal(before, torch.get_rng_state())
    again = DIFFormerClassifier(random_state=3).fit(X, few)
    assert np.array_equal(first.label_distributions_, again.label_distributions_)
    assert first.candidates_ == again.candidates_


def test_what_was_tried_is_told_and_the_weights_sum_to_one() -> None:
    X, _, few = moons()
    model = DIFFormerClassifier(random_state=0).fit(X, few)
    names = [member.name for member in model.members_]
    assert set(names) <= set(model.candidates_)
    assert sum(member.weight for member in model.members_) == pytest.approx(1)
    assert {"loss", "accuracy", "ece"} <= set(model.validation_)
    assert set(model.held_out_rows_) <= set(np.flatnonzero(few >= 0))


def test_a_time_budget_leaves_at_least_one_form() -> None:
    X, _, few = moons()
    model = DIFFormerClassifier(random_state=0, time_budget=1e-9).fit(X, few)
    assert len(model.candidates_) == 1


@pytest.mark.parametrize("labels", [1, 2])
def test_one_or_two_labels_per_class_are_enough_to_fit(labels: int) -> None:
    X, y, few = moons(labels)
    model = DIFFormerClassifier(random_state=0).fit(X, few)
    assert (model.transduction_ == y).mean() > 0.6


def test_one_label_per_class_is_enough_on_a_graph() -> None:
    X, y, few = moons(1, n=60)
    ring = np.stack([np.arange(60), (np.arange(60) + 1) % 60])
    model = DIFFormerClassifier(epochs=5, random_state=0).fit(X, few, ring)
    assert model.validation_ == {}
    assert (model.transduction_[few >= 0] == y[few >= 0]).all()


def test_new_rows_are_answered_as_they_would_be_in_fit() -> None:
    X, y = load_wine(return_X_y=True)
    few = np.where(np.arange(len(y)) % 4 == 0, y, -1)
    model = DIFFormerClassifier(random_state=0).fit(X, few)
    assert np.array_equal(model.predict_proba(X), model.label_distributions_)
    part = model.predict_proba(X[5:60])  # these rows are new: they meet the rows of fit
    assert abs(part - model.label_distributions_[5:60]).max() < 1e-6


def test_members_are_saved(tmp_path) -> None:
    X, y = load_wine(return_X_y=True)
    few = np.where(np.arange(len(y)) % 4 == 0, y, -1)
    model = DIFFormerClassifier(random_state=0).fit(X, few)
    model.save(tmp_path / "m.safetensors")
    again = DIFFormerClassifier.load(tmp_path / "m.safetensors")
    assert [m.name for m in again.members_] == [m.name for m in model.members_]
    assert np.array_equal(again.predict_proba(X[:9]), model.predict_proba(X[:9]))
    assert np.array_equal(again.held_out_rows_, model.held_out_rows_)
    assert np.array_equal(again.held_out_outputs_, model.held_out_outputs_)


def test_regression_by_default_beats_the_mean_by_far() -> None:
    generator = np.random.default_rng(0)
    X = generator.uniform(-1, 1, size=(200, 3))
    y = np.sin(3 * X[:, 0]) + X[:, 1]
    known = np.where(np.arange(200) < 60, y, np.nan)
    model = DIFFormerRegressor(random_state=0).fit(X, known)
    error = np.mean((model.transduction_[60:] - y[60:]) ** 2) / y.var()
    assert error < 0.2
