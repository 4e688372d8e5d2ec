"""One thread of Codex as a lane: turns and tokens, messages, calls, handoffs, processes."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Mapping, MutableSequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from closeloop.records.attempt import Usage
from closeloop.records.trace import (
    AnyEvent,
    Command,
    Edit,
    Handoff,
    Intent,
    Message,
    Thought,
    ToolUse,
    Turn,
)
from closeloop.text.untrusted import truncate_middle
from closeloop.text.wording import count_with_noun
from closeloop.traces import tool_calls
from closeloop.traces.session_builder import SessionBuilder
from closeloop.traces.tool_calls import CallOrigin, event_from_call, is_action
from closeloop.traces.untrusted_json import (
    as_label,
    as_list,
    as_mapping,
    content_text,
    make_usage,
    seconds_between,
    storable_value,
    time_from_text,
    try_decode_json,
)

_HANDOFF_TOOLS = ("spawn_agent", "send_input", "followup_task")
_FAILURE_STATES = ("errored", "not_found")
_TOKEN_KEYS = (
    "input_tokens",
    "cached_input_tokens",
    "cache_write_input_tokens",
    "output_tokens",
    "reasoning_output_tokens",
)
TokenCounts = tuple[int | None, ...]
_NO_COUNTS = (None,) * len(_TOKEN_KEYS)
_MAX_COUNT = 1 << 53


class CodexLane:
    """The state while a thread is read record by record."""

    def __init__(self, builder: SessionBuilder, name: str, lanes: Mapping[str, str]) -> None:
        self.builder = builder
        self.name = name
        self.handoffs = CodexHandoffs(builder, lanes)
        self.time: Any = None
        """Time of the current record, as written."""
        self._parsed: tuple[Any, datetime | None] = (None, None)
        self.model: str | None = None
        self.mode: str | None = None
        self.models: Counter[str] = Counter()
        self.requested = False
        self.stopped: str | None = None
        """Why the last task did not finish."""
        self.last_words: int | None = None
        self.turn = 0
        self._turn = Turn()
        self._has_usage = True
        self._listening = True
        self._meter = CodexTokenMeter()
        self._open: dict[str, deque[list[int]]] = {}
        self._done: dict[str, list[int]] = {}
        self.script_commands: set[int] = set()
        """Commands that stand for the script that ran them, by number."""
        self._streams: dict[int, list[str]] = {}
        self._sessions: dict[str, int] = {}

    @property
    def current_time(self) -> datetime | None:
        """The time of the current record."""
        if self._parsed[0] is not self.time:
            self._parsed = (self.time, time_from_text(self.time))
        return self._parsed[1]

    # Turns

    def open_turn(self) -> int:
        """Return the current provider message; a new one after it was answered."""
        if self._listening:
            self._listening = False
            self._begin_turn()
        return self.turn

    def end_turn(self) -> None:
        """Something arrived for the model, so that its next output is another message."""
        self._listening = True

    def add_token_counts(self, total: Any, last: Any) -> None:
        """Add token counts; a repeated total adds nothing."""
        usage = self._meter.usage_since_last(total, last)
        if usage is None:
            return
        if self._has_usage:
            # A message without any other record, such as a summary.
            self._begin_turn()
        self._has_usage = True
        self._turn = msgspec.structs.replace(self._turn, usage=usage)
        self.builder.add_turn(self.name, self._turn, str(self.turn))

    def skip_token_counts(self, total: Any, last: Any) -> None:
        """Skip the tokens of the thread that this one was forked from."""
        self._meter.usage_since_last(total, last)

    def _begin_turn(self) -> None:
        self.turn = self.builder.count_turns(self.name) + 1
        self._turn = Turn(usage=Usage(), model=self.model, at=self.current_time)
        self._has_usage = False
        if self.model is not None:
            self.models[self.model] += 1
        self.builder.add_turn(self.name, self._turn, str(self.turn))

    # Messages

    def add_agent_message(self, text: str) -> int:
        """Add an agent message."""
        turn = self.open_turn()
        self.last_words = self._add_message("agent", text, turn)
        return self.last_words

    def mark_last_claim(self) -> None:
        """A task ended: the agent's last message is the claim if nothing followed."""
        if self.last_words is None:
            return
        last_message, *later = self.builder.events[self.last_words - 1 :]
        if isinstance(last_message, Message) and not any(
            event.lane == self.name and is_action(event) for event in later
        ):
            self.builder.finish(last_message, intent="claim")

    def add_incoming_message(
        self, text: str, role: Literal["user", "system"], intent: Intent | None = None
    ) -> int:
        """Add a message to the agent."""
        self.end_turn()
        return self._add_message(role, text, None, intent)

    def _add_message(
        self,
        role: Literal["user", "agent", "system"],
        text: str,
        turn: int | None,
        intent: Intent | None = None,
    ) -> int:
        fields = self.builder.event_fields(lane=self.name, turn=turn, at=self.current_time)
        text = self.builder.truncate_text(text)
        return self.builder.add(Message(**fields, role=role, text=text, intent=intent)).number

    def add_thought(self, text: str) -> None:
        turn = self.open_turn()
        fields = self.builder.event_fields(lane=self.name, turn=turn, at=self.current_time)
        self.builder.add(Thought(**fields, text=self.builder.truncate_text(text)))

    def add_note(self, text: str, about: str) -> None:
        self.builder.add_note(text, about, lane=self.name, at=self.current_time)

    # Calls

    def add_call(self, name: str, arguments: dict[str, Any] | None, call: Any) -> list[int]:
        """Add a tool call: one event, or one for every file of a patch."""
        return self._add_call_events(name, arguments, call, self.open_turn())

    def add_script_call(self, name: str, arguments: dict[str, Any] | None, call: Any) -> list[int]:
        """Add an action of the agent's script, reported only when it was done."""
        return self._add_call_events(name, arguments, call, self.turn or None)

    def _add_call_events(
        self, name: str, arguments: dict[str, Any] | None, call: Any, turn: int | None
    ) -> list[int]:
        safe_arguments = (
            None if arguments is None else storable_value(arguments, self.builder.skipped)
        )
        call_id = as_label(call)
        files = _files_of_call(name, safe_arguments)
        origin = CallOrigin(
            number=self.builder.next_number,
            lane=self.name,
            turn=turn,
            at=self.current_time,
            call=call_id,
        )
        event = None if files else _event_for_tool(name, safe_arguments, origin)
        if isinstance(event, Command) and "apply_patch" in event.command[:500]:
            files = tool_calls.files_in_command(event.command)
        if files or event is None:
            group = self._add_edits(files, origin)
        else:
            group = [self.builder.add(event).number]
        self._open.setdefault(call_id or "", deque()).append(group)
        if name in _HANDOFF_TOOLS and isinstance(
            target := (safe_arguments or {}).get("target"), str
        ):
            self.handoffs.assign_path(group[0], target)
        return group

    def add_script_edits(self, files: list[tool_calls.FilePatch], call: Any) -> list[int]:
        """Add files that the agent's script changed."""
        origin = CallOrigin(
            number=0,
            lane=self.name,
            turn=self.turn or None,
            at=self.current_time,
            call=as_label(call),
        )
        return self._add_edits(files, origin)

    def _add_edits(self, files: list[tool_calls.FilePatch], origin: CallOrigin) -> list[int]:
        return [
            self.builder.add(
                Edit(
                    number=self.builder.next_number,
                    lane=origin.lane,
                    turn=origin.turn,
                    at=origin.at,
                    call=origin.call,
                    path=self.builder.truncate_text(file.path),
                    action=file.action,
                    after=None if file.after is None else self.builder.truncate_text(file.after),
                    patch=None if file.patch is None else self.builder.truncate_text(file.patch),
                )
            ).number
            for file in files
        ]

    def call_events(self, call: Any) -> list[int] | None:
        """Return the events of a call, with or without a result."""
        call_id = as_label(call) or ""
        queue = self._open.get(call_id)
        return queue[0] if queue else self._done.get(call_id)

    def close_call(self, call: Any) -> tuple[list[int] | None, bool]:
        """Return the events of a result, oldest first, and whether there was one before."""
        call_id = as_label(call) or ""
        queue = self._open.get(call_id)
        if queue:
            self._done[call_id] = queue.popleft()
            return self._done[call_id], False
        return self._done.get(call_id), True

    def event_at(self, number: int) -> AnyEvent:
        return self.builder.events[number - 1]

    # Processes that outlive their call

    def add_process(self, number: int, session: str, output: str) -> None:
        """Add a running process, more of whose output follows."""
        self._sessions[session] = number
        self._streams.setdefault(number, []).append(output)

    def process_command(self, session: Any) -> int | None:
        """Return the command of a process by Codex's number."""
        return self._sessions.get(str(session))

    def add_process_output(self, number: int, output: str) -> None:
        self._streams.setdefault(number, []).append(output)

    def end_process(self, number: int, output: str | None = None) -> None:
        """End a process; its output is what arrived, or what is reported at the end."""
        parts = self._streams.pop(number, None)
        for session in [key for key, value in self._sessions.items() if value == number]:
            del self._sessions[session]
        full_output = output or (None if parts is None else "".join(parts))
        if full_output is not None:
            self.builder.finish(
                self.event_at(number), output=self.builder.truncate_text(full_output)
            )

    def finish(self) -> None:
        """Finish the lane."""
        for number in list(self._streams):
            self.end_process(number)


def _files_of_call(name: str, arguments: dict[str, Any] | None) -> list[tool_calls.FilePatch]:
    text = (arguments or {}).get("input") if name == "apply_patch" else None
    return tool_calls.files_in_patch(text) if isinstance(text, str) else []


def _event_for_tool(name: str, arguments: dict[str, Any] | None, origin: CallOrigin) -> AnyEvent:
    fields = arguments or {}
    if name.startswith("request_user_input"):
        name = "request_user_input"
        for question in as_list(fields.get("questions")):
            if isinstance(question, dict) and "question" not in question:
                question["question"] = question.get("title")
    if name in _HANDOFF_TOOLS:
        if not isinstance(fields.get("message"), str):
            fields["message"] = _brief_from_items(fields)
        return event_from_call("delegate", {"brief": fields["message"]}, origin)
    if name == "write_stdin":
        # Not `event_from_call`: writing to a process is not a separate command.
        return ToolUse(**_origin_fields(origin), name=name, arguments=fields)
    return event_from_call(name, arguments, origin)


def _origin_fields(origin: CallOrigin) -> dict[str, Any]:
    return {name: getattr(origin, name) for name in ("number", "lane", "turn", "at", "call")}


def _brief_from_items(fields: Mapping[str, Any]) -> str:
    texts = [as_mapping(item).get("text") for item in as_list(fields.get("items"))]
    brief = "\n".join(text for text in texts if isinstance(text, str))
    return brief or str(fields.get("task_name") or "")


class CodexHandoffs:
    """The handoffs of one lane."""

    def __init__(self, builder: SessionBuilder, lanes: Mapping[str, str]) -> None:
        self._builder = builder
        self._lanes = lanes
        """Lane of each thread with a known file."""
        self._given: dict[str, list[int]] = {}
        self._threads: dict[str, str] = {}

    def assign_thread(self, number: int, agent: Any, path: Any = None) -> None:
        """Assign a handoff to a thread."""
        event = self._handoff_event(number)
        if event is None or not isinstance(agent, str) or not agent:
            return
        if isinstance(path, str):
            self._threads[path] = agent
        numbers = self._given.setdefault(agent, [])
        if number not in numbers:
            numbers.append(number)
        if agent in self._lanes:
            self._builder.finish(event, child=self._lanes[agent])

    def assign_path(self, number: int, path: str) -> None:
        """Assign a handoff to an agent known by its path."""
        self.assign_thread(number, self._threads.get(path, path))

    def mark_refusal(self, number: int, text: str) -> None:
        """Nobody took the work: something other than an agent was returned."""
        event = self._handoff_event(number)
        if event is not None and not any(number in numbers for numbers in self._given.values()):
            self._builder.finish(event, ok=False, report=text)

    def add_status(self, agent: Any, status: Any) -> None:
        """Add an agent's status; only its report is kept."""
        for state, report in as_mapping(status).items():
            if state in ("completed", *_FAILURE_STATES) and isinstance(report, str):
                self.add_report(agent, report, ok=state == "completed")

    def add_report(self, agent: Any, text: str, *, ok: bool | None) -> bool:
        """Add the report of the latest handoff to this agent; False if there is none."""
        thread = self._threads.get(str(agent), str(agent))
        for number in reversed(self._given.get(thread, ())):
            event = self._handoff_event(number)
            if event is not None:
                self._builder.finish(event, report=truncate_middle(text), ok=ok)
                return True
        return False

    def _handoff_event(self, number: int) -> Handoff | None:
        event = self._builder.events[number - 1]
        return event if isinstance(event, Handoff) else None


class CodexTokenMeter:
    """Remembers the last total."""

    def __init__(self) -> None:
        self._last_total: Any = None
        self._total: TokenCounts | None = None

    def usage_since_last(self, total: Any, last: Any) -> Usage | None:
        """Return the usage since then; None if the same total is repeated."""
        if total == self._last_total:
            return None
        self._last_total = total
        current = _parse_counts(total)
        if current is None or current == self._total:
            return None
        before, self._total = self._total, current
        if before is None:
            # The file may begin in the middle of a thread: then the total includes the rest.
            return usage_from_codex(_parse_counts(last) or current)
        difference = tuple(
            [None if a is None else a - (b or 0) for a, b in zip(current, before, strict=True)]
        )
        if min(filter(None, difference), default=0) < 0:
            return usage_from_codex(_parse_counts(last) or current)
        return usage_from_codex(difference)


def _parse_counts(record: Any) -> TokenCounts | None:
    if not isinstance(record, dict):
        return None
    numbers = map(record.get, _TOKEN_KEYS)
    counts = tuple(
        [number if type(number) is int and 0 <= number < _MAX_COUNT else None for number in numbers]
    )
    return counts if counts != _NO_COUNTS else None


def usage_from_codex(counts: TokenCounts) -> Usage | None:
    """Convert to our counts: only uncached input. All zeros is a placeholder."""
    if not any(counts):
        return None
    input_tokens, cached, cache_writes, output_tokens, reasoning = counts
    uncached_tokens = (
        None if input_tokens is None else max(input_tokens - (cached or 0) - (cache_writes or 0), 0)
    )
    return make_usage(
        uncached_tokens, output_tokens, read=cached, write=cache_writes, reasoning=reasoning
    )


# A Codex rollout while it is read: the lane of each record, and its messages, each once.


RecordFields = Mapping[str, Any]
_TAG = re.compile(r"<([A-Za-z_][\w -]{0,40})>")
_MAX_RECENT_TEXTS = 16
_SPAWNED_PREFIX = "You are the newly spawned agent."
_PAUSE_SECONDS = 1.0
"""Seconds without a record after which those of a forked file are its own, where nothing better
tells: what it repeats is written at once, and may be so a while after its first line."""


class CodexMessages:
    """The messages of one lane, each stored once."""

    def __init__(self, lane: CodexLane) -> None:
        self._lane = lane
        self._items: deque[tuple[str, int]] = deque(maxlen=_MAX_RECENT_TEXTS)
        """User messages of the model's input, until the event repeats them."""
        self._events: deque[str] = deque(maxlen=_MAX_RECENT_TEXTS)
        self._model_texts: deque[str] = deque(maxlen=_MAX_RECENT_TEXTS)
        self._pending: list[str] = []
        """Agent messages of events, until the model's output repeats them."""
        self._sort: str | None = None
        self.interrupted = False
        self.system: str | None = None

    def add_model_message(self, payload: Mapping[str, Any]) -> None:
        """Add a message from the model's input or output."""
        text = content_text(payload.get("content"))
        role = payload.get("role")
        if role == "assistant":
            if not _remove_text(self._pending, text):
                self._model_texts.append(text)
            if text:
                self._lane.add_agent_message(text)
        elif role == "user":
            self._add_user_message(text, payload)
        elif text:
            self._add_instructions(text, payload)

    def _add_instructions(self, text: str, payload: Mapping[str, Any]) -> None:
        if "model.base_instructions" in _content_kinds(payload) and self.system is None:
            self.system = self._lane.builder.truncate_text(text)
        elif text.startswith("<turn_aborted>"):
            self.interrupted = True
            self._lane.add_note(text, "turn aborted")
        else:
            self._lane.add_incoming_message(text, "system")

    def _add_user_message(self, text: str, payload: Mapping[str, Any]) -> None:
        if text in self._events:
            self._events.remove(text)
            return
        if not text:
            self._lane.add_note("[image]", "image")
            return
        kinds = _content_kinds(payload)
        tag = None if any(kind.startswith("user.") for kind in kinds) else _client_tag(text)
        if tag is None:
            self._items.append((text, self._add_request(text)))
        elif tag == "turn_aborted":
            self.interrupted = True
            self._lane.add_incoming_message(text, "user", "interrupt")
        elif tag == "subagent_notification":
            notification = as_mapping(
                try_decode_json(text.partition(">")[2].rpartition("<")[0].strip())
            )
            self._lane.handoffs.add_status(
                notification.get("agent_path"), notification.get("status")
            )
            self._lane.end_turn()
            self._lane.add_note(text, "a sub-agent's state")
        elif tag == "user_shell_command":
            self._lane.end_turn()
            self._lane.add_note(text, "the user's own command")
        else:
            self._items.append((text, self._lane.add_incoming_message(text, "system")))

    def _add_request(self, text: str) -> int:
        first, self._lane.requested = not self._lane.requested, True
        return self._lane.add_incoming_message(text, "user", "request" if first else None)

    def add_user_event(self, text: Any) -> None:
        """Add a user message from an event."""
        if not isinstance(text, str) or not text:
            return
        same_pairs = (pair for pair in self._items if pair[0] == text)
        # Codex may prepend text to the user's; short texts occur often, so the last occurrence
        # counts.
        longer_pairs = (pair for pair in reversed(self._items) if text in pair[0])
        pair = next(same_pairs, None) or next(longer_pairs, None)
        if pair is None:
            self._events.append(text)
            self._add_request(text)
            return
        self._items.remove(pair)
        event = self._lane.event_at(pair[1])
        if isinstance(event, Message) and event.role == "system":
            # It only resembled text inserted by Codex.
            first, self._lane.requested = not self._lane.requested, True
            self._lane.builder.finish(event, role="user", intent="request" if first else None)

    def add_agent_event(self, text: Any, origin: Literal["event", "item"] = "event") -> None:
        """Add an agent message from an event; if two kinds repeat it, from the first."""
        if not isinstance(text, str) or not text:
            return
        self._sort = self._sort or origin
        if origin == self._sort and not _remove_text(self._model_texts, text):
            self._pending.append(text)

    def flush_pending(self) -> None:
        """Add messages that only events contain."""
        pending, self._pending = self._pending, []
        for text in pending:
            self._lane.add_agent_message(text)
        self._model_texts.clear()
        self._sort = None


def _remove_text(texts: MutableSequence[str], text: str) -> bool:
    """Remove the same text, ignoring surrounding spaces; return whether it was there."""
    plain = text.strip()
    for index, candidate in enumerate(texts):
        if candidate == text or candidate.strip() == plain:
            del texts[index]
            return True
    return False


def _content_kinds(payload: Mapping[str, Any]) -> list[str]:
    metadata = as_mapping(payload.get("internal_chat_message_metadata_passthrough"))
    return [kind for kind in as_list(metadata.get("content_item_kinds")) if isinstance(kind, str)]


def _client_tag(text: str) -> str | None:
    """Return the tag of a client text among the user's; None for the user's own."""
    if text.startswith("# AGENTS.md instructions"):
        return "AGENTS.md"
    match = _TAG.match(text)
    if match is None or not text.rstrip().endswith(f"</{match[1]}>"):
        return None
    return match[1]


class CodexRollout:
    """The state of a rollout."""

    def __init__(self, builder: SessionBuilder, name: str, lanes: Mapping[str, str]) -> None:
        self.lane = CodexLane(builder, name, lanes)
        self.conversation = CodexMessages(self.lane)
        self.meta: dict[str, Any] = {}
        self._began: str | None = None
        self._ended: str | None = None
        self._previous: str | None = None
        self.running = False
        """Whether a task was started and has not ended."""
        self.tasks = False
        """Whether the file marks where tasks begin and end; older ones do not."""
        self.inherited = 0
        """Records that another thread's file contains as well."""
        self.compacted: str | None = None
        """Which of the two reports of a compaction came last."""
        self.reviews: list[int] = []
        self.forked = False
        """Whether the following records may still be another thread's."""
        self.begun = False
        self._dated = False
        self._spawned = False

    @property
    def is_child(self) -> bool:
        """Whether another agent started this thread."""
        return isinstance(self.meta.get("source"), dict)

    def set_time(self, time: Any) -> None:
        """Set the time of the next record."""
        self.lane.time = time
        if isinstance(time, str):
            self._began = self._began or time
            self._previous, self._ended = self._ended, time

    @property
    def started_at(self) -> datetime | None:
        return time_from_text(self._began)

    @property
    def ended_at(self) -> datetime | None:
        return time_from_text(self._ended)

    def open_thread(self, record: RecordFields) -> None:
        """Handle a first line: of this thread, or of one whose history follows."""
        if not self.meta:
            self.meta = dict(record)
            self.forked = (
                bool(record.get("forked_from_id")) or _own_start_ordinal(record) is not None
            )
        elif not self.begun and record.get("id") != self.meta.get("id"):
            self.forked = True
            self.meta.setdefault("forked_from_id", record.get("id"))

    def is_inherited_record(self, record: RecordFields, kind: Any, fields: RecordFields) -> bool:
        """Whether a record belongs to another thread whose history this file repeats."""
        self.forked = not self._is_own_record(record, kind, fields)
        if self.forked:
            self.inherited += 1
            self._read_inherited_record(kind, fields)
        else:
            self._note_left_out()
        return self.forked

    def _is_own_record(self, record: RecordFields, kind: Any, fields: RecordFields) -> bool:
        """Whether the thread's own records begin here."""
        start, ordinal = _own_start_ordinal(self.meta), record.get("ordinal")
        if start is not None and isinstance(ordinal, int):
            return ordinal >= start
        if kind != "turn_context" and fields.get("type") not in ("task_started", "turn_started"):
            return not self._dated and (self._spawned or self._is_after_pause())
        turn, thread = fields.get("turn_id"), self.meta.get("id")
        if isinstance(turn, str) and isinstance(thread, str) and len(turn) == len(thread):
            # Both are numbers that begin with their creation time.
            self._dated = True
            return turn > thread
        return self._spawned or self._is_after_pause()

    def _read_inherited_record(self, kind: Any, record: RecordFields) -> None:
        """Read what matters of another thread's records: its totals and its end."""
        if record.get("type") == "token_count":
            info = as_mapping(record.get("info"))
            self.lane.skip_token_counts(info.get("total_token_usage"), info.get("last_token_usage"))
        elif kind == "token_usage_record":
            self.lane.skip_token_counts(record.get("thread_token_usage"), record.get("usage"))
        elif record.get("type") == "function_call_output":
            self._spawned = content_text(record.get("output")).startswith(_SPAWNED_PREFIX)

    def _note_left_out(self) -> None:
        if self.inherited:
            origin = as_label(self.meta.get("forked_from_id")) or "another thread"
            left_out = count_with_noun(self.inherited, "record")
            self.lane.add_note(f"{left_out} of {origin} left out.", "forked")

    def _is_after_pause(self) -> bool:
        """Whether nothing was written for a while after the repeated records."""
        times = (self.started_at, time_from_text(self._previous))
        waits = [seconds_between(time, self.lane.current_time) or 0.0 for time in times]
        return self.inherited > 0 and min(waits) > _PAUSE_SECONDS

    def finish(self) -> None:
        """Finish the rollout."""
        self.conversation.flush_pending()
        if self.forked:
            self._note_left_out()
        if not self.tasks and self.lane.stopped is None:
            self.lane.mark_last_claim()
        self.lane.finish()


def _own_start_ordinal(meta: RecordFields) -> int | None:
    start = meta.get("subagent_history_start_ordinal")
    return start if isinstance(start, int) else None
