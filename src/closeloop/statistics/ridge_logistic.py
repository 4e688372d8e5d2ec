"""Logistic regression with a ridge towards prior weights, and the quality of its estimates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

MAX_ROUNDS = 50
MAX_STEP = 4.0
CALIBRATION_BINS = 10


def fit_ridge_logistic(
    rows: Array,
    outcomes: Array,
    penalty: Array,
    towards: Array | None = None,
    counts: Array | None = None,
) -> Array:
    """The weights of the columns: most likely, less `penalty`/2 × their squared way from `towards`.

    `counts` is how often each row counts. There is no constant: give a column of ones for it.
    """
    import numpy as np

    start = np.zeros(rows.shape[1]) if towards is None else np.asarray(towards, np.float64)
    times = np.ones(len(rows)) if counts is None else counts
    weights = start.copy()
    for _ in range(MAX_ROUNDS):
        chances = sigmoid(rows @ weights)
        gradient = rows.T @ (times * (outcomes - chances)) - penalty * (weights - start)
        spread = times * chances * (1 - chances)
        curvature = (rows.T * spread) @ rows + np.diag(np.maximum(penalty, 1e-9))
        step = np.clip(np.linalg.solve(curvature, gradient), -MAX_STEP, MAX_STEP)
        weights = weights + step
        if np.abs(step).max(initial=0.0) < 1e-8:
            break
    return weights


def sigmoid(logits: Array) -> Array:
    """Convert log odds to probabilities."""
    import numpy as np

    chances: Array = 1 / (1 + np.exp(-np.clip(logits, -500, 500)))
    return chances


def roc_auc(scores: Sequence[float], outcomes: Sequence[bool]) -> float | None:
    """Probability that a hit scores above a miss; ties count half."""
    positives = sum(outcomes)
    negatives = len(outcomes) - positives
    if not positives or not negatives:
        return None
    ordered = sorted(zip(scores, outcomes, strict=True))
    rank_sum, start = 0.0, 0
    while start < len(ordered):
        end = start
        while end < len(ordered) and ordered[end][0] == ordered[start][0]:
            end += 1
        rank_sum += (start + 1 + end) / 2 * sum(hit for _, hit in ordered[start:end])
        start = end
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)


def calibration_error(chances: Sequence[float], outcomes: Sequence[bool]) -> float | None:
    """Expected calibration error in ten bins of equal width."""
    if not chances:
        return None
    bins: dict[int, list[float]] = {}
    for chance, hit in zip(chances, outcomes, strict=True):
        bins.setdefault(min(int(chance * CALIBRATION_BINS), CALIBRATION_BINS - 1), []).append(
            chance - hit
        )
    return sum(abs(sum(gaps)) for gaps in bins.values()) / len(chances)
