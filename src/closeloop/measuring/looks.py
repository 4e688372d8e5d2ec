"""Looks at the held-out set: who may, what they cost, and what they show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from math import sqrt
from statistics import NormalDist, fmean

from closeloop.model.attempt import AttemptRow
from closeloop.model.estimate import Estimate
from closeloop.model.look import Gap, Look
from closeloop.model.plan import Plan
from closeloop.model.record import digest
from closeloop.model.task import Task
from closeloop.stats.differences import newcombe
from closeloop.stats.single import estimate
from closeloop.stats.values import Values
from closeloop.store import Store

MOST_LOOKS = 3
"""With a fourth change tried, the best of equals looks better by a whole standard error."""
QUARTER_DAYS = 92


def look_of(plan: Plan, reason: str, who: str, at: datetime) -> Look | None:
    """What the ledger will say of a plan; None where it has no held-out task."""
    held = sorted(task.digest for task in plan.tasks if task.split == "held-out")
    if not held:
        return None
    tried = sorted(variant.digest for variant in plan.variants)
    return Look(
        at=at,
        who=who,
        reason=reason,
        tasks=digest(*held)[:12],
        change=digest(tried, held)[:12],
        experiment=plan.experiment.id,
        variants=tuple(variant.name for variant in plan.variants),
        models=tuple(sorted({variant.model for variant in plan.variants if variant.model})),
        count=len(held),
    )


def warning(look: Look, earlier: Sequence[Look]) -> str | None:
    """What to say to somebody who looks too often."""
    changes = {one.change for one in (*earlier, look) if one.tasks == look.tasks}
    if len(changes) <= MOST_LOOKS:
        return None
    optimism = _best_of(len(changes)) * 0.5 / sqrt(look.count)
    return (
        f"this is change {len(changes)} tried on these {look.count} held-out tasks: the best of "
        f"so many equals looks up to {optimism:.2f} better than it is, so hold out new ones."
    )


def gaps(store: Store, tasks: Sequence[Task]) -> list[Gap]:
    """By variant, how much better it does on dev tasks than on those held out."""
    splits = {task.digest: task.split for task in tasks}
    rows = store.attempts(task_digests=tuple(splits))
    found = []
    for name, variant in sorted({(row.variant_name or "?", row.variant or "") for row in rows}):
        mine = [row for row in rows if row.variant == variant]
        dev = estimate(_values(row for row in mine if splits[row.task_digest or ""] == "dev"))
        held = estimate(_values(row for row in mine if splits[row.task_digest or ""] != "dev"))
        if dev and dev.alike and held and held.alike:
            found.append(
                Gap(
                    variant=name,
                    dev=dev.alike,
                    held_out=held.alike,
                    gap=_less(dev.alike, held.alike),
                )
            )
    return found


def reminders(
    looks: Sequence[Look], rows: Sequence[AttemptRow], median_days: float | None, now: datetime
) -> list[str]:
    """When a set should be run again, or made anew."""
    told = []
    if median_days is not None and median_days > QUARTER_DAYS:
        told.append(
            f"Half of the tasks are older than {median_days:.0f} days, by the commit they start "
            "from: mine new ones."
        )
    if not looks:
        return told
    age = (now - looks[0].at).days
    if age > QUARTER_DAYS:
        told.append(f"The last look at the held-out set is {age} days old: take one a quarter.")
    seen = {model for look in looks for model in look.models}
    new = sorted({row.model for row in rows if row.model and row.task_digest} - seen)
    if new:
        told.append(f"Never run on the held-out set: {', '.join(new)}. A new model wants a look.")
    return told


def _values(rows: Iterable[AttemptRow]) -> Values:
    values: dict[str, list[float]] = {}
    for row in rows:
        if row.outcome in ("pass", "fail"):
            values.setdefault(row.task_digest or "", []).append(float(row.outcome == "pass"))
    return values


def _less(dev: Estimate, held: Estimate) -> Estimate:
    low, high = newcombe(held, dev)
    return Estimate(
        value=dev.value - held.value,
        low=max(-1.0, low),
        high=min(1.0, high),
        n=dev.n + held.n,
        method="Newcombe, from beta-binomial bounds",
    )


def _best_of(number: int) -> float:
    """The best of so many draws from a normal distribution, expected, in standard deviations."""
    points = [(step + 0.5) / 2000 for step in range(2000)]
    return fmean(NormalDist().inv_cdf(point ** (1 / number)) for point in points)
