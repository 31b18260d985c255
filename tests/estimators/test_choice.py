"""A form is chosen by validation, then trained on every label; a killed fit is resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from difformer import DIFFormerClassifier
from difformer.errors import RunError
from difformer.estimators import choice

Array = NDArray[Any]
QUICK: dict[str, Any] = {"epochs": 30, "hidden_channels": 16, "random_state": 0}
Iris = tuple[Array, Array]


def test_auto_takes_the_kernel_that_validates_better(iris: Iris, few: Array) -> None:
    model = DIFFormerClassifier(kernel="auto", **QUICK).fit(iris[0], few)
    assert set(model.candidates_) == {"simple", "sigmoid"}
    assert model.candidates_[model.kernel_] == max(model.candidates_.values())


def test_auto_trains_the_chosen_kernel_on_every_label(iris: Iris, few: Array) -> None:
    auto = DIFFormerClassifier(kernel="auto", **QUICK).fit(iris[0], few)
    alone = DIFFormerClassifier(kernel=auto.kernel_, **QUICK).fit(iris[0], few)
    assert auto.split_.train.tolist() == np.flatnonzero(few >= 0).tolist()
    assert np.array_equal(auto.label_distributions_, alone.label_distributions_)
    kept = DIFFormerClassifier(kernel="auto", early_stopping=True, **QUICK).fit(iris[0], few)
    assert kept.split_.val.numel() > 0
    assert set(kept.candidates_) == {"simple", "sigmoid"}


@pytest.mark.parametrize(("gain", "kernel"), [(0.0, "simple"), (0.1, "sigmoid")])
def test_auto_takes_sigmoid_only_where_it_pays(
    iris: Iris, few: Array, monkeypatch: pytest.MonkeyPatch, gain: float, kernel: str
) -> None:
    whole = choice.Training.fit

    def fit(self: Any, form: Any, split: Any) -> Any:
        found = whole(self, form, split)
        value = 0.5 + gain * (form.kernel == "sigmoid")
        loss = 1.0 - (form.kernel == "sigmoid")  # a lower loss alone does not pay
        found.result.metrics["val"] = {"accuracy": value, "loss": loss}
        return found

    monkeypatch.setattr(choice.Training, "fit", fit)
    assert DIFFormerClassifier(kernel="auto", **QUICK).fit(iris[0], few).kernel_ == kernel


def test_auto_takes_simple_where_sigmoid_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "available_memory", lambda: 10**10)
    assert choice.pick_kernels("auto", 4000, 64, 2) == ["simple", "sigmoid"]
    with pytest.warns(UserWarning, match="5,000² pairs"):
        assert choice.pick_kernels("auto", 5000, 64, 2) == ["simple", "sigmoid"]
    monkeypatch.setattr(choice, "available_memory", lambda: 1000)
    assert choice.pick_kernels("auto", 100, 64, 2) == ["simple"]


def test_auto_needs_no_validation_where_one_kernel_fits(
    iris: Iris, few: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "available_memory", lambda: 1000)
    auto = DIFFormerClassifier(kernel="auto", **QUICK).fit(iris[0], few)
    alone = DIFFormerClassifier(kernel="simple", **QUICK).fit(iris[0], few)
    assert np.array_equal(auto.label_distributions_, alone.label_distributions_)


def test_a_fit_kept_in_a_folder_goes_on_with_the_same_bits(
    iris: Iris, few: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from difformer.train.loop import Fit

    whole = DIFFormerClassifier(kernel="auto", **QUICK).fit(iris[0], few)
    kept = DIFFormerClassifier(kernel="auto", checkpoint=tmp_path / "kept", **QUICK)
    checkpoint = Fit._checkpoint
    calls: list[int] = []

    def dies(self: Any, now: bool) -> None:
        checkpoint(self, True)
        calls.append(1)
        if len(calls) in (3, QUICK["epochs"] + 4):  # in the first kernel's fit, and the second's
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
