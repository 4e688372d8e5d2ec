"""What a report says, before it is a page or a table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from closeloop.measuring.groups import NONE
from closeloop.measuring.metrics import metrics_of
from closeloop.measuring.wording import query
from closeloop.measuring.work import Work
from closeloop.model.figure import Figure, Metric, Metrics
from closeloop.model.record import Record
from closeloop.model.versus import CompareReport

HEADLINES = (
    "pass rate", "task completion rate", "regression introduction rate", "review loop count",
    "first-review merge rate", "feedback", "convergence", "without findings", "cost", "time",
)  # fmt: skip
"""What is drawn; the tables have all."""


class Content(Record):
    """One look at a store."""

    attempts: int
    tasks: int
    first: datetime | None
    last: datetime | None
    """When the first and the last attempt began."""
    whole: Metrics
    sides: tuple[Metrics, ...]
    """The same, by each side that was asked for."""
    comparison: CompareReport | None = None


class Line(Record):
    """One figure with all that it must carry, as a row of a table."""

    metric: str
    family: str
    by: str
    group: str
    value: float | None
    low: float | None
    high: float | None
    n: int
    attempts: int
    coverage: float | None
    unit: str
    method: str | None
    more: str
    definition: str
    query: str


def content(
    work: Work, sides: Sequence[Sequence[str]], comparison: CompareReport | None = None
) -> Content:
    """All figures of all attempts, and by each side."""
    began = work.columns["started"]
    known = began[began == began]  # noqa: PLR0124
    times = (
        [datetime.fromtimestamp(each / 1e6, UTC) for each in (known.min(), known.max())]
        if len(known)
        else [None, None]
    )
    return Content(
        attempts=len(work),
        tasks=len({*work.columns["task_digest"].tolist()} - {None}),
        first=times[0],
        last=times[1],
        whole=metrics_of(work, ()),
        sides=tuple(metrics_of(work, by) for by in sides),
        comparison=comparison,
    )


def lines(held: Content) -> list[Line]:
    """Every figure that is known, and of the whole those that are not."""
    found = [line(figure, metric) for figure, metric in paired(held.whole)]
    for side in held.sides:
        pairs = paired(side)
        found += [line(figure, metric) for figure, metric in pairs if figure.value is not None]
    return found


def paired(found: Metrics) -> list[tuple[Figure, Metric]]:
    by_name = {metric.name: metric for metric in found.definitions}
    return [(figure, by_name[figure.metric]) for figure in found.figures]


def line(figure: Figure, metric: Metric) -> Line:
    return Line(
        metric=metric.name,
        family=metric.family,
        by=", ".join(figure.group),
        group=", ".join(figure.group.values()),
        value=figure.value,
        low=figure.low,
        high=figure.high,
        n=figure.n,
        attempts=figure.attempts,
        coverage=figure.coverage,
        unit=metric.unit,
        method=figure.method,
        more=", ".join(f"{name} {value:g}" for name, value in figure.more.items()),
        definition=metric.says,
        query=query(metric.name, tuple(figure.group)),
    )


def drawn(side: Metrics) -> list[tuple[Metric, list[Figure]]]:
    """Headlines with more than one group that is known by name."""
    found = []
    for metric in side.definitions:
        figures = [
            figure
            for figure in side.figures
            if figure.metric == metric.name
            and figure.value is not None
            and set(figure.group.values()) != {NONE}
        ]
        if metric.name in HEADLINES and len(figures) > 1:
            found.append((metric, figures))
    return found
