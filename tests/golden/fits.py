"""Predictions of the estimators on small data: the first rows, the mean, and the labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from doors import numbers, rows

from difformer import DIFFormerClassifier, DIFFormerForecaster, DIFFormerRegressor

N = 60


def table(columns: int = 5, n: int = N, seed: int = 0) -> tuple[Any, Any]:
    """Dense rows and a number that depends on them."""
    X = np.array(numbers(n, columns, seed))
    return X, X[:, 0] - 0.5 * X[:, 1] * X[:, 2]


def classes(n: int = N) -> tuple[Any, Any]:
    """Rows of three classes; every third label is unknown (-1)."""
    X, t = table(n=n)
    y = np.digitize(t, [-0.5, 0.5])
    y[::3] = -1
    return X, y


def ring(n: int = N) -> Any:
    """Edges of a ring with chords, as a pair of rows."""
    ends = [(i, (i + step) % n) for i in range(n) for step in (1, 9)]
    return np.array(ends).T


def proba(model: Any, X: Any, new: Any) -> dict[str, Any]:
    """What a classifier answers for the rows of fit and for new ones."""
    known, later = model.predict_proba(X), model.predict_proba(new)
    return {
        "known": rows(known),
        "known mean": np.mean(known, axis=0).tolist(),
        "new": rows(later, 8),
        "labels": np.asarray(model.predict(X))[:20].tolist(),
        "score": float(model.score(new, model.predict(new))),
    }


def values(model: Any, X: Any, new: Any) -> dict[str, Any]:
    """What a regressor answers for the rows of fit and for new ones."""
    return {
        "known": rows(model.predict(X)),
        "known mean": np.mean(model.predict(X), axis=0).tolist(),
        "new": rows(model.predict(new), 8),
    }


def classifier(**options: Any) -> dict[str, Any]:
    """A classifier on dense rows."""
    X, y = classes()
    model = DIFFormerClassifier(epochs=20, random_state=0, **options).fit(X, y)
    return proba(model, X, table(n=8, seed=7)[0])


def sparse() -> dict[str, Any]:
    """Rows of a CSR matrix of counts."""
    from scipy.sparse import csr_matrix

    X, y = classes()
    counts = csr_matrix(np.maximum(np.round(np.hstack([X, -X])), 0))
    model = DIFFormerClassifier(recipe="stable", epochs=20, random_state=0).fit(counts, y)
    return proba(model, counts, counts[:8])


def graph(directed: bool = False) -> dict[str, Any]:
    """Rows with a graph of their own."""
    X, y = classes()
    model = DIFFormerClassifier(recipe="stable", epochs=20, random_state=0, directed=directed)
    model.fit(X, y, graph=ring())
    return proba(model, X, table(n=8, seed=7)[0])


def several_labels() -> dict[str, Any]:
    """Two columns of yes or no."""
    X, t = table()
    y = np.stack([t > 0, X[:, 3] > 0], axis=1).astype(int)
    model = DIFFormerClassifier(recipe="stable", epochs=20, random_state=0).fit(X, y)
    known = model.predict_proba(X)
    return {"known": rows(np.asarray(known)), "labels": rows(np.asarray(model.predict(X)))}


def regression(columns: int = 1, **options: Any) -> dict[str, Any]:
    """Numbers of one or several columns."""
    X, t = table()
    y = t if columns == 1 else np.stack([t, X[:, 3] ** 2], axis=1)
    model = DIFFormerRegressor(epochs=20, random_state=0, **options).fit(X, y)
    return values(model, X, table(n=8, seed=7)[0])


def mixed() -> dict[str, Any]:
    """A data frame with numbers, categories, dates and missing cells."""
    import pandas as pd

    X, y = classes()
    frame = pd.DataFrame(
        {
            "a": X[:, 0],
            "b": np.where(X[:, 1] > 1, np.nan, X[:, 1]),
            "town": pd.Categorical(np.where(X[:, 2] > 0, "Rome", "Oslo")),
            "when": pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(N), unit="D"),
        }
    )
    model = DIFFormerClassifier(recipe="stable", epochs=20, random_state=0).fit(frame, y)
    return proba(model, frame, frame.iloc[:8])


def views() -> dict[str, Any]:
    """Embeddings, influence, held-out figures and intervals of one fit."""
    X, y = classes()
    model = DIFFormerClassifier(
        recipe="stable", hidden_channels=8, epochs=20, random_state=0, early_stopping=True
    ).fit(X, y)
    return {"transform": rows(model.transform(X), 5), "classes": model.classes_.tolist()}


def forecast(**options: Any) -> dict[str, Any]:
    """Forecasts of four nodes, and the same after newer values."""
    import math

    steps = [
        [10 + math.sin(2 * math.pi * (t + 2 * k) / 7) + 0.1 * e for k, e in enumerate(noise)]
        for t, noise in enumerate(numbers(80, 4, seed=2))
    ]
    series = np.array(steps)
    graph = options.pop("graph", None)
    model = DIFFormerForecaster(epochs=10, random_state=0, **options)
    model.fit(series[:70], graph=graph)
    return {"next": model.predict(4).tolist()}


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "fits-default": lambda: classifier(recipe="auto"),
    "fits-stable": lambda: classifier(recipe="stable"),
    "fits-paper": lambda: classifier(recipe="paper"),
    "fits-sigmoid": lambda: classifier(recipe="stable", kernel="sigmoid"),
    "fits-sharp": lambda: classifier(recipe="alone", kernel="sharp"),
    "fits-gaussian": lambda: classifier(recipe="stable", kernel="gaussian"),
    "fits-landmarks": lambda: classifier(
        recipe="stable", kernel="landmarks", options={"compare": "input"}
    ),
    "fits-kernel-auto": lambda: classifier(recipe="stable", kernel="auto", early_stopping=True),
    "fits-knn": lambda: classifier(recipe="stable", graph="knn"),
    "fits-graph-auto": lambda: classifier(recipe="stable", graph="auto", early_stopping=True),
    "fits-consistency": lambda: classifier(recipe="stable", consistency=1.0),
    "fits-sparse": sparse,
    "fits-graph": graph,
    "fits-directed": lambda: graph(directed=True),
    "fits-several-labels": several_labels,
    "fits-regression": lambda: regression(recipe="stable"),
    "fits-regression-default": regression,
    "fits-regression-columns": lambda: regression(columns=2, recipe="stable"),
    "fits-mixed": mixed,
    "fits-views": views,
    "fits-forecast": forecast,
    "fits-forecast-graph": lambda: forecast(
        graph=np.array([[0, 1, 2], [1, 2, 3]]), lags=7, horizon=4
    ),
}
