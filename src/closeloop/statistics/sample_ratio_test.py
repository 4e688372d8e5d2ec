"""Did each variant get the share of the work that it was to get? If not, something is broken."""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose, lgamma, log

from closeloop.records.errors import BadInput
from closeloop.records.estimate import SampleRatio
from closeloop.statistics.distributions import chi_square_tail

MIN_RATIO_P = 0.001
"""Checks are made all the time; a smaller p than this is no accident."""


def check_sample_ratio(
    counts: Mapping[str, int], shares: Mapping[str, float]
) -> SampleRatio | None:
    """Exact binomial for two variants, chi-square for more; None before any assignment."""
    if counts.keys() - shares.keys():
        raise BadInput(f"No share is known for {sorted(counts.keys() - shares.keys())[0]!r}.")
    if any(share <= 0 for share in shares.values()) or not isclose(sum(shares.values()), 1):
        raise BadInput("The shares of the variants must be above 0 and add up to 1.")
    of = sum(counts.values())
    if not of or len(shares) < 2:
        return None
    observed_counts = [counts.get(name, 0) for name in shares]
    if len(observed_counts) == 2:
        p, method = (
            _binomial_p(observed_counts[0], of, next(iter(shares.values()))),
            "exact binomial",
        )
    else:
        expected = [share * of for share in shares.values()]
        distance = sum(
            (one - two) ** 2 / two for one, two in zip(observed_counts, expected, strict=True)
        )
        p, method = chi_square_tail(distance, len(observed_counts) - 1), "chi-square"
    return SampleRatio(p=p, method=method, holds=p >= MIN_RATIO_P)


def _binomial_p(hits: int, of: int, share: float) -> float:
    """All counts that are no more likely than the one seen."""
    import numpy as np
    from scipy.special import gammaln  # type: ignore[import-untyped]

    numbers = np.arange(of + 1)
    log_likelihood = lgamma(of + 1) - gammaln(numbers + 1) - gammaln(of - numbers + 1)
    log_likelihood += numbers * log(share) + (of - numbers) * log(1 - share)
    threshold = log_likelihood[hits] + 1e-9
    return min(1.0, float(np.exp(log_likelihood[log_likelihood <= threshold]).sum()))
