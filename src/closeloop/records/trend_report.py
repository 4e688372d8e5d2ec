"""How metrics went over time. Observational: nobody chose what came when."""

from __future__ import annotations

from closeloop.records.estimate import Estimate
from closeloop.records.record import Record, Time


class VersionMark(Record):
    """Something that was first seen then: an agent's variant, a model, a prompt."""

    at: Time
    what: str


class RollingWindow(Record):
    """The items of some weeks, up to a moment."""

    until: Time
    estimate: Estimate
    faint: bool
    """Fewer than five items."""


class PeriodShift(Record):
    """A later time against an earlier one."""

    before: Estimate
    after: Estimate
    low: float
    high: float
    """95 % bounds of the difference."""


class TurningPoint(Record):
    """Where the mean changed."""

    at: Time
    before: Estimate
    after: Estimate
    p: float
    near: tuple[str, ...] = ()
    """What was first seen within a week of it: perhaps the cause, and no more than perhaps."""


class MetricSeries(Record):
    """One metric of one group over time."""

    metric: str
    group: dict[str, str] = {}
    stretches: tuple[RollingWindow, ...]
    """Rolling windows, one a week."""
    week: PeriodShift | None = None
    """The last week against the one before."""
    since: PeriodShift | None = None
    """All since the baseline's end against all before."""
    turns: tuple[TurningPoint, ...] = ()


class MetricRegression(Record):
    """A turn for the worse."""

    metric: str
    group: dict[str, str] = {}
    turn: TurningPoint
    adjusted: float
    """Its p after Benjamini and Hochberg, over all turns that were found."""

    @property
    def key(self) -> str:
        """The same for the same turn, so that nobody is told twice."""
        where = ",".join(f"{name}={value}" for name, value in self.group.items())
        return f"{self.metric}|{where}|{self.turn.at:%G-W%V}"


class TrendReport(Record):
    """All courses, and what became worse, most evident first."""

    weeks: int
    """The width of the rolling windows."""
    courses: tuple[MetricSeries, ...]
    marks: tuple[VersionMark, ...]
    regressions: tuple[MetricRegression, ...]
    notes: tuple[str, ...] = ()
