"""Numbers learned from a stream: their scale and, where they are few, their values."""

from __future__ import annotations

import numpy as np
import pytest

from difformer.data.table.columns import Numbers, standardise


@pytest.mark.parametrize("outlier", [False, True])
def test_numbers_learned_from_a_stream_are_those_of_all(outlier: bool) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(100, 3, 50_000)
    values[7] = 1e9 if outlier else values[7]
    values[3] = np.nan
    streamed = Numbers(most=1000)
    for chunk in np.array_split(values, 37):
        streamed.add(chunk)
    assert streamed.missing
    assert len(streamed.sample()) <= 2000
    found, exact = streamed.scale(), [float(v[0]) for v in standardise(values[:, None])]
    loose = 0.05 if outlier else 1e-12  # the sample says what is usual where some are not
    np.testing.assert_allclose(found[:2], exact[:2], rtol=loose)
    np.testing.assert_allclose(found[2:], exact[2:], rtol=max(loose, 1e-9), atol=3)


@pytest.mark.parametrize("deviation", [1e5, 1e3, 10.0])
def test_labels_keep_their_deviation_however_far_from_zero(deviation: float) -> None:
    values = np.random.default_rng(0).normal(0, deviation, (500, 1))
    _, scale, _, _ = standardise(1.7e15 + values, clip=False)
    assert scale[0] == pytest.approx(values.std(), rel=0.05)
    assert standardise(np.full((500, 1), 1.7e15 / 3), clip=False)[1][0] == 1


def test_few_different_numbers_are_all_known() -> None:
    streamed = Numbers(most=100)
    for start in range(0, 10_000, 500):
        streamed.add(np.full(500, 1.0 if start != 7000 else 2.0))
    assert np.array_equal(streamed.distinct, [1, 2])
    one = Numbers(most=10)
    for _ in range(9):
        one.add(np.full(10, 4.0))
    assert one.scale()[:2] == (4.0, 1.0)
