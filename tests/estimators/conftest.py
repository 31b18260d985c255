"""Small real data for the estimators, and models fitted once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_iris

from difformer import DIFFormerClassifier

Array = NDArray[Any]
QUICK: dict[str, Any] = {"epochs": 30, "hidden_channels": 16, "random_state": 0}


@pytest.fixture(scope="session")
def iris() -> tuple[Array, Array]:
    """X and y, shuffled."""
    X, y = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return X[order], y[order]


@pytest.fixture(scope="session")
def few(iris: tuple[Array, Array]) -> Array:
    """y with every label from row 30 on unknown."""
    y = iris[1].copy()
    y[30:] = -1
    return y


@pytest.fixture(scope="session")
def alone(iris: tuple[Array, Array], few: Array) -> DIFFormerClassifier:
    """Fitted without a graph."""
    return DIFFormerClassifier(**QUICK).fit(iris[0], few)


@pytest.fixture(scope="session")
def joined(iris: tuple[Array, Array], few: Array) -> DIFFormerClassifier:
    """Fitted with a graph of nearest neighbours."""
    return DIFFormerClassifier(graph="knn", **QUICK).fit(iris[0], few)


@pytest.fixture
def without_classical(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """statsforecast takes seconds: only the tests of it wait for it."""
    if "classical" not in request.node.name:
        monkeypatch.setattr("difformer.estimators.backtest.MOST_NODES", 0)
