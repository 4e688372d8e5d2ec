"""What stands above every page of one attempt: who tried what, how it ended, where to look."""

from __future__ import annotations

from msgspec.structs import replace

from closeloop.model.attempt import Attempt, AttemptRow
from closeloop.model.finding import Finding
from closeloop.model.listing import Marks
from closeloop.model.measurement import Measurement
from closeloop.model.record import Record
from closeloop.model.session import Session
from closeloop.model.task import Task
from closeloop.reviewing.queue import task_of
from closeloop.web.desk import Desk
from closeloop.web.page import found


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
    marks: Marks
    title: str
    """The task, or of a session where it went on."""
    tabs: tuple[Tab, ...]
    newer: str | None = None
    """The attempt that holds the session as it is now, where it went on since."""


def open_attempt(desk: Desk, name: str) -> tuple[AttemptHead, Task | None]:
    """The head of an attempt and its task; sealed ones stay so."""
    made = found(desk.store.attempt, name)
    task = task_of(desk.store, made)
    row = desk.store.listing.row(made.id)
    assert row is not None, "an attempt has a row"
    marks = desk.marks([row]).get(made.id, Marks())
    session = desk.store.session(made.id) if made.origin == "production" else None
    head = AttemptHead(
        row=row,
        attempt=made,
        marks=marks,
        title=made.task or _whereabouts(made, session),
        tabs=_tabs(row, marks),
        newer=desk.store.listing.newer(made.id) if session else None,
    )
    return head, task


def with_marks(head: AttemptHead, measurement: Measurement | None) -> AttemptHead:
    """The head of an attempt that was measured only now."""
    findings = counted(measurement)
    if measurement is None:
        return head
    marks = Marks(
        findings=len(findings),
        rules=tuple(sorted({finding.rule for finding in findings})),
        category=measurement.ending.category if measurement.ending else None,
        iterations=measurement.whole.iterations,
    )
    return replace(head, marks=marks, tabs=_tabs(head.row, marks))


def counted(measurement: Measurement | None) -> tuple[Finding, ...]:
    """What the rules found and nobody silenced; nothing before they looked."""
    findings = measurement.findings if measurement else ()
    return tuple(one for one in findings if one.silenced is None)


def _whereabouts(made: Attempt, session: Session | None) -> str:
    place = made.repo or (session and session.directory) or ""
    name = place.rstrip("/").removesuffix(".git").rpartition("/")[2]
    return f"Session in {name}" if name else "Session"


def _tabs(row: AttemptRow, marks: Marks) -> tuple[Tab, ...]:
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
