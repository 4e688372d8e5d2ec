"""Sessions as agents recorded them, exchanges with models, events, imports and purges."""

from __future__ import annotations

from typing import Literal

from closeloop.records.attempt import Exit, Usage
from closeloop.records.record import Record, Time
from closeloop.records.trace import Trace


class Session(Record):
    """What a reader makes of files; everything but the trace may be absent."""

    id: str
    """The agent's own name for it, or the digest of its content where it has none."""
    agent: str
    trace: Trace
    agent_version: str | None = None
    model: str | None = None
    """The one that said most."""
    system: str | None = None
    """The system prompt, where the files hold it."""
    started: Time | None = None
    ended: Time | None = None
    exit: Exit = "finished"
    cause: str | None = None
    usage: Usage = Usage()
    """Of all lanes, each provider message counted once."""
    summary: str | None = None
    """The agent's last words."""
    directory: str | None = None
    branch: str | None = None
    commit: str | None = None
    user: str | None = None
    parent: str | None = None
    """The session that started this one, where that was not found beside it."""
    links: dict[str, str] = {}
    copy: Literal["exported", "printed"] | None = None
    """Written out by the agent or a tool: where the agent's own files are, these tell more."""


# An exchange: one request of an attempt to its model and what came back, as the gateway saw it.


class Exchange(Record):
    """One request through the gateway. Bodies are redacted and hold no key."""

    number: int
    """Within the attempt, from 1."""
    at: Time
    path: str
    """What was asked for: `/v1/messages`."""
    request: bytes
    """The body as the agent sent it."""
    response: bytes
    """The body as the agent got it, a stream whole."""
    content_type: str = "application/json"
    status: int
    """As the agent saw it."""
    seconds: float
    first_byte_seconds: float | None = None
    retries: int = 0
    """How often the gateway asked the provider again by itself."""
    model: str | None = None
    """The model that answered, as the provider names it."""
    usage: Usage = Usage()
    cause: str | None = None
    """Why there is no good answer: the budget, or the provider's trouble, in words."""
    note: str | None = None
    """Of a replayed attempt: how this request differs from the recorded one, in words."""


# An event: something happened to a task, an attempt or a pull request, said once and kept.

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


# What an import is asked for, and what it did: counted by format, nothing left out silently.


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
    callless_sessions: int = 0
    """Sessions with results and without a single call: how calls are written was not recognised."""
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


# What stands where a secret was removed.


class Purge(Record):
    """A tombstone: who removed what kind of secret when, and from how many records."""

    at: Time
    who: str
    kind: str
    """`secret`: one that somebody gave; `known`: all forms that redaction knew then."""
    records: int = 0
    places: dict[str, int] = {}
    """Records by table."""
    digest: str = ""
    """Of the secret, salted; empty where many were removed at once."""
