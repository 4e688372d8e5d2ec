"""How far a judge agrees with people, beyond chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from math import sqrt

from closeloop.model.estimate import Agreement, Estimate
from closeloop.model.rates import rate
from closeloop.stats.distributions import Z95

Cells = Mapping[tuple[str, str], float]
"""The judge's and the people's label → how often, or which share."""
Shares = Mapping[str, tuple[float, float]]
"""Label → the share of the judge's labels and of the people's."""
POSITIVE = "pass"


def agreement(pairs: Iterable[tuple[str, str]]) -> Agreement | None:
    """Of pairs of labels, the judge's first; None without any."""
    cells = Counter(pairs)
    of = cells.total()
    if not of:
        return None
    hits = sum(count for (judge, person), count in cells.items() if judge == person)
    agreeing = proportion(hits, of)
    ac1 = _beyond_chance(cells, _ac1_chance, "Gwet's AC1")
    assert agreeing is not None
    assert ac1 is not None
    return Agreement(
        cells=tuple((*labels, cells[labels]) for labels in sorted(cells)),
        positive=POSITIVE,
        agreeing=agreeing,
        sensitivity=_share(cells, lambda label: label == POSITIVE),
        specificity=_share(cells, lambda label: label != POSITIVE),
        kappa=_beyond_chance(cells, _kappa_chance, "Cohen's kappa"),
        ac1=ac1,
    )


def proportion(hits: float, of: int) -> Estimate | None:
    """So many of so many items, each independent of the others."""
    found = rate(hits, of)
    if found is None:
        return None
    return Estimate(value=found.value, low=found.low, high=found.high, n=of, method="Wilson score")


def _share(cells: Mapping[tuple[str, str], int], meant: Callable[[str], bool]) -> Estimate | None:
    """Of the items that people label so, those that the judge does too."""
    of = sum(count for (_, person), count in cells.items() if meant(person))
    hits = sum(count for (judge, person), count in cells.items() if meant(person) and meant(judge))
    return proportion(hits, of)


def _beyond_chance(
    cells: Mapping[tuple[str, str], int],
    chance: Callable[[Shares], dict[tuple[str, str], float]],
    method: str,
) -> Estimate | None:
    """Bounds by the delta method, with half a pair added to each cell: none is then certain."""
    labels = sorted({label for pair in cells for label in pair})
    if len(labels) == 1:
        labels.append(f"no {labels[0]}")
    of = sum(cells.values())
    value = _value({pair: count / of for pair, count in cells.items()}, labels, chance)
    if value is None:
        return None
    every = of + len(labels) ** 2 / 2
    safe = {pair: (cells.get(pair, 0) + 0.5) / every for pair in product(labels, labels)}
    middle = _value(safe, labels, chance)
    assert middle is not None
    half = Z95 * sqrt(_variance(safe, labels, chance, middle) / every)
    return Estimate(
        value=value,
        low=max(-1.0, min(value, middle - half)),
        high=min(1.0, max(value, middle + half)),
        n=of,
        method=method,
    )


def _value(
    cells: Cells, labels: list[str], chance: Callable[[Shares], dict[tuple[str, str], float]]
) -> float | None:
    expected = _expected(cells, chance(_shares(cells, labels)))
    if expected >= 1:
        return None
    return (_agreeing(cells) - expected) / (1 - expected)


def _variance(
    cells: Cells,
    labels: list[str],
    chance: Callable[[Shares], dict[tuple[str, str], float]],
    value: float,
) -> float:
    """Of what each pair adds to the value (Gwet 2008, eq. 5.2; for kappa as Fleiss 1969)."""
    each = chance(_shares(cells, labels))
    expected = _expected(cells, each)
    agreeing = _agreeing(cells)
    adds = {
        pair: ((pair[0] == pair[1]) - agreeing - 2 * (1 - value) * (each[pair] - expected))
        / (1 - expected)
        for pair in cells
    }
    return sum(cells[pair] * adds[pair] ** 2 for pair in cells)


def _shares(cells: Cells, labels: list[str]) -> Shares:
    return {
        label: (
            sum(share for pair, share in cells.items() if pair[0] == label),
            sum(share for pair, share in cells.items() if pair[1] == label),
        )
        for label in labels
    }


def _agreeing(cells: Cells) -> float:
    return sum(share for pair, share in cells.items() if pair[0] == pair[1])


def _expected(cells: Cells, each: Cells) -> float:
    return sum(share * each[pair] for pair, share in cells.items())


def _kappa_chance(shares: Shares) -> dict[tuple[str, str], float]:
    """What each pair adds to the agreement by chance: two strangers with these shares."""
    return {
        (judge, person): (shares[judge][1] + shares[person][0]) / 2
        for judge, person in product(shares, shares)
    }


def _ac1_chance(shares: Shares) -> dict[tuple[str, str], float]:
    """Guesses of hard items only, over all labels alike."""
    rarity = {label: (1 - sum(both) / 2) / (len(shares) - 1) for label, both in shares.items()}
    return {
        (judge, person): (rarity[judge] + rarity[person]) / 2
        for judge, person in product(shares, shares)
    }
