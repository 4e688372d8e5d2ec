"""A rate with what one must know of it: of how many, and between which bounds."""

from __future__ import annotations

from math import sqrt

from closeloop.records.record import Record

Z95 = 1.959963984540054


class Rate(Record):
    """So many of so many. A rate of nothing does not exist: that is None, not zero."""

    hits: float
    of: int
    low: float
    high: float
    """95 % Wilson score interval."""

    @property
    def value(self) -> float:
        return self.hits / self.of


def wilson_rate(hits: float, of: int) -> Rate | None:
    """The rate with its interval; None where there was nothing to count."""
    if of == 0:
        return None
    share, spread = hits / of, Z95 * Z95 / of
    middle = (share + spread / 2) / (1 + spread)
    half = sqrt(spread * (share * (1 - share) + spread / 4)) / (1 + spread)
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return Rate(hits=hits, of=of, low=0.0 if hits == 0 else low, high=1.0 if hits == of else high)


def pool_rates(*rates: Rate | None) -> Rate | None:
    """All of them as one; those that do not exist add nothing."""
    existing = [one for one in rates if one is not None]
    return wilson_rate(sum(one.hits for one in existing), sum(one.of for one in existing))
