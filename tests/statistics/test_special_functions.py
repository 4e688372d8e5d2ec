"""Special functions: published values, closed forms, and the same numbers as scipy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special

from closeloop.statistics.special_functions import (
    beta_quantile,
    beta_share,
    binomial_share,
    chi_square_tail,
    log_beta,
    log_gamma,
    normal_tail,
    t_quantile,
    t_tails,
)


def test_quantiles_of_students_t_are_those_of_the_tables() -> None:
    """One degree of freedom is Cauchy's, and two have a closed form."""
    assert t_quantile(0.975, 1) == pytest.approx(math.tan(math.pi * 0.475), rel=1e-12)
    two = 2 * 0.475 * math.sqrt(2 / (4 * 0.975 * 0.025))
    assert t_quantile(0.975, 2) == pytest.approx(two, rel=1e-12)
    published = {5: 2.570581835636314, 10: 2.228138851986274, 30: 2.042272456301238}
    for freedom, value in published.items():
        assert t_quantile(0.975, freedom) == pytest.approx(value, rel=1e-12)
    assert t_quantile(0.5, 7) == 0
    assert t_quantile(0.1, 7) == -t_quantile(0.9, 7)
    assert t_quantile(0.975, math.inf) == pytest.approx(1.959963984540054, rel=1e-14)


def test_shares_of_other_distributions_are_those_of_the_tables() -> None:
    assert normal_tail(1.959963984540054) == pytest.approx(0.025, rel=1e-13)
    assert chi_square_tail(3.841458820694124, 1) == pytest.approx(0.05, rel=1e-12)
    assert chi_square_tail(18.307038053275146, 10) == pytest.approx(0.05, rel=1e-12)
    assert chi_square_tail(0, 3) == 1
    assert binomial_share(1, 6) == 7 / 64
    assert (binomial_share(-1, 5), binomial_share(5, 5)) == (0, 1)
    assert beta_share(0.5, 2, 3) == pytest.approx(11 / 16, rel=1e-14)
    assert beta_quantile(0.5, 3, 3) == pytest.approx(0.5, rel=1e-14)
    assert (beta_quantile(0, 2, 3), beta_quantile(1, 2, 3)) == (0, 1)


def test_the_gamma_function_of_whole_numbers_is_a_factorial() -> None:
    numbers = np.arange(1, 171)
    expected = [math.log(math.factorial(number - 1)) for number in numbers]
    np.testing.assert_allclose(log_gamma(numbers), expected, rtol=1e-14, atol=1e-14)
    half = log_gamma(np.array([0.5]))[0]
    assert half == pytest.approx(math.log(math.pi) / 2, rel=1e-14)
    assert float(log_beta(2, 3)) == pytest.approx(-math.log(12), rel=1e-14)


@pytest.mark.parametrize("freedom", [1, 1.5, 2, 3, 4.7, 9, 29, 99.5, 1e3, 1e5])
def test_students_t_is_scipys(freedom: float) -> None:
    for share in (0.001, 0.2, 0.6, 0.8, 0.975, 0.9975, 1 - 1e-6):
        assert t_quantile(share, freedom) == pytest.approx(
            special.stdtrit(freedom, share), rel=1e-9
        )
    for value in (0, 1e-6, 0.3, 1, 2, 5, 40):
        assert t_tails(value, freedom) == pytest.approx(
            2 * special.stdtr(freedom, -value), rel=1e-9
        )


@pytest.mark.parametrize("one", [0.5, 1, 2.5, 40.5, 5000.5])
@pytest.mark.parametrize("other", [0.5, 1.5, 7, 300.5])
def test_the_beta_distribution_is_scipys(one: float, other: float) -> None:
    for share in (1e-6, 0.0125, 0.025, 0.5, 0.975, 0.9999):
        expected = special.betaincinv(one, other, share)
        assert beta_quantile(share, one, other) == pytest.approx(expected, rel=1e-9)
    for value in (1e-5, 0.1, 0.5, 0.9, 0.9999):
        assert beta_share(value, one, other) == pytest.approx(
            special.betainc(one, other, value), rel=1e-9, abs=1e-300
        )


def test_gamma_binomial_and_chi_square_are_scipys() -> None:
    values = np.concatenate([np.geomspace(1e-8, 1e8, 400), np.linspace(0.9, 2.1, 50)])
    np.testing.assert_allclose(log_gamma(values), special.gammaln(values), rtol=1e-12, atol=2e-14)
    for of in (1, 7, 60, 1000, 1001, 100_000):
        for hits in {0, of // 3, of // 2, of - 1}:
            assert binomial_share(hits, of) == pytest.approx(
                special.bdtr(hits, of, 0.5), rel=1e-9, abs=1e-290
            )
    for freedom in (1, 2, 3, 8, 31):
        for value in (0.01, 1, 9.5, 80):
            assert chi_square_tail(value, freedom) == pytest.approx(
                special.chdtrc(freedom, value), rel=1e-11
            )
