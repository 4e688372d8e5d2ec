"""What Qwen Code prints with `--output-format stream-json`: Claude Code's shape, other meanings.

A provider's message comes in several records, all but one with tokens of 0; cached tokens are
part of the input; nothing has a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from closeloop.model.attempt import Exit, Usage
from closeloop.model.protocols import Source
from closeloop.model.session import Session
from closeloop.model.trace import Command, Handoff, Message, Thought, Turn
from closeloop.traces.builder import ROOT, Builder
from closeloop.traces.calls import Origin
from closeloop.traces.contents import asked, settle, usage_of
from closeloop.traces.results import mark_claim
from closeloop.traces.rounds import Rounds
from closeloop.traces.texts import shortened
from closeloop.traces.untrusted import arguments, items, label, mapping, raw, text

_TOKENS = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cached": "cache_read_input_tokens",
    "total": "total_tokens",
}
_EXITS: dict[str, Exit] = {"success": "finished", "error_max_turns": "out_of_budget"}
_FRAGMENTS = ("stream_event", "control_request", "control_response", "control_cancel_request")


def is_stream(record: object) -> bool:
    """Whether this is the record a stream begins with."""
    found = mapping(record)
    own = found.get("type") == "system" and found.get("subtype") == "init"
    return own and "qwen_code_version" in found and isinstance(found.get("session_id"), str)


class Stream:
    """Records as they come."""

    def __init__(self, builder: Builder, source: Source) -> None:
        self.builder = builder
        self.source = source
        self.about: Mapping[str, Any] = {}
        self.exit: Exit = "crashed"
        self.cause: str | None = "The output ends before its result."
        self.usage: Usage | None = None
        self._rounds = Rounds(builder)
        self._lanes = {ROOT}
        self._callers: dict[str, str] = {}
        """The lane that each handoff was made in."""

    def session(self, name: str) -> Session:
        """What came of it, under `name` where it names itself nothing."""
        return Session(
            id=label(self.about.get("session_id")) or name,
            agent="qwen-code",
            agent_version=label(self.about.get("qwen_code_version")),
            model=label(self.about.get("model")),
            exit=self.exit,
            cause=self.cause,
            usage=self.usage or self.builder.usage(),
            summary=mark_claim(self.builder),
            directory=label(self.about.get("cwd")),
            copy="printed",
            trace=self.builder.trace(self.source.skipped),
        )

    def take(self, record: object) -> None:
        found = mapping(record)
        kind = found.get("type")
        if kind in ("assistant", "user"):
            message = mapping(found.get("message"))
            lane = self._lane(found.get("parent_tool_use_id"))
            turn = self._turn(message, lane) if kind == "assistant" else None
            for block in _blocks(message.get("content")):
                if turn is None:
                    self._heard(block, lane)
                else:
                    self._said(block, lane, turn)
        elif is_stream(record):
            self.about = found
        elif kind == "result":
            self._end(found)
        elif kind not in _FRAGMENTS:
            self.builder.note(raw(record), about=f"unknown: {label(kind)}")

    def _lane(self, call: object) -> str:
        named = label(call)
        if named is None:
            return ROOT
        if named not in self._lanes:
            self._lanes.add(named)
            event = self.builder.waiting(self._callers.get(named, ROOT), named)
            self.builder.lane(named, ROOT if event is None else event.lane)
            if isinstance(event, Handoff):
                # Not finished yet: only its child is known.
                known = msgspec.structs.replace(event, child=named)
                self.builder.events[event.number - 1] = known
        return named

    def _turn(self, message: Mapping[str, Any], lane: str) -> int:
        usage = usage_of(message.get("usage"), _TOKENS)
        return self._rounds.turn(lane, Turn(usage=usage, model=label(message.get("model"))))

    def _said(self, block: Mapping[str, Any], lane: str, turn: int) -> None:
        place: dict[str, Any] = {"number": self.builder.number, "lane": lane, "turn": turn}
        kind = block.get("type")
        skipped = self.source.skipped
        if kind == "text" and (said := text(block.get("text"))):
            self.builder.add(Message(**place, role="agent", text=shortened(said, skipped)))
        elif kind == "thinking" and (said := text(block.get("thinking"))):
            self.builder.add(Thought(**place, text=shortened(said, skipped)))
        elif kind == "tool_use":
            origin = Origin(**place, call=label(block.get("id")))
            given = arguments(block.get("input"), skipped)
            event = self.builder.add(asked(label(block.get("name")) or "unknown", given, origin))
            if isinstance(event, Handoff) and event.call is not None:
                self._callers[event.call] = lane

    def _heard(self, block: Mapping[str, Any], lane: str) -> None:
        self._rounds.close(lane)
        if block.get("type") != "tool_result":
            said = shortened(text(block.get("text")) or "", self.source.skipped)
            number = self.builder.number
            self.builder.add(
                Message(number=number, lane=lane, role="user", text=said, intent="request")
            )
            return
        event = self.builder.waiting(lane, label(block.get("tool_use_id")))
        if event is None:
            self.builder.note(raw(block), about="result without a call", lane=lane)
            return
        told = "\n".join(text(part.get("text")) or "" for part in _blocks(block.get("content")))
        failed = block.get("is_error")
        ok = None if not isinstance(failed, bool) else not failed
        more: dict[str, object] = {}
        if isinstance(event, Command):
            # What is printed is the command's own output: no exit code is stated beside it.
            more = {"exit_code": None, "exit_from": None}
        settle(self.builder, event, shortened(told, self.source.skipped), ok, **more)

    def _end(self, found: Mapping[str, Any]) -> None:
        failed = found.get("is_error") is True
        subtype = str(found.get("subtype"))
        self.exit = "crashed" if failed and subtype == "success" else _EXITS.get(subtype, "crashed")
        error = mapping(found.get("error"))
        self.cause = None if self.exit == "finished" else label(error.get("message")) or subtype
        usage = usage_of(found.get("usage"), _TOKENS)
        self.usage = usage if usage != Usage() else None


def _blocks(content: object) -> list[Mapping[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [mapping(block) for block in items(content)]
