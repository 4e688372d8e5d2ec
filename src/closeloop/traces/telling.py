"""Tell a recording event by event: what several readers say in the same words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from closeloop.model.attempt import Usage
from closeloop.model.protocols import Source
from closeloop.model.record import digest
from closeloop.model.trace import (
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
from closeloop.traces.builder import ROOT, Builder, since
from closeloop.traces.calls import Origin, event_of
from closeloop.traces.results import result_of
from closeloop.traces.texts import shortened
from closeloop.traces.untrusted import amount, arguments, count, items, mapping
from closeloop.traces.values import fresh


class Teller:
    """A builder with a place to stand: the lane, the turn and the time of what is told next."""

    def __init__(self, reader: str, version: int, source: Source) -> None:
        self.builder = Builder(reader, version)
        self.skipped = source.skipped
        self._before = dict(source.skipped)
        self.lane = ROOT
        self.turn: int | None = None
        self.at: datetime | None = None

    def skip(self, why: str) -> None:
        """Count what is left out."""
        self.skipped[why] = self.skipped.get(why, 0) + 1

    def clean(self, text: str) -> str:
        return shortened(text, self.skipped)

    def known(self, value: object) -> str | None:
        """A text that says something, fit to be stored."""
        return self.clean(value) if isinstance(value, str) and value else None

    def place(self, call: str | None = None) -> dict[str, Any]:
        """What every event told here and now has in common."""
        return {
            "number": self.builder.number,
            "lane": self.lane,
            "turn": self.turn,
            "at": self.at,
            "call": shortened(call, most=200) if call else None,
        }

    def provider(self, turn: Turn, message: str | None = None) -> int:
        """Count a message of the provider; what is told next belongs to it."""
        self.turn = self.builder.turn(self.lane, turn, message)
        return self.turn

    def user(self, said: str, intent: Intent | None = None) -> None:
        """What the user said; nothing for nothing. What an agent did before has ended."""
        self.turn = None
        if said.strip():
            told = self.clean(said)
            self.builder.hear(told, lane=self.lane, at=self.at, intent=intent, asks=False)

    def agent(self, said: str, intent: Intent | None = None, call: str | None = None) -> None:
        """What the agent said, if need be by calling a tool for it."""
        if said.strip():
            place = self.place(call)
            self.add(Message(**place, role="agent", text=self.clean(said), intent=intent))

    def thought(self, said: str, call: str | None = None) -> None:
        if said.strip():
            self.add(Thought(**self.place(call), text=self.clean(said)))

    def note(self, said: str, about: str) -> None:
        self.add(Note(**self.place(), text=self.clean(said), about=self.clean(about)))

    def command(self, line: str, call: str | None = None, directory: str | None = None) -> AnyEvent:
        return self.add(Command(**self.place(call), command=self.clean(line), directory=directory))

    def call(self, name: str, given: Any, call: str | None = None) -> AnyEvent:
        """An action by its tool's name and arguments."""
        origin = Origin(**self.place(call))
        return self.add(event_of(self.clean(name), arguments(given, self.skipped), origin))

    def other(self, name: str, given: Any, call: str | None = None) -> AnyEvent:
        """An action of a tool that is not to be taken for what its name says."""
        known = arguments(given, self.skipped)
        return self.add(ToolUse(**self.place(call), name=self.clean(name), arguments=known))

    def add(self, event: AnyEvent) -> AnyEvent:
        return self.builder.add(event)

    def result(self, event: AnyEvent, output: str | None, ok: bool | None = None) -> AnyEvent:
        """The result of an action, as its text tells it."""
        told = None if output is None else self.clean(output)
        return self.builder.finish(event, **result_of(event, told, ok))

    def refused(self, event: AnyEvent, why: str) -> AnyEvent:
        """An action that somebody did not let happen."""
        done = self.result(event, why or None, ok=False)
        return self.more(done, stopped="not executed") if isinstance(done, Command) else done

    def claim(self, otherwise: str) -> str:
        """The last turn's last words say that the work is done; else the recording itself does."""
        last = self.builder.turns(ROOT)
        for event in reversed(self.builder.events):
            if event.lane != ROOT or event.turn not in (None, last):
                break
            if isinstance(event, Message) and event.role == "agent":
                if event.intent is None:
                    self.more(event, intent="claim")
                return event.text
        self.agent(otherwise, "claim")
        return otherwise

    def trace(self) -> Trace:
        """What was told, with what was left out since the telling began."""
        return self.builder.trace(since(self._before, self.skipped))

    def more(self, event: AnyEvent, **facts: object) -> AnyEvent:
        """What else is known of an event that was told before."""
        done = msgspec.structs.replace(self.builder.events[event.number - 1], **facts)
        self.builder.events[event.number - 1] = done
        return done


def identity(*facts: object) -> str:
    """An id for what has none, of what tells it from others."""
    return digest(str(facts).encode(errors="replace"))[:32]


def usage_of(told: object, cost: object = None) -> Usage:
    """The usage block of a chat completion or of a response; nothing but zeros is not known."""
    said = mapping(told)
    asked = _first(said, "prompt_tokens", "input_tokens")
    output = _first(said, "completion_tokens", "output_tokens")
    details = mapping(said.get("prompt_tokens_details") or said.get("input_tokens_details"))
    wrote = mapping(said.get("completion_tokens_details") or said.get("output_tokens_details"))
    read = _first(said, "cache_read_input_tokens", "cache_read_tokens")
    read = read or _first(details, "cached_tokens") or read
    write = _first(said, "cache_creation_input_tokens", "cache_write_tokens")
    paid = amount(cost) or amount(said.get("cost")) or None
    if not any((asked, output, read, write)):
        return Usage(cost=paid, cost_from="reported" if paid else None)
    return Usage(
        input_tokens=fresh(asked, read, write),
        output_tokens=output,
        cache_read_tokens=read,
        cache_write_tokens=write,
        reasoning_tokens=_first(wrote, "reasoning_tokens") or _first(said, "reasoning_tokens"),
        cost=paid,
        cost_from="reported" if paid else None,
    )


def _first(told: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        if name in told and (number := count(told[name])) is not None:
            return number
    return None


def text_of(content: object) -> str:
    """What a message says, whether as one text or in parts."""
    if isinstance(content, str):
        return content
    parts = (mapping(part) if isinstance(part, dict) else {"text": part} for part in items(content))
    texts = (part.get("text") for part in parts)
    return "\n".join(said for said in texts if isinstance(said, str))


def with_total(usage: Usage, cost: object) -> Usage:
    """The sum of the turns with the cost that a recording states for all of them."""
    paid = amount(cost) or None
    if paid is None:
        return usage
    return msgspec.structs.replace(usage, cost=paid, cost_from="reported")
