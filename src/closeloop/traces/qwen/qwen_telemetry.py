"""The events of telemetry among Qwen Code's records: how long things took, and hidden agents.

Most repeat what other records tell. But sub-agents that run in the foreground, and those that
keep its memory, leave no other record in versions that do not write a file for each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from closeloop.records.protocols import RecordingSource
from closeloop.records.trace import Message, Turn
from closeloop.text.untrusted import truncate_middle
from closeloop.traces.gemini_contents import (
    event_from_gemini_call,
    finish_gemini_call,
    usage_from_gemini,
)
from closeloop.traces.tool_calls import CallOrigin
from closeloop.traces.trace_builder import ROOT_LANE, TraceBuilder
from closeloop.traces.untrusted_json import as_amount, as_label, as_text, storable_arguments

_TOKEN_KEYS = {
    "input": "input_token_count",
    "output": "output_token_count",
    "cached": "cached_content_token_count",
    "thoughts": "thoughts_token_count",
    "total": "total_token_count",
}


class QwenTelemetry:
    """Events as they come; `recorded` are the agents that have files of their own."""

    def __init__(self, builder: TraceBuilder, source: RecordingSource, recorded: set[str]) -> None:
        self.builder = builder
        self.source = source
        self.fault: str | None = None
        """What the last request to the provider failed with."""
        self._recorded = recorded
        self._lanes: set[str] = set()
        self._handed: dict[str, deque[int]] = {}
        self._settled: set[int] = set()
        self._took: dict[str, deque[float]] = {}
        self._waited: float | None = None

    def open_handoff(self, number: int, agent: str) -> None:
        """A handoff is under way: the next hidden agent of this kind has taken it."""
        self._handed.setdefault(agent, deque()).append(number)

    def close_handoff(self, number: int) -> None:
        """A handoff is over."""
        self._settled.add(number)

    def take_reply_seconds(self) -> float | None:
        """How long the provider's message took that is recorded next."""
        waited, self._waited = self._waited, None
        self.fault = None
        return waited

    def take_call_seconds(self, called: str) -> float | None:
        """How long the call took whose result is recorded next."""
        took = self._took.get(called)
        return took.popleft() if took else None

    def add_event(self, event: Mapping[str, Any], at: datetime | None) -> None:
        kind = str(event.get("event.name")).removeprefix("qwen-code.")
        took = as_amount(event.get("duration_ms"))
        seconds = None if took is None else took / 1000
        prompt = str(event.get("prompt_id")).split("#")
        if len(prompt) == 3 and prompt[1]:
            lane = truncate_middle(prompt[1])
            if lane not in self._recorded:
                self._add_hidden_event(lane, kind, event, Turn(at=at, seconds=seconds))
        elif kind == "api_response":
            self._waited = seconds
        elif kind == "tool_call" and seconds is not None:
            self._took.setdefault(str(event.get("function_name")), deque()).append(seconds)
        elif kind == "api_error":
            self.fault = as_label(event.get("error_message")) or "error"
            self.builder.add_note(self.fault, about="error", at=at)

    def _add_hidden_event(self, lane: str, kind: str, event: Mapping[str, Any], turn: Turn) -> None:
        builder, skipped = self.builder, self.source.skipped
        if lane not in self._lanes and lane != ROOT_LANE:
            self._lanes.add(lane)
            builder.open_lane(lane, ROOT_LANE, as_label(event.get("subagent_name")))
            self._join_handoff(lane)
        place: dict[str, Any] = {"lane": lane, "number": builder.next_number, "at": turn.at}
        if kind == "api_response":
            usage = usage_from_gemini(event, _TOKEN_KEYS)
            model = as_label(event.get("model"))
            number = builder.add_turn(lane, msgspec.structs.replace(turn, usage=usage, model=model))
            if said := as_text(event.get("response_text")):
                said = truncate_middle(said, skipped)
                builder.add(Message(**place, turn=number, role="agent", text=said))
        elif kind == "tool_call":
            call_arguments = storable_arguments(event.get("function_args"), skipped)
            origin = CallOrigin(**place, turn=builder.count_turns(lane) or None)
            call_event = event_from_gemini_call(
                as_label(event.get("function_name")) or "unknown", call_arguments, origin
            )
            ok = event.get("success")
            error = as_label(event.get("error"))
            ok = ok if isinstance(ok, bool) else None
            finish_gemini_call(builder, builder.add(call_event), error, ok, seconds=turn.seconds)
        elif kind == "api_error":
            builder.add_note(
                as_label(event.get("error_message")) or "error", about="error", lane=lane
            )

    def _join_handoff(self, lane: str) -> None:
        """An agent's id is its kind and some letters."""
        waiting = self._handed.get(lane.rpartition("-")[0])
        while waiting:
            number = waiting.popleft()
            if number not in self._settled:
                event = self.builder.events[number - 1]
                self.builder.events[number - 1] = msgspec.structs.replace(event, child=lane)
                return
