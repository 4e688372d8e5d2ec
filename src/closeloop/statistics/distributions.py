"""The few distributions that estimators need, in plain numbers.

scipy.special is imported where it is used: scipy.stats takes four times as long to import.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

Z95 = 1.959963984540054


@cache
def _scipy_special() -> ModuleType:
    from scipy import special  # type: ignore[import-untyped]

    return special  # type: ignore[no-any-return]


def normal_tail(value: float) -> float:
    """The share above a value."""
    return float(_scipy_special().ndtr(-value))


def t_quantile(share: float, freedom: float) -> float:
    return float(_scipy_special().stdtrit(freedom, share))


def t_tails(value: float, freedom: float) -> float:
    """The share that is as far from 0, on either side."""
    return float(2 * _scipy_special().stdtr(freedom, -abs(value)))


def beta_quantile(share: float, one: float, other: float) -> float:
    return float(_scipy_special().betaincinv(one, other, share))


def binomial_share(hits: int, of: int) -> float:
    """The chance of no more hits than these, each as likely as not."""
    return float(_scipy_special().bdtr(hits, of, 0.5))


def chi_square_tail(value: float, freedom: int) -> float:
    return float(_scipy_special().chdtrc(freedom, value))
