"""recipe="auto": held-out labels decide which forms of the model answer, and how much."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.datasets import load_digits, load_wine, make_moons

from difformer import DIFFormerClassifier, DIFFormerRegressor
from difformer.data.dataset import csr_tensor
from difformer.data.table.encoder import TableEncoder
from difformer.estimators.forms import CENTRES, STEPS, Form, View, learn_view
from difformer.estimators.outcome import Judged, Outcome, judge, weighed
from difformer.estimators.search import Search
from difformer.metrics import METRICS, TEMPERED
from difformer.train.objective import CrossEntropy

Problem = tuple[np.ndarray, np.ndarray, np.ndarray, Any]
"""Features, classes, the few that are known, and edges."""


def moons(labels: int = 3, n: int = 240) -> Problem:
    X, y = make_moons(n, noise=0.08, random_state=0)
    known = np.concatenate([np.flatnonzero(y == c)[:labels] for c in (0, 1)])
    few = np.full(n, -1)
    few[known] = y[known]
    return X, y, few, None


def digits() -> Problem:
    """Three labels per digit: neighbours tell far more than a line through the labels does."""
    X, y = (part[:600] for part in load_digits(return_X_y=True))
    few = np.full(600, -1)
    for digit in range(10):
        few[np.flatnonzero(y == digit)[:3]] = digit
    return X, y, few, None


def unlike(n: int = 200) -> Problem:
    """Edges join rows of other classes: averaging cannot learn it, a map of its own can."""
    generator = np.random.default_rng(0)
    y = np.arange(n) % 2
    X = generator.normal(size=(n, 4)) + 0.6 * y[:, None]
    left, right = np.flatnonzero(y == 0), np.flatnonzero(y == 1)
    edges = np.stack([generator.choice(left, 800), generator.choice(right, 800)])
    return X, y, np.where(generator.random(n) < 0.4, y, -1), edges


def bent() -> Problem:
    """Two of six columns decide together: no sum of functions of single columns can tell."""
    X = np.random.default_rng(0).normal(size=(700, 6))
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    return X, y, np.where(np.arange(700) < 350, y, -1), None


def ring() -> Problem:
    """A class around another: no column by itself tells, how near a row is to others does."""
    generator = np.random.default_rng(0)
    y = np.arange(600) % 2
    X = generator.normal(size=(600, 8)) * np.where(y == 1, 2.0, 0.7)[:, None]
    return X, y, np.where(np.arange(600) < 20, y, -1), None


def alike(n: int = 300) -> Problem:
    """Rows say next to nothing, their neighbours are of their class: averages answer."""
    generator = np.random.default_rng(0)
    y = np.arange(n) % 3
    X = np.eye(3)[y] + 2.5 * generator.normal(size=(n, 3))
    source = generator.integers(n, size=1500)
    target = (source + 3 * generator.integers(1, n // 3, size=1500)) % n
    return X, y, np.where(np.arange(n) < 30, y, -1), np.stack([source, target])


def copies() -> Problem:
    """Three distinct rows: a row's partners would be its copies, so rows are not compared."""
    y = np.arange(90) % 3
    return np.eye(3)[y], y, np.where(np.arange(90) < 30, y, -1), None


@pytest.mark.parametrize(
    ("problem", "form", "least"),
    [
        (digits, "sharp", 0.77),  # a line through the labels: 0.74
        (unlike, "transforming", 0.9),
        (bent, "long", 0.9),
        (ring, "near", 0.93),
        (alike, "graph", 0.9),
        (copies, "linear", 1.0),
        (lambda: moons(1), "", 0.6),
        (lambda: moons(2), "", 0.6),
    ],
)
def test_the_form_that_suits_the_rows_answers(problem: Any, form: str, least: float) -> None:
    X, y, few, edges = problem()
    model = DIFFormerClassifier(random_state=0).fit(X, few, edges)
    assert sum(m.weight for m in model.members_ if form in m.name) > 0.3
    assert (model.transduction_ == y)[few < 0].mean() >= least
    assert problem is not copies or not any("sharp" in name for name in model.candidates_)


def test_a_form_that_is_probed_and_then_trained_on_is_kept_in_two_folders(tmp_path: Path) -> None:
    """Both fits are resumed each by itself, and to the same bits as without a folder."""
    X, _, few, edges = unlike()
    quick: dict[str, Any] = {"epochs": 80, "random_state": 0}
    kept = DIFFormerClassifier(checkpoint=tmp_path, **quick).fit(X, few, edges)
    epochs = {path.name.split(", ")[-1] for path in tmp_path.glob("transforming*validated")}
    assert len(epochs) > 1
    for folder in (None, tmp_path):
        again = DIFFormerClassifier(checkpoint=folder, **quick).fit(X, few, edges)
        assert (again.label_distributions_ == kept.label_distributions_).all()


def test_ctrl_c_while_a_form_is_trained_ends_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop stops after its epoch: a form trained that far must not count as tried."""
    trained = Search.train

    def interrupted(self: Search, *given: Any) -> Any:
        model, result = trained(self, *given)
        return model, replace(result, stopped="interrupted")

    monkeypatch.setattr(Search, "train", interrupted)
    X, _, few, edges = unlike()
    with pytest.raises(KeyboardInterrupt):
        DIFFormerClassifier(random_state=0).fit(X, few, edges)


def test_the_same_seed_gives_the_same_bits_and_what_was_tried_is_told() -> None:
    X, _, few, _ = moons()
    before = torch.get_rng_state()
    first, again = (DIFFormerClassifier(random_state=3).fit(X, few) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(first.label_distributions_, again.label_distributions_)
    assert first.candidates_ == again.candidates_
    assert {member.name for member in first.members_} <= set(first.candidates_)
    assert sum(member.weight for member in first.members_) == pytest.approx(1)
    assert {"loss", "accuracy", "ece"} <= set(first.validation_)
    assert first.choice_.startswith("tried ")
    assert set(first.held_out_rows_) <= set(np.flatnonzero(few >= 0))
    first.set_params(time_budget=1e-9).fit(X, few)  # at least one form
    assert len(first.candidates_) == 1


def test_one_label_per_class_is_enough_on_a_graph() -> None:
    X, y, few, _ = moons(1, n=60)
    circle = np.stack([np.arange(60), (np.arange(60) + 1) % 60])
    model = DIFFormerClassifier(epochs=5, random_state=0).fit(X, few, circle)
    assert model.validation_ == {}
    assert (model.transduction_[few >= 0] == y[few >= 0]).all()


def test_new_rows_are_answered_as_they_would_be_in_fit_and_members_are_saved(
    tmp_path: Path,
) -> None:
    X, y = load_wine(return_X_y=True)
    few = np.where(np.arange(len(y)) % 4 == 0, y, -1)
    model = DIFFormerClassifier(random_state=0).fit(X, few)
    assert np.array_equal(model.predict_proba(X), model.label_distributions_)
    part = model.predict_proba(X[5:60])  # these rows are new: they meet the rows of fit
    assert abs(part - model.label_distributions_[5:60]).max() < 1e-6
    model.save(tmp_path / "m.safetensors")
    again = DIFFormerClassifier.load(tmp_path / "m.safetensors")
    assert [m.name for m in again.members_] == [m.name for m in model.members_]
    assert np.array_equal(again.predict_proba(X[5:60]), part)
    assert np.array_equal(again.held_out_rows_, model.held_out_rows_)
    assert np.array_equal(again.held_out_outputs_, model.held_out_outputs_)


def test_regression_by_default_beats_the_mean_by_far() -> None:
    X = np.random.default_rng(0).uniform(-1, 1, size=(200, 3))
    y = np.sin(3 * X[:, 0]) + X[:, 1]
    model = DIFFormerRegressor(random_state=0).fit(X, np.where(np.arange(200) < 60, y, np.nan))
    assert np.mean((model.transduction_[60:] - y[60:]) ** 2) / y.var() < 0.2


# --- judged by held-out labels -------------------------------------------------------------------


def weights(*losses: list[float], doubt: float = 1.0) -> list[float]:
    tensors = [torch.tensor(each) for each in losses]
    judged = [Judged(Form("f", {}), each.unsqueeze(1), each, 1.0) for each in tensors]
    return [one.weight for one in weighed(judged, doubt)]


def test_forms_that_cannot_be_told_apart_count_alike_and_a_worse_one_does_not() -> None:
    equal, nan = [0.1, 0.5, 0.3, 0.7], float("nan")
    worse = [value + 2 + 0.01 * i for i, value in enumerate(equal)]
    assert weights(equal, equal, worse) == pytest.approx([0.5, 0.5, 0.0])
    # On the rows that both were judged by.
    assert weights([0.1, 0.2, 5.0, 6.0], [0.1, 0.2, nan, nan]) == pytest.approx([0.5, 0.5])
    # Doubt about the errors lets a slightly worse form count more.
    slightly = [0.2, 0.4, 0.6, 0.8]
    plain, doubted = (weights(equal, slightly, doubt=d)[1] for d in (1.0, 1.4))
    assert 0 < plain < doubted < 0.5


def test_the_temperature_is_that_of_the_held_out_rows() -> None:
    """Outputs four times too large are divided by about four, and picked by the loss after that."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4000, 3, generator=generator)
    y = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    rows = torch.arange(4000)
    found = judge(Form("f", {}), Outcome("multiclass", (3,)), y, [(rows, 4 * logits)], rows)
    assert found.temperature == pytest.approx(4, rel=0.1)
    expected = torch.nn.functional.cross_entropy(logits, y)
    assert found.loss == pytest.approx(float(expected), abs=0.01)
    probabilities = (4 * logits / found.temperature).softmax(1)
    torch.testing.assert_close(found.outputs.softmax(1), probabilities)
    objective = CrossEntropy(monitor=METRICS[TEMPERED])
    plain, large = (objective.metrics(logits * c, y, rows) for c in (1.0, math.e))
    assert large["loss"] > plain["loss"] >= plain[TEMPERED]
    assert large[TEMPERED] == pytest.approx(plain[TEMPERED], abs=1e-6)


@pytest.mark.parametrize("outcome", [Outcome("multiclass", (3,)), Outcome("multilabel")])
def test_combined_outputs_are_the_mean_of_probabilities(outcome: Outcome) -> None:
    a, b = torch.randn(5, 3), torch.randn(5, 3)
    turn = torch.sigmoid if outcome.task == "multilabel" else lambda t: t.softmax(1)
    found = turn(outcome.combine([(a, 0.25, 2.0), (b, 0.75, 1.0)]))
    torch.testing.assert_close(found, 0.25 * turn(a / 2) + 0.75 * turn(b))


# --- views ----------------------------------------------------------------------------------------


def seen(kind: str, x: np.ndarray) -> tuple[View | None, torch.Tensor, np.ndarray]:
    """A view of the columns of an array, their encoding, and what is seen of it."""
    encoder = TableEncoder.of_numbers(x, [str(j) for j in range(x.shape[1])])
    encoded = torch.from_numpy(encoder.encode_array(x))
    view = learn_view(kind, encoded, encoder)
    return view, encoded, np.empty(0) if view is None else view.apply(encoded).numpy()


def test_steps_see_ranks_not_values() -> None:
    """A monotone change of a column hardly changes what its steps say."""
    x = np.random.default_rng(0).normal(size=(300, 2))
    first, second = seen("steps", x)[2], seen("steps", np.exp(3 * x))[2]
    assert first.shape == (300, 2 * STEPS)
    assert np.corrcoef(first.ravel(), second.ravel())[0, 1] > 0.9


def test_the_common_view_keeps_the_unit_that_columns_share() -> None:
    x = np.random.default_rng(0).normal(size=(50, 3)) * [1, 2, 4]
    ratio = seen("common", x)[2].std(0) / x.std(0)
    assert ratio.max() == pytest.approx(ratio.min(), rel=1e-3)
    # A view that would be no other, or that of few distinct rows, is left out.
    assert seen("common", x / x.std(0))[0] is None
    assert seen("near", np.tile(np.eye(4), (20, 1)))[0] is None


def test_nearness_has_the_bits_of_any_batch_and_falls_with_the_distance() -> None:
    view, x, whole = seen("near", np.random.default_rng(0).normal(size=(300, 3)))
    assert view is not None
    assert whole.shape == (300, CENTRES)
    for rows in (slice(0, 1), slice(7, 90)):
        np.testing.assert_array_equal(view.apply(x[rows]).numpy(), whole[rows])
    own = {name: array.numpy() for name, array in view.arrays.items()}
    distance = np.linalg.norm(own["centres"] - x[0].numpy(), axis=1)
    nearness = whole[0] / own["scale"] + own["shift"]
    assert (np.diff(nearness[np.argsort(distance)]) < 1e-6).all()
    assert whole.var(0).sum() == pytest.approx(x.numpy().var(0).sum(), rel=0.01)


@pytest.mark.parametrize(("kind", "names"), [("steps", ["shift", "scale"]), ("plain", ["knots"])])
def test_a_view_without_its_arrays_or_with_others_is_refused(kind: str, names: list[str]) -> None:
    with pytest.raises(ValueError, match=f"view '{kind}' with the arrays"):
        View(kind, {name: torch.ones(3) for name in names})


def test_sparse_rows_are_compared_by_their_direction() -> None:
    X = sparse.random(40, 30, density=0.2, random_state=0, format="csr")
    once, thrice = (View("standard").apply(csr_tensor(c * X)).to_dense() for c in (1, 3))
    lengths = once.norm(dim=1).numpy()
    assert np.allclose(lengths[np.diff(X.indptr) > 0], 10.0, rtol=1e-5)
    torch.testing.assert_close(once, thrice, rtol=1e-5, atol=0)
