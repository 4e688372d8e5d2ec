"""A rate: on exactly the tasks that were tried, and on tasks like these."""

from __future__ import annotations

from statistics import fmean

from closeloop.model.estimate import Estimate, TwoEstimates
from closeloop.stats.betabinomial import bounds
from closeloop.stats.exactly import noisy, posterior_bounds
from closeloop.stats.values import Values, check_shares


def estimate(values: Values) -> TwoEstimates | None:
    """None where nothing was scored."""
    check_shares(values)
    scored = {task: repeats for task, repeats in values.items() if len(repeats)}
    if not scored:
        return None
    return TwoEstimates(
        here=here(scored),
        alike=_alike(scored),
        attempts=sum(len(repeats) for repeats in scored.values()),
    )


def here(values: Values) -> Estimate:
    found = noisy(list(values.values()))
    low, high = posterior_bounds(found.mean, found.attempts)
    return Estimate(
        value=found.mean,
        low=low,
        high=high,
        n=len(values),
        method="noise of repeats",
    )


def _alike(values: Values) -> Estimate:
    value = fmean(fmean(repeats) for repeats in values.values())
    low, high = bounds(values)
    return Estimate(
        value=value,
        low=min(low, value),
        high=max(high, value),
        n=len(values),
        method="beta-binomial posterior",
    )
