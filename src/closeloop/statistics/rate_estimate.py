"""A rate: on exactly the tasks that were tried, and on tasks like these."""

from __future__ import annotations

from statistics import fmean

from closeloop.records.estimate import Estimate, TwoEstimates
from closeloop.statistics.beta_binomial import beta_binomial_bounds
from closeloop.statistics.repeat_noise import estimate_noisy_mean, posterior_bounds
from closeloop.statistics.task_values import TaskValues, check_shares


def estimate_rate(values: TaskValues) -> TwoEstimates | None:
    """None where nothing was scored."""
    check_shares(values)
    scored = {task: repeats for task, repeats in values.items() if len(repeats)}
    if not scored:
        return None
    return TwoEstimates(
        here=rate_on_these_tasks(scored),
        alike=_rate_on_like_tasks(scored),
        attempts=sum(len(repeats) for repeats in scored.values()),
    )


def rate_on_these_tasks(values: TaskValues) -> Estimate:
    noisy_mean = estimate_noisy_mean(list(values.values()))
    low, high = posterior_bounds(noisy_mean.mean, noisy_mean.attempts)
    return Estimate(
        value=noisy_mean.mean,
        low=low,
        high=high,
        n=len(values),
        method="noise of repeats",
    )


def _rate_on_like_tasks(values: TaskValues) -> Estimate:
    value = fmean(fmean(repeats) for repeats in values.values())
    low, high = beta_binomial_bounds(values)
    return Estimate(
        value=value,
        low=min(low, value),
        high=max(high, value),
        n=len(values),
        method="beta-binomial posterior",
    )
