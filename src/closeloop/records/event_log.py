"""An event: something happened to a task, an attempt or a pull request, said once and kept."""

from __future__ import annotations

from closeloop.records.record import Record, Time

EventDetail = str | int | float | bool | None
EventDetails = dict[str, EventDetail]


class LogEvent(Record):
    """One line of the log. Its number says when it was learned, its time when it happened."""

    kind: str
    """`pull.merged`, `attempt.finished`: a thing and what became of it."""
    at: Time
    number: int | None = None
    """Its place in the log; given when it is kept."""
    repo: str | None = None
    pull: int | None = None
    task: str | None = None
    attempt: str | None = None
    details: EventDetails = {}
