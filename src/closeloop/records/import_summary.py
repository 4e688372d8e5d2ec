"""What an import is asked for, and what it did: counted by format, nothing left out silently."""

from __future__ import annotations

from closeloop.records.record import Record, Time


class SessionFilter(Record):
    """Which sessions are wanted; None is all."""

    since: Time | None = None
    """Those that went on after this."""
    repo: str | None = None
    """Those in this folder."""


class FormatCounts(Record):
    """Of one format."""

    files: int = 0
    sessions: int = 0
    new: int = 0
    """Of the sessions, those that were not in the store."""
    events: int = 0
    calls: int = 0
    """Commands, edits, reads, other tools and handoffs."""
    paired: int = 0
    """Of the calls, those whose result is known."""
    skipped: dict[str, int] = {}
    """What could not be read, and how often."""


class ImportSummary(Record):
    """All that an import did, or has done so far."""

    formats: dict[str, FormatCounts] = {}
    unchanged: int = 0
    """Files that were looked at before and are as they were."""
    empty: int = 0
    """Of these, recordings that hold no session."""
    unwanted: int = 0
    """Files and sessions that were not asked for."""
    others: int = 0
    """Files that are no recordings."""
    unreadable: int = 0
    troubles: tuple[str, ...] = ()
    """The first of the files that could not be read, and why."""
    redacted: dict[str, int] = {}
    """Secrets taken out, by rule."""
