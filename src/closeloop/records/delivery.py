"""A delivery: what became of an attempt's change among the people who were to merge it."""

from __future__ import annotations

from closeloop.records.change_report import RiskLevel
from closeloop.records.record import Record, Time


class Delivery(Record):
    """What people did with the work of one attempt, as far as it is known. None is not known."""

    attempt: str
    at: Time
    """When this was learned: of several the newest counts."""
    passed: bool | None = None
    """The whole suite passes and it builds cleanly; needed only where no grade says so."""
    merged: bool | None = None
    corrected: bool | None = None
    """A person changed the diff before it was merged."""
    cycles: int | None = None
    """Rounds of human correction before it could be merged."""
    regressed: bool | None = None
    """A test outside the task's scope broke, or a later revert or fix points at it."""
    files: int | None = None
    modules: int | None = None
    dependents: int | None = None
    """What the change touched, and what depends on that."""
    risk: RiskLevel | None = None
    first_review: bool | None = None
    """Merged after its first review."""
    first_push: bool | None = None
    """CI passed on what was pushed first."""
    comments: int | None = None
    """Of reviewers."""
    seconds_to_open: float | None = None
    """From the task's start to the pull request."""
    repeated: int | None = None
    """Comments that restate a rule which was stored before the pull request: confirmed."""
    repeated_unconfirmed: int | None = None
