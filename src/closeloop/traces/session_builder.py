"""Put a session together: lanes, turns and numbered events, calls paired with their results.

Every reader uses it the same way. What it adds takes its lane, turn and time from the builder's
own `lane`, `turn` and `at`, or from arguments of these names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from datetime import datetime
from typing import Any, Literal

from msgspec.structs import replace

from closeloop.records.attempt import Usage, sum_usage
from closeloop.records.record import content_digest
from closeloop.records.trace import (
    UNKNOWN_AGENT,
    AnyEvent,
    Command,
    Handoff,
    Intent,
    Lane,
    Message,
    Note,
    Session,
    Thought,
    ToolUse,
    Trace,
    Turn,
)
from closeloop.text.client_markup import is_client_text
from closeloop.text.untrusted import truncate_middle
from closeloop.text.wording import compile_lazily
from closeloop.traces.tool_calls import (
    CallOrigin,
    event_from_call,
    has_result,
    is_action,
    result_fields,
)
from closeloop.traces.untrusted_json import storable_arguments

ROOT_LANE = "root"
MAX_CALL_ID_CHARS = 200
UNPAIRED_RESULT = "result without a call"
"""Topic of a note about a result whose call was not recognised."""
CUT_OFF = "The recording ends before a call's result."
_CONTINUE_PHRASES = (
    "continue",
    "go on",
    "go ahead",
    "proceed",
    "resume",
    "carry on",
    "try again",
    "retry",
)


def derive_id(*facts: object) -> str:
    """Derive an id from the facts that distinguish a session, for formats without one."""
    return content_digest(str(facts).encode(errors="replace"))[:32]


_BARE_ID = compile_lazily(r"(?:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|[0-9a-f]{24,64})")


def is_bare_id(name: str) -> bool:
    """Whether an agent's name is only an id, which tells nobody which agent it is."""
    return _BARE_ID.fullmatch(name.lower()) is not None


def count_skip(skipped: dict[str, int], why: str, count: int = 1) -> None:
    """Count what is left out of a session."""
    skipped[why] = skipped.get(why, 0) + count


class SessionBuilder:
    """Builds a session. Events are numbered in the order they are added."""

    def __init__(
        self,
        reader: str,
        version: int,
        skipped: dict[str, int] | None = None,
        *,
        several: bool = False,
    ) -> None:
        """`several`: the file contains more sessions; only what is skipped from now on counts."""
        self.reader = reader
        self.version = version
        self.skipped = {} if skipped is None else skipped
        self._skipped_before = dict(self.skipped) if several else {}
        self.events: list[AnyEvent] = []
        self.models: Counter[str] = Counter()
        """Output of each model; the session's model is the one with the most."""
        self.started: datetime | None = None
        self.ended: datetime | None = None
        self.lane = ROOT_LANE
        self.turn: int | None = None
        self.at: datetime | None = None
        self._lanes: dict[str, tuple[str | None, str | None]] = {}
        self._turns: dict[str, list[Turn]] = {}
        self._messages: dict[tuple[str, str], int] = {}
        self._unfinished_turns: dict[str, Turn] = {}
        self._open: dict[tuple[str, str], list[int]] = {}
        """Numbers of the actions without a result, by lane and id."""
        self._asked: set[str] = set()
        self.open_lane()

    # Texts and counts

    def count_skip(self, why: str, count: int = 1) -> None:
        """Count what is left out."""
        count_skip(self.skipped, why, count)

    def truncate_text(self, text: str) -> str:
        """Truncate a text to what is stored of one, and count that it was."""
        return truncate_middle(text, self.skipped)

    def text_or_none(self, value: object) -> str | None:
        """Return a non-empty text, truncated for storage."""
        return self.truncate_text(value) if isinstance(value, str) and value else None

    def record_time(self, time: datetime | None) -> datetime | None:
        """Extend the session's time to one that a record states."""
        if time is not None:
            self.started = time if self.started is None or time < self.started else self.started
            self.ended = time if self.ended is None or time > self.ended else self.ended
        return time

    # Lanes and turns

    def open_lane(
        self, name: str = ROOT_LANE, parent: str | None = None, agent: str | None = None
    ) -> str:
        """Open a lane, or add to an open one."""
        before = self._lanes.get(name, (None, None))
        self._lanes[name] = (parent or before[0], agent or before[1])
        self._turns.setdefault(name, [])
        return name

    def add_turn(self, lane: str, turn: Turn, message: str | None = None) -> int:
        """Count a provider message; a known id replaces the earlier one."""
        turns = self._turns[lane]
        if message is not None and (lane, message) in self._messages:
            number = self._messages[lane, message]
            turns[number - 1] = turn
            return number
        turns.append(turn)
        if message is not None:
            self._messages[lane, message] = len(turns)
        return len(turns)

    def begin_turn(self, turn: Turn, message: str | None = None) -> int:
        """Count a provider message in the current lane; the next events belong to it."""
        self.turn = self.add_turn(self.lane, turn, message)
        return self.turn

    def continue_turn(self, lane: str, turn: Turn) -> int:
        """Count a part of a provider message that a file splits: its tokens are counted once."""
        unfinished = self._unfinished_turns.get(lane)
        if unfinished is None or (unfinished.usage != Usage() and turn.usage != Usage()):
            self._unfinished_turns[lane] = turn
            return self.add_turn(lane, turn, str(self.count_turns(lane) + 1))
        number = self.count_turns(lane)
        if turn.usage != Usage():
            self._unfinished_turns[lane] = turn
            self.add_turn(lane, turn, str(number))
        return number

    def end_turn(self, lane: str) -> None:
        """Let the model's next output in this lane be another message."""
        self._unfinished_turns.pop(lane, None)

    def count_turns(self, lane: str = ROOT_LANE) -> int:
        """Return the number of turns of a lane."""
        return len(self._turns[lane])

    # Events

    @property
    def next_number(self) -> int:
        """The number of the next event."""
        return len(self.events) + 1

    def event_fields(self, call: str | None = None, **place: Any) -> dict[str, Any]:
        """Return the fields that every event has: number, lane, turn, time and call."""
        return {
            "number": len(self.events) + 1,
            "lane": self.lane,
            "turn": self.turn,
            "at": self.at,
            "call": truncate_middle(call, max_chars=MAX_CALL_ID_CHARS) if call else None,
        } | place

    def add(self, event: AnyEvent) -> AnyEvent:
        """Add an event made with `event_fields`; one with a `call` awaits its result."""
        self.events.append(event)
        if (call := event.call) is not None:
            if waiting := self._open.get((event.lane, call)):
                waiting.append(event.number)
            else:
                self._open[event.lane, call] = [event.number]
        return event

    def add_incoming_message(
        self,
        text: str,
        *,
        lane: str,
        time: datetime | None,
        intent: Intent | None = None,
        is_client: bool = False,
        asks: bool = True,
    ) -> AnyEvent:
        """Add a message to a lane by a user or its program; the first that asks is the request."""
        is_client = is_client or (intent is None and is_client_text(text))
        if intent is None and asks and not is_client and lane not in self._asked:
            self._asked.add(lane)
            intent = "request"
        role: Literal["system", "user"] = "system" if is_client else "user"
        message = Message(
            number=self.next_number, lane=lane, at=time, role=role, text=text, intent=intent
        )
        return self.add(message)

    def add_user_message(self, text: str, intent: Intent | None = None) -> None:
        """Add a user message, which ends the turn; a text without letters is dropped.

        What a client or harness says in the user's name becomes a system message.
        """
        self.turn = None
        if text.strip():
            is_client = intent in (None, "request") and is_client_text(text)
            self.add(
                Message(
                    **self.event_fields(),
                    role="system" if is_client else "user",
                    text=self.truncate_text(text),
                    intent=None if is_client else intent,
                )
            )

    def add_agent_message(
        self, text: str, intent: Intent | None = None, call: str | None = None, **place: Any
    ) -> None:
        """Add an agent message, possibly through a tool call."""
        if text.strip():
            fields = self.event_fields(call, **place)
            self.add(Message(**fields, role="agent", text=self.truncate_text(text), intent=intent))

    def add_thought(self, text: str, call: str | None = None, **place: Any) -> None:
        if text.strip():
            self.add(Thought(**self.event_fields(call, **place), text=self.truncate_text(text)))

    def add_note(self, text: str, about: str, **place: Any) -> None:
        """Add a note."""
        fields = self.event_fields(**place)
        self.add(Note(**fields, text=self.truncate_text(text), about=self.truncate_text(about)))

    def add_command(
        self, line: str, call: str | None = None, directory: str | None = None
    ) -> AnyEvent:
        fields = self.event_fields(call)
        return self.add(Command(**fields, command=self.truncate_text(line), directory=directory))

    def add_call(self, name: str, arguments: Any, call: str | None = None) -> AnyEvent:
        """Add an action by its tool's name and arguments."""
        origin = CallOrigin(**self.event_fields(call))
        stored = storable_arguments(arguments, self.skipped)
        return self.add(event_from_call(self.truncate_text(name), stored, origin))

    def add_tool_use(self, name: str, arguments: Any, call: str | None = None) -> AnyEvent:
        """Add an action of a tool whose name must not be interpreted."""
        fields, stored = self.event_fields(call), storable_arguments(arguments, self.skipped)
        return self.add(ToolUse(**fields, name=self.truncate_text(name), arguments=stored))

    # Results and later details of an event

    def find_open_call(self, lane: str, call: str | None) -> AnyEvent | None:
        """Return the oldest action with this id that has no result: ids may be reused."""
        numbers = self._open.get((lane, call or ""))
        return self.events[numbers[0] - 1] if numbers else None

    def finish(self, event: AnyEvent, **result: object) -> AnyEvent:
        """Add the result of an action, which then no longer awaits one."""
        finished_event = replace(event, **result)
        number = event.number
        self.events[number - 1] = finished_event
        queue = self._open.get((event.lane, event.call or ""))
        if queue and number in queue:
            queue.remove(number)
        return finished_event

    def add_result(
        self,
        event: AnyEvent,
        output: str | None,
        ok: bool | None = None,
        exit_code: int | None = None,
    ) -> AnyEvent:
        """Finish an action with what the text of its result says.

        `exit_code` is that of a command, where the recording has it in a field of its own. Events
        that are no commands have none, whatever a recording says.
        """
        text = None if output is None else self.truncate_text(output)
        fields = result_fields(event, text, ok)
        if exit_code is not None and isinstance(event, Command):
            fields |= {"exit_code": exit_code, "exit_from": "stated"}
        return self.finish(event, **fields)

    def add_refusal(self, event: AnyEvent, reason: str) -> AnyEvent:
        """Finish an action that was refused."""
        finished_event = self.add_result(event, reason or None, ok=False)
        if isinstance(finished_event, Command):
            return self.update_event(finished_event, stopped="not executed")
        return finished_event

    def update_event(self, event: AnyEvent, **facts: object) -> AnyEvent:
        """Add facts to an earlier event; a call still awaits its result."""
        updated_event = replace(self.events[event.number - 1], **facts)
        self.events[event.number - 1] = updated_event
        return updated_event

    def replace_event(self, event: AnyEvent) -> None:
        """Replace the event with the same number."""
        self.events[event.number - 1] = event

    # The end

    def ends_inside_call(self) -> bool:
        """Whether the root's last action is a call without a result."""
        for event in reversed(self.events):
            if event.lane == ROOT_LANE and not isinstance(event, Note):
                return has_result(event) is False
        return False

    def mark_claim(self) -> str | None:
        """Return the agent's last message; it is the claim if nothing followed."""
        for event in reversed(self.events):
            if event.lane != ROOT_LANE:
                continue
            answered = isinstance(event, Message) and event.intent in ("interrupt", "answer")
            if is_action(event) or answered:
                break
            if isinstance(event, Message) and event.role == "agent":
                if event.intent is None:
                    self.update_event(event, intent="claim")
                break
        for event in reversed(self.events):
            if event.lane == ROOT_LANE and isinstance(event, Message) and event.role == "agent":
                return event.text
        return None

    def claim_last_message(self, otherwise: str) -> str:
        """Mark the last message of the last turn as the claim; otherwise add one."""
        last = self.count_turns(ROOT_LANE)
        for event in reversed(self.events):
            if event.lane != ROOT_LANE or event.turn not in (None, last):
                break
            if isinstance(event, Message) and event.role == "agent":
                if event.intent is None:
                    self.update_event(event, intent="claim")
                return event.text
        self.add_agent_message(otherwise, "claim")
        return otherwise

    def mark_corrections(self) -> None:
        """Mark a user's message after an interrupt as a correction, unless it just continues."""
        stopped: set[str] = set()
        for event in self.events:
            if not isinstance(event, Message):
                continue
            if event.intent == "interrupt":
                stopped.add(event.lane)
            elif event.role == "user" and event.lane in stopped:
                stopped.discard(event.lane)
                plain = event.text.strip(" .!\n").lower()
                if event.intent is None and plain not in _CONTINUE_PHRASES:
                    self.update_event(event, intent="correction")

    def drop_unknown_children(self, lanes: Collection[str]) -> None:
        """Remove handoffs to lanes that do not exist."""
        for event in self.events:
            if isinstance(event, Handoff) and event.child is not None and event.child not in lanes:
                self.update_event(event, child=None)

    def total_usage(self) -> Usage:
        """Sum the usage of all turns of all lanes."""
        return sum_usage(turn.usage for turns in self._turns.values() for turn in turns)

    def most_used_model(self) -> str | None:
        """The model with the most output."""
        return max(self.models, key=self.models.__getitem__, default=None)

    def build_trace(self) -> Trace:
        """Build the trace, with the counts of what was left out."""
        before = self._skipped_before
        return Trace(
            reader=self.reader,
            reader_version=self.version,
            lanes=tuple(
                Lane(id=name, parent=parent, agent=agent, turns=tuple(self._turns[name]))
                for name, (parent, agent) in self._lanes.items()
            ),
            events=tuple(self.events),
            skipped={
                reason: count
                for reason, total in self.skipped.items()
                if (count := total - before.get(reason, 0)) > 0
            },
        )

    def build_session(self, **facts: Any) -> Session:
        """Build the session; `facts` override the counted model, times and usage."""
        if "model" not in facts:
            facts["model"] = self.most_used_model()
        if "usage" not in facts:
            facts["usage"] = self.total_usage()
        if "started" not in facts and "ended" not in facts:
            facts |= {"started": self.started, "ended": self.ended}
        if is_bare_id(facts.get("agent") or ""):
            facts["agent"] = UNKNOWN_AGENT
        started, ended = facts.get("started"), facts.get("ended")
        if started and ended and ended < started:
            # A clock was set back, or records are out of order.
            facts |= {"started": ended, "ended": started}
        return Session(**facts, trace=self.build_trace())
