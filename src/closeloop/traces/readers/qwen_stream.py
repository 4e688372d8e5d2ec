"""What Qwen Code prints with `--output-format stream-json`: Claude Code's shape, other meanings.

A provider's message comes in several records, all but one with tokens of 0; cached tokens are
part of the input; nothing has a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from closeloop.records.attempt import Exit, Usage
from closeloop.records.protocols import RecordingSource
from closeloop.records.session import Session
from closeloop.records.trace import Command, Handoff, Message, Thought, Turn
from closeloop.text.untrusted import truncate_middle
from closeloop.traces.readers.gemini_contents import (
    event_from_gemini_call,
    finish_gemini_call,
    usage_from_gemini,
)
from closeloop.traces.session_builder import ROOT_LANE, UNPAIRED_RESULT, SessionBuilder
from closeloop.traces.tool_calls import CallOrigin
from closeloop.traces.untrusted_json import (
    as_amount,
    as_label,
    as_list,
    as_mapping,
    as_text,
    json_excerpt,
    storable_arguments,
)

_TOKEN_KEYS = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cached": "cache_read_input_tokens",
    "total": "total_tokens",
}
_EXITS: dict[str, Exit] = {"success": "finished", "error_max_turns": "out_of_budget"}
_FRAGMENT_TYPES = ("stream_event", "control_request", "control_response", "control_cancel_request")
_TELEMETRY_TOKEN_KEYS = {
    "input": "input_token_count",
    "output": "output_token_count",
    "cached": "cached_content_token_count",
    "thoughts": "thoughts_token_count",
    "total": "total_token_count",
}


def is_qwen_stream(record: object) -> bool:
    """Whether this is the record a stream begins with."""
    fields = as_mapping(record)
    own = fields.get("type") == "system" and fields.get("subtype") == "init"
    return own and "qwen_code_version" in fields and isinstance(fields.get("session_id"), str)


class QwenStream:
    """Records as they come."""

    def __init__(self, builder: SessionBuilder, source: RecordingSource) -> None:
        self.builder = builder
        self.source = source
        self.about: Mapping[str, Any] = {}
        self.exit: Exit = "crashed"
        self.cause: str | None = "The output ends before its result."
        self.usage: Usage | None = None
        self._lanes = {ROOT_LANE}
        self._callers: dict[str, str] = {}
        """The lane that each handoff was made in."""

    def build_session(self, name: str) -> Session:
        """What came of it, under `name` where it names itself nothing."""
        return self.builder.build_session(
            id=as_label(self.about.get("session_id")) or name,
            agent="qwen-code",
            agent_version=as_label(self.about.get("qwen_code_version")),
            model=as_label(self.about.get("model")),
            exit=self.exit,
            cause=self.cause,
            usage=self.usage or self.builder.total_usage(),
            summary=self.builder.mark_claim(),
            directory=as_label(self.about.get("cwd")),
            copy="printed",
        )

    def add_record(self, record: object) -> None:
        fields = as_mapping(record)
        kind = fields.get("type")
        if kind in ("assistant", "user"):
            message = as_mapping(fields.get("message"))
            lane = self._lane_of_call(fields.get("parent_tool_use_id"))
            turn = self._add_turn(message, lane) if kind == "assistant" else None
            for block in _content_blocks(message.get("content")):
                if turn is None:
                    self._add_user_block(block, lane)
                else:
                    self._add_agent_block(block, lane, turn)
        elif is_qwen_stream(record):
            self.about = fields
        elif kind == "result":
            self._add_run_result(fields)
        elif kind not in _FRAGMENT_TYPES:
            self.builder.add_note(json_excerpt(record), about=f"unknown: {as_label(kind)}")

    def _lane_of_call(self, call: object) -> str:
        lane = as_label(call)
        if lane is None:
            return ROOT_LANE
        if lane not in self._lanes:
            self._lanes.add(lane)
            event = self.builder.find_open_call(self._callers.get(lane, ROOT_LANE), lane)
            self.builder.open_lane(lane, ROOT_LANE if event is None else event.lane)
            if isinstance(event, Handoff):
                # Not finished yet: only its child is known.
                self.builder.update_event(event, child=lane)
        return lane

    def _add_turn(self, message: Mapping[str, Any], lane: str) -> int:
        usage = usage_from_gemini(message.get("usage"), _TOKEN_KEYS)
        return self.builder.continue_turn(
            lane, Turn(usage=usage, model=as_label(message.get("model")))
        )

    def _add_agent_block(self, block: Mapping[str, Any], lane: str, turn: int) -> None:
        place: dict[str, Any] = {"number": self.builder.next_number, "lane": lane, "turn": turn}
        kind = block.get("type")
        skipped = self.source.skipped
        if kind == "text" and (said := as_text(block.get("text"))):
            self.builder.add(Message(**place, role="agent", text=self.builder.truncate_text(said)))
        elif kind == "thinking" and (said := as_text(block.get("thinking"))):
            self.builder.add(Thought(**place, text=self.builder.truncate_text(said)))
        elif kind == "tool_use":
            origin = CallOrigin(**place, call=as_label(block.get("id")))
            call_arguments = storable_arguments(block.get("input"), skipped)
            event = self.builder.add(
                event_from_gemini_call(
                    as_label(block.get("name")) or "unknown", call_arguments, origin
                )
            )
            if isinstance(event, Handoff) and event.call is not None:
                self._callers[event.call] = lane

    def _add_user_block(self, block: Mapping[str, Any], lane: str) -> None:
        self.builder.end_turn(lane)
        if block.get("type") != "tool_result":
            said = self.builder.truncate_text(as_text(block.get("text")) or "")
            fields = self.builder.event_fields(lane=lane)
            self.builder.add(Message(**fields, role="user", text=said, intent="request"))
            return
        event = self.builder.find_open_call(lane, as_label(block.get("tool_use_id")))
        if event is None:
            self.builder.add_note(json_excerpt(block), about=UNPAIRED_RESULT, lane=lane)
            return
        output = "\n".join(
            as_text(part.get("text")) or "" for part in _content_blocks(block.get("content"))
        )
        failed = block.get("is_error")
        ok = None if not isinstance(failed, bool) else not failed
        exit_fields: dict[str, object] = {}
        if isinstance(event, Command):
            # What is printed is the command's own output: no exit code is stated beside it.
            exit_fields = {"exit_code": None, "exit_from": None}
        finish_gemini_call(
            self.builder, event, self.builder.truncate_text(output), ok, **exit_fields
        )

    def _add_run_result(self, found: Mapping[str, Any]) -> None:
        failed = found.get("is_error") is True
        subtype = str(found.get("subtype"))
        self.exit = "crashed" if failed and subtype == "success" else _EXITS.get(subtype, "crashed")
        error = as_mapping(found.get("error"))
        self.cause = None if self.exit == "finished" else as_label(error.get("message")) or subtype
        usage = usage_from_gemini(found.get("usage"), _TOKEN_KEYS)
        self.usage = usage if usage != Usage() else None


def _content_blocks(content: object) -> list[Mapping[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [as_mapping(block) for block in as_list(content)]


class QwenTelemetry:
    """Events as they come; `recorded` are the agents that have files of their own."""

    def __init__(
        self, builder: SessionBuilder, source: RecordingSource, recorded: set[str]
    ) -> None:
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
            usage = usage_from_gemini(event, _TELEMETRY_TOKEN_KEYS)
            model = as_label(event.get("model"))
            number = builder.add_turn(lane, msgspec.structs.replace(turn, usage=usage, model=model))
            if said := as_text(event.get("response_text")):
                said = self.builder.truncate_text(said)
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
                self.builder.update_event(self.builder.events[number - 1], child=lane)
                return
