"""A finding: one thing that went wrong, which rule says so, and where to look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from closeloop.records.record import Record

Severity = Literal["error", "warning", "info"]
FailureMode = Literal[
    "context blindness",
    "instruction drift",
    "silent regression",
    "scope creep",
    "hallucinated API",
]


class Rule(Record):
    """What a detector looks for. Its name is the bad pattern."""

    name: str
    version: int
    about: str
    """The bad pattern in one sentence."""
    severity: Severity
    mode: FailureMode | None = None
    """The failure mode that a finding is evidence of."""
    gates: bool = False
    """Whether it is precise enough to fail a build; the others advise."""
    thresholds: dict[str, float] = {}
    """The numbers that it decides by, with their defaults; `closeloop.toml` may set others."""


class Finding(Record):
    """Something that a rule, a check, a judge or a person found."""

    rule: str
    version: int
    severity: Severity
    message: str
    events: tuple[int, ...] = ()
    """Numbers of the events that show it, the most telling first."""
    places: tuple[str, ...] = ()
    """Places in files that show it, as `path:line`."""
    lane: str | None = None
    mode: FailureMode | None = None
    confidence: float = 1.0
    source: Literal["rule", "check", "judge", "person"] = "rule"
    silenced: str | None = None
    """Why it is not to be counted, where somebody said so."""


class Unmeasured(Record):
    """What could not be said of this trace, and why. It is left out of every rate."""

    rule: str
    """The rule, or the measure."""
    reason: str


def make_finding(
    rule: Rule,
    message: str,
    events: Sequence[int],
    *,
    lane: str | None = None,
    confidence: float = 1.0,
) -> Finding:
    """A finding of that rule."""
    return Finding(
        rule=rule.name,
        version=rule.version,
        severity=rule.severity,
        mode=rule.mode,
        message=message,
        events=tuple(events),
        lane=lane,
        confidence=confidence,
    )
