"""Parameters: one that the recipe does not use is refused; "auto" chooses a form by validation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from difformer import DIFFormerClassifier, DIFFormerRegressor
from difformer.errors import RunError
from difformer.estimators import forms
from difformer.estimators.search import Search
from difformer.estimators.settings import FitSettings

Array = NDArray[Any]
Iris = tuple[Array, Array]
QUICK: dict[str, Any] = {"epochs": 4, "hidden_channels": 8, "random_state": 0}
LONGER: dict[str, Any] = {"epochs": 30, "hidden_channels": 16, "random_state": 0}
OF_ONE_FORM: dict[str, Any] = {
    "lr": 1e-9,
    "weight_decay": 10,
    "consistency": 1,
    "early_stopping": True,
    "patience": 3,
    "pick_by": "accuracy",
    "validation_fraction": 0.4,
}


@pytest.mark.parametrize("name", OF_ONE_FORM)
def test_the_default_recipe_refuses_what_is_set_for_each_form(
    name: str, iris: Iris, few: Array
) -> None:
    model = DIFFormerClassifier(**{name: OF_ONE_FORM[name]}, **QUICK)
    with pytest.raises(ValueError, match=f'^{name} must be left at .*"auto".* stable, alone'):
        model.fit(iris[0], few)


@pytest.mark.parametrize("form", [{"recipe": "alone"}, {"kernel": "simple"}])
def test_one_form_refuses_what_only_the_search_or_held_out_rows_use(
    form: dict[str, Any], iris: Iris, few: Array
) -> None:
    for name, value, used_by in (
        ("time_budget", 9.0, 'recipe "auto"'),
        ("patience", 3, "early_stopping=True"),
        ("pick_by", "accuracy", "early_stopping=True"),
        ("validation_fraction", 0.4, "early_stopping=True"),
    ):
        model = DIFFormerClassifier(**{name: value}, **form, **QUICK)
        with pytest.raises(ValueError, match=f"^{name} must be left at .*{used_by}"):
            model.fit(iris[0], few)


@pytest.mark.parametrize(("name", "value"), [("n_neighbors", 3), ("metric", "cosine")])
def test_only_neighbours_use_what_is_said_about_them(
    name: str, value: Any, iris: Iris, few: Array
) -> None:
    """Edges of one's own, or none: what would find neighbours is refused."""
    model = DIFFormerClassifier(recipe="alone", **{name: value}, **QUICK)
    for graph in (None, [[0, 1], [1, 2]]):
        with pytest.raises(ValueError, match=f'^{name} must be left at .*graph="knn" or "auto"'):
            model.fit(iris[0], few, graph)
    model.fit(iris[0], few, "knn")
    model.set_params(graph="knn").fit(iris[0], few, [[0, 1], [1, 2]])  # edges take its place


@pytest.mark.parametrize("name", ["lr", "weight_decay", "consistency", "early_stopping"])
def test_what_one_form_takes_changes_its_predictions(name: str, iris: Iris, few: Array) -> None:
    one: dict[str, Any] = {"recipe": "alone", **QUICK}
    plain = DIFFormerClassifier(**one).fit(iris[0], few)
    changed = DIFFormerClassifier(**one, **{name: OF_ONE_FORM[name]}).fit(iris[0], few)
    assert not np.array_equal(plain.label_distributions_, changed.label_distributions_)
    if name == "early_stopping":  # the share of the labels, or rows that are given
        changed.set_params(validation_fraction=0.4, patience=3, pick_by="accuracy")
        assert len(changed.fit(iris[0], few).split_.val) == 12
        given = changed.set_params(early_stopping=False, patience=50, validation_fraction=0.2)
        assert given.fit(iris[0], few, validation=[0, 1, 2]).best_epoch_ > 0


def test_a_share_to_hold_out_is_refused_beside_the_rows_to_hold_out(iris: Iris, few: Array) -> None:
    model = DIFFormerClassifier(recipe="alone", validation_fraction=0.4, **QUICK)
    with pytest.raises(ValueError, match="^validation_fraction must be left at 0.2: validation"):
        model.fit(iris[0], few, validation=[0, 1, 2])


def test_numbers_have_no_consistency(iris: Iris) -> None:
    model = DIFFormerRegressor(recipe="alone", consistency=1, **QUICK)
    with pytest.raises(ValueError, match=r"consistency must be left at 0.0.* one class per row"):
        model.fit(iris[0][:, :2], iris[0][:, 2])


def test_the_parameters_that_a_recipe_does_not_use_are_known_without_a_fit() -> None:
    assert set(FitSettings().unused) == set(OF_ONE_FORM)
    assert set(FitSettings(recipe="stable").unused) == {"time_budget", "patience"}


# --- chosen by validation -------------------------------------------------------------------------


def test_auto_trains_the_kernel_that_validates_better_on_every_label(
    iris: Iris, few: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    auto = DIFFormerClassifier(kernel="auto", **LONGER).fit(iris[0], few)
    assert set(auto.candidates_) == {"simple", "sigmoid"}
    assert auto.candidates_[auto.kernel_] == max(auto.candidates_.values())
    alone = DIFFormerClassifier(kernel=auto.kernel_, **LONGER).fit(iris[0], few)
    assert auto.split_.train.tolist() == np.flatnonzero(few >= 0).tolist()
    assert np.array_equal(auto.label_distributions_, alone.label_distributions_)
    kept = DIFFormerClassifier(kernel="auto", graph="auto", early_stopping=True, **LONGER)
    kept.fit(iris[0], few)
    assert kept.split_.val.numel() > 0
    kernels = ("simple", "sigmoid")
    assert set(kept.candidates_) == {f"{g}-{k}" for g in ("none", "knn") for k in kernels}
    best = f"{'none' if kept.graph_ is None else 'knn'}-{kept.kernel_}"
    assert kept.candidates_[best] == max(kept.candidates_.values())
    # Where one kernel fits into memory, nothing is held out.
    monkeypatch.setattr(forms, "available_memory", lambda: 10**10)
    with pytest.warns(UserWarning, match="5,000² pairs"):
        assert forms.pick_kernels("auto", 5000, 128) == ["simple", "sigmoid"]
    monkeypatch.setattr(forms, "available_memory", lambda: 1000)
    auto = DIFFormerClassifier(kernel="auto", **LONGER).fit(iris[0], few)
    alone = DIFFormerClassifier(kernel="simple", **LONGER).fit(iris[0], few)
    assert np.array_equal(auto.label_distributions_, alone.label_distributions_)


@pytest.mark.parametrize(("gain", "kernel"), [(0.0, "simple"), (0.1, "sigmoid")])
def test_auto_takes_sigmoid_only_where_it_pays(
    iris: Iris, few: Array, monkeypatch: pytest.MonkeyPatch, gain: float, kernel: str
) -> None:
    whole = Search.train

    def train(self: Any, form: Any, split: Any) -> Any:
        model, result = whole(self, form, split)
        sigmoid = form.options["kernel"] == "sigmoid"
        # A lower loss alone does not pay.
        result.metrics["val"] = {"accuracy": 0.5 + gain * sigmoid, "loss": 1.0 - sigmoid}
        return model, result

    monkeypatch.setattr(Search, "train", train)
    assert DIFFormerClassifier(kernel="auto", **LONGER).fit(iris[0], few).kernel_ == kernel


def test_a_fit_kept_in_a_folder_goes_on_with_the_same_bits(
    iris: Iris, few: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from difformer.train.loop import Fit

    whole = DIFFormerClassifier(kernel="auto", **LONGER).fit(iris[0], few)
    kept = DIFFormerClassifier(kernel="auto", checkpoint=tmp_path / "kept", **LONGER)
    checkpoint = Fit._checkpoint
    calls: list[int] = []

    def dies(self: Any, now: bool) -> None:
        checkpoint(self, True)
        calls.append(1)
        if len(calls) in (3, LONGER["epochs"] + 4):  # in the first kernel's fit, and the second's
            raise RuntimeError("killed")

    monkeypatch.setattr(Fit, "_checkpoint", dies)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="killed"):
            kept.fit(iris[0], few)
    kept.fit(iris[0], few)
    assert np.array_equal(kept.label_distributions_, whole.label_distributions_)
    assert kept.candidates_ == whole.candidates_
    kept.save(tmp_path / "m.safetensors")
    assert DIFFormerClassifier.load(tmp_path / "m.safetensors").checkpoint is None
    with pytest.raises(RunError, match=r"another configuration \(data\.fingerprint"):
        kept.fit(iris[0] ** 2, few)
