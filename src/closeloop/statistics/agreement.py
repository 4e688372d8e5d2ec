"""How far a judge agrees with people, beyond chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from math import sqrt

from closeloop.records.estimate import Agreement, Estimate, wilson_rate
from closeloop.statistics.distributions import Z95

LabelCells = Mapping[tuple[str, str], float]
"""The judge's and the people's label → how often, or which share."""
LabelShares = Mapping[str, tuple[float, float]]
"""Label → the share of the judge's labels and of the people's."""
POSITIVE_LABEL = "pass"


def measure_agreement(pairs: Iterable[tuple[str, str]]) -> Agreement | None:
    """Of pairs of labels, the judge's first; None without any."""
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


def estimate_proportion(hits: float, of: int) -> Estimate | None:
    """So many of so many items, each independent of the others."""
    interval = wilson_rate(hits, of)
    if interval is None:
        return None
    return Estimate(
        value=interval.value, low=interval.low, high=interval.high, n=of, method="Wilson score"
    )


def _estimate_label_share(
    cells: Mapping[tuple[str, str], int], meant: Callable[[str], bool]
) -> Estimate | None:
    """Of the items that people label so, those that the judge does too."""
    of = sum(count for (_, person), count in cells.items() if meant(person))
    hits = sum(count for (judge, person), count in cells.items() if meant(person) and meant(judge))
    return estimate_proportion(hits, of)


def _estimate_beyond_chance(
    cells: Mapping[tuple[str, str], int],
    chance: Callable[[LabelShares], dict[tuple[str, str], float]],
    method: str,
) -> Estimate | None:
    """Bounds by the delta method, with half a pair added to each cell: none is then certain."""
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
    half = Z95 * sqrt(
        _coefficient_variance(smoothed_cells, labels, chance, middle) / smoothed_total
    )
    return Estimate(
        value=value,
        low=max(-1.0, min(value, middle - half)),
        high=min(1.0, max(value, middle + half)),
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
    """Of what each pair adds to the value (Gwet 2008, eq. 5.2; for kappa as Fleiss 1969)."""
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


def _expected_agreement(cells: LabelCells, each: LabelCells) -> float:
    return sum(share * each[pair] for pair, share in cells.items())


def _kappa_chance(shares: LabelShares) -> dict[tuple[str, str], float]:
    """What each pair adds to the agreement by chance: two strangers with these shares."""
    return {
        (judge, person): (shares[judge][1] + shares[person][0]) / 2
        for judge, person in product(shares, shares)
    }


def _ac1_chance(shares: LabelShares) -> dict[tuple[str, str], float]:
    """Guesses of hard items only, over all labels alike."""
    rarity = {label: (1 - sum(both) / 2) / (len(shares) - 1) for label, both in shares.items()}
    return {
        (judge, person): (rarity[judge] + rarity[person]) / 2
        for judge, person in product(shares, shares)
    }
