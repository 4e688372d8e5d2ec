"""Runs of the held-out set: the ledger, warnings about overuse, and results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from math import sqrt
from statistics import NormalDist, fmean

from msgspec.structs import replace

from closeloop.metrics.attempt_table import (
    SCORED_OUTCOMES,
    forget_outdated_grades,
    load_counted_columns,
)
from closeloop.records.estimate import Estimate
from closeloop.records.experiment_plan import (
    ExperimentPlan,
    GapChange,
    HeldOutGap,
    HeldOutReport,
    HeldOutRun,
)
from closeloop.records.record import content_digest
from closeloop.records.task import Task, TaskSplit, Variant
from closeloop.records.trace import EventDetails, LogEvent
from closeloop.statistics.rate_comparison import newcombe_bounds, paired_t_difference
from closeloop.statistics.rate_estimate import estimate_rate
from closeloop.store import Store
from closeloop.store.metrics_section import AttemptSpan
from closeloop.tasks.task_sets import SPLIT_NAMES
from closeloop.text.wording import format_points, format_points_estimate

MAX_TRIED_CHANGES = 3
"""With a fourth change, the best of equally good ones appears better by a standard error."""
QUARTER_DAYS = 92
GAP_METHOD = "Newcombe, from beta-binomial bounds"
CHANGE_METHOD = "Newcombe, from paired t by set"


def build_unsealing(
    plan: ExperimentPlan, reason: str, person: str, time: datetime
) -> HeldOutRun | None:
    """Build the ledger entry of a plan; None if it has no held-out task."""
    held_out_digests = sorted(task.digest for task in plan.tasks if task.split == "held-out")
    if not held_out_digests:
        return None
    variant_digests = sorted(variant.digest for variant in plan.variants)
    return HeldOutRun(
        at=time,
        who=person,
        reason=reason,
        tasks=content_digest(*held_out_digests)[:12],
        change=content_digest(variant_digests, held_out_digests)[:12],
        experiment=plan.experiment.id,
        variants=tuple(variant.name for variant in plan.variants),
        models=tuple(sorted({variant.model for variant in plan.variants if variant.model})),
        count=len(held_out_digests),
    )


def build_look_event(run: HeldOutRun) -> LogEvent:
    """Build the log event of a ledger entry."""
    details: EventDetails = {
        "who": run.who,
        "reason": run.reason,
        "change": run.change,
        "tasks": run.count,
        "experiment": run.experiment,
    }
    return LogEvent(kind="tasks.unsealed", at=run.at, details=details)


def overuse_warning(run: HeldOutRun, earlier: Sequence[HeldOutRun]) -> str | None:
    """Return a warning if the held-out set is used too often; None otherwise."""
    changes = {used_run.change for used_run in (*earlier, run) if used_run.tasks == run.tasks}
    if len(changes) <= MAX_TRIED_CHANGES:
        return None
    optimism = _expected_maximum(len(changes)) * 0.5 / sqrt(run.count)
    return (
        f"this is change {len(changes)} tested on these {run.count} held-out tasks: "
        "the best of this many equally good changes appears up to "
        f"{format_points(optimism)} better than it is, so hold out new tasks."
    )


def count_dev_attempts(store: Store, tasks: Sequence[Task]) -> dict[str, int]:
    """Count, by id, attempts at held-out tasks outside the recorded runs of the set.

    What was tuned then may know these tasks. Attempts made in a run are in the ledger.
    """
    runs = store.held_out.list_unsealings()
    # The latest comes first, so that the first run of an experiment remains.
    first_run_times = {run.experiment: run.at for run in runs}
    held_out = {task.digest: task.id for task in tasks if task.split == "held-out"}
    counts = store.held_out.count_attempts_outside(first_run_times, tuple(held_out))
    return {held_out[digest]: count for digest, count in counts.items()}


SplitValues = dict[str, dict[TaskSplit, dict[str, list[float]]]]
"""By variant digest and set: each task's digest with the outcomes of its repeats."""


def report_held_out(
    store: Store, tasks: Sequence[Task] | None = None, variants: Collection[str] | None = None
) -> HeldOutReport | None:
    """Report the results of the held-out runs, for some variants or all; None before the first run.

    Uses these tasks, or those of the store in their latest version.
    """
    runs = store.held_out.list_unsealings()
    if not runs:
        return None
    if tasks is None:
        tasks = [*{task.id: task for task in store.numbers.load_tasks().values()}.values()]
    known_variants, values = store.numbers.load_variants(), collect_split_values(store, tasks)
    experiments = {experiment.id: experiment.variants for experiment in store.list_experiments()}
    changes = estimate_gap_changes(values, known_variants, runs, experiments)
    gaps = _estimate_gaps(values, known_variants)
    wanted_names = {known_variants[key].name for key in variants or () if key in known_variants}
    return HeldOutReport(
        looks=len(runs),
        last_look=runs[0],
        gaps=tuple(gap for gap in gaps if variants is None or gap.digest in variants),
        changes=tuple(
            change for change in changes if variants is None or change.variant in wanted_names
        ),
    )


def estimate_held_out_gaps(store: Store, tasks: Sequence[Task]) -> list[HeldOutGap]:
    """Return, by variant, how much better it does on dev tasks than on held-out ones."""
    return _estimate_gaps(collect_split_values(store, tasks), store.numbers.load_variants())


def collect_split_values(store: Store, tasks: Sequence[Task]) -> SplitValues:
    """Return the outcomes of the attempts that count, by variant and set; from columns alone."""
    splits = {task.digest: task.split for task in tasks}
    attempt_columns, _ = load_counted_columns(store, AttemptSpan(), store.numbers.load_variants())
    columns = attempt_columns.columns.copy()
    tuple(forget_outdated_grades(columns))
    is_used = columns["outcome"].are(SCORED_OUTCOMES) & columns["task_digest"].are(splits)
    names = ("variant", "task_digest", "outcome")
    rows = zip(*(columns[name][is_used].tolist() for name in names), strict=True)
    values: SplitValues = {}
    for variant, digest, outcome in rows:
        by_task = values.setdefault(variant or "", {}).setdefault(splits[digest], {})
        by_task.setdefault(digest, []).append(float(outcome == "pass"))
    return values


def _estimate_gaps(values: SplitValues, variants: Mapping[str, Variant]) -> list[HeldOutGap]:
    gaps = []
    for variant, sides in values.items():
        if len(sides) < 2:
            continue
        dev, held_out = (estimate_rate(sides[split]) for split in SPLIT_NAMES)
        if dev and dev.alike and held_out and held_out.alike:
            name = variants[variant].name if variant in variants else "?"
            gap = HeldOutGap(
                variant=name,
                digest=variant,
                label=name,
                dev=dev.alike,
                held_out=held_out.alike,
                gap=_subtract_estimates(dev.alike, held_out.alike, GAP_METHOD, 1.0),
            )
            gaps.append(gap)
    versions = Counter(gap.variant for gap in gaps)
    labelled = [
        replace(gap, label=f"{gap.variant} {gap.digest[:8]}") if versions[gap.variant] > 1 else gap
        for gap in gaps
    ]
    return sorted(labelled, key=lambda gap: (gap.variant, gap.digest))


def estimate_gap_changes(
    values: SplitValues,
    variants: Mapping[str, Variant],
    runs: Sequence[HeldOutRun],
    experiments: Mapping[str, Sequence[str]],
) -> list[GapChange]:
    """Compare the first held-out version of each variant with the last one.

    Both versions tried the same dev tasks and the same held-out ones, so each side is paired by
    task, and the gap's change is the difference of two independent changes. Every run of a new
    version is one more chance of a false change: the bounds hold for all together.
    """
    first_run: dict[str, HeldOutRun] = {}
    for run in reversed(runs):
        for variant in experiments.get(run.experiment, ()):
            first_run.setdefault(variant, run)
    versions: dict[str, list[str]] = {}
    for variant in first_run:
        if variant in variants and len(values.get(variant, ())) == len(SPLIT_NAMES):
            versions.setdefault(variants[variant].name, []).append(variant)
    steps = sum(len(version) - 1 for version in versions.values())
    changes = []
    for name, (first, *_, last) in (
        (key, digests) for key, digests in versions.items() if len(digests) > 1
    ):
        sides = [
            paired_t_difference(values[first][split], values[last][split], comparisons=steps)
            for split in SPLIT_NAMES
        ]
        if sides[0] is not None and sides[1] is not None:
            times = (first_run[first].at, first_run[last].at)
            changes.append(_build_gap_change(name, times, sides[0], sides[1]))
    return changes


def _build_gap_change(
    name: str, times: tuple[datetime, datetime], dev: Estimate, held_out: Estimate
) -> GapChange:
    # From a gap of −100 points to one of +100: a change of gaps is twice as wide as a gap.
    change = _subtract_estimates(dev, held_out, CHANGE_METHOD, 2.0)
    overfitted = change.low > 0
    verdict = "likely overfitted" if overfitted else "no clear sign of overfitting"
    return GapChange(
        variant=name,
        since=times[0],
        until=times[1],
        dev=dev,
        held_out=held_out,
        change=change,
        overfitted=overfitted,
        says=f"{name}: {verdict}. Between the held-out runs of {times[0]:%Y-%m-%d} and "
        f"{times[1]:%Y-%m-%d}, its pass rate changed by "
        f"{format_points(dev.value, signed=True)} on dev tasks and by "
        f"{format_points(held_out.value, signed=True)} on held-out tasks, and the gap "
        "between them by "
        f"{format_points_estimate(change.value, change.low, change.high)}.",
    )


def list_held_out_reminders(
    runs: Sequence[HeldOutRun],
    models: Collection[str],
    median_days: float | None,
    now: datetime,
    quarter_days: int = QUARTER_DAYS,
) -> list[str]:
    """List reminders to run or renew the set; `models` are those that tried tasks."""
    messages = []
    if median_days is not None and median_days > quarter_days:
        messages.append(
            f"Half of the tasks start from commits older than {median_days:.0f} days: "
            "mine new ones with `closeloop mine`."
        )
    if not runs:
        return messages
    age = (now - runs[0].at).days
    if age > quarter_days:
        messages.append(
            f"The last run of the held-out set is {age} days old: run it every quarter "
            "with `closeloop task unseal`."
        )
    seen_models = {model for run in runs for model in run.models}
    if unseen_models := sorted({*models} - seen_models):
        messages.append(
            f"Never run on the held-out set: {', '.join(unseen_models)}. Run it with "
            "`closeloop task unseal`."
        )
    return messages


def _subtract_estimates(dev: Estimate, held_out: Estimate, method: str, widest: float) -> Estimate:
    low, high = newcombe_bounds(held_out, dev)
    return Estimate(
        value=dev.value - held_out.value,
        low=max(-widest, low),
        high=min(widest, high),
        n=dev.n + held_out.n,
        method=method,
    )


def _expected_maximum(number: int) -> float:
    """Return the expected maximum of `number` normal draws, in standard deviations."""
    points = [(step + 0.5) / 2000 for step in range(2000)]
    return fmean(NormalDist().inv_cdf(point ** (1 / number)) for point in points)
