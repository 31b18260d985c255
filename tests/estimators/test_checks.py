"""scikit-learn's own checks, each exception with its reason."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from difformer import DIFFormerClassifier, DIFFormerRegressor

WEIGHTS = (
    "a row of weight zero, or a repeated one, still takes part in the diffusion of all rows: "
    "sample_weight weighs the loss only"
)
EXCEPTIONS: dict[type, dict[str, str]] = {
    DIFFormerClassifier: {
        "check_sample_weight_equivalence_on_dense_data": WEIGHTS,
        "check_sample_weight_equivalence_on_sparse_data": WEIGHTS,
        "check_classifiers_classes": (
            "it names a class -1, which marks unlabelled rows here as in sklearn.semi_supervised; "
            "it passes with unlabelled=None, see below"
        ),
    },
    DIFFormerRegressor: {
        "check_sample_weight_equivalence_on_dense_data": WEIGHTS,
        "check_sample_weight_equivalence_on_sparse_data": WEIGHTS,
    },
}


def exceptions(estimator: Any) -> dict[str, str]:
    known = dict(EXCEPTIONS[type(estimator)])
    if isinstance(estimator, DIFFormerClassifier) and estimator.unlabelled is None:
        del known["check_classifiers_classes"]
    return known


ESTIMATORS = [
    DIFFormerClassifier(epochs=3, hidden_channels=16),
    DIFFormerRegressor(epochs=3, hidden_channels=16),
]
# The checks that ask how well it has learned.
EPOCHS = {"check_classifiers_train": 10, "check_regressors_train": 40}


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=exceptions)
def test_it_passes_the_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator.set_params(epochs=EPOCHS.get(check.func.__name__, estimator.epochs)))


@pytest.mark.filterwarnings("ignore")
def test_minus_one_can_be_a_class() -> None:
    from sklearn.utils.estimator_checks import check_classifiers_classes

    model = DIFFormerClassifier(unlabelled=None, epochs=60, hidden_channels=16)
    check_classifiers_classes("DIFFormerClassifier", model)
