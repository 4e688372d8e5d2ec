"""A judge's rate as people would have given it, by the items that both labelled."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import fmean

from closeloop.records.estimate import Agreement, CorrectedRate, Estimate
from closeloop.statistics.distributions import Z95, t_quantile

MIN_YOUDEN_INDEX = 0.2
"""Of sensitivity + specificity − 1: a judge with less tells hardly more than a coin."""


def rogan_gladen_rate(passed: int, of: int, known: Agreement) -> CorrectedRate:
    """The rate behind a judge's, by its sensitivity and specificity (Lang and Reiczigel 2014)."""
    if (refusal := _correction_refusal(known)) is not None or of < 1:
        return CorrectedRate(estimate=None, refusal=refusal or "The judge has judged nothing.")
    assert known.sensitivity is not None
    assert known.specificity is not None
    judge_sensitivity, judge_specificity = known.sensitivity, known.specificity
    square = Z95 * Z95
    value = (passed / of + judge_specificity.value - 1) / (
        judge_sensitivity.value + judge_specificity.value - 1
    )
    share = (passed + square / 2) / (of + square)
    sensitivity = (judge_sensitivity.value * judge_sensitivity.n + 1) / (judge_sensitivity.n + 2)
    specificity = (judge_specificity.value * judge_specificity.n + 1) / (judge_specificity.n + 2)
    youden = sensitivity + specificity - 1
    if youden <= 0:
        return CorrectedRate(estimate=None, refusal="Too few items are labelled: label more.")
    middle = (share + specificity - 1) / youden
    sensitivity_variance = sensitivity * (1 - sensitivity) / (judge_sensitivity.n + 2)
    specificity_variance = specificity * (1 - specificity) / (judge_specificity.n + 2)
    noise = (
        share * (1 - share) / (of + square)
        + middle**2 * sensitivity_variance
        + (1 - middle) ** 2 * specificity_variance
    )
    half = Z95 * sqrt(noise) / youden
    shift = 2 * square * (middle * sensitivity_variance - (1 - middle) * specificity_variance)
    return CorrectedRate(
        estimate=_clip_estimate(
            value, middle + shift - half, middle + shift + half, of, "Rogan–Gladen"
        )
    )


def ppi_rate(
    labelled: Sequence[tuple[float, float]], judged: Sequence[float], known: Agreement
) -> CorrectedRate:
    """The judge's mean over all it judged, put right by where people and judge differ.

    Pairs are the judge's and the people's value of the same items, from 0 to 1; `judged` holds
    the judge's alone. The judge weighs as much as it helps (Angelopoulos and others 2023, PPI++).
    """
    if (refusal := _correction_refusal(known)) is not None:
        return CorrectedRate(estimate=None, refusal=refusal)
    n, more = len(labelled), len(judged)
    if n < 2 or more < 2:
        return CorrectedRate(
            estimate=None, refusal="Two labelled and two judged items are the least."
        )
    judge, people = [one for one, _ in labelled], [other for _, other in labelled]
    spread = _sample_variance([*judge, *judged])
    weight = 0.0
    if spread > 0:
        weight = _sample_covariance(judge, people) / (spread * (1 + n / more))
        weight = max(0.0, min(1.0, weight))
    rest = [other - weight * one for one, other in labelled]
    value = weight * fmean(judged) + fmean(rest)
    # One more item, half of it surely wrong in either direction: perfect labels are no proof.
    noise = (_sample_variance(rest) * (n - 1) + 1) / n / n + weight**2 * _sample_variance(
        judged
    ) / more
    half = t_quantile(0.975, n - 1) * sqrt(noise)
    return CorrectedRate(
        estimate=_clip_estimate(value, value - half, value + half, n + more, "prediction-powered")
    )


def _correction_refusal(known: Agreement) -> str | None:
    if known.sensitivity is None or known.specificity is None:
        return "The labelled items are all of one kind: label some of the other."
    youden = known.sensitivity.value + known.specificity.value - 1
    if youden < MIN_YOUDEN_INDEX - 1e-9:
        return (
            f"Sensitivity + specificity − 1 is {youden:.2f}, under {MIN_YOUDEN_INDEX}: "
            "the judge tells too little to correct its rates, so improve the judge."
        )
    return None


def _clip_estimate(value: float, low: float, high: float, n: int, method: str) -> Estimate:
    value = max(0.0, min(1.0, value))
    low, high = max(0.0, min(value, low)), min(1.0, max(value, high))
    return Estimate(value=value, low=low, high=high, n=n, method=method)


def _sample_variance(values: Sequence[float]) -> float:
    return _sample_covariance(values, values)


def _sample_covariance(first: Sequence[float], second: Sequence[float]) -> float:
    means = fmean(first), fmean(second)
    products = (
        (one - means[0]) * (other - means[1]) for one, other in zip(first, second, strict=True)
    )
    return sum(products) / (len(first) - 1)
