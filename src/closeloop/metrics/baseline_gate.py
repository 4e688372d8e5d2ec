"""Has the work become worse than it was, beyond its noise? Now against a kept baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from closeloop.metrics.attempt_measuring import MeasuredAttempt
from closeloop.metrics.gate_demands import (
    GATE_METRICS,
    check_thresholds,
    classify_interval,
    collect_gate_values,
    group_by_variant,
    list_gate_reasons,
    task_differences,
)
from closeloop.records.baseline import Baseline, GateDemands, GateReport, MetricDifference
from closeloop.statistics.rate_differences import rate_difference
from closeloop.statistics.task_values import TaskValues

MIN_COVERAGE = 0.9
"""Where fewer attempts than this could be scored, nothing is said of them."""
NO_DEMANDS = GateDemands()


def compare_with_baseline(
    baseline: Baseline | None,
    before: Sequence[MeasuredAttempt],
    now: Sequence[MeasuredAttempt],
    experiment: str,
    gating: frozenset[str],
    demands: GateDemands = NO_DEMANDS,
) -> GateReport:
    """Every metric of every variant that both sides have. It passes when none is worse."""
    sides = group_by_variant(before), group_by_variant(now)
    common_variants = [name for name in sides[1] if name in sides[0]]
    pairs = {
        (name, metric): (
            collect_gate_values(sides[0][name], metric, gating),
            collect_gate_values(sides[1][name], metric, gating),
        )
        for name in common_variants
        for metric in GATE_METRICS
    }
    measurable = sum(any(task in second for task in first) for first, second in pairs.values())
    differences = tuple(
        _metric_difference(name, metric, first, second, measurable)
        for (name, metric), (first, second) in pairs.items()
    )
    report = GateReport(
        baseline=baseline,
        experiment=experiment,
        passed=True,
        differences=differences,
        tasks=tuple(task_differences(*sides)) if baseline else (),
        thresholds=tuple(check_thresholds(sides[1], demands.least, gating)),
        margin=demands.margin,
        coverage=scored_share(now),
        left_out=tuple(_list_unmatched_tasks(*sides)) if baseline else (),
    )
    reasons = tuple(list_gate_reasons(report))
    return replace(report, passed=not reasons, reasons=reasons)


def scored_share(side: Sequence[MeasuredAttempt]) -> float | None:
    """Of the attempts that were made for a task, those that have a score."""
    task_rows = [one.row for one in side if one.row.task is not None]
    return (
        sum(row.outcome in ("pass", "fail") for row in task_rows) / len(task_rows)
        if task_rows
        else None
    )


def _metric_difference(
    variant: str, metric: str, before: TaskValues, now: TaskValues, comparisons: int
) -> MetricDifference:
    interval = rate_difference(before, now, comparisons=max(1, comparisons))
    verdict = classify_interval(interval)
    if interval is None:
        return MetricDifference(variant=variant, metric=metric, verdict=verdict, tasks=0)
    return MetricDifference(
        variant=variant,
        metric=metric,
        verdict=verdict,
        tasks=interval.tasks,
        before=interval.first,
        now=interval.second,
        low=interval.low,
        high=interval.high,
    )


def _list_unmatched_tasks(
    before: Mapping[str, Sequence[MeasuredAttempt]], now: Mapping[str, Sequence[MeasuredAttempt]]
) -> Iterable[str]:
    for name in sorted(before.keys() - now.keys()):
        yield f"variant {name!r} is only in the baseline"
    for name in sorted(now.keys() - before.keys()):
        yield f"variant {name!r} is not in the baseline"
    old = {one.row.task: one.row.task_digest for side in before.values() for one in side}
    new = {one.row.task: one.row.task_digest for side in now.values() for one in side}
    for task in sorted(filter(None, old.keys() | new.keys())):
        if task not in new:
            yield f"task {task!r} is only in the baseline"
        elif task not in old:
            yield f"task {task!r} is not in the baseline"
        elif old[task] != new[task]:
            yield f"task {task!r} asks for something else than in the baseline"
