"""Logistic regression and the area under its ROC curve: as much of it as is needed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

FeatureRow = tuple[float, ...]
Matrix = list[list[float]]
_RIDGE_PENALTY = 1e-3
_MAX_ROUNDS = 25


def fit_logistic(rows: Sequence[FeatureRow], hits: Sequence[bool]) -> tuple[list[float], Matrix]:
    """The weights, that of the constant first, and their covariance; equal rows count once."""
    count: Counter[FeatureRow] = Counter(rows)
    positive: Counter[FeatureRow] = Counter(row for row, hit in zip(rows, hits, strict=True) if hit)
    cells = [((1.0, *row), n, positive[row]) for row, n in count.items()]
    size = len(cells[0][0])
    weights = [0.0] * size
    inverse: Matrix = []
    for _ in range(_MAX_ROUNDS):
        gradient = [-_RIDGE_PENALTY * weight for weight in weights]
        curvature = [[_RIDGE_PENALTY * (i == j) for j in range(size)] for i in range(size)]
        for row, n, hit in cells:
            chance = sigmoid(dot_product(weights, row))
            spread = n * chance * (1 - chance)
            for i in range(size):
                gradient[i] += row[i] * (hit - n * chance)
                for j in range(size):
                    curvature[i][j] += spread * row[i] * row[j]
        inverse = invert_matrix(curvature)
        step = [dot_product(line, gradient) for line in inverse]
        weights = [
            weight + max(-4.0, min(4.0, move)) for weight, move in zip(weights, step, strict=True)
        ]
        if max(map(abs, step)) < 1e-8:
            break
    return weights, inverse


def fit_shift(scores: Sequence[float], hits: int) -> tuple[float, float]:
    """What to add to all scores so that they foretell so many hits, and the variance of that."""
    wanted = min(max(float(hits), 0.5), len(scores) - 0.5)
    shift = spread = 0.0
    for _ in range(_MAX_ROUNDS):
        chances = [sigmoid(score + shift) for score in scores]
        spread = sum(chance * (1 - chance) for chance in chances)
        move = max(-1.0, min(1.0, (wanted - sum(chances)) / max(spread, 1e-9)))
        shift += move
        if abs(move) < 1e-6:
            break
    return shift, 1 / max(spread, 1e-9)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def dot_product(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def invert_matrix(matrix: Matrix) -> Matrix:
    """Of a small positive definite matrix, by elimination."""
    size = len(matrix)
    wide = [[*line, *(float(i == j) for j in range(size))] for i, line in enumerate(matrix)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda line: abs(wide[line][i]))
        wide[i], wide[pivot] = wide[pivot], wide[i]
        wide[i] = [value / wide[i][i] for value in wide[i]]
        for j in range(size):
            if j != i:
                factor = wide[j][i]
                wide[j] = [a - factor * b for a, b in zip(wide[j], wide[i], strict=True)]
    return [line[size:] for line in wide]


def roc_auc(scores: Sequence[float], hits: Sequence[bool]) -> float | None:
    """The chance that one that went wrong scores above one that did not; ties count half."""
    positives = sum(hits)
    negatives = len(hits) - positives
    if not positives or not negatives:
        return None
    ordered = sorted(zip(scores, hits, strict=True))
    total, at = 0.0, 0
    while at < len(ordered):
        end = at
        while end < len(ordered) and ordered[end][0] == ordered[at][0]:
            end += 1
        total += (at + 1 + end) / 2 * sum(hit for _, hit in ordered[at:end])
        at = end
    return (total - positives * (positives + 1) / 2) / (positives * negatives)
