"""Variants that share the work in production: who gets what, what came of it, when to stop."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from math import isclose, isnan
from statistics import fmean

from closeloop.measuring.definitions import METRICS, right
from closeloop.measuring.trends import shift_of
from closeloop.measuring.work import Tell, Work, work_of
from closeloop.model.errors import BadInput, unknown
from closeloop.model.estimate import Estimate
from closeloop.model.trial import Arm, Call, Lot, Standing, Trial, TrialReport
from closeloop.process.rulebook import Rulebook
from closeloop.stats.compare import word
from closeloop.stats.sequence import monitor
from closeloop.stats.shares import sample_ratio
from closeloop.store import Store
from closeloop.store.numbers import Span

LOOKED_AT = ("merge rate", "failure rate", "revision cycles", "tokens in")
Outcomes = Mapping[str, Mapping[str, float]]
"""By metric and key, what is known."""


def shares_of(written: str) -> dict[str, float]:
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


def demand_rate(metric: str) -> None:
    """Only a rate can decide: its values have limits."""
    rates = [name for name, (held, _) in METRICS.items() if held.kind == "rate"]
    if metric not in rates:
        raise unknown("rate", metric, rates)


def assign(store: Store, trial: Trial, key: str, now: datetime) -> Lot:
    """Written before the work starts; the same key always falls to the same variant."""
    if not key.strip():
        raise BadInput("Nothing to assign: name a task, a branch or an attempt.")
    one = Lot(trial=trial.name, key=key, variant=drawn(trial, key), at=now)
    return store.trials.assign(one)


def drawn(trial: Trial, key: str) -> str:
    """By a hash of the key, which nobody can lean on."""
    digest = hashlib.sha256(f"{trial.name}\0{key}".encode("utf-8", "replace")).digest()
    place, reached = int.from_bytes(digest[:8]) / 2**64, 0.0
    for variant, share in trial.shares.items():
        reached += share
        if place < reached:
            return variant
    return [*trial.shares][-1]


def status(
    store: Store, book: Rulebook, trial: Trial, tell: Tell = lambda done, of: None
) -> TrialReport:
    """How the variants do, and whether the trial may stop."""
    assigned = store.trials.assigned(trial.name)
    outcomes = joined(work_of(store, book, Span(since=trial.started), tell), assigned, trial)
    counts = Counter(one.variant for one in assigned)
    ratio = sample_ratio(counts, trial.shares)
    refusal = None
    if ratio is not None and not ratio.holds:
        refusal = (
            f"The work was not shared as it should have been ({dict(counts)}, p {ratio.p:.1g}): "
            "find out which work is missing before anything is compared."
        )
    arms = tuple(_arm(trial, name, assigned, outcomes) for name in trial.shares)
    others = [*trial.shares][1:]
    return TrialReport(
        trial=trial,
        ratio=ratio,
        arms=arms,
        standings=()
        if refusal
        else tuple(_standing(trial, name, assigned, outcomes[trial.metric]) for name in others),
        refusal=refusal,
    )


def joined(work: Work, assigned: Sequence[Lot], trial: Trial) -> dict[str, dict[str, float]]:
    """What came of each piece of work: of its last attempt that began after it was assigned."""
    columns = work.columns
    places: dict[str, list[int]] = {}
    for keys in (work.attempts, columns["branch"].tolist(), columns["task"].tolist()):
        for place, key in enumerate(keys):
            if key is not None:
                places.setdefault(key, []).append(place)
    started = columns["started"]
    values = {
        trial.metric: METRICS[trial.metric][1](columns),
        "merge rate": columns["merged"],
        "failure rate": 1 - right(columns),
        "revision cycles": columns["cycles"],
        "tokens in": columns["input_tokens"],
    }
    found: dict[str, dict[str, float]] = {name: {} for name in values}
    for one in assigned:
        since = one.at.timestamp() * 1e6
        mine = [place for place in places.get(one.key, ()) if started[place] >= since]
        last = max(mine, key=lambda place: float(started[place]), default=None)
        for name, held in values.items():
            if last is not None and not isnan(held[last]):
                found[name][one.key] = float(held[last])
    return found


def _arm(trial: Trial, name: str, assigned: Sequence[Lot], outcomes: Outcomes) -> Arm:
    mine = [one.key for one in assigned if one.variant == name]
    known = {
        metric: [held[key] for key in mine if key in held] for metric, held in outcomes.items()
    }
    return Arm(
        variant=name,
        share=trial.shares[name],
        assigned=len(mine),
        outcomes=len(known[trial.metric]),
        rates={metric: fmean(values) if values else None for metric, values in known.items()},
    )


def _standing(
    trial: Trial, name: str, assigned: Sequence[Lot], held: Mapping[str, float]
) -> Standing:
    """Against the first. At any time by a confidence sequence; at a horizon once."""
    first = next(iter(trial.shares))
    worse = METRICS[trial.metric][0].better == "less"
    outcomes = [
        (one.variant == name, 1 - held[one.key] if worse else held[one.key])
        for one in assigned
        if one.key in held and one.variant in (first, name)
    ]
    if trial.horizon is not None and len(outcomes) < trial.horizon:
        why = f"{len(outcomes):,} of the {trial.horizon:,} outcomes that were asked for are known"
        return Standing(variant=name, call="go on", why=why)
    if trial.horizon is None:
        share = trial.shares[name] / (trial.shares[first] + trial.shares[name])
        seen = monitor(outcomes, share)
    else:
        seen = _fixed(outcomes[: trial.horizon])
    if seen is None:
        return Standing(variant=name, call="go on", why="no outcome is known for both yet")
    call = _call(seen, trial)
    return Standing(variant=name, call=call, why=WHY[call], difference=seen)


def _fixed(outcomes: Sequence[tuple[bool, float]]) -> Estimate | None:
    sides = [[value for second, value in outcomes if second is side] for side in (False, True)]
    found = shift_of(*sides)
    if found is None:
        return None
    value = found.after.value - found.before.value
    method = "difference of two Wilson intervals"
    return Estimate(value=value, low=found.low, high=found.high, n=len(outcomes), method=method)


def _call(seen: Estimate, trial: Trial) -> Call:
    said = word(seen, trial.margin)
    if said in ("better", "worse"):
        return said
    return "go on" if said == "not enough data" and trial.horizon is None else "hopeless"


WHY: dict[Call, str] = {
    "better": "stop: it is better than the first",
    "worse": "stop: it is worse than the first",
    "hopeless": "stop: waiting longer shows no difference that matters",
    "go on": "go on: the bounds still hold both better and worse",
}
