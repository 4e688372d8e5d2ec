"""One rate: exact answers where there are any, and a finer grid where there are none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betaincinv, betaln

from closeloop.records.errors import BadInput
from closeloop.statistics.rate_estimate import beta_binomial_bounds, estimate_rate

suites = st.dictionaries(
    st.text(max_size=3), st.lists(st.sampled_from([0.0, 1.0, 0.3]), max_size=6), max_size=8
)


@pytest.mark.parametrize(("hits", "of"), [(3, 5), (0, 6), (19, 20), (700, 1000)])
def test_single_repeats_have_the_beta_posterior(hits: int, of: int) -> None:
    values = {str(task): [float(task < hits)] for task in range(of)}
    low, high = beta_binomial_bounds(values)
    exact = betaincinv(hits + 0.5, of - hits + 0.5, [0.025, 0.975])
    assert (low, high) == pytest.approx(tuple(exact), abs=5e-4)


def test_repeats_of_tasks_that_differ_have_the_posterior_of_a_finer_grid() -> None:
    counts = [(3, 4), (0, 4), (4, 4), (2, 3), (4, 4), (1, 1)]
    values = {str(n): [1.0] * hits + [0.0] * (of - hits) for n, (hits, of) in enumerate(counts)}
    cells = 1500
    rates = np.sin((np.arange(cells) + 0.5) / cells * np.pi / 2)[:, None] ** 2
    spreads = ((np.arange(300) + 0.5) / 300)[None, :]
    one, other = rates * (1 / spreads - 1), (1 - rates) * (1 / spreads - 1)
    likely = sum(betaln(one + h, other + of - h) - betaln(one, other) for h, of in counts)
    along = np.exp(likely - likely.max()).sum(axis=1)
    below = np.cumsum(along) / along.sum()
    exact = [float(rates[np.searchsorted(below, share), 0]) for share in (0.025, 0.975)]
    assert beta_binomial_bounds(values) == pytest.approx(exact, abs=2e-3)


def test_single_repeats_have_the_bounds_of_the_beta_posterior_here() -> None:
    found = estimate_rate({str(task): [float(task < 9)] for task in range(10)})
    assert found is not None
    assert found.here is not None
    assert found.here.value == 0.9
    exact = betaincinv(9.5, 1.5, [0.025, 0.975])
    assert (found.here.low, found.here.high) == pytest.approx(tuple(exact), abs=1e-9)


def test_tasks_weigh_equally_whatever_their_repeats() -> None:
    found = estimate_rate({"a": [1.0] * 98, "b": [0.0, 0.0]})
    assert found is not None
    assert found.here is not None
    assert found.here.value == 0.5
    assert found.attempts == 100


def test_tasks_like_these_are_less_sure_than_exactly_these() -> None:
    found = estimate_rate({str(n): [float(n < 4)] * 10 for n in range(8)})
    assert found is not None
    assert found.here is not None
    assert found.alike is not None
    assert found.alike.high - found.alike.low > 2 * (found.here.high - found.here.low)


def test_a_hundred_thousand_attempts_narrow_the_grid() -> None:
    low, high = beta_binomial_bounds({str(n): [float(n % 10 < 7)] for n in range(100_000)})
    exact = betaincinv(70_000.5, 30_000.5, [0.025, 0.975])
    assert (low, high) == pytest.approx(tuple(exact), abs=1e-5)


def test_nothing_scored_is_no_estimate() -> None:
    assert estimate_rate({}) is None
    assert estimate_rate({"a": []}) is None


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan"), float("inf")])
def test_what_is_no_share_is_refused_with_its_task(value: float) -> None:
    with pytest.raises(BadInput, match="Task 'a'"):
        estimate_rate({"a": [1.0, value]})


@settings(max_examples=60, deadline=None)
@given(suites)
def test_any_suite_has_its_value_within_bounds_within_zero_and_one(values) -> None:
    found = estimate_rate(values)
    if found is not None:
        for one in (found.here, found.alike):
            assert one is not None
            assert 0 <= one.low <= one.value <= one.high <= 1
            assert one.low < one.high
