"""A rollout of Codex while it is read: whose records they are, and its messages, each once."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, MutableSequence
from datetime import datetime
from typing import Any, Literal

from closeloop.records.trace import Message
from closeloop.text.wording import count_with_noun
from closeloop.traces.provider_values import content_text
from closeloop.traces.readers.codex_lane import CodexLane
from closeloop.traces.session_builder import SessionBuilder
from closeloop.traces.untrusted_json import (
    as_label,
    as_list,
    as_mapping,
    seconds_between,
    time_from_text,
    try_decode_json,
)

RecordFields = Mapping[str, Any]
_TAG = re.compile(r"<([A-Za-z_][\w -]{0,40})>")
_MAX_RECENT_TEXTS = 16
_SPAWNED_PREFIX = "You are the newly spawned agent."
_PAUSE_SECONDS = 1.0
"""Seconds without a record after which those of a forked file are its own, where nothing better
tells: what it repeats is written at once, and may be so a while after its first line."""


class CodexMessages:
    """The messages of one lane, each kept once."""

    def __init__(self, lane: CodexLane) -> None:
        self._lane = lane
        self._items: deque[tuple[str, int]] = deque(maxlen=_MAX_RECENT_TEXTS)
        """What the user said by the model's input, until the event says it again."""
        self._events: deque[str] = deque(maxlen=_MAX_RECENT_TEXTS)
        self._said: deque[str] = deque(maxlen=_MAX_RECENT_TEXTS)
        self._pending: list[str] = []
        """What the agent said by an event, until the model's output says it again."""
        self._sort: str | None = None
        self.interrupted = False
        self.system: str | None = None

    def add_model_message(self, payload: Mapping[str, Any]) -> None:
        """A message as the model had it."""
        text = content_text(payload.get("content"))
        role = payload.get("role")
        if role == "assistant":
            if not _remove_text(self._pending, text):
                self._said.append(text)
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
        """What the user said, told by an event."""
        if not isinstance(text, str) or not text:
            return
        same = (pair for pair in self._items if pair[0] == text)
        # Codex may put words before the user's; short ones are in many texts, so the last counts.
        longer = (pair for pair in reversed(self._items) if text in pair[0])
        pair = next(same, None) or next(longer, None)
        if pair is None:
            self._events.append(text)
            self._add_request(text)
            return
        self._items.remove(pair)
        event = self._lane.event_at(pair[1])
        if isinstance(event, Message) and event.role == "system":
            # It only looked like something that Codex had put there.
            first, self._lane.requested = not self._lane.requested, True
            self._lane.builder.finish(event, role="user", intent="request" if first else None)

    def add_agent_event(self, text: Any, sort: Literal["event", "item"] = "event") -> None:
        """What the agent said, told by an event; where two sorts of them do, by the first."""
        if not isinstance(text, str) or not text:
            return
        self._sort = self._sort or sort
        if sort == self._sort and not _remove_text(self._said, text):
            self._pending.append(text)

    def flush_pending(self) -> None:
        """Keep what only events told."""
        pending, self._pending = self._pending, []
        for text in pending:
            self._lane.add_agent_message(text)
        self._said.clear()
        self._sort = None


def _remove_text(texts: MutableSequence[str], text: str) -> bool:
    """Take out the same text, which may have lost the spaces around it; whether it was there."""
    plain = text.strip()
    for place, one in enumerate(texts):
        if one == text or one.strip() == plain:
            del texts[place]
            return True
    return False


def _content_kinds(payload: Mapping[str, Any]) -> list[str]:
    about = as_mapping(payload.get("internal_chat_message_metadata_passthrough"))
    return [kind for kind in as_list(about.get("content_item_kinds")) if isinstance(kind, str)]


def _client_tag(text: str) -> str | None:
    """What Codex calls a text that it put among the user's; None for the user's own."""
    if text.startswith("# AGENTS.md instructions"):
        return "AGENTS.md"
    match = _TAG.match(text)
    if match is None or not text.rstrip().endswith(f"</{match[1]}>"):
        return None
    return match[1]


class CodexRollout:
    """What is known of a rollout so far."""

    def __init__(self, builder: SessionBuilder, name: str, lanes: Mapping[str, str]) -> None:
        self.lane = CodexLane(builder, name, lanes)
        self.talk = CodexMessages(self.lane)
        self.meta: dict[str, Any] = {}
        self._began: str | None = None
        self._ended: str | None = None
        self._previous: str | None = None
        self.running = False
        """A task was started and has not ended."""
        self.tasks = False
        """The file tells where tasks begin and end; the older ones do not."""
        self.inherited = 0
        """Records that another thread's file has as well."""
        self.compacted: str | None = None
        """Which of the two that tell of each compaction came last."""
        self.reviews: list[int] = []
        self.forked = False
        """What comes may still be another thread's."""
        self.begun = False
        self._dated = False
        self._spawned = False

    @property
    def is_child(self) -> bool:
        """Another agent started this thread."""
        return isinstance(self.meta.get("source"), dict)

    def set_time(self, time: Any) -> None:
        """The time of the record that comes."""
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

    def open_thread(self, told: RecordFields) -> None:
        """A first line: of this thread, or of one whose history follows."""
        if not self.meta:
            self.meta = dict(told)
            self.forked = bool(told.get("forked_from_id")) or _own_start_ordinal(told) is not None
        elif not self.begun and told.get("id") != self.meta.get("id"):
            self.forked = True
            self.meta.setdefault("forked_from_id", told.get("id"))

    def is_inherited_record(self, record: RecordFields, kind: Any, told: RecordFields) -> bool:
        """Whether a record is another thread's, whose history this file repeats."""
        self.forked = not self._is_own_record(record, kind, told)
        if self.forked:
            self.inherited += 1
            self._read_inherited_record(kind, told)
        else:
            self._note_left_out()
        return self.forked

    def _is_own_record(self, record: RecordFields, kind: Any, told: RecordFields) -> bool:
        """Whether the thread's own records begin here."""
        start, place = _own_start_ordinal(self.meta), record.get("ordinal")
        if start is not None and isinstance(place, int):
            return place >= start
        if kind != "turn_context" and told.get("type") not in ("task_started", "turn_started"):
            return not self._dated and (self._spawned or self._is_after_pause())
        turn, thread = told.get("turn_id"), self.meta.get("id")
        if isinstance(turn, str) and isinstance(thread, str) and len(turn) == len(thread):
            # Both are numbers that begin with the time when they were made.
            self._dated = True
            return turn > thread
        return self._spawned or self._is_after_pause()

    def _read_inherited_record(self, kind: Any, told: RecordFields) -> None:
        """What of another thread's records matters: its totals, and where it was left."""
        if told.get("type") == "token_count":
            info = as_mapping(told.get("info"))
            self.lane.skip_token_counts(info.get("total_token_usage"), info.get("last_token_usage"))
        elif kind == "token_usage_record":
            self.lane.skip_token_counts(told.get("thread_token_usage"), told.get("usage"))
        elif told.get("type") == "function_call_output":
            self._spawned = content_text(told.get("output")).startswith(_SPAWNED_PREFIX)

    def _note_left_out(self) -> None:
        if self.inherited:
            origin = as_label(self.meta.get("forked_from_id")) or "another thread"
            left_out = count_with_noun(self.inherited, "record")
            self.lane.add_note(f"{left_out} of {origin} left out.", "forked")

    def _is_after_pause(self) -> bool:
        """Whether nothing was written for a while, after what is repeated had begun."""
        times = (self.started_at, time_from_text(self._previous))
        waits = [seconds_between(time, self.lane.current_time) or 0.0 for time in times]
        return self.inherited > 0 and min(waits) > _PAUSE_SECONDS

    def finish(self) -> None:
        """Nothing more comes."""
        self.talk.flush_pending()
        if self.forked:
            self._note_left_out()
        if not self.tasks and self.lane.stopped is None:
            self.lane.mark_last_claim()
        self.lane.finish()


def _own_start_ordinal(meta: RecordFields) -> int | None:
    start = meta.get("subagent_history_start_ordinal")
    return start if isinstance(start, int) else None
