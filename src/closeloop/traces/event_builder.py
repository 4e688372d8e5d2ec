"""Tell a recording event by event: what several readers say in the same words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from closeloop.records.attempt import Usage
from closeloop.records.protocols import RecordingSource
from closeloop.records.record import content_digest
from closeloop.records.trace import (
    AnyEvent,
    Command,
    Intent,
    Message,
    Note,
    Thought,
    ToolUse,
    Trace,
    Turn,
)
from closeloop.text.untrusted import truncate_middle
from closeloop.traces.call_results import result_fields
from closeloop.traces.export_values import uncached_input_tokens
from closeloop.traces.tool_calls import CallOrigin, event_from_call
from closeloop.traces.trace_builder import ROOT_LANE, TraceBuilder, skipped_since
from closeloop.traces.untrusted_json import (
    as_amount,
    as_count,
    as_list,
    as_mapping,
    storable_arguments,
)


class EventBuilder:
    """A builder with a place to stand: the lane, the turn and the time of what is told next."""

    def __init__(self, reader: str, version: int, source: RecordingSource) -> None:
        self.builder = TraceBuilder(reader, version)
        self.skipped = source.skipped
        self._before = dict(source.skipped)
        self.lane = ROOT_LANE
        self.turn: int | None = None
        self.at: datetime | None = None

    def count_skip(self, why: str) -> None:
        """Count what is left out."""
        self.skipped[why] = self.skipped.get(why, 0) + 1

    def truncate_text(self, text: str) -> str:
        return truncate_middle(text, self.skipped)

    def text_or_none(self, value: object) -> str | None:
        """A text that says something, fit to be stored."""
        return self.truncate_text(value) if isinstance(value, str) and value else None

    def event_fields(self, call: str | None = None) -> dict[str, Any]:
        """What every event told here and now has in common."""
        return {
            "number": self.builder.next_number,
            "lane": self.lane,
            "turn": self.turn,
            "at": self.at,
            "call": truncate_middle(call, most=200) if call else None,
        }

    def begin_turn(self, turn: Turn, message: str | None = None) -> int:
        """Count a message of the provider; what is told next belongs to it."""
        self.turn = self.builder.add_turn(self.lane, turn, message)
        return self.turn

    def add_user_message(self, said: str, intent: Intent | None = None) -> None:
        """What the user said; nothing for nothing. What an agent did before has ended."""
        self.turn = None
        if said.strip():
            text = self.truncate_text(said)
            self.builder.add_incoming_message(
                text, lane=self.lane, at=self.at, intent=intent, asks=False
            )

    def add_agent_message(
        self, said: str, intent: Intent | None = None, call: str | None = None
    ) -> None:
        """What the agent said, if need be by calling a tool for it."""
        if said.strip():
            place = self.event_fields(call)
            self.add(Message(**place, role="agent", text=self.truncate_text(said), intent=intent))

    def add_thought(self, said: str, call: str | None = None) -> None:
        if said.strip():
            self.add(Thought(**self.event_fields(call), text=self.truncate_text(said)))

    def add_note(self, said: str, about: str) -> None:
        self.add(
            Note(
                **self.event_fields(),
                text=self.truncate_text(said),
                about=self.truncate_text(about),
            )
        )

    def add_command(
        self, line: str, call: str | None = None, directory: str | None = None
    ) -> AnyEvent:
        return self.add(
            Command(
                **self.event_fields(call), command=self.truncate_text(line), directory=directory
            )
        )

    def add_call(self, name: str, given: Any, call: str | None = None) -> AnyEvent:
        """An action by its tool's name and arguments."""
        origin = CallOrigin(**self.event_fields(call))
        return self.add(
            event_from_call(
                self.truncate_text(name), storable_arguments(given, self.skipped), origin
            )
        )

    def add_tool_use(self, name: str, given: Any, call: str | None = None) -> AnyEvent:
        """An action of a tool that is not to be taken for what its name says."""
        call_arguments = storable_arguments(given, self.skipped)
        return self.add(
            ToolUse(
                **self.event_fields(call), name=self.truncate_text(name), arguments=call_arguments
            )
        )

    def add(self, event: AnyEvent) -> AnyEvent:
        return self.builder.add(event)

    def add_result(self, event: AnyEvent, output: str | None, ok: bool | None = None) -> AnyEvent:
        """The result of an action, as its text tells it."""
        text = None if output is None else self.truncate_text(output)
        return self.builder.finish(event, **result_fields(event, text, ok))

    def add_refusal(self, event: AnyEvent, why: str) -> AnyEvent:
        """An action that somebody did not let happen."""
        finished_event = self.add_result(event, why or None, ok=False)
        return (
            self.update_event(finished_event, stopped="not executed")
            if isinstance(finished_event, Command)
            else finished_event
        )

    def claim_last_message(self, otherwise: str) -> str:
        """The last turn's last words say that the work is done; else the recording itself does."""
        last = self.builder.count_turns(ROOT_LANE)
        for event in reversed(self.builder.events):
            if event.lane != ROOT_LANE or event.turn not in (None, last):
                break
            if isinstance(event, Message) and event.role == "agent":
                if event.intent is None:
                    self.update_event(event, intent="claim")
                return event.text
        self.add_agent_message(otherwise, "claim")
        return otherwise

    def build_trace(self) -> Trace:
        """What was told, with what was left out since the telling began."""
        return self.builder.build_trace(skipped_since(self._before, self.skipped))

    def update_event(self, event: AnyEvent, **facts: object) -> AnyEvent:
        """What else is known of an event that was told before."""
        updated_event = msgspec.structs.replace(self.builder.events[event.number - 1], **facts)
        self.builder.events[event.number - 1] = updated_event
        return updated_event


def derive_id(*facts: object) -> str:
    """An id for what has none, of what tells it from others."""
    return content_digest(str(facts).encode(errors="replace"))[:32]


def usage_from_openai(told: object, cost: object = None) -> Usage:
    """The usage block of a chat completion or of a response; nothing but zeros is not known."""
    fields = as_mapping(told)
    input_tokens = _first_count(fields, "prompt_tokens", "input_tokens")
    output = _first_count(fields, "completion_tokens", "output_tokens")
    input_details = as_mapping(
        fields.get("prompt_tokens_details") or fields.get("input_tokens_details")
    )
    output_details = as_mapping(
        fields.get("completion_tokens_details") or fields.get("output_tokens_details")
    )
    read = _first_count(fields, "cache_read_input_tokens", "cache_read_tokens")
    read = read or _first_count(input_details, "cached_tokens") or read
    write = _first_count(fields, "cache_creation_input_tokens", "cache_write_tokens")
    paid = as_amount(cost) or as_amount(fields.get("cost")) or None
    if not any((input_tokens, output, read, write)):
        return Usage(cost=paid, cost_from="reported" if paid else None)
    return Usage(
        input_tokens=uncached_input_tokens(input_tokens, read, write),
        output_tokens=output,
        cache_read_tokens=read,
        cache_write_tokens=write,
        reasoning_tokens=_first_count(output_details, "reasoning_tokens")
        or _first_count(fields, "reasoning_tokens"),
        cost=paid,
        cost_from="reported" if paid else None,
    )


def _first_count(told: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        if name in told and (number := as_count(told[name])) is not None:
            return number
    return None


def openai_content_text(content: object) -> str:
    """What a message says, whether as one text or in parts."""
    if isinstance(content, str):
        return content
    parts = (
        as_mapping(part) if isinstance(part, dict) else {"text": part} for part in as_list(content)
    )
    texts = (part.get("text") for part in parts)
    return "\n".join(said for said in texts if isinstance(said, str))


def with_total_cost(usage: Usage, cost: object) -> Usage:
    """The sum of the turns with the cost that a recording states for all of them."""
    paid = as_amount(cost) or None
    if paid is None:
        return usage
    return msgspec.structs.replace(usage, cost=paid, cost_from="reported")
