"""A judge's rates put right: the published formula, coverage, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeloop.records.estimate import Agreement
from closeloop.statistics.agreement import measure_agreement, ppi_rate, rogan_gladen_rate


def known(seen: int, positives: int, sure: int, negatives: int) -> Agreement:
    """People call so many positive and negative; the judge agrees on so many of each."""
    found = measure_agreement(
        [("pass", "pass")] * seen
        + [("fail", "pass")] * (positives - seen)
        + [("fail", "fail")] * sure
        + [("pass", "fail")] * (negatives - sure)
    )
    assert found is not None
    return found


def test_the_bounds_are_those_of_lang_and_reiczigel() -> None:
    # Their formula with 130 of 200 positive, sensitivity 45 of 50, specificity 32 of 40, by hand:
    # p = 131.92073/203.84146, Se = 46/52, Sp = 33/42.
    p, sensitivity, specificity = 131.920729 / 203.841459, 46 / 52, 33 / 42
    youden = sensitivity + specificity - 1
    middle = (p + specificity - 1) / youden
    noise = (
        p * (1 - p) / 203.841459
        + sensitivity * (1 - sensitivity) / 52 * middle**2
        + specificity * (1 - specificity) / 42 * (1 - middle) ** 2
    )
    shift = (
        2
        * 3.841459
        * (
            middle * sensitivity * (1 - sensitivity) / 52
            - (1 - middle) * specificity * (1 - specificity) / 42
        )
    )
    half = 1.959964 * noise**0.5 / youden
    found = rogan_gladen_rate(130, 200, known(45, 50, 32, 40)).estimate
    assert found is not None
    assert found.value == pytest.approx((0.65 + 0.8 - 1) / 0.7, abs=1e-9)
    assert found.low == pytest.approx(middle + shift - half, abs=1e-6)
    assert found.high == pytest.approx(middle + shift + half, abs=1e-6)


@pytest.mark.parametrize("rate", [0.3, 0.9])
def test_both_hold_the_truth_as_often_as_they_say(rate: float) -> None:
    chance, rounds = np.random.RandomState(3), 300
    hits = {"rogan": 0, "powered": 0}
    for _ in range(rounds):
        people = chance.binomial(1, rate, 560)
        judge = np.where(people, chance.binomial(1, 0.9, 560), chance.binomial(1, 0.2, 560))
        names = [
            ("pass" if j else "fail", "pass" if p else "fail")
            for j, p in zip(judge[:60], people[:60], strict=True)
        ]
        both = measure_agreement(names)
        assert both is not None
        labelled = list(zip(judge[:60].tolist(), people[:60].tolist(), strict=True))
        one = rogan_gladen_rate(int(judge[60:].sum()), 500, both)
        other = ppi_rate(labelled, judge[60:].tolist(), both)
        for name, found in (("rogan", one), ("powered", other)):
            hits[name] += found.estimate is None or (
                found.estimate.low <= rate <= found.estimate.high
            )
    assert min(hits.values()) / rounds >= 0.93


def test_the_judge_makes_people_go_further() -> None:
    chance = np.random.RandomState(4)
    people = chance.binomial(1, 0.6, 2000)
    judge = np.where(chance.binomial(1, 0.05, 2000), 1 - people, people)
    labelled = list(zip(judge[:80].tolist(), people[:80].tolist(), strict=True))
    names = [("pass" if j else "fail", "pass" if p else "fail") for j, p in labelled]
    both = measure_agreement(names)
    assert both is not None
    found = ppi_rate(labelled, judge[80:].tolist(), both).estimate
    assert found is not None
    alone = 2 * 1.96 * (0.24 / 80) ** 0.5
    assert found.high - found.low < 0.75 * alone


def test_a_judge_that_tells_little_is_refused() -> None:
    weak = known(30, 50, 25, 50)
    for found in (rogan_gladen_rate(5, 10, weak), ppi_rate([(1, 1)] * 9, [1] * 9, weak)):
        assert found.estimate is None
        assert found.refusal is not None
        assert found.refusal.startswith("Sensitivity + specificity − 1 is 0.10, below 0.2")


def test_labels_of_one_kind_or_none_are_refused() -> None:
    assert "of the other" in (rogan_gladen_rate(5, 10, known(5, 5, 0, 0)).refusal or "")
    assert "no verdicts" in (rogan_gladen_rate(0, 0, known(9, 10, 9, 10)).refusal or "")
    assert "At least two" in (ppi_rate([], [], known(9, 10, 9, 10)).refusal or "")
    assert "label more" in (rogan_gladen_rate(5, 10, known(1, 1, 200, 1000)).refusal or "")


def test_perfect_labels_are_no_proof() -> None:
    found = ppi_rate([(1, 1)] * 5 + [(0, 0)] * 5, [1, 0] * 500, known(5, 5, 5, 5))
    assert found.estimate is not None
    assert found.estimate.high - found.estimate.low > 0.2


@settings(deadline=None)
@given(*[st.integers(0, 30)] * 4, st.integers(0, 50), st.integers(0, 50))
def test_any_counts_give_bounds_or_a_reason(a, b, c, d, passed, more) -> None:
    if a + b + c + d == 0:
        return
    found = rogan_gladen_rate(passed, passed + more, known(a, a + b, c, c + d))
    assert (found.estimate is None) != (found.refusal is None)
    if found.estimate is not None:
        assert 0 <= found.estimate.low <= found.estimate.value <= found.estimate.high <= 1
