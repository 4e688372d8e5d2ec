"""Plans of several sub-agents as figures of a report, with the numbers that `plans` shows."""

from __future__ import annotations

from closeloop.records.estimate import Metric, MetricsReport, MetricValue
from closeloop.records.orchestration import PlanTotals

PLANS_COMMAND = "closeloop plans --trend --json"
_WILSON = "Wilson score interval"
_DEFINITIONS = {
    "passed": (
        "plans passed",
        "Of the plans that ended with a verdict, those of which every task passed, and the whole"
        " with them.",
    ),
    "first_try": (
        "plan tasks at the first try",
        "Of the tasks of plans whose first try has a verdict, those that passed at once.",
    ),
    "after_feedback": (
        "plan tasks after feedback",
        "Of the tasks of plans that failed at first and were tried again, those that passed by"
        " their last verdict.",
    ),
    "final": (
        "plan tasks in the end",
        "Of the tasks of plans that have a verdict, those that passed by the last one.",
    ),
}
PLAN_METRICS = {
    field: Metric(
        name=name,
        family="plans",
        kind="rate",
        source="judge",
        says=says,
        score=name.replace(" ", "-"),
        better="more",
    )
    for field, (name, says) in _DEFINITIONS.items()
}
PLAN_METRIC_NAMES = frozenset(metric.name for metric in PLAN_METRICS.values())


def add_plan_figures(report: MetricsReport, totals: PlanTotals) -> MetricsReport:
    """With what came of plans, where there are any."""
    if not totals.plans:
        return report
    return MetricsReport(
        by=report.by,
        attempts=report.attempts,
        definitions=(*report.definitions, *PLAN_METRICS.values()),
        figures=(*report.figures, *(_build_figure(field, totals) for field in PLAN_METRICS)),
        limits=report.limits,
        notes=report.notes,
    )


def _build_figure(field: str, totals: PlanTotals) -> MetricValue:
    rate, name = getattr(totals, field), PLAN_METRICS[field].name
    more = {letter: float(count) for letter, count in totals.grades.items()}
    if rate is None:
        return MetricValue(metric=name)
    return MetricValue(
        metric=name,
        value=rate.value,
        low=rate.low,
        high=rate.high,
        n=rate.of,
        attempts=rate.of,
        method=_WILSON,
        more=more if field == "passed" else {},
    )
