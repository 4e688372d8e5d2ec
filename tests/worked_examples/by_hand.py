"""Textbook formulas, written differently from the product's, that the worked examples share."""

from __future__ import annotations

from math import sqrt

import pytest

from closeloop.records.estimate import Rate

Z = 1.959963984540054
"""The standard normal quantile of 0.975."""
T = {1: 12.706205, 2: 4.302653, 3: 3.182446, 4: 2.776445, 5: 2.570582, 7: 2.364624, 50: 2.008559}
"""Student's t quantile of 0.975, by degrees of freedom."""


def wilson(hits: float, of: int) -> tuple[float, float]:
    """95 % Wilson bounds: (h + z²/2 ± z·√(h(n−h)/n + z²/4)) / (n + z²)."""
    half = Z * sqrt(hits * (of - hits) / of + Z * Z / 4)
    return (hits + Z * Z / 2 - half) / (of + Z * Z), (hits + Z * Z / 2 + half) / (of + Z * Z)


def assert_rate(rate: Rate | None, hits: float, of: int) -> None:
    """Check a rate's counts, value and Wilson interval."""
    assert rate is not None
    assert (rate.hits, rate.of, rate.value) == (hits, of, pytest.approx(hits / of))
    assert (rate.low, rate.high) == pytest.approx(wilson(hits, of), abs=1e-9)
