"""Has the work become worse than it was, beyond its noise? Now against a kept baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from closeloop.measuring.attempts import Measured
from closeloop.measuring.demands import (
    METRICS,
    by_variant,
    reasons_of,
    task_differences,
    thresholds,
    values_of,
    verdict_on,
)
from closeloop.model.baseline import Baseline, Demands, Difference, GateReport
from closeloop.stats.differences import difference
from closeloop.stats.values import Values

COVERAGE_FLOOR = 0.9
"""Where fewer attempts than this could be scored, nothing is said of them."""
NO_DEMANDS = Demands()


def compare(
    baseline: Baseline | None,
    before: Sequence[Measured],
    now: Sequence[Measured],
    experiment: str,
    gating: frozenset[str],
    demands: Demands = NO_DEMANDS,
) -> GateReport:
    """Every metric of every variant that both sides have. It passes when none is worse."""
    sides = by_variant(before), by_variant(now)
    common = [name for name in sides[1] if name in sides[0]]
    pairs = {
        (name, metric): (
            values_of(sides[0][name], metric, gating),
            values_of(sides[1][name], metric, gating),
        )
        for name in common
        for metric in METRICS
    }
    measurable = sum(any(task in second for task in first) for first, second in pairs.values())
    differences = tuple(
        _difference(name, metric, first, second, measurable)
        for (name, metric), (first, second) in pairs.items()
    )
    report = GateReport(
        baseline=baseline,
        experiment=experiment,
        passed=True,
        differences=differences,
        tasks=tuple(task_differences(*sides)) if baseline else (),
        thresholds=tuple(thresholds(sides[1], demands.least, gating)),
        margin=demands.margin,
        coverage=coverage(now),
        left_out=tuple(_left_out(*sides)) if baseline else (),
    )
    reasons = tuple(reasons_of(report))
    return replace(report, passed=not reasons, reasons=reasons)


def coverage(side: Sequence[Measured]) -> float | None:
    """Of the attempts that were made for a task, those that have a score."""
    asked = [one.row for one in side if one.row.task is not None]
    return sum(row.outcome in ("pass", "fail") for row in asked) / len(asked) if asked else None


def _difference(
    variant: str, metric: str, before: Values, now: Values, comparisons: int
) -> Difference:
    found = difference(before, now, comparisons=max(1, comparisons))
    verdict = verdict_on(found)
    if found is None:
        return Difference(variant=variant, metric=metric, verdict=verdict, tasks=0)
    return Difference(
        variant=variant,
        metric=metric,
        verdict=verdict,
        tasks=found.tasks,
        before=found.first,
        now=found.second,
        low=found.low,
        high=found.high,
    )


def _left_out(
    before: Mapping[str, Sequence[Measured]], now: Mapping[str, Sequence[Measured]]
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
