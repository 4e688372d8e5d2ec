"""Variants that share the work in production: who gets what, what came of it, when to stop."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from math import isclose, isnan
from statistics import fmean

from closeloop.metrics.attempt_table import AttemptTable, MeasuringProgress, load_attempt_table
from closeloop.metrics.attempt_values import correctness_values
from closeloop.metrics.metric_definitions import METRICS
from closeloop.metrics.metric_trends import estimate_shift
from closeloop.metrics.score_columns import attach_scores, find_metric
from closeloop.metrics.score_definitions import (
    ScoreCatalogue,
    build_catalogue,
    derived_definitions,
    split_source,
)
from closeloop.process.rulebook import Rulebook
from closeloop.records.errors import BadInput, unknown_name_error
from closeloop.records.estimate import Estimate
from closeloop.records.experiment_plan import (
    Trial,
    TrialArm,
    TrialAssignment,
    TrialCall,
    TrialReport,
    TrialStanding,
)
from closeloop.statistics.rate_comparison import classify_difference
from closeloop.statistics.sequences import check_sample_ratio, monitor_difference
from closeloop.store import Store
from closeloop.store.metrics_section import AttemptSpan

REPORTED_METRICS = ("merge rate", "failure rate", "revision cycles", "tokens in")
TrialOutcomes = Mapping[str, Mapping[str, float]]
"""By metric and key, what is known."""


def parse_shares(written: str) -> dict[str, float]:
    """`a=0.5,b=0.5`, as somebody typed it."""
    shares: dict[str, float] = {}
    for part in written.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        try:
            share = float(value)
        except ValueError:
            share = 0.0
        if not name or name in shares or not 0 < share < 1:
            raise BadInput(f"{part!r} is no share: write variants like a=0.5,b=0.5.")
        shares[name] = share
    if not isclose(sum(shares.values()), 1):
        raise BadInput("The shares must add up to 1: write variants like a=0.5,b=0.5.")
    return shares


def require_rate(name: str, catalogue: ScoreCatalogue) -> None:
    """Only a rate can decide: its values have limits."""
    rates = [metric.name for metric, _ in METRICS.values() if metric.kind == "rate"]
    rates += [one.name for one in derived_definitions().values() if one.kind == "rate"]
    rates += [one.name for one in catalogue.given.values() if one.kind == "rate"]
    if split_source(name)[1] not in rates:
        raise unknown_name_error("rate", name, rates)


def assign_variant(store: Store, trial: Trial, key: str, now: datetime) -> TrialAssignment:
    """Written before the work starts; the same key always falls to the same variant."""
    if not key.strip():
        raise BadInput("Nothing to assign: name a task, a branch or an attempt.")
    one = TrialAssignment(trial=trial.name, key=key, variant=draw_variant(trial, key), at=now)
    return store.trials.save_assignment(one)


def draw_variant(trial: Trial, key: str) -> str:
    """By a hash of the key, which nobody can lean on."""
    digest = hashlib.sha256(f"{trial.name}\0{key}".encode("utf-8", "replace")).digest()
    place, reached = int.from_bytes(digest[:8]) / 2**64, 0.0
    for variant, share in trial.shares.items():
        reached += share
        if place < reached:
            return variant
    return [*trial.shares][-1]


def report_trial(
    store: Store,
    book: Rulebook,
    trial: Trial,
    tell: MeasuringProgress = lambda done, of: None,
    catalogue: ScoreCatalogue | None = None,
) -> TrialReport:
    """How the variants do, and whether the trial may stop."""
    assigned = store.trials.list_assignments(trial.name)
    span = AttemptSpan(since=trial.started)
    work = load_attempt_table(store, book, span, tell)
    work = attach_scores(work, store, catalogue or build_catalogue({}), (trial.metric,), span, tell)
    outcomes = join_outcomes(work, assigned, trial)
    less_is_better = find_metric(work, trial.metric)[0].better == "less"
    counts = Counter(one.variant for one in assigned)
    ratio = check_sample_ratio(counts, trial.shares)
    refusal = None
    if ratio is not None and not ratio.holds:
        refusal = (
            f"The work was not shared as it should have been ({dict(counts)}, p {ratio.p:.1g}): "
            "find out which work is missing before anything is compared."
        )
    arms = tuple(_summarise_arm(trial, name, assigned, outcomes) for name in trial.shares)
    others = [*trial.shares][1:]
    return TrialReport(
        trial=trial,
        ratio=ratio,
        arms=arms,
        standings=()
        if refusal
        else tuple(
            _compare_arm(trial, name, assigned, outcomes[trial.metric], less_is_better)
            for name in others
        ),
        refusal=refusal,
    )


def join_outcomes(
    work: AttemptTable, assigned: Sequence[TrialAssignment], trial: Trial
) -> dict[str, dict[str, float]]:
    """What came of each piece of work: of its last attempt that began after it was assigned."""
    columns = work.columns
    places: dict[str, list[int]] = {}
    for keys in (work.attempts, columns["branch"].tolist(), columns["task"].tolist()):
        for place, key in enumerate(keys):
            if key is not None:
                places.setdefault(key, []).append(place)
    started = columns["started"]
    values = {
        trial.metric: find_metric(work, trial.metric)[1](columns),
        "merge rate": columns["merged"],
        "failure rate": 1 - correctness_values(columns),
        "revision cycles": columns["cycles"],
        "tokens in": columns["input_tokens"],
    }
    outcomes: dict[str, dict[str, float]] = {name: {} for name in values}
    for one in assigned:
        since = one.at.timestamp() * 1e6
        later_places = [place for place in places.get(one.key, ()) if started[place] >= since]
        last = max(later_places, key=lambda place: float(started[place]), default=None)
        for name, held in values.items():
            if last is not None and not isnan(held[last]):
                outcomes[name][one.key] = float(held[last])
    return outcomes


def _summarise_arm(
    trial: Trial, name: str, assigned: Sequence[TrialAssignment], outcomes: TrialOutcomes
) -> TrialArm:
    arm_keys = [one.key for one in assigned if one.variant == name]
    values_by_metric = {
        metric: [held[key] for key in arm_keys if key in held] for metric, held in outcomes.items()
    }
    return TrialArm(
        variant=name,
        share=trial.shares[name],
        assigned=len(arm_keys),
        outcomes=len(values_by_metric[trial.metric]),
        rates={
            metric: fmean(values) if values else None for metric, values in values_by_metric.items()
        },
    )


def _compare_arm(
    trial: Trial,
    name: str,
    assigned: Sequence[TrialAssignment],
    held: Mapping[str, float],
    less_is_better: bool,
) -> TrialStanding:
    """Against the first. At any time by a confidence sequence; at a horizon once."""
    first = next(iter(trial.shares))
    outcomes = [
        (one.variant == name, 1 - held[one.key] if less_is_better else held[one.key])
        for one in assigned
        if one.key in held and one.variant in (first, name)
    ]
    if trial.horizon is not None and len(outcomes) < trial.horizon:
        why = f"{len(outcomes):,} of the {trial.horizon:,} outcomes that were asked for are known"
        return TrialStanding(variant=name, call="go on", why=why)
    if trial.horizon is None:
        share = trial.shares[name] / (trial.shares[first] + trial.shares[name])
        difference = monitor_difference(outcomes, share)
    else:
        difference = _fixed_horizon_difference(outcomes[: trial.horizon])
    if difference is None:
        return TrialStanding(variant=name, call="go on", why="no outcome is known for both yet")
    call = _decide_call(difference, trial)
    return TrialStanding(variant=name, call=call, why=CALL_REASONS[call], difference=difference)


def _fixed_horizon_difference(outcomes: Sequence[tuple[bool, float]]) -> Estimate | None:
    sides = [[value for second, value in outcomes if second is side] for side in (False, True)]
    shift = estimate_shift(*sides)
    if shift is None:
        return None
    value = shift.after.value - shift.before.value
    method = "difference of two Wilson intervals"
    return Estimate(value=value, low=shift.low, high=shift.high, n=len(outcomes), method=method)


def _decide_call(seen: Estimate, trial: Trial) -> TrialCall:
    verdict = classify_difference(seen, trial.margin)
    if verdict in ("better", "worse"):
        return verdict
    return "go on" if verdict == "not enough data" and trial.horizon is None else "hopeless"


CALL_REASONS: dict[TrialCall, str] = {
    "better": "stop: it is better than the first",
    "worse": "stop: it is worse than the first",
    "hopeless": "stop: waiting longer shows no difference that matters",
    "go on": "go on: the bounds still hold both better and worse",
}
