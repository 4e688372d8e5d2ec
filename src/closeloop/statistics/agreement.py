"""Agreement of a judge with people, and its rate corrected by people's labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from math import sqrt
from statistics import fmean

from closeloop.records.estimate import Z95, Agreement, CorrectedRate, Estimate, wilson_rate
from closeloop.statistics.special_functions import t_quantile

LabelCells = Mapping[tuple[str, str], float]
"""The judge's and the people's label → count or share."""
LabelShares = Mapping[str, tuple[float, float]]
"""Label → its share among the judge's labels and among the people's."""
POSITIVE_LABEL = "pass"


def measure_agreement(pairs: Iterable[tuple[str, str]]) -> Agreement | None:
    """Measure agreement over pairs of labels, the judge's first; None without pairs."""
    cells = Counter(pairs)
    pair_count = cells.total()
    if not pair_count:
        return None
    hits = sum(count for (judge, person), count in cells.items() if judge == person)
    agreeing = estimate_proportion(hits, pair_count)
    ac1 = _estimate_beyond_chance(cells, _ac1_chance, "Gwet's AC1")
    assert agreeing is not None
    assert ac1 is not None
    return Agreement(
        cells=tuple((*labels, cells[labels]) for labels in sorted(cells)),
        positive=POSITIVE_LABEL,
        agreeing=agreeing,
        sensitivity=_estimate_label_share(cells, lambda label: label == POSITIVE_LABEL),
        specificity=_estimate_label_share(cells, lambda label: label != POSITIVE_LABEL),
        kappa=_estimate_beyond_chance(cells, _kappa_chance, "Cohen's kappa"),
        ac1=ac1,
    )


def estimate_proportion(hits: float, total: int) -> Estimate | None:
    """Estimate a proportion of independent items."""
    interval = wilson_rate(hits, total)
    if interval is None:
        return None
    return Estimate(
        value=interval.value, low=interval.low, high=interval.high, n=total, method="Wilson score"
    )


def _estimate_label_share(
    cells: Mapping[tuple[str, str], int], matches_label: Callable[[str], bool]
) -> Estimate | None:
    """Estimate the share of items with a people's label that the judge labels alike."""
    total = sum(count for (_, person), count in cells.items() if matches_label(person))
    hits = sum(
        count
        for (judge, person), count in cells.items()
        if matches_label(person) and matches_label(judge)
    )
    return estimate_proportion(hits, total)


def _estimate_beyond_chance(
    cells: Mapping[tuple[str, str], int],
    chance: Callable[[LabelShares], dict[tuple[str, str], float]],
    method: str,
) -> Estimate | None:
    """Estimate a chance-corrected coefficient; delta-method bounds, half a pair added to each
    cell."""
    labels = sorted({label for pair in cells for label in pair})
    if len(labels) == 1:
        labels.append(f"no {labels[0]}")
    pair_count = sum(cells.values())
    value = _chance_corrected_value(
        {pair: count / pair_count for pair, count in cells.items()}, labels, chance
    )
    if value is None:
        return None
    smoothed_total = pair_count + len(labels) ** 2 / 2
    smoothed_cells = {
        pair: (cells.get(pair, 0) + 0.5) / smoothed_total for pair in product(labels, labels)
    }
    middle = _chance_corrected_value(smoothed_cells, labels, chance)
    assert middle is not None
    half_width = Z95 * sqrt(
        _coefficient_variance(smoothed_cells, labels, chance, middle) / smoothed_total
    )
    return Estimate(
        value=value,
        low=max(-1.0, min(value, middle - half_width)),
        high=min(1.0, max(value, middle + half_width)),
        n=pair_count,
        method=method,
    )


def _chance_corrected_value(
    cells: LabelCells,
    labels: list[str],
    chance: Callable[[LabelShares], dict[tuple[str, str], float]],
) -> float | None:
    expected = _expected_agreement(cells, chance(_label_shares(cells, labels)))
    if expected >= 1:
        return None
    return (_observed_agreement(cells) - expected) / (1 - expected)


def _coefficient_variance(
    cells: LabelCells,
    labels: list[str],
    chance: Callable[[LabelShares], dict[tuple[str, str], float]],
    value: float,
) -> float:
    """Return the variance of a coefficient (Gwet 2008, eq. 5.2; for kappa as Fleiss 1969)."""
    chance_shares = chance(_label_shares(cells, labels))
    expected = _expected_agreement(cells, chance_shares)
    agreeing = _observed_agreement(cells)
    contributions = {
        pair: ((pair[0] == pair[1]) - agreeing - 2 * (1 - value) * (chance_shares[pair] - expected))
        / (1 - expected)
        for pair in cells
    }
    return sum(cells[pair] * contributions[pair] ** 2 for pair in cells)


def _label_shares(cells: LabelCells, labels: list[str]) -> LabelShares:
    return {
        label: (
            sum(share for pair, share in cells.items() if pair[0] == label),
            sum(share for pair, share in cells.items() if pair[1] == label),
        )
        for label in labels
    }


def _observed_agreement(cells: LabelCells) -> float:
    return sum(share for pair, share in cells.items() if pair[0] == pair[1])


def _expected_agreement(cells: LabelCells, shares: LabelCells) -> float:
    return sum(share * shares[pair] for pair, share in cells.items())


def _kappa_chance(shares: LabelShares) -> dict[tuple[str, str], float]:
    """Return the chance agreement of two independent raters with these shares."""
    return {
        (judge, person): (shares[judge][1] + shares[person][0]) / 2
        for judge, person in product(shares, shares)
    }


def _ac1_chance(shares: LabelShares) -> dict[tuple[str, str], float]:
    """Return the chance agreement by guesses on hard items only, uniform over the labels."""
    rarity = {
        label: (1 - sum(rater_shares) / 2) / (len(shares) - 1)
        for label, rater_shares in shares.items()
    }
    return {
        (judge, person): (rarity[judge] + rarity[person]) / 2
        for judge, person in product(shares, shares)
    }


# A judge's rate corrected to people's labels, by the items that both labelled.

MIN_YOUDEN_INDEX = 0.2
"""Minimum of sensitivity + specificity − 1; below it a judge is hardly better than a coin."""


def rogan_gladen_rate(passed: int, total: int, agreement: Agreement) -> CorrectedRate:
    """Correct a judge's rate by its sensitivity and specificity (Lang and Reiczigel 2014)."""
    if (refusal := _correction_refusal(agreement)) is not None or total < 1:
        return CorrectedRate(estimate=None, refusal=refusal or "The judge has no verdicts.")
    assert agreement.sensitivity is not None
    assert agreement.specificity is not None
    judge_sensitivity, judge_specificity = agreement.sensitivity, agreement.specificity
    square = Z95 * Z95
    value = (passed / total + judge_specificity.value - 1) / (
        judge_sensitivity.value + judge_specificity.value - 1
    )
    share = (passed + square / 2) / (total + square)
    sensitivity = (judge_sensitivity.value * judge_sensitivity.n + 1) / (judge_sensitivity.n + 2)
    specificity = (judge_specificity.value * judge_specificity.n + 1) / (judge_specificity.n + 2)
    youden = sensitivity + specificity - 1
    if youden <= 0:
        return CorrectedRate(estimate=None, refusal="Too few items are labelled: label more.")
    middle = (share + specificity - 1) / youden
    sensitivity_variance = sensitivity * (1 - sensitivity) / (judge_sensitivity.n + 2)
    specificity_variance = specificity * (1 - specificity) / (judge_specificity.n + 2)
    noise = (
        share * (1 - share) / (total + square)
        + middle**2 * sensitivity_variance
        + (1 - middle) ** 2 * specificity_variance
    )
    half_width = Z95 * sqrt(noise) / youden
    shift = 2 * square * (middle * sensitivity_variance - (1 - middle) * specificity_variance)
    return CorrectedRate(
        estimate=_clip_estimate(
            value, middle + shift - half_width, middle + shift + half_width, total, "Rogan–Gladen"
        )
    )


def ppi_rate(
    labelled: Sequence[tuple[float, float]], judged: Sequence[float], agreement: Agreement
) -> CorrectedRate:
    """Return the judge's mean over all its items, corrected by where people and judge differ.

    Pairs are the judge's and the people's value of the same items, from 0 to 1; `judged` holds
    the judge's alone. The judge weighs as much as it helps (Angelopoulos and others 2023, PPI++).
    """
    if (refusal := _correction_refusal(agreement)) is not None:
        return CorrectedRate(estimate=None, refusal=refusal)
    labelled_count, judged_count = len(labelled), len(judged)
    if labelled_count < 2 or judged_count < 2:
        return CorrectedRate(
            estimate=None, refusal="At least two labelled and two judged items are needed."
        )
    judge_values, people_values = (
        [judge_value for judge_value, _ in labelled],
        [person_value for _, person_value in labelled],
    )
    spread = _sample_variance([*judge_values, *judged])
    weight = 0.0
    if spread > 0:
        weight = _sample_covariance(judge_values, people_values) / (
            spread * (1 + labelled_count / judged_count)
        )
        weight = max(0.0, min(1.0, weight))
    residuals = [person_value - weight * judge_value for judge_value, person_value in labelled]
    value = weight * fmean(judged) + fmean(residuals)
    # One more item, half wrong in each direction: perfect agreement on few labels is no proof.
    noise = (
        _sample_variance(residuals) * (labelled_count - 1) + 1
    ) / labelled_count / labelled_count + weight**2 * _sample_variance(judged) / judged_count
    half_width = t_quantile(0.975, labelled_count - 1) * sqrt(noise)
    return CorrectedRate(
        estimate=_clip_estimate(
            value,
            value - half_width,
            value + half_width,
            labelled_count + judged_count,
            "prediction-powered",
        )
    )


def _correction_refusal(agreement: Agreement) -> str | None:
    if agreement.sensitivity is None or agreement.specificity is None:
        return "All labelled items have the same label: label some of the other kind."
    youden = agreement.sensitivity.value + agreement.specificity.value - 1
    if youden < MIN_YOUDEN_INDEX - 1e-9:
        return (
            f"Sensitivity + specificity − 1 is {youden:.2f}, below {MIN_YOUDEN_INDEX}: "
            "too low to correct the judge's rates, so improve the judge."
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
    products = ((x - means[0]) * (y - means[1]) for x, y in zip(first, second, strict=True))
    return sum(products) / (len(first) - 1)
