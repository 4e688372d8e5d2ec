"""The posterior of a rate over tasks like these, when tasks differ: a beta-binomial on a grid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import pi
from typing import TYPE_CHECKING

from closeloop.statistics.task_values import TaskValues

if TYPE_CHECKING:
    import numpy as np

    Grid = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

COARSE, FINE = (48, 24), (240, 40)
"""Points for the mean rate, and for how far tasks differ from it: 1 is all or nothing."""
NEGLIGIBLE_WEIGHT = 1e-7
"""Of the largest weight: what the coarse grid finds smaller, the fine one leaves out."""


def beta_binomial_bounds(values: TaskValues) -> tuple[float, float]:
    """Between which the mean rate lies with 95 %.

    Rates are spaced by their angles, in which equal weights are Jeffreys' prior; differences of
    tasks are uniform from 0 to 1.
    """
    import numpy as np

    # Scores are rounded to a twentieth of a repeat, so that few counts differ; passes stay whole.
    tasks = [(round(sum(repeats) * 20) / 20, len(repeats)) for repeats in values.values()]
    counts = (
        Counter(hits for hits, _ in tasks),
        Counter(of - hits for hits, of in tasks),
        Counter(float(of) for _, of in tasks),
    )
    angles, spreads = np.linspace(0, pi / 2, COARSE[0] + 1), np.linspace(0, 1, COARSE[1] + 1)
    for points in (COARSE, FINE):
        weights = _cell_weights(counts, angles, spreads)
        angles = _refine_edges(angles, weights.sum(axis=1), points[0])
        spreads = _refine_edges(spreads, weights.sum(axis=0), points[1])
    rate_weights = _cell_weights(counts, angles, spreads).sum(axis=1)
    cumulative_weights = np.concatenate([[0.0], np.cumsum(rate_weights / rate_weights.sum())])
    low, high = np.interp((0.025, 0.975), cumulative_weights, angles)
    return float(np.sin(low) ** 2), float(np.sin(high) ** 2)


def _cell_weights(counts: Sequence[Counter[float]], angles: Grid, spreads: Grid) -> Grid:
    """How likely the counts are in the middle of each cell, the largest being 1."""
    import numpy as np
    from scipy.special import gammaln  # type: ignore[import-untyped]

    rates = np.sin((angles[1:] + angles[:-1]) / 2) ** 2
    middles = (spreads[1:] + spreads[:-1]) / 2
    size = 1 / middles - 1
    log_likelihood = np.zeros((len(rates), len(size)))
    # The beta functions of all tasks, taken apart: equal counts are computed once.
    for prior, occurrences, sign in zip(
        (np.outer(rates, size), np.outer(1 - rates, size), size), counts, (1, 1, -1), strict=True
    ):
        log_likelihood -= sign * occurrences.total() * gammaln(prior)
        for number, times in occurrences.items():
            log_likelihood += sign * times * gammaln(prior + number)
    weights: Grid = np.exp(log_likelihood - log_likelihood.max())
    return weights


def _refine_edges(edges: Grid, weights: Grid, points: int) -> Grid:
    """Edges of a finer row of cells, where there is weight, and one cell more to each side."""
    import numpy as np

    weighty_cells = np.flatnonzero(weights > NEGLIGIBLE_WEIGHT * weights.max())
    first, last = max(0, weighty_cells[0] - 1), min(len(edges) - 1, weighty_cells[-1] + 2)
    finer: Grid = np.linspace(edges[first], edges[last], points + 1)
    return finer
