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

from closeloop.model.protocols import Source
from closeloop.model.trace import Message, Turn
from closeloop.traces.builder import ROOT, Builder
from closeloop.traces.calls import Origin
from closeloop.traces.contents import asked, settle, usage_of
from closeloop.traces.texts import shortened
from closeloop.traces.untrusted import amount, arguments, label, text

_TOKENS = {
    "input": "input_token_count",
    "output": "output_token_count",
    "cached": "cached_content_token_count",
    "thoughts": "thoughts_token_count",
    "total": "total_token_count",
}


class Telemetry:
    """Events as they come; `recorded` are the agents that have files of their own."""

    def __init__(self, builder: Builder, source: Source, recorded: set[str]) -> None:
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

    def handed(self, number: int, agent: str) -> None:
        """A handoff is under way: the next hidden agent of this kind has taken it."""
        self._handed.setdefault(agent, deque()).append(number)

    def settled(self, number: int) -> None:
        """A handoff is over."""
        self._settled.add(number)

    def waited(self) -> float | None:
        """How long the provider's message took that is recorded next."""
        waited, self._waited = self._waited, None
        self.fault = None
        return waited

    def seconds(self, called: str) -> float | None:
        """How long the call took whose result is recorded next."""
        took = self._took.get(called)
        return took.popleft() if took else None

    def take(self, event: Mapping[str, Any], at: datetime | None) -> None:
        kind = str(event.get("event.name")).removeprefix("qwen-code.")
        took = amount(event.get("duration_ms"))
        seconds = None if took is None else took / 1000
        prompt = str(event.get("prompt_id")).split("#")
        if len(prompt) == 3 and prompt[1]:
            lane = shortened(prompt[1])
            if lane not in self._recorded:
                self._hidden(lane, kind, event, Turn(at=at, seconds=seconds))
        elif kind == "api_response":
            self._waited = seconds
        elif kind == "tool_call" and seconds is not None:
            self._took.setdefault(str(event.get("function_name")), deque()).append(seconds)
        elif kind == "api_error":
            self.fault = label(event.get("error_message")) or "error"
            self.builder.note(self.fault, about="error", at=at)

    def _hidden(self, lane: str, kind: str, event: Mapping[str, Any], turn: Turn) -> None:
        builder, skipped = self.builder, self.source.skipped
        if lane not in self._lanes and lane != ROOT:
            self._lanes.add(lane)
            builder.lane(lane, ROOT, label(event.get("subagent_name")))
            self._join(lane)
        place: dict[str, Any] = {"lane": lane, "number": builder.number, "at": turn.at}
        if kind == "api_response":
            usage = usage_of(event, _TOKENS)
            model = label(event.get("model"))
            number = builder.turn(lane, msgspec.structs.replace(turn, usage=usage, model=model))
            if said := text(event.get("response_text")):
                said = shortened(said, skipped)
                builder.add(Message(**place, turn=number, role="agent", text=said))
        elif kind == "tool_call":
            given = arguments(event.get("function_args"), skipped)
            origin = Origin(**place, turn=builder.turns(lane) or None)
            called = asked(label(event.get("function_name")) or "unknown", given, origin)
            ok = event.get("success")
            error = label(event.get("error"))
            ok = ok if isinstance(ok, bool) else None
            settle(builder, builder.add(called), error, ok, seconds=turn.seconds)
        elif kind == "api_error":
            builder.note(label(event.get("error_message")) or "error", about="error", lane=lane)

    def _join(self, lane: str) -> None:
        """An agent's id is its kind and some letters."""
        waiting = self._handed.get(lane.rpartition("-")[0])
        while waiting:
            number = waiting.popleft()
            if number not in self._settled:
                event = self.builder.events[number - 1]
                self.builder.events[number - 1] = msgspec.structs.replace(event, child=lane)
                return
