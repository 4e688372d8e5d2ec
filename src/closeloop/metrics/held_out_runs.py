"""Looks at the held-out set: who may, what they cost, and what they show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from math import sqrt
from statistics import NormalDist, fmean

from closeloop.records.attempt import AttemptRow
from closeloop.records.estimate import Estimate
from closeloop.records.experiment_plan import ExperimentPlan, HeldOutGap, HeldOutRun
from closeloop.records.record import content_digest
from closeloop.records.task import Task
from closeloop.statistics.rate_comparison import newcombe_bounds
from closeloop.statistics.rate_estimate import TaskValues, estimate_rate
from closeloop.store import Store

MAX_TRIED_CHANGES = 3
"""With a fourth change tried, the best of equals looks better by a whole standard error."""
QUARTER_DAYS = 92


def build_unsealing(plan: ExperimentPlan, reason: str, who: str, at: datetime) -> HeldOutRun | None:
    """What the ledger will say of a plan; None where it has no held-out task."""
    held_out_digests = sorted(task.digest for task in plan.tasks if task.split == "held-out")
    if not held_out_digests:
        return None
    variant_digests = sorted(variant.digest for variant in plan.variants)
    return HeldOutRun(
        at=at,
        who=who,
        reason=reason,
        tasks=content_digest(*held_out_digests)[:12],
        change=content_digest(variant_digests, held_out_digests)[:12],
        experiment=plan.experiment.id,
        variants=tuple(variant.name for variant in plan.variants),
        models=tuple(sorted({variant.model for variant in plan.variants if variant.model})),
        count=len(held_out_digests),
    )


def overuse_warning(look: HeldOutRun, earlier: Sequence[HeldOutRun]) -> str | None:
    """What to say to somebody who looks too often."""
    changes = {one.change for one in (*earlier, look) if one.tasks == look.tasks}
    if len(changes) <= MAX_TRIED_CHANGES:
        return None
    optimism = _expected_maximum(len(changes)) * 0.5 / sqrt(look.count)
    return (
        f"this is change {len(changes)} tried on these {look.count} held-out tasks: the best of "
        f"so many equals looks up to {optimism:.2f} better than it is, so hold out new ones."
    )


def estimate_held_out_gaps(store: Store, tasks: Sequence[Task]) -> list[HeldOutGap]:
    """By variant, how much better it does on dev tasks than on those held out."""
    splits = {task.digest: task.split for task in tasks}
    rows = store.list_attempts(task_digests=tuple(splits))
    variant_gaps = []
    for name, variant in sorted({(row.variant_name or "?", row.variant or "") for row in rows}):
        variant_rows = [row for row in rows if row.variant == variant]
        dev = estimate_rate(
            _outcome_values(row for row in variant_rows if splits[row.task_digest or ""] == "dev")
        )
        held = estimate_rate(
            _outcome_values(row for row in variant_rows if splits[row.task_digest or ""] != "dev")
        )
        if dev and dev.alike and held and held.alike:
            variant_gaps.append(
                HeldOutGap(
                    variant=name,
                    dev=dev.alike,
                    held_out=held.alike,
                    gap=_subtract_estimates(dev.alike, held.alike),
                )
            )
    return variant_gaps


def list_held_out_reminders(
    looks: Sequence[HeldOutRun],
    rows: Sequence[AttemptRow],
    median_days: float | None,
    now: datetime,
) -> list[str]:
    """When a set should be run again, or made anew."""
    messages = []
    if median_days is not None and median_days > QUARTER_DAYS:
        messages.append(
            f"Half of the tasks are older than {median_days:.0f} days, by the commit they start "
            "from: mine new ones."
        )
    if not looks:
        return messages
    age = (now - looks[0].at).days
    if age > QUARTER_DAYS:
        messages.append(f"The last look at the held-out set is {age} days old: take one a quarter.")
    seen_models = {model for look in looks for model in look.models}
    unseen_models = sorted(
        {row.model for row in rows if row.model and row.task_digest} - seen_models
    )
    if unseen_models:
        messages.append(
            f"Never run on the held-out set: {', '.join(unseen_models)}. A new model wants a look."
        )
    return messages


def _outcome_values(rows: Iterable[AttemptRow]) -> TaskValues:
    values: dict[str, list[float]] = {}
    for row in rows:
        if row.outcome in ("pass", "fail"):
            values.setdefault(row.task_digest or "", []).append(float(row.outcome == "pass"))
    return values


def _subtract_estimates(dev: Estimate, held: Estimate) -> Estimate:
    low, high = newcombe_bounds(held, dev)
    return Estimate(
        value=dev.value - held.value,
        low=max(-1.0, low),
        high=min(1.0, high),
        n=dev.n + held.n,
        method="Newcombe, from beta-binomial bounds",
    )


def _expected_maximum(number: int) -> float:
    """The best of so many draws from a normal distribution, expected, in standard deviations."""
    points = [(step + 0.5) / 2000 for step in range(2000)]
    return fmean(NormalDist().inv_cdf(point ** (1 / number)) for point in points)
