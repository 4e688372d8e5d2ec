"""A baseline: attempts that later ones are held against; and what came of doing so."""

from __future__ import annotations

from typing import Literal

from closeloop.records.record import Record, Time

BaselineVerdict = Literal["better", "worse", "no clear difference", "not enough data"]


class Baseline(Record):
    """Attempts of one experiment, kept under a name."""

    name: str
    experiment: str
    attempts: tuple[str, ...]
    at: Time
    reason: str | None = None


class MetricDifference(Record):
    """One metric of one variant, now against the baseline, over the tasks that both have."""

    variant: str
    metric: str
    verdict: BaselineVerdict
    tasks: int
    """How many tasks both sides have a value for."""
    before: float | None = None
    now: float | None = None
    """Means over those tasks, each task weighing the same."""
    low: float | None = None
    high: float | None = None
    """Bounds of the difference on exactly these tasks, all metrics taken together at 95 %."""
    method: str = "per-task difference, Jeffreys variances"


class TaskDifference(Record):
    """The pass rate of one task, now against the baseline: a lost task hides in no mean."""

    variant: str
    task: str
    verdict: BaselineVerdict
    before: float | None
    """None where there is no baseline to it."""
    now: float
    repeats: int
    """Scored, now."""


class MetricThreshold(Record):
    """What somebody demands of a metric, whatever the baseline says."""

    variant: str
    metric: str
    """`each task` demands it of every task."""
    least: float
    value: float | None
    """Of `each task`, the lowest; None where nothing was scored."""
    holds: bool


class GateDemands(Record):
    """What a gate asks for besides being no worse than noise allows."""

    least: dict[str, float] = {}
    """By metric, or for `each task`."""
    margin: float | None = None
    """How much worse the pass rate may be, and must be shown not to be more."""


class GateReport(Record):
    """What a gate saw."""

    baseline: Baseline | None
    """None where only thresholds were asked about."""
    experiment: str
    passed: bool
    reasons: tuple[str, ...] = ()
    """Why it did not pass."""
    differences: tuple[MetricDifference, ...]
    tasks: tuple[TaskDifference, ...] = ()
    thresholds: tuple[MetricThreshold, ...] = ()
    margin: float | None = None
    """Where one is given, it must be shown that the pass rate is not worse by more than this."""
    coverage: float | None
    """Of the attempts that were to be scored, those that were."""
    left_out: tuple[str, ...] = ()
    """Tasks and variants that only one side has, and why they are not compared."""
