"""What a gate asks: of each metric, of each task, of whatever somebody set a threshold for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean

from closeloop.measuring.attempts import Measured
from closeloop.model.baseline import Difference, GateReport, TaskDifference, Threshold, Word
from closeloop.model.errors import BadInput, unknown
from closeloop.model.measurement import ProcessScore
from closeloop.stats.differences import Interval, difference
from closeloop.stats.values import Values

METRICS = ("passed", "without findings", *ProcessScore.__struct_fields__)
"""Of all of them, more is better."""
EACH = "each task"

Sides = Mapping[str, Sequence[Measured]]


def by_variant(side: Iterable[Measured]) -> dict[str, list[Measured]]:
    """By the variant's name, which a changed agent keeps."""
    variants: dict[str, list[Measured]] = {}
    for one in side:
        variants.setdefault(one.row.variant_name or one.row.agent or "?", []).append(one)
    return variants


def values_of(side: Iterable[Measured], metric: str, gating: frozenset[str]) -> Values:
    """By task, what its attempts say of a metric."""
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


def least_of(written: Iterable[str]) -> dict[str, float]:
    """`passed=0.9` and `each task=0.5`, as somebody typed them."""
    found = {}
    for one in written:
        name, _, value = one.partition("=")
        if name.strip() not in (*METRICS, EACH):
            raise unknown("metric of the gate", name.strip(), (*METRICS, EACH))
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 <= number <= 1:
            raise BadInput(f"{one!r} is no threshold: write a rate from 0 to 1, as in passed=0.9.")
        found[name.strip()] = number
    return found


def task_differences(before: Sides, now: Sides) -> Iterator[TaskDifference]:
    """Each task by itself, by bounds that hold for all of them at once."""
    pairs = []
    for name in (name for name in now if name in before):
        then, values = (values_of(side[name], "passed", frozenset()) for side in (before, now))
        pairs += [(name, task, then.get(task, ()), repeats) for task, repeats in values.items()]
    names = {one.row.task_digest: one.row.task for side in now.values() for one in side}
    comparable = max(1, sum(len(held) > 0 for _, _, held, _ in pairs))
    for name, task, held, repeats in pairs:
        yield TaskDifference(
            variant=name,
            task=names.get(task) or task,
            verdict=verdict_on(difference({task: held}, {task: repeats}, comparisons=comparable)),
            before=fmean(held) if held else None,
            now=fmean(repeats),
            repeats=len(repeats),
        )


def verdict_on(found: Interval | None) -> Word:
    """What the bounds of a difference allow to say."""
    if found is None:
        return "not enough data"
    if found.high < 0:
        return "worse"
    return "better" if found.low > 0 else "no clear difference"


def thresholds(
    now: Sides, least: Mapping[str, float], gating: frozenset[str]
) -> Iterator[Threshold]:
    """Whether what is demanded holds; what was not scored does not."""
    for variant, side in now.items():
        for metric, wanted in least.items():
            values = values_of(side, "passed" if metric == EACH else metric, gating)
            means = [fmean(repeats) for repeats in values.values()]
            value = (min if metric == EACH else fmean)(means) if means else None
            yield Threshold(
                variant=variant,
                metric=metric,
                least=wanted,
                value=value,
                holds=value is not None and value >= wanted,
            )


def reasons_of(report: GateReport) -> Iterator[str]:
    """Why it does not pass, a line each."""
    for one in report.differences:
        if one.verdict == "worse":
            yield f"{one.variant}: {one.metric} is worse, {fell(one)}"
        elif _open(one, report.margin):
            yield (
                f"{one.variant}: it is not shown that {one.metric} is worse by no more than "
                f"{report.margin:g}: run more repeats or tasks"
            )
    for task in report.tasks:
        if task.verdict == "worse":
            yield f"{task.variant}: task {task.task} is worse, {fell(task)}"
    for demand in report.thresholds:
        if not demand.holds:
            wanted = f"{demand.metric} must be {demand.least:g} or more"
            yield f"{demand.variant}: {wanted}: {seen(demand)}"


def fell(one: Difference | TaskDifference) -> str:
    """From what to what."""
    known = one.before is not None and one.now is not None
    return f"{one.before:.2f} before, {one.now:.2f} now" if known else "not enough data"


def seen(demand: Threshold) -> str:
    return "nothing was scored" if demand.value is None else f"{demand.value:.2f}"


def _open(one: Difference, margin: float | None) -> bool:
    """Not shown to be within the margin."""
    if margin is None or one.metric != "passed":
        return False
    return one.low is None or one.low < -margin
