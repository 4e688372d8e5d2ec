"""Did the lot fall as it should? Against scipy's exact test and by hand."""

from __future__ import annotations

import pytest

from closeloop.records.errors import BadInput
from closeloop.statistics.sequences import check_sample_ratio


@pytest.mark.parametrize(
    ("hits", "share", "p"),
    # scipy.stats.binomtest(hits, 100, share).pvalue
    [(41, 0.5, 0.08862608011406758), (30, 0.2, 0.016945359676785184), (50, 0.5, 1.0)],
)
def test_two_variants_get_the_exact_binomial_test(hits: int, share: float, p: float) -> None:
    found = check_sample_ratio({"a": hits, "b": 100 - hits}, {"a": share, "b": 1 - share})
    assert found is not None
    assert found.p == pytest.approx(p, abs=1e-9)
    assert found.method == "exact binomial"
    assert found.holds


def test_three_variants_get_chi_square() -> None:
    # scipy.stats.chisquare([50, 30, 20], [40, 40, 20])
    found = check_sample_ratio({"a": 50, "b": 30, "c": 20}, {"a": 0.4, "b": 0.4, "c": 0.2})
    assert found is not None
    assert found.p == pytest.approx(0.0820849986238988, abs=1e-9)


def test_a_broken_lot_is_seen_and_a_variant_without_work_counts() -> None:
    broken = check_sample_ratio({"a": 60_000, "b": 40_000}, {"a": 0.5, "b": 0.5})
    assert broken is not None
    assert not broken.holds
    lone = check_sample_ratio({"a": 3}, {"a": 0.5, "b": 0.5})
    assert lone is not None
    assert lone.p == pytest.approx(0.25)
    assert lone.holds


def test_before_any_assignment_there_is_nothing_to_check() -> None:
    assert check_sample_ratio({}, {"a": 0.5, "b": 0.5}) is None
    assert check_sample_ratio({"a": 0, "b": 0}, {"a": 0.5, "b": 0.5}) is None
    assert check_sample_ratio({"a": 5}, {"a": 1.0}) is None


@pytest.mark.parametrize("shares", [{"a": 0.5, "b": 0.6}, {"a": 1.0, "b": 0.0}, {"b": 1.0}])
def test_shares_that_are_none_are_refused(shares: dict[str, float]) -> None:
    with pytest.raises(BadInput):
        check_sample_ratio({"a": 1}, shares)
