"""Cells of text as numbers."""

from __future__ import annotations

import numpy as np
import pytest

from difformer.data.table.cells import THOUSANDS, read_numbers


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        ("1,234.5", 1234.5),
        ("999", 999),
        ("20000", 20000),
        ("-20000.25", -20000.25),
        ("$20000", 2e4),
    ],
)
def test_where_thousands_have_commas_a_number_without_them_is_one_too(
    cell: str, number: float
) -> None:
    values, bad = read_numbers([cell], THOUSANDS)
    assert bad == []
    np.testing.assert_array_equal(values, [number])


@pytest.mark.parametrize("cell", ["1,5", "12,34", "1234,567", "0,123", "forty"])
def test_commas_that_part_no_thousands_are_bad(cell: str) -> None:
    assert read_numbers([cell], THOUSANDS)[1] == [0]
