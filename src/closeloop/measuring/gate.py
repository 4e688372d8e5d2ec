"""Has the work become worse than it was, beyond its noise? Now against a kept baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from closeloop.measuring.attempts import Measured
from closeloop.model.baseline import Baseline, Difference, GateReport, Word
from closeloop.model.measurement import ProcessScore
from closeloop.stats.differences import Values, difference

COVERAGE_FLOOR = 0.9
"""Where fewer attempts than this could be scored, a gate has no say."""
RATES = ProcessScore.__struct_fields__
METRICS = ("passed", "without findings", *RATES)
"""Of all of them, more is better."""


def compare(
    baseline: Baseline,
    before: Sequence[Measured],
    now: Sequence[Measured],
    experiment: str,
    gating: frozenset[str],
) -> GateReport:
    """Every metric of every variant that both sides have. It passes when none is worse."""
    sides = _by_variant(before), _by_variant(now)
    common = [name for name in sides[1] if name in sides[0]]
    pairs = {
        (name, metric): (
            _values(sides[0][name], metric, gating),
            _values(sides[1][name], metric, gating),
        )
        for name in common
        for metric in METRICS
    }
    measurable = sum(any(task in second for task in first) for first, second in pairs.values())
    differences = tuple(
        _difference(name, metric, first, second, measurable)
        for (name, metric), (first, second) in pairs.items()
    )
    return GateReport(
        baseline=baseline,
        experiment=experiment,
        passed=not any(one.verdict == "worse" for one in differences),
        differences=differences,
        coverage=coverage(now),
        left_out=tuple(_left_out(*sides)),
    )


def coverage(side: Sequence[Measured]) -> float | None:
    """Of the attempts that were made for a task, those that have a score."""
    asked = [one.row for one in side if one.row.task is not None]
    return sum(row.outcome in ("pass", "fail") for row in asked) / len(asked) if asked else None


def _by_variant(side: Iterable[Measured]) -> dict[str, list[Measured]]:
    variants: dict[str, list[Measured]] = {}
    for one in side:
        variants.setdefault(one.row.variant_name or one.row.agent or "?", []).append(one)
    return variants


def _values(side: Iterable[Measured], metric: str, gating: frozenset[str]) -> Values:
    values: dict[str, list[float]] = {}
    for one in side:
        value = _value(one, metric, gating)
        if value is not None:
            values.setdefault(one.row.task_digest or "", []).append(value)
    return values


def _value(one: Measured, metric: str, gating: frozenset[str]) -> float | None:
    if metric == "passed":
        return {"pass": 1.0, "fail": 0.0}.get(one.row.outcome or "")
    if metric == "without findings":
        counted = (one for one in one.measurement.findings if one.silenced is None)
        return float(not any(f.rule in gating and f.severity != "info" for f in counted))
    rate = getattr(one.measurement.score, metric)
    return rate.value if rate is not None else None


def _difference(
    variant: str, metric: str, before: Values, now: Values, comparisons: int
) -> Difference:
    found = difference(before, now, comparisons=max(1, comparisons))
    if found is None:
        return Difference(variant=variant, metric=metric, verdict="not enough data", tasks=0)
    verdict: Word = "no clear difference"
    if found.high < 0:
        verdict = "worse"
    elif found.low > 0:
        verdict = "better"
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
