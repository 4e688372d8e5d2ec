"""Many tests at once, against statsmodels and the published example."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.statistics.sequences import adjust_benjamini_hochberg, adjust_holm

# Benjamini and Hochberg (1995), section 3: fifteen p-values, of which four are called at 0.05.
PUBLISHED = [
    0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719,
    0.6528, 0.7590, 1.0,
]  # fmt: skip


def named(values: list[float]) -> dict[str, float]:
    return {str(place): value for place, value in enumerate(values)}


def test_holm_is_that_of_the_books() -> None:
    found = adjust_holm(named([0.01, 0.04, 0.03, 0.005]))
    assert list(found.values()) == pytest.approx([0.03, 0.06, 0.06, 0.02], abs=1e-12)


def test_benjamini_hochberg_is_that_of_the_paper() -> None:
    found = list(adjust_benjamini_hochberg(named(PUBLISHED)).values())
    assert sum(one <= 0.05 for one in found) == 4
    assert found[:5] == pytest.approx([0.0015, 0.003, 0.0095, 0.035625, 0.0603], abs=1e-12)
    assert found[-3:] == pytest.approx([0.7532307692307693, 0.8132142857142857, 1.0], abs=1e-12)


@given(st.lists(st.floats(0, 1), max_size=12))
def test_adjusting_keeps_the_order_and_makes_nothing_surer(values: list[float]) -> None:
    tests = named(values)
    for adjusted in (adjust_holm(tests), adjust_benjamini_hochberg(tests)):
        assert list(adjusted) == list(tests)
        assert all(tests[name] <= adjusted[name] <= 1 for name in tests)
        ordered = sorted(tests, key=tests.__getitem__)
        assert sorted(adjusted[name] for name in tests) == [adjusted[name] for name in ordered]
    assert all(
        adjust_benjamini_hochberg(tests)[name] <= adjust_holm(tests)[name] + 1e-12 for name in tests
    )
