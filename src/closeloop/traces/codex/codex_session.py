"""One rollout while it is read: its lane, its talk, and where a fork's own records begin."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from closeloop.text.wording import count_with_noun
from closeloop.traces.codex.codex_lane import CodexLaneBuilder
from closeloop.traces.codex.codex_messages import CodexMessageBuilder
from closeloop.traces.codex.codex_outputs import codex_content_text
from closeloop.traces.trace_builder import TraceBuilder
from closeloop.traces.untrusted_json import as_label, as_mapping, seconds_between, time_from_text

RecordFields = Mapping[str, Any]
_SPAWNED_PREFIX = "You are the newly spawned agent."
_PAUSE_SECONDS = 1.0
"""Seconds without a record after which those of a forked file are its own, where nothing better
tells: what it repeats is written at once, and may be so a while after its first line."""


class CodexSessionBuilder:
    """What is known of a rollout so far."""

    def __init__(
        self, builder: TraceBuilder, name: str, skipped: dict[str, int], lanes: Mapping[str, str]
    ) -> None:
        self.lane = CodexLaneBuilder(builder, name, skipped, lanes)
        self.talk = CodexMessageBuilder(self.lane)
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
            self._spawned = codex_content_text(told.get("output")).startswith(_SPAWNED_PREFIX)

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
