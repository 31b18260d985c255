"""Views of the features: ranks, common units, distances to centres, directions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from difformer.data.table.encoder import TableEncoder
from difformer.estimators.views import CENTRES, STEPS, View, learn_view


def test_steps_see_ranks_not_values() -> None:
    """A monotone change of a column hardly changes what its steps say."""
    x = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
    one, other = x, np.exp(3 * x).astype(np.float32)
    views = [learn_view("steps", t, TableEncoder.of_numbers(t, ["a", "b"])) for t in (one, other)]
    first, second = (view.apply(t) for view, t in zip(views, (one, other), strict=True))
    assert first.shape == (300, 2 * STEPS)
    assert np.corrcoef(first.ravel(), second.ravel())[0, 1] > 0.9


def test_the_common_view_keeps_the_unit_that_columns_share() -> None:
    x = np.random.default_rng(0).normal(size=(50, 3)) * [1, 2, 4]
    encoder = TableEncoder.of_numbers(x, ["a", "b", "c"])
    seen = learn_view("common", encoder.encode_array(x), encoder).apply(encoder.encode_array(x))
    ratio = seen.std(0) / x.std(0)
    assert ratio.max() == pytest.approx(ratio.min(), rel=1e-3)


def test_a_view_that_would_be_no_other_is_left_out() -> None:
    x = np.random.default_rng(0).normal(size=(50, 3))
    x = (x - x.mean(0)) / x.std(0)
    encoder = TableEncoder.of_numbers(x, ["a", "b", "c"])
    assert learn_view("common", encoder.encode_array(x), encoder) is None


def test_nearness_has_the_bits_of_any_batch_and_falls_with_the_distance() -> None:
    x = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    view = learn_view("near", x, TableEncoder.of_numbers(x, ["a", "b", "c"]))
    assert view is not None
    whole = view.apply(x)
    assert whole.shape == (300, CENTRES)
    for rows in (slice(0, 1), slice(7, 90)):
        np.testing.assert_array_equal(view.apply(x[rows]), whole[rows])
    distance = np.linalg.norm(view.centres - x[0], axis=1)
    nearness = whole[0] / view.scale + view.shift
    assert (np.diff(nearness[np.argsort(distance)]) < 1e-6).all()
    assert whole.var(0).sum() == pytest.approx(x.var(0).sum(), rel=0.01)


def test_a_table_of_few_distinct_rows_is_not_seen_through_centres() -> None:
    x = np.tile(np.eye(4, dtype=np.float32), (20, 1))
    assert learn_view("near", x, TableEncoder.of_numbers(x, list("abcd"))) is None


@pytest.mark.parametrize(("kind", "names"), [("steps", ["shift", "scale"]), ("plain", ["knots"])])
def test_a_view_without_its_arrays_or_with_others_is_refused(kind: str, names: list[str]) -> None:
    with pytest.raises(ValueError, match=f"view '{kind}' with the arrays"):
        View.from_tensors(kind, {name: torch.ones(3) for name in names})


def test_sparse_rows_are_compared_by_their_direction() -> None:
    X = sparse.random(40, 30, density=0.2, random_state=0, format="csr")
    view = learn_view("standard", X, None)
    lengths = np.sqrt(view.apply(X).multiply(view.apply(X)).sum(1))
    filled = np.diff(X.indptr) > 0
    assert np.allclose(lengths[filled], 10.0, rtol=1e-5)
    assert np.allclose(view.apply(3 * X).toarray(), view.apply(X).toarray(), rtol=1e-5)
