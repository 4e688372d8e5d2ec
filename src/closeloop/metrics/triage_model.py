"""Estimate from features which sessions succeeded: a prior from public runs, and a team's grades.

A feature counts by the session's place among the same agent's sessions with the same model, from
-1 (the least) over 0 (the middle) to 1. Where there are few of those, the public runs stand in. A
feature that is not known counts as the middle.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec

from closeloop.records.record import Record
from closeloop.records.triage import TriagePrior
from closeloop.statistics.ridge_logistic import (
    calibration_error,
    fit_ridge_logistic,
    roc_auc,
    sigmoid,
)

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

REFERENCE_SESSIONS = 12
"""The public runs count as so many of the agent's own sessions."""
MIN_GRADED_SESSIONS = 50
"""So many graded sessions of an agent are needed to state chances."""
WEIGHT_RIDGE = 60.0
"""How firmly weights keep to the prior."""
GROUP_RIDGE = 2.0
"""How firmly each agent and model keeps to the mean of all."""
SLOPE_RIDGE = 10.0
"""How firmly an agent's chances keep to the spread that the model gives them."""
FOLDS = 5


@cache
def load_triage_prior() -> TriagePrior:
    """The prior that ships with closeloop; `quality/triage.py --write` fits it."""
    text = files(__package__).joinpath("triage_prior.json").read_bytes()
    return msgspec.json.decode(text, type=TriagePrior)


# Places of sessions among the others of their agent.


def relative_positions(
    sessions: Sequence[Mapping[str, float]],
    groups: Sequence[Hashable],
    prior: TriagePrior,
) -> Array:
    """A row a session, a column a feature of the prior: from -1 to 1, 0 where it is not known."""
    import numpy as np

    values = feature_matrix(sessions, tuple(prior.features))
    positions = np.zeros(values.shape)
    members = list(rows_by_label(groups).values())
    for column, feature in enumerate(prior.features.values()):
        reference = np.asarray(feature.quantiles)
        for rows in members:
            known = rows[~np.isnan(values[rows, column])]
            own = values[known, column]
            positions[known, column] = (
                len(known) * place_values(own, np.sort(own))
                + REFERENCE_SESSIONS * place_values(own, reference)
            ) / (len(known) + REFERENCE_SESSIONS)
    return positions


def feature_matrix(sessions: Sequence[Mapping[str, float]], names: Sequence[str]) -> Array:
    """A row a session; NaN where a feature is not known."""
    import numpy as np

    nan = float("nan")
    rows = [[session.get(name, nan) for name in names] for session in sessions]
    return np.array(rows, np.float64).reshape(len(sessions), len(names))


def rows_by_label(labels: Sequence[Hashable]) -> dict[Hashable, Array]:
    """Which rows have each label."""
    import numpy as np

    rows: dict[Hashable, list[int]] = {}
    for row, label in enumerate(labels):
        rows.setdefault(label, []).append(row)
    return {label: np.array(places, np.intp) for label, places in rows.items()}


def place_values(values: Array, ordered: Array) -> Array:
    """Where values stand among ordered ones, from -1 to 1; equal ones stand in their middle."""
    import numpy as np

    below = np.searchsorted(ordered, values, "left")
    upto = np.searchsorted(ordered, values, "right")
    places: Array = (below + upto) / max(1, len(ordered)) - 1
    return places


# What a team's own grades add.


class TriageModel(Record):
    """The weights of features, and how good each agent and model is."""

    weights: Any
    constant: float = 0.0
    constants: dict[Hashable, float] = {}
    """By agent and model, beyond that of all; 0 for one of which nothing is graded."""


def fit_team_model(
    positions: Array, groups: Sequence[Hashable], hits: Array, prior: TriagePrior
) -> TriageModel:
    """The prior's weights as far as graded sessions do not say otherwise.

    `hits` is 1 for a success, 0 for a failure, and NaN where it is not known.
    """
    import numpy as np

    prior_weights = np.array([feature.weight for feature in prior.features.values()])
    graded = np.flatnonzero(~np.isnan(hits)).tolist()
    if not graded:
        return TriageModel(weights=prior_weights)
    names = list(dict.fromkeys(groups[row] for row in graded))
    columns = {name: place for place, name in enumerate(names)}
    shares = np.zeros((len(graded), len(names)))
    shares[np.arange(len(graded)), [columns[groups[row]] for row in graded]] = 1
    rows = np.hstack([positions[graded], np.ones((len(graded), 1)), shares])
    features = positions.shape[1]
    penalty = np.r_[np.full(features, WEIGHT_RIDGE), 1e-2, np.full(len(names), GROUP_RIDGE)]
    towards = np.r_[prior_weights, np.zeros(1 + len(names))]
    fitted = fit_ridge_logistic(rows, hits[graded], penalty, towards)
    constants = {name: float(fitted[features + 1 + place]) for name, place in columns.items()}
    return TriageModel(
        weights=fitted[:features], constant=float(fitted[features]), constants=constants
    )


def score_sessions(model: TriageModel, positions: Array, groups: Sequence[Hashable]) -> Array:
    """Log odds; up to a constant where nothing is graded."""
    import numpy as np

    constants = np.array([model.constants.get(group, 0.0) for group in groups])
    scores: Array = positions @ model.weights + model.constant + constants
    return scores


def cross_validated_scores(
    positions: Array, groups: Sequence[Hashable], hits: Array, prior: TriagePrior
) -> Array:
    """Of each graded session the score that the others give it; NaN where it is not graded."""
    import numpy as np

    scores = np.full(len(hits), np.nan)
    for left_out in split_folds(hits, groups):
        others = hits.copy()
        others[left_out] = np.nan
        model = fit_team_model(positions, groups, others, prior)
        scores[left_out] = score_sessions(
            model, positions[left_out], [groups[row] for row in left_out]
        )
    return scores


def split_folds(hits: Array, groups: Sequence[Hashable]) -> list[Array]:
    """Graded rows in parts with like shares of successes in each group.

    Else whoever leaves a success out would also foretell fewer, and good estimates would look bad.
    """
    import numpy as np

    ordered = [
        row
        for rows in rows_by_label(groups).values()
        for hit in (0, 1)
        for row in rows[hits[rows] == hit].tolist()
    ]
    return [np.array(ordered[fold::FOLDS], np.intp) for fold in range(FOLDS)]


def calibrate_scores(scores: Array, hits: Array) -> tuple[float, float]:
    """Constant and slope that make chances of scores, from sessions not scored by themselves."""
    import numpy as np

    rows = np.stack([np.ones(len(scores)), scores], axis=1)
    constant, slope = fit_ridge_logistic(
        rows, hits, np.array([1e-2, SLOPE_RIDGE]), np.array([0.0, 1.0])
    )
    return float(constant), float(max(slope, 0.0))


def fit_chances(
    scores: Array, left_out_scores: Array, agents: Sequence[Hashable], hits: Array
) -> Array:
    """Of each session of an agent with enough grades the chance of success; else NaN."""
    import numpy as np

    chances = np.full(len(scores), np.nan)
    for rows in rows_by_label(agents).values():
        graded = rows[~np.isnan(hits[rows])]
        if len(graded) >= MIN_GRADED_SESSIONS:
            constant, slope = calibrate_scores(left_out_scores[graded], hits[graded])
            chances[rows] = sigmoid(constant + slope * scores[rows])
    return chances


# How good the estimate is.


def auc_within(
    scores: Array, hits: Array, groups: Sequence[Hashable]
) -> tuple[float | None, dict[Hashable, tuple[float, int]]]:
    """The mean AUC of groups, by their sessions, and that of each with its sessions."""
    import numpy as np

    each: dict[Hashable, tuple[float, int]] = {}
    for group, members in rows_by_label(groups).items():
        rows = members[~np.isnan(hits[members])]
        area = roc_auc(scores[rows].tolist(), (hits[rows] == 1).tolist())
        if area is not None:
            each[group] = area, len(rows)
    total = sum(n for _, n in each.values())
    mean = sum(area * n for area, n in each.values()) / total if total else None
    return mean, each


def left_out_calibration_error(
    left_out_scores: Array, agents: Sequence[Hashable], hits: Array
) -> float | None:
    """The error of chances whose calibration has not seen the session either."""
    import numpy as np

    chances: list[float] = []
    outcomes: list[bool] = []
    for rows in rows_by_label(agents).values():
        graded = rows[~np.isnan(hits[rows])]
        if len(graded) < MIN_GRADED_SESSIONS:
            continue
        for fold in split_folds(hits[graded], [0] * len(graded)):
            left_out, others = graded[fold], np.delete(graded, fold)
            constant, slope = calibrate_scores(left_out_scores[others], hits[others])
            chances += sigmoid(constant + slope * left_out_scores[left_out]).tolist()
            outcomes += (hits[left_out] == 1).tolist()
    return calibration_error(chances, outcomes)
