"""One rollout while it is read: its lane, its talk, and where a fork's own records begin."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from closeloop.model.plural import plural
from closeloop.traces.builder import Builder
from closeloop.traces.codex.lane import Lane
from closeloop.traces.codex.outputs import spoken
from closeloop.traces.codex.talk import Talk
from closeloop.traces.untrusted import between, label, mapping, moment

Told = Mapping[str, Any]
_SPAWNED = "You are the newly spawned agent."
_PAUSE = 1.0
"""Seconds without a record after which those of a forked file are its own, where nothing better
tells: what it repeats is written at once, and may be so a while after its first line."""


class Reading:
    """What is known of a rollout so far."""

    def __init__(
        self, builder: Builder, name: str, skipped: dict[str, int], lanes: Mapping[str, str]
    ) -> None:
        self.lane = Lane(builder, name, skipped, lanes)
        self.talk = Talk(self.lane)
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

    def at(self, time: Any) -> None:
        """The time of the record that comes."""
        self.lane.time = time
        if isinstance(time, str):
            self._began = self._began or time
            self._previous, self._ended = self._ended, time

    @property
    def began(self) -> datetime | None:
        return moment(self._began)

    @property
    def ended(self) -> datetime | None:
        return moment(self._ended)

    def opens(self, told: Told) -> None:
        """A first line: of this thread, or of one whose history follows."""
        if not self.meta:
            self.meta = dict(told)
            self.forked = bool(told.get("forked_from_id")) or _start(told) is not None
        elif not self.begun and told.get("id") != self.meta.get("id"):
            self.forked = True
            self.meta.setdefault("forked_from_id", told.get("id"))

    def inherits(self, record: Told, kind: Any, told: Told) -> bool:
        """Whether a record is another thread's, whose history this file repeats."""
        self.forked = not self._own(record, kind, told)
        if self.forked:
            self.inherited += 1
            self._before(kind, told)
        else:
            self._left_out()
        return self.forked

    def _own(self, record: Told, kind: Any, told: Told) -> bool:
        """Whether the thread's own records begin here."""
        start, place = _start(self.meta), record.get("ordinal")
        if start is not None and isinstance(place, int):
            return place >= start
        if kind != "turn_context" and told.get("type") not in ("task_started", "turn_started"):
            return not self._dated and (self._spawned or self._paused())
        turn, thread = told.get("turn_id"), self.meta.get("id")
        if isinstance(turn, str) and isinstance(thread, str) and len(turn) == len(thread):
            # Both are numbers that begin with the time when they were made.
            self._dated = True
            return turn > thread
        return self._spawned or self._paused()

    def _before(self, kind: Any, told: Told) -> None:
        """What of another thread's records matters: its totals, and where it was left."""
        if told.get("type") == "token_count":
            info = mapping(told.get("info"))
            self.lane.forgets(info.get("total_token_usage"), info.get("last_token_usage"))
        elif kind == "token_usage_record":
            self.lane.forgets(told.get("thread_token_usage"), told.get("usage"))
        elif told.get("type") == "function_call_output":
            self._spawned = spoken(told.get("output")).startswith(_SPAWNED)

    def _left_out(self) -> None:
        if self.inherited:
            origin = label(self.meta.get("forked_from_id")) or "another thread"
            left_out = plural(self.inherited, "record")
            self.lane.note(f"{left_out} of {origin} left out.", "forked")

    def _paused(self) -> bool:
        """Whether nothing was written for a while, after what is repeated had begun."""
        times = (self.began, moment(self._previous))
        waits = [between(time, self.lane.at) or 0.0 for time in times]
        return self.inherited > 0 and min(waits) > _PAUSE

    def finish(self) -> None:
        """Nothing more comes."""
        self.talk.settle()
        if self.forked:
            self._left_out()
        if not self.tasks and self.lane.stopped is None:
            self.lane.claims()
        self.lane.finish()


def _start(meta: Told) -> int | None:
    start = meta.get("subagent_history_start_ordinal")
    return start if isinstance(start, int) else None
