"""A figure: the value of a metric, with all that one must know of it."""

from __future__ import annotations

from typing import Literal

from closeloop.records.record import Record

MetricFamily = Literal[
    "outcome", "production", "memory", "process", "endings", "failure modes", "risk", "cost"
]
MetricKind = Literal["rate", "one of k", "all of k", "mean", "median", "sum"]
SHARE_KINDS = ("rate", "one of k", "all of k")
"""Kinds whose values lie between 0 and 1."""
BetterDirection = Literal["more", "less"] | None
MetricSource = Literal["grade", "rules", "people", "attempt"]
"""Where values come from: the grader, the rules, what people did with the change, the attempt."""


class Metric(Record):
    """What a number means."""

    name: str
    family: MetricFamily
    kind: MetricKind
    source: MetricSource
    says: str
    """Its definition."""
    unit: str = ""
    better: BetterDirection = None


class MetricValue(Record):
    """One metric of one group. Never without its n."""

    metric: str
    group: dict[str, str] = {}
    """By what it is grouped, and which group this is; empty is all attempts."""
    value: float | None = None
    """None is not known, which is not zero."""
    low: float | None = None
    high: float | None = None
    """95 % bounds on tasks like these; None where the method gives none."""
    n: int = 0
    """Of tasks; a session is a task of its own."""
    attempts: int = 0
    """With a value."""
    coverage: float | None = None
    """Of the attempts that should have a grade, a measurement or a delivery, those that have.

    None where none should: sessions are not graded, experiments are not delivered.
    """
    method: str | None = None
    more: dict[str, float] = {}
    """Of a spread: `p90` and `worst`; of a sum of unconfirmed things: `unconfirmed`."""


class MetricsReport(Record):
    """Figures of one look at a store."""

    by: tuple[str, ...]
    attempts: int
    definitions: tuple[Metric, ...]
    figures: tuple[MetricValue, ...]
    notes: tuple[str, ...] = ()
