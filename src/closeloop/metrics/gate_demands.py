"""What a gate asks: of each metric, of each task, of whatever somebody set a threshold for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean

from closeloop.metrics.attempt_measuring import MeasuredAttempt
from closeloop.records.baseline import (
    BaselineVerdict,
    GateReport,
    MetricDifference,
    MetricThreshold,
    TaskDifference,
)
from closeloop.records.errors import BadInput, unknown_name_error
from closeloop.records.measurement import ProcessScore
from closeloop.statistics.rate_differences import DifferenceInterval, rate_difference
from closeloop.statistics.task_values import TaskValues

GATE_METRICS = ("passed", "without findings", *ProcessScore.__struct_fields__)
"""Of all of them, more is better."""
EACH_TASK = "each task"

MeasuredSides = Mapping[str, Sequence[MeasuredAttempt]]


def group_by_variant(side: Iterable[MeasuredAttempt]) -> dict[str, list[MeasuredAttempt]]:
    """By the variant's name, which a changed agent keeps."""
    variants: dict[str, list[MeasuredAttempt]] = {}
    for one in side:
        variants.setdefault(one.row.variant_name or one.row.agent or "?", []).append(one)
    return variants


def collect_gate_values(
    side: Iterable[MeasuredAttempt], metric: str, gating: frozenset[str]
) -> TaskValues:
    """By task, what its attempts say of a metric."""
    values: dict[str, list[float]] = {}
    for one in side:
        value = _gate_value(one, metric, gating)
        if value is not None:
            values.setdefault(one.row.task_digest or "", []).append(value)
    return values


def _gate_value(one: MeasuredAttempt, metric: str, gating: frozenset[str]) -> float | None:
    if metric == "passed":
        return {"pass": 1.0, "fail": 0.0}.get(one.row.outcome or "")
    if metric == "without findings":
        counted = (one for one in one.measurement.findings if one.silenced is None)
        return float(not any(f.rule in gating and f.severity != "info" for f in counted))
    rate = getattr(one.measurement.score, metric)
    return rate.value if rate is not None else None


def parse_thresholds(written: Iterable[str]) -> dict[str, float]:
    """`passed=0.9` and `each task=0.5`, as somebody typed them."""
    thresholds_by_name = {}
    for one in written:
        name, _, value = one.partition("=")
        if name.strip() not in (*GATE_METRICS, EACH_TASK):
            raise unknown_name_error("metric of the gate", name.strip(), (*GATE_METRICS, EACH_TASK))
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 <= number <= 1:
            raise BadInput(f"{one!r} is no threshold: write a rate from 0 to 1, as in passed=0.9.")
        thresholds_by_name[name.strip()] = number
    return thresholds_by_name


def task_differences(before: MeasuredSides, now: MeasuredSides) -> Iterator[TaskDifference]:
    """Each task by itself, by bounds that hold for all of them at once."""
    pairs = []
    for name in (name for name in now if name in before):
        values_before, values = (
            collect_gate_values(side[name], "passed", frozenset()) for side in (before, now)
        )
        pairs += [
            (name, task, values_before.get(task, ()), repeats) for task, repeats in values.items()
        ]
    names = {one.row.task_digest: one.row.task for side in now.values() for one in side}
    comparable = max(1, sum(len(held) > 0 for _, _, held, _ in pairs))
    for name, task, held, repeats in pairs:
        yield TaskDifference(
            variant=name,
            task=names.get(task) or task,
            verdict=classify_interval(
                rate_difference({task: held}, {task: repeats}, comparisons=comparable)
            ),
            before=fmean(held) if held else None,
            now=fmean(repeats),
            repeats=len(repeats),
        )


def classify_interval(found: DifferenceInterval | None) -> BaselineVerdict:
    """What the bounds of a difference allow to say."""
    if found is None:
        return "not enough data"
    if found.high < 0:
        return "worse"
    return "better" if found.low > 0 else "no clear difference"


def check_thresholds(
    now: MeasuredSides, least: Mapping[str, float], gating: frozenset[str]
) -> Iterator[MetricThreshold]:
    """Whether what is demanded holds; what was not scored does not."""
    for variant, side in now.items():
        for metric, wanted in least.items():
            values = collect_gate_values(side, "passed" if metric == EACH_TASK else metric, gating)
            means = [fmean(repeats) for repeats in values.values()]
            value = (min if metric == EACH_TASK else fmean)(means) if means else None
            yield MetricThreshold(
                variant=variant,
                metric=metric,
                least=wanted,
                value=value,
                holds=value is not None and value >= wanted,
            )


def list_gate_reasons(report: GateReport) -> Iterator[str]:
    """Why it does not pass, a line each."""
    for one in report.differences:
        if one.verdict == "worse":
            yield f"{one.variant}: {one.metric} is worse, {describe_rate_change(one)}"
        elif _is_inconclusive(one, report.margin):
            yield (
                f"{one.variant}: it is not shown that {one.metric} is worse by no more than "
                f"{report.margin:g}: run more repeats or tasks"
            )
    for task in report.tasks:
        if task.verdict == "worse":
            yield f"{task.variant}: task {task.task} is worse, {describe_rate_change(task)}"
    for demand in report.thresholds:
        if not demand.holds:
            wanted = f"{demand.metric} must be {demand.least:g} or more"
            yield f"{demand.variant}: {wanted}: {describe_threshold_value(demand)}"


def describe_rate_change(one: MetricDifference | TaskDifference) -> str:
    """From what to what."""
    known = one.before is not None and one.now is not None
    return f"{one.before:.2f} before, {one.now:.2f} now" if known else "not enough data"


def describe_threshold_value(demand: MetricThreshold) -> str:
    return "nothing was scored" if demand.value is None else f"{demand.value:.2f}"


def _is_inconclusive(one: MetricDifference, margin: float | None) -> bool:
    """Not shown to be within the margin."""
    if margin is None or one.metric != "passed":
        return False
    return one.low is None or one.low < -margin
