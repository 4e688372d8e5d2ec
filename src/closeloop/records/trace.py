"""A trace: what an agent did, event by event; and its steps, as the rules see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from closeloop.records.attempt import Attempt, Grade, Usage
from closeloop.records.change import Change
from closeloop.records.record import Record, Time
from closeloop.records.task import Task

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
    """What could not be read: reason → how many records."""


# A trace as the rules see it: actions with what they did to the workspace, checks, iterations.
#
# Reading ── one per trace └── LaneReading ── one per lane ├── Step ── one per action: what it
# read, wrote, checked, and whether it failed └── Iteration ── changes of the workspace, then
# checks

ActionEvent = Command | Edit | Read | ToolUse | Handoff

# `gc=False`: none of these can be part of a circle, and of some there are very many.


class CommandEffect(Record, gc=False):
    """What a command line does, told from its text alone."""

    programs: tuple[str, ...] = ()
    """What it runs, in order, without paths and wrappers: `("cd", "pytest")`."""
    checks: tuple[str, ...] = ()
    """The tools among them that test, build, lint or type-check: `("pytest",)`."""
    target: str = ""
    """The checking part, without flags that change only how it is shown: what is checked."""
    writes: bool = False
    """It changes the workspace."""
    written: tuple[str, ...] = ()
    """The files that it changes, where its text names them."""
    read: tuple[str, ...] = ()
    """The files that it shows, where its text names them."""
    searches: bool = False
    """It looks for text or files: then exit code 1 means only that nothing was found."""
    waits: bool = False
    """It waits or polls: repeating it is no loop."""
    masked: bool = False
    """Its exit code is not that of the check: piped, or followed by `|| true`."""


class CheckFailures(Record, gc=False):
    """What a failing check says: which tests or places fail, and what it points at."""

    errors: Mapping[str, str]
    """Failing test id or error signature → its message without volatile text, `""` where none."""
    parser: str
    """Which tool's output it was read as; `tail` where only the last lines could be compared."""
    paths: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    """What the output names, the most telling first; paths as they are written there."""

    @property
    def keys(self) -> frozenset[str]:
        """The failure set."""
        return frozenset(self.errors)


class TraceCheck(Record, gc=False):
    """A run of a tool that says whether the work is right."""

    tool: str
    target: str
    passed: bool | None
    """None where neither exit code nor output says."""
    failures: CheckFailures | None = None
    """None unless it failed."""


class TraceStep(Record, gc=False):
    """One action of a lane."""

    event: ActionEvent
    index: int
    """Its place among the lane's steps."""
    state: int
    """How often the workspace had changed when it began."""
    changed: bool = False
    """It changed the workspace: an edit that did not fail, a command that writes."""
    failed: bool | None = None
    """None is unknown."""
    doing: CommandEffect | None = None
    """Of a command."""
    check: TraceCheck | None = None
    read: tuple[str, ...] = ()
    """Files whose content it showed."""
    written: tuple[str, ...] = ()
    """Files that it changed, or was to change. Paths are relative to the project where known."""

    @property
    def number(self) -> int:
        """What findings cite."""
        return self.event.number


class Iteration(Record, gc=False):
    """One or more changes of the workspace, then one or more checks of it."""

    changes: tuple[TraceStep, ...]
    checks: tuple[TraceStep, ...]
    """The last run of each target; a check run again unchanged adds nothing."""
    passed: bool | None
    """All of them; None where one is unknown and none failed."""
    failures: CheckFailures | None = None
    """Of all failing checks together."""


# `dict`: what rules work out of a reading is kept with it (`process/once.py`), and not compared.


class LaneReading(Record, dict=True):
    """One lane, read."""

    lane: Lane
    request: str | None
    """What the lane was asked: the user's first words, or the brief."""
    steps: Sequence[TraceStep]
    commands: Sequence[TraceStep]
    edits: Sequence[TraceStep]
    tools: Sequence[TraceStep]
    """Those of the steps that are commands, edits, and uses of other tools."""
    reads: Sequence[TraceStep]
    """Those that showed a file."""
    failing: Sequence[TraceStep]
    """Those that are known to have failed."""
    messages: Sequence[Message]
    """In order, from and to the user; of a child, also its own words."""
    users: Sequence[Message]
    """Those of the messages that the user wrote."""
    checks: Sequence[TraceStep]
    changes: Sequence[TraceStep]
    """Steps that changed the workspace, those of its children among them."""
    iterations: Sequence[Iteration]
    compactions: tuple[int, ...] = ()
    """Event numbers at which the lane's context was cut."""
    handoff: Handoff | None = None
    """The event that began the lane, where it is on record."""


class TraceReading(Record, dict=True):
    """One trace, read; with what else is known of the attempt."""

    trace: Trace
    lanes: Mapping[str, LaneReading]
    """In the order in which they began; the first is the root."""
    handoffs: Sequence[Handoff] = ()
    """All of them, in order."""
    gaps: tuple[str, ...] = ()
    """Why some of it cannot be measured: half of it was skipped, no exit code is known, …"""
    task: Task | None = None
    attempt: Attempt | None = None
    change: Change | None = None
    grade: Grade | None = None
