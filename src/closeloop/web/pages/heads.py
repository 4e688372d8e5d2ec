"""What stands above every page of one attempt: who tried what, how it ended, where to look."""

from __future__ import annotations

from msgspec.structs import replace

from closeloop.records.attempt import Attempt, AttemptMarks, AttemptRow
from closeloop.records.finding import Finding, Measurement
from closeloop.records.record import Record
from closeloop.records.session import Session
from closeloop.records.task import Task
from closeloop.reviews.review_queue import load_open_task
from closeloop.web.page import find_or_404
from closeloop.web.page_context import PageContext


class AttemptAsked(Record):
    attempt: str
    """The id, or the beginning of it."""


class Tab(Record):
    address: str
    label: str
    count: int | None = None


class AttemptHead(Record):
    """One attempt, in a few lines."""

    row: AttemptRow
    attempt: Attempt
    marks: AttemptMarks
    title: str
    """The task, or of a session where it went on."""
    tabs: tuple[Tab, ...]
    newer: str | None = None
    """The attempt that holds the session as it is now, where it went on since."""


def load_attempt_head(desk: PageContext, name: str) -> tuple[AttemptHead, Task | None]:
    """The head of an attempt and its task; sealed ones stay so."""
    attempt = find_or_404(desk.store.load_attempt, name)
    task = load_open_task(desk.store, attempt)
    row = desk.store.listing.load_row(attempt.id)
    assert row is not None, "an attempt has a row"
    marks = desk.load_attempt_marks([row]).get(attempt.id, AttemptMarks())
    session = desk.store.load_session(attempt.id) if attempt.origin == "production" else None
    head = AttemptHead(
        row=row,
        attempt=attempt,
        marks=marks,
        title=attempt.task or _session_title(attempt, session),
        tabs=_attempt_tabs(row, marks),
        newer=desk.store.listing.find_newer_version(attempt.id) if session else None,
    )
    return head, task


def with_marks(head: AttemptHead, measurement: Measurement | None) -> AttemptHead:
    """The head of an attempt that was measured only now."""
    findings = unsilenced_rule_findings(measurement)
    if measurement is None:
        return head
    marks = AttemptMarks(
        findings=len(findings),
        rules=tuple(sorted({finding.rule for finding in findings})),
        category=measurement.ending.category if measurement.ending else None,
        iterations=measurement.whole.iterations,
    )
    return replace(head, marks=marks, tabs=_attempt_tabs(head.row, marks))


def unsilenced_rule_findings(measurement: Measurement | None) -> tuple[Finding, ...]:
    """What the rules found and nobody silenced; nothing before they looked."""
    findings = measurement.findings if measurement else ()
    return tuple(one for one in findings if one.silenced is None)


def _session_title(made: Attempt, session: Session | None) -> str:
    place = made.repo or (session and session.directory) or ""
    name = place.rstrip("/").removesuffix(".git").rpartition("/")[2]
    return f"Session in {name}" if name else "Session"


def _attempt_tabs(row: AttemptRow, marks: AttemptMarks) -> tuple[Tab, ...]:
    place = f"/attempts/{row.id}"
    return (
        Tab(address=place, label="Trace", count=row.events),
        Tab(address=f"{place}/iterations", label="Iterations", count=marks.iterations or None),
        Tab(
            address=f"{place}/handoffs",
            label="Handoffs",
            count=row.lanes - 1 if row.lanes and row.lanes > 1 else None,
        ),
        Tab(address=f"{place}/diff", label="Diff", count=row.files_changed),
        Tab(address=f"{place}/tests", label="Tests"),
        Tab(address=f"{place}/checks", label="Checks and risk"),
        Tab(address=f"{place}/evaluations", label="Evaluation"),
        Tab(address=f"{place}/reviews", label="Reviews"),
        Tab(address=f"{place}/raw", label="Raw"),
    )
