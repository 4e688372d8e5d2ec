"""A trace: the events of an agent's session, in one form for all formats."""

from __future__ import annotations

from typing import Any, Literal

from closeloop.records.attempt import Exit, Usage
from closeloop.records.record import Record, Time, html_table

# Messages to a model and its replies, for any provider.


class ToolSpec(Record):
    """A tool offered to the model."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON schema of an object."""


class ModelToolCall(Record):
    """A tool call requested by the model."""

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
    """The whole input of one model turn."""

    messages: tuple[ChatMessage, ...]
    system: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    schema: dict[str, Any] | None = None
    """If set, the reply must be JSON of this schema."""
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
    """The decoded reply, if a schema was given."""
    echo: Any = None
    """Data that the provider expects back unchanged with this turn, such as signed reasoning."""


Intent = Literal["request", "question", "answer", "claim", "correction", "interrupt"]


# `gc=False`: an event cannot be part of a reference cycle, and there are very many.
class Event(Record, tag_field="kind", gc=False):
    """One event. An action and its result are one event."""

    number: int
    """Position in the trace, from 1; findings cite it."""
    lane: str
    turn: int | None = None
    """Number of the provider message in the lane, from 1."""
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
    """The limit that stopped it, if any."""


class Edit(Event, tag="edit"):
    path: str
    action: Literal["create", "change", "delete", "move"] = "change"
    before: str | None = None
    after: str | None = None
    """The new text, or the whole file if it was created."""
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
    """The lane that received the work."""
    report: str | None = None
    """The report that came back."""
    ok: bool | None = None


class Note(Event, tag="note"):
    """Anything else worth keeping: a compaction, a limit, an unknown record."""

    text: str
    about: str | None = None


AnyEvent = Message | Thought | Command | Edit | Read | ToolUse | Handoff | Note


class Turn(Record):
    """One provider message; tokens are counted here, once."""

    usage: Usage = Usage()
    model: str | None = None
    at: Time | None = None
    seconds: float | None = None


class Lane(Record):
    """The events of one agent: the root, or a sub-agent."""

    id: str
    parent: str | None = None
    agent: str | None = None
    turns: tuple[Turn, ...] = ()


class Trace(Record):
    """Lanes of events in the order they occurred."""

    reader: str
    reader_version: int
    lanes: tuple[Lane, ...] = ()
    events: tuple[AnyEvent, ...] = ()
    skipped: dict[str, int] = {}
    """Unreadable records: reason → count."""

    def __repr__(self) -> str:
        lanes = "1 lane" if len(self.lanes) == 1 else f"{len(self.lanes)} lanes"
        return f"<Trace {self.reader}: {len(self.events)} events, {lanes}>"

    def _repr_html_(self) -> str:
        """HTML for notebooks: one row for each of the first events, with all text escaped."""
        import html

        rows = [
            (event.number, event.lane, event_kind(event), event_summary(event))
            for event in self.events[:MAX_HTML_EVENTS]
        ]
        hidden_count = len(self.events) - len(rows)
        note = f"<p>… and {hidden_count} more events</p>" if hidden_count > 0 else ""
        table = html_table(("#", "lane", "event", ""), rows)
        return f"<p>{html.escape(repr(self))}</p>{table}{note}"


MAX_HTML_EVENTS = 50
MAX_SUMMARY_CHARS = 160


def event_kind(event: AnyEvent) -> str:
    """Return `command`, `edit` and the like; of a message who sent it."""
    kind = str(event.__struct_config__.tag)
    return f"{event.role} {kind}" if isinstance(event, Message) else kind


def event_summary(event: AnyEvent) -> str:
    """Summarise an event in one short line."""
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


UNKNOWN_AGENT = "unknown agent"
"""The agent of a session whose recording does not name it."""


class Session(Record):
    """A recorded session, as read from files."""

    id: str
    """The agent's own id, or a digest of the content."""
    agent: str
    trace: Trace
    agent_version: str | None = None
    model: str | None = None
    """The model with the most output."""
    system: str | None = None
    """The system prompt, if the files contain it."""
    started: Time | None = None
    ended: Time | None = None
    exit: Exit = "finished"
    cause: str | None = None
    usage: Usage = Usage()
    """Usage of all lanes; each provider message is counted once."""
    summary: str | None = None
    """The agent's last message."""
    directory: str | None = None
    branch: str | None = None
    commit: str | None = None
    user: str | None = None
    parent: str | None = None
    """The session that started this one, if it was not found beside it."""
    links: dict[str, str] = {}
    copy: Literal["exported", "printed"] | None = None
    """Set for an export or printed output; the agent's own files contain more."""

    def __repr__(self) -> str:
        return f"<Session {self.id} of {self.agent}: {len(self.trace.events)} events>"

    def _repr_html_(self) -> str:
        """HTML for notebooks: the agent and the first events, with all text escaped."""
        facts = ("id", "agent", "model", "started", "ended", "exit", "directory")
        return html_table(facts, [[getattr(self, name) for name in facts]]) + (
            self.trace._repr_html_()
        )


# An exchange: one request of an attempt to its model and the reply, as the gateway saw it.


class Exchange(Record):
    """One request through the gateway. Bodies are redacted and contain no key."""

    number: int
    """Within the attempt, from 1."""
    at: Time
    path: str
    """Path of the request: `/v1/messages`."""
    request: bytes
    """The body as the agent sent it."""
    response: bytes
    """The body that the agent received; a stream is joined."""
    content_type: str = "application/json"
    status: int
    """As seen by the agent."""
    seconds: float
    first_byte_seconds: float | None = None
    retries: int = 0
    """How often the gateway repeated the request by itself."""
    model: str | None = None
    """The model that answered, as the provider names it."""
    usage: Usage = Usage()
    cause: str | None = None
    """Why there is no valid answer: the budget, or a provider fault."""
    note: str | None = None
    """For a replayed attempt: how this request differs from the recorded one."""


# An event: something that happened to a task, an attempt or a pull request, recorded once.

EventDetail = str | int | float | bool | None
EventDetails = dict[str, EventDetail]


class LogEvent(Record):
    """One entry of the log.

    Its number orders by when it was learned, its time by when it happened.
    """

    kind: str
    """`pull.merged`, `attempt.finished`: a subject and what happened to it."""
    at: Time
    number: int | None = None
    """Its position in the log, assigned when it is stored."""
    repo: str | None = None
    pull: int | None = None
    task: str | None = None
    attempt: str | None = None
    details: EventDetails = {}


# The options of an import, and its result: counted by format, nothing left out silently.


class SessionFilter(Record):
    """Conditions that sessions must meet; None is any."""

    since: Time | None = None
    """Sessions that continued after this time."""
    repo: str | None = None
    """Sessions in this folder."""


class FormatCounts(Record):
    """Import counts of one format."""

    files: int = 0
    sessions: int = 0
    new: int = 0
    """Sessions that were not in the store."""
    events: int = 0
    calls: int = 0
    """Commands, edits, reads, other tools and handoffs."""
    paired: int = 0
    """Calls whose result is known."""
    callless_sessions: int = 0
    """Sessions with results but no calls: their call format was not recognised."""
    skipped: dict[str, int] = {}
    """What could not be read, with counts."""


class ImportSummary(Record):
    """The result of an import, final or so far."""

    formats: dict[str, FormatCounts] = {}
    unchanged: int = 0
    """Files that are unchanged since an earlier import."""
    empty: int = 0
    """Of these, recordings without a session."""
    unwanted: int = 0
    """Files and sessions excluded by the filter."""
    others: int = 0
    """Files that are not recordings."""
    other_paths: tuple[str, ...] = ()
    """The first of them."""
    unreadable: int = 0
    troubles: tuple[str, ...] = ()
    """The first unreadable files, with the reason."""
    redacted: dict[str, int] = {}
    """Number of removed secrets by rule."""


# The tombstone of a removed secret.


class Purge(Record):
    """A tombstone: who removed what kind of secret, when, and from how many records."""

    at: Time
    who: str
    kind: str
    """`secret`: a given one; `known`: all forms known to redaction at that time."""
    records: int = 0
    places: dict[str, int] = {}
    """Records by table."""
    digest: str = ""
    """Salted digest of the secret; empty if many were removed at once."""
