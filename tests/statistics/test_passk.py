"""pass@k and pass^k, against the enumeration of every choice."""

from __future__ import annotations

from itertools import combinations
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.records.errors import BadInput
from closeloop.statistics.rate_estimate import estimate_pass_all_k, estimate_pass_at_k

repeats = st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=7)


@given(st.lists(repeats, min_size=1, max_size=4), st.integers(1, 4))
def test_both_are_the_share_of_all_choices_of_k(tasks: list[list[float]], k: int) -> None:
    values = dict(enumerate(tasks))
    enough = [one for one in tasks if len(one) >= k]
    found, every = estimate_pass_at_k(values, k), estimate_pass_all_k(values, k)  # type: ignore[arg-type]
    if not enough:
        assert found is every is None
        return
    assert found is not None
    assert every is not None
    assert found.n == every.n == len(enough)
    some = fmean(fmean(any(c) for c in combinations(one, k)) for one in enough)
    each = fmean(fmean(all(c) for c in combinations(one, k)) for one in enough)
    assert found.value == pytest.approx(some, abs=1e-9)
    assert every.value == pytest.approx(each, abs=1e-9)
    for one in (found, every):
        assert 0 <= one.low <= one.value <= one.high <= 1


def test_the_estimator_of_chen_and_others() -> None:
    # 1 − C(n−c, k)/C(n, k) with n = 10, c = 3, k = 5: 1 − 21/252.
    found = estimate_pass_at_k({"a": [1.0] * 3 + [0.0] * 7}, 5)
    assert found is not None
    assert found.value == pytest.approx(1 - 21 / 252, abs=1e-12)


def test_a_power_of_the_mean_is_something_else() -> None:
    found = estimate_pass_all_k({"a": [1.0] * 4, "b": [0.0] * 4}, 2)
    assert found is not None
    assert found.value == 0.5


@pytest.mark.parametrize(("n", "repeats", "k"), [(10, 5, 3), (20, 10, 5), (30, 5, 2)])
def test_bounds_hold_the_truth_at_least_as_often_as_they_say(n: int, repeats: int, k: int) -> None:
    chance, hits, rounds = np.random.RandomState(n), 0, 400
    for _ in range(rounds):
        rates = chance.beta(1, 1, n)
        passed = chance.binomial(repeats, rates)
        values = {str(t): [1.0] * int(h) + [0.0] * int(repeats - h) for t, h in enumerate(passed)}
        found, every = estimate_pass_at_k(values, k), estimate_pass_all_k(values, k)
        assert found is not None
        assert every is not None
        hits += found.low <= (1 - (1 - rates) ** k).mean() <= found.high
        hits += every.low <= (rates**k).mean() <= every.high
    assert 0.93 <= hits / rounds / 2 <= 0.995


def test_what_cannot_be_counted_is_refused() -> None:
    with pytest.raises(BadInput, match="at least one repeat"):
        estimate_pass_at_k({"a": [1.0]}, 0)
    with pytest.raises(BadInput, match="0 and 1"):
        estimate_pass_all_k({"a": [0.5]}, 1)
