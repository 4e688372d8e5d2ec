"""A baseline: attempts that later ones are held against; and what came of doing so."""

from __future__ import annotations

from typing import Literal

from closeloop.model.record import Record, Time

Word = Literal["better", "worse", "no clear difference", "not enough data"]


class Baseline(Record):
    """Attempts of one experiment, kept under a name."""

    name: str
    experiment: str
    attempts: tuple[str, ...]
    at: Time
    reason: str | None = None


class Difference(Record):
    """One metric of one variant, now against the baseline, over the tasks that both have."""

    variant: str
    metric: str
    verdict: Word
    tasks: int
    """How many tasks both sides have a value for."""
    before: float | None = None
    now: float | None = None
    """Means over those tasks, each task weighing the same."""
    low: float | None = None
    high: float | None = None
    """Bounds of the difference on exactly these tasks, all metrics taken together at 95 %."""
    method: str = "per-task difference, Jeffreys variances"


class GateReport(Record):
    """What a gate saw."""

    baseline: Baseline
    experiment: str
    passed: bool
    differences: tuple[Difference, ...]
    coverage: float | None
    """Of the attempts that were to be scored, those that were."""
    left_out: tuple[str, ...] = ()
    """Tasks and variants that only one side has, and why they are not compared."""
