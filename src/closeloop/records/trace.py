"""A trace: what an agent did, event by event, whatever its own files look like."""

from __future__ import annotations

import html
from typing import Any, Literal

from closeloop.records.attempt import Exit, Usage
from closeloop.records.record import Record, Time, html_table

# What goes to a model and what comes back, whichever provider it is.


class ToolSpec(Record):
    """A tool offered to the model."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON schema of an object."""


class ModelToolCall(Record):
    """A tool the model wants used."""

    id: str
    name: str
    arguments: dict[str, Any]
    malformed: str | None = None
    """What the model sent instead of a JSON object."""


class ChatMessage(Record):
    """One message of a conversation."""

    role: Literal["user", "assistant", "tool"]
    text: str = ""
    calls: tuple[ModelToolCall, ...] = ()
    """For the assistant."""
    call: str | None = None
    """For a tool's result: the id of its call."""
    failed: bool = False
    """For a tool's result."""
    echo: Any = None
    """For the assistant: the reply's own `echo`."""


class ModelRequest(Record):
    """Everything a model is told in one turn."""

    messages: tuple[ChatMessage, ...]
    system: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    schema: dict[str, Any] | None = None
    """The reply must be JSON of this schema."""
    temperature: float | None = None
    max_tokens: int | None = None


class ModelReply(Record):
    """One turn of a model."""

    text: str = ""
    calls: tuple[ModelToolCall, ...] = ()
    stop: Literal["end", "tools", "length", "refused"] = "end"
    usage: Usage = Usage()
    model: str | None = None
    """The model that answered, as the provider names it."""
    value: Any = None
    """The decoded reply when a schema was asked for."""
    echo: Any = None
    """What the provider wants back unchanged with this turn, such as its signed reasoning."""


Intent = Literal["request", "question", "answer", "claim", "correction", "interrupt"]


# `gc=False`: an event cannot be part of a circle, and there are very many.
class Event(Record, tag_field="kind", gc=False):
    """Something that happened. An action and its result are one event."""

    number: int
    """Position in the trace, from 1: what findings cite."""
    lane: str
    turn: int | None = None
    """Which provider message of the lane it belongs to, from 1."""
    at: Time | None = None
    seconds: float | None = None
    call: str | None = None
    """The agent's own id for the action."""


class Message(Event, tag="message"):
    role: Literal["user", "agent", "system"]
    text: str
    intent: Intent | None = None


class Thought(Event, tag="thought"):
    text: str


class Command(Event, tag="command"):
    command: str
    directory: str | None = None
    output: str | None = None
    exit_code: int | None = None
    """None is unknown, never 0."""
    exit_from: Literal["stated", "parsed"] | None = None
    stopped: str | None = None
    """Which limit stopped it, when one did."""


class Edit(Event, tag="edit"):
    path: str
    action: Literal["create", "change", "delete", "move"] = "change"
    before: str | None = None
    after: str | None = None
    """The replaced and the new text, or the whole file where it was created."""
    patch: str | None = None
    ok: bool | None = None
    error: str | None = None


class Read(Event, tag="read"):
    path: str
    text: str | None = None
    first_line: int | None = None
    last_line: int | None = None
    ok: bool | None = None
    error: str | None = None


class ToolUse(Event, tag="tool"):
    name: str
    arguments: dict[str, Any] | None = None
    output: str | None = None
    ok: bool | None = None


class Handoff(Event, tag="handoff"):
    brief: str
    child: str | None = None
    """The lane that took the work."""
    report: str | None = None
    """What came back."""
    ok: bool | None = None


class Note(Event, tag="note"):
    """Anything else worth keeping: compaction, a limit reached, a record nobody knows."""

    text: str
    about: str | None = None


AnyEvent = Message | Thought | Command | Edit | Read | ToolUse | Handoff | Note


class Turn(Record):
    """One message of the provider: tokens are counted here, once."""

    usage: Usage = Usage()
    model: str | None = None
    at: Time | None = None
    seconds: float | None = None


class Lane(Record):
    """One agent's line of events: the root, or a sub-agent."""

    id: str
    parent: str | None = None
    agent: str | None = None
    turns: tuple[Turn, ...] = ()


class Trace(Record):
    """Lanes of events, in the order they happened."""

    reader: str
    reader_version: int
    lanes: tuple[Lane, ...] = ()
    events: tuple[AnyEvent, ...] = ()
    skipped: dict[str, int] = {}
    """Records that could not be read: reason → number."""

    def __repr__(self) -> str:
        return f"<Trace {self.reader}: {len(self.events)} events, {len(self.lanes)} lanes>"

    def _repr_html_(self) -> str:
        """A notebook's view: the first events, a row each, with all text escaped."""
        rows = [
            (event.number, event.lane, event.__struct_config__.tag, event_summary(event))
            for event in self.events[:MAX_HTML_EVENTS]
        ]
        more = len(self.events) - len(rows)
        note = f"<p>… and {more} more events</p>" if more > 0 else ""
        table = html_table(("#", "lane", "event", ""), rows)
        return f"<p>{html.escape(repr(self))}</p>{table}{note}"


MAX_HTML_EVENTS = 50
MAX_SUMMARY_CHARS = 160


def event_summary(event: AnyEvent) -> str:
    """What an event says, in one short line."""
    match event:
        case Command():
            code = "" if event.exit_code is None else f" (exit {event.exit_code})"
            text = event.command[:MAX_SUMMARY_CHARS] + code
        case Edit() | Read():
            text = event.path
        case ToolUse():
            text = event.name
        case Handoff():
            text = event.brief
        case Message() | Thought() | Note():
            text = event.text
    line = " ".join(text[: 4 * MAX_SUMMARY_CHARS].split())
    return line if len(line) <= MAX_SUMMARY_CHARS else f"{line[: MAX_SUMMARY_CHARS - 1]}…"


# Sessions as agents recorded them, exchanges with models, events, imports and purges.


class Session(Record):
    """A recorded session, as a reader read it from files."""

    id: str
    """The agent's own id, or a digest of the content where it has none."""
    agent: str
    trace: Trace
    agent_version: str | None = None
    model: str | None = None
    """The model with the most output."""
    system: str | None = None
    """The system prompt, where the files hold it."""
    started: Time | None = None
    ended: Time | None = None
    exit: Exit = "finished"
    cause: str | None = None
    usage: Usage = Usage()
    """Of all lanes; each provider message is counted once."""
    summary: str | None = None
    """The agent's last words."""
    directory: str | None = None
    branch: str | None = None
    commit: str | None = None
    user: str | None = None
    parent: str | None = None
    """The session that started this one, where it was not found beside it."""
    links: dict[str, str] = {}
    copy: Literal["exported", "printed"] | None = None
    """Set for an export or printed output; the agent's own files hold more."""

    def __repr__(self) -> str:
        return f"<Session {self.id} of {self.agent}: {len(self.trace.events)} events>"

    def _repr_html_(self) -> str:
        """A notebook's view: who worked, and the first events, with all text escaped."""
        facts = ("id", "agent", "model", "started", "ended", "exit", "directory")
        return html_table(facts, [[getattr(self, name) for name in facts]]) + (
            self.trace._repr_html_()
        )


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
