"""A judge and people: published numbers, derivatives by hand, coverage."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from closeloop.statistics.agreement import measure_agreement

Table = list[list[float]]


def pairs(table: list[list[int]], times: int = 1) -> list[tuple[str, str]]:
    labels = ["pass", "fail", "partly"]
    return [
        (labels[judge], labels[person])
        for judge, row in enumerate(table)
        for person, count in enumerate(row)
        for _ in range(count * times)
    ]


def kappa(p: np.ndarray) -> float:
    chance = float(p.sum(1) @ p.sum(0))
    return (float(np.trace(p)) - chance) / (1 - chance)


def ac1(p: np.ndarray) -> float:
    shares = (p.sum(1) + p.sum(0)) / 2
    chance = float((shares * (1 - shares)).sum()) / (len(p) - 1)
    return (float(np.trace(p)) - chance) / (1 - chance)


def by_derivatives(table: list[list[int]], of: Callable[[np.ndarray], float]) -> float:
    """The deviation for one pair, by the delta method with derivatives taken numerically."""
    p = np.array(table) / np.sum(table)
    slopes = np.zeros_like(p)
    for place in np.ndindex(*p.shape):
        step = np.zeros_like(p)
        step[place] = 1e-6
        slopes[place] = (of(p + step) - of(p - step)) / 2e-6
    return float(np.sqrt((p * slopes**2).sum() - (p * slopes).sum() ** 2))


def test_kappa_alone_misleads_where_nearly_all_pass() -> None:
    found = measure_agreement(pairs([[91, 4], [4, 1]]))
    assert found is not None
    assert found.agreeing.value == 0.92
    assert found.kappa is not None
    assert found.kappa.value == pytest.approx(0.15789473684210642, abs=1e-9)  # statsmodels
    assert found.ac1.value == pytest.approx(0.825 / 0.905, abs=1e-9)
    assert (round(found.kappa.value, 2), round(found.ac1.value, 2)) == (0.16, 0.91)
    assert found.sensitivity is not None
    assert found.specificity is not None
    assert (found.sensitivity.value, found.sensitivity.n) == (91 / 95, 95)
    assert (found.specificity.value, found.specificity.n) == (0.2, 5)


def test_the_published_deviation_of_kappa() -> None:
    # statsmodels' cohens_kappa of [[20, 5], [10, 15]]: 0.4, deviation 0.12699606293110033.
    found = measure_agreement(pairs([[20, 5], [10, 15]], times=1000))
    assert found is not None
    assert found.kappa is not None
    half = (found.kappa.high - found.kappa.low) / 2
    assert found.kappa.value == pytest.approx(0.4, abs=1e-9)
    assert half == pytest.approx(1.959964 * 0.12699606293110033 / 1000**0.5, rel=1e-4)


@pytest.mark.parametrize(
    "table", [[[20, 5], [10, 15]], [[91, 4], [4, 1]], [[30, 4, 2], [5, 20, 6], [1, 3, 9]]]
)
def test_bounds_are_those_of_the_delta_method(table: list[list[int]]) -> None:
    found = measure_agreement(pairs(table, times=1000))
    assert found is not None
    assert found.kappa is not None
    root = (np.sum(table) * 1000) ** 0.5
    for one, of in ((found.kappa, kappa), (found.ac1, ac1)):
        assert one.value == pytest.approx(of(np.array(table) / np.sum(table)), abs=1e-9)
        expected = 1.959964 * by_derivatives(table, of) / root
        assert (one.high - one.low) / 2 == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("of", [30, 100])
@pytest.mark.parametrize("cells", [(0.45, 0.05, 0.05, 0.45), (0.85, 0.04, 0.04, 0.07)])
def test_bounds_hold_the_truth_as_often_as_they_say(of: int, cells: tuple[float, ...]) -> None:
    chance, rounds, hits = np.random.RandomState(of), 400, {"kappa": 0, "ac1": 0}
    truth = np.array(cells).reshape(2, 2)
    for _ in range(rounds):
        found = measure_agreement(pairs(chance.multinomial(of, cells).reshape(2, 2).tolist()))
        assert found is not None
        hits["ac1"] += found.ac1.low <= ac1(truth) <= found.ac1.high
        hits["kappa"] += found.kappa is None or found.kappa.low <= kappa(truth) <= found.kappa.high
    assert min(hits.values()) / rounds >= 0.92


def test_five_agreements_are_no_proof() -> None:
    found = measure_agreement([("pass", "pass")] * 5)
    assert found is not None
    assert found.ac1.value == 1
    assert found.ac1.low < 0.6
    assert found.kappa is None
    assert found.specificity is None
    assert measure_agreement([]) is None


@given(st.lists(st.tuples(*[st.sampled_from(["pass", "fail", "partly", ""])] * 2), max_size=30))
def test_any_labels_give_values_within_bounds(labels: list[tuple[str, str]]) -> None:
    found = measure_agreement(labels)
    if found is None:
        assert not labels
        return
    assert sum(count for _, _, count in found.cells) == len(labels)
    for one in (found.agreeing, found.sensitivity, found.specificity, found.kappa, found.ac1):
        if one is not None:
            assert -1 <= one.low <= one.value <= one.high <= 1
