"""What Goose's messages say, wherever they are kept: its database, an export, a JSONL file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from closeloop.model.attempt import Usage
from closeloop.model.session import Session
from closeloop.model.trace import AnyEvent, Command, Handoff, Message, Thought, ToolUse, Turn
from closeloop.model.usage import total
from closeloop.traces.builder import ROOT, Builder, since
from closeloop.traces.calls import Origin, event_of
from closeloop.traces.results import mark_claim, result_of
from closeloop.traces.texts import shortened
from closeloop.traces.untrusted import (
    arguments,
    between,
    count,
    exit_code,
    items,
    label,
    mapping,
    millis,
    moment,
    raw,
    seconds,
    text,
)

_FOOTER = re.compile(r"^Command exited with code (-?\d+)\s*\Z", re.MULTILINE)
_ASIDES = {
    "systemNotification": "notification", "conversationCompacted": "compaction",
    "summarizationRequested": "compaction", "contextLengthExceeded": "compaction",
    "image": "attachment",
}  # fmt: skip


class Recorded(NamedTuple):
    """A session as it was found."""

    about: Mapping[str, Any]
    messages: Iterable[Any]


class Telling:
    """A session, with its children as lanes, while its messages are read."""

    def __init__(
        self, children: Mapping[str, Recorded], reader: tuple[str, int], skipped: dict[str, int]
    ) -> None:
        self.builder = Builder(*reader)
        self.children = children
        self.skipped = skipped
        self.before = dict(skipped)
        self.told: set[str] = set()
        self.usages: list[Usage] = []
        self.asked: set[str] = set()
        self.handoffs: dict[str, int] = {}
        self.times: list[datetime] = []

    def clean(self, value: str) -> str:
        return shortened(value, self.skipped)

    def session(self, recorded: Recorded) -> Session:
        about = recorded.about
        identity = label(about.get("id")) or "unnamed"
        model = label(mapping(about.get("model_config")).get("model_name"))
        self._lane(ROOT, recorded, model)
        summary = mark_claim(self.builder)
        return Session(
            id=identity,
            agent="goose",
            trace=self.builder.trace(since(self.before, self.skipped)),
            model=model,
            started=_time(about.get("created_at")) or (self.times[0] if self.times else None),
            ended=self.times[-1] if self.times else _time(about.get("updated_at")),
            usage=total(self.usages),
            summary=summary,
            directory=label(about.get("working_dir")),
        )

    def _lane(self, lane: str, recorded: Recorded, model: str | None) -> None:
        if identity := text(recorded.about.get("id")):
            self.told.add(identity)
        self.usages.append(_usage(recorded.about))
        for message in recorded.messages:
            if isinstance(message, dict) and isinstance(message.get("content"), list):
                self._message(lane, message, model)
            else:
                self.builder.note(raw(message), about="unknown: message", lane=lane)

    def _message(self, lane: str, message: Mapping[str, Any], model: str | None) -> None:
        at = _time(message.get("created"))
        if at is not None:
            self.times = [min(self.times[0], at), max(self.times[-1], at)] if self.times else [at]
        turn = None
        if message.get("role") == "assistant":
            turn = self.builder.turn(lane, Turn(model=model, at=at), label(message.get("id")))
        hidden = mapping(message.get("metadata")).get("userVisible") is False
        for item in message["content"]:
            content = mapping(item)
            origin = Origin(number=self.builder.number, lane=lane, turn=turn, at=at)
            self._content(content, origin, hidden)

    def _content(self, content: dict[str, Any], origin: Origin, hidden: bool) -> None:
        kind, lane, at = content.get("type"), origin.lane, origin.at
        match kind:
            case "text":
                self._said(text(content.get("text")), origin, hidden)
            case "thinking" | "reasoning":
                words = text(content.get("thinking")) or text(content.get("text"))
                if words:
                    self.builder.add(
                        Thought(
                            number=origin.number, lane=lane, turn=origin.turn, at=at,
                            text=self.clean(words),
                        )
                    )  # fmt: skip
            case "toolRequest" | "frontendToolRequest":
                self._called(content, origin)
            case "toolResponse":
                self._returned(content, lane, at)
            case "actionRequired":
                self._required(mapping(content.get("data")), origin)
            case str() if kind in _ASIDES:
                words = label(content.get("msg")) or label(content.get("mimeType")) or ""
                self.builder.note(words, about=_ASIDES[kind], lane=lane, at=at)
            case "toolConfirmationRequest" | "redactedThinking":
                return
            case _:
                about = self.clean(f"unknown: {kind}"[:100])
                self.builder.note(raw(content), about=about, lane=lane, at=at)

    def _said(self, words: str | None, origin: Origin, hidden: bool) -> None:
        if words is None or not words.strip():
            return
        if hidden:
            # Only the agent sees it: the summary that stands for what was taken out.
            self.builder.note(self.clean(words), about="compaction", lane=origin.lane, at=origin.at)
            return
        agent = origin.turn is not None
        intent = None if agent or origin.lane in self.asked else "request"
        if not agent:
            self.asked.add(origin.lane)
        self.builder.add(
            Message(
                number=origin.number, lane=origin.lane, turn=origin.turn, at=origin.at,
                role="agent" if agent else "user", text=self.clean(words),
                intent=intent,  # type: ignore[arg-type]
            )
        )  # fmt: skip

    def _called(self, content: Mapping[str, Any], origin: Origin) -> None:
        call, asked = label(content.get("id")), mapping(content.get("toolCall"))
        origin = msgspec.structs.replace(origin, call=call)
        value = mapping(asked.get("value"))
        tool = label(value.get("name"))
        if tool is None:
            words = text(asked.get("error")) or raw(asked)
            base = ToolUse(
                number=origin.number, lane=origin.lane, turn=origin.turn, at=origin.at, call=call,
                name="unnamed", ok=False, output=self.clean(words),
            )  # fmt: skip
            self.builder.add(base)
            return
        self.builder.add(_event(tool, arguments(value.get("arguments"), self.skipped), origin))

    def _returned(self, content: Mapping[str, Any], lane: str, at: datetime | None) -> None:
        event = self.builder.waiting(lane, label(content.get("id")))
        if event is None:
            self.builder.note(raw(content), about="result without a call", lane=lane, at=at)
            return
        result = mapping(content.get("toolResult"))
        value = result.get("value")
        told = mapping(value)
        ok = None
        if result.get("status") in ("success", "error"):
            ok = result["status"] == "success" and told.get("isError") is not True
        output = self.clean(_words(value, result))
        more = result_of(event, output, ok)
        if isinstance(event, Command):
            more |= _exit(output, mapping(told.get("structuredContent")))
        event = self.builder.finish(event, **more, seconds=between(event.at, at))
        meta = mapping(told.get("_meta")) or mapping(told.get("meta"))
        child = text(meta.get("subagent_session_id"))
        if isinstance(event, Handoff) and child:
            self._child(event, child)
        elif isinstance(event, ToolUse) and event.name.endswith("load") and ok:
            # A child that worked in the background hands in its report when it is asked for.
            number = self.handoffs.get(str(mapping(event.arguments).get("source")))
            if number is not None:
                self.builder.finish(self.builder.events[number - 1], report=output)

    def _child(self, event: Handoff, child: str) -> None:
        self.handoffs[child] = event.number
        # Goose lets no child send off children of its own, so this goes no deeper.
        if child in self.told or child not in self.children or event.lane != ROOT:
            return
        recorded = self.children[child]
        inner = self.builder.lane(self.clean(child), event.lane, "sub_agent")
        self.builder.finish(event, child=inner)
        model = label(mapping(recorded.about.get("model_config")).get("model_name"))
        self._lane(inner, recorded, model)

    def _required(self, data: Mapping[str, Any], origin: Origin) -> None:
        lane, at, number = origin.lane, origin.at, self.builder.number
        if data.get("actionType") == "elicitation":
            words = self.clean(text(data.get("message")) or "")
            self.builder.add(
                Message(
                    number=number, lane=lane, turn=origin.turn, at=at, role="agent", text=words,
                    intent="question",
                )
            )  # fmt: skip
        elif data.get("actionType") == "elicitationResponse":
            words = raw(data.get("userData", data.get("user_data")))
            self.builder.hear(words, lane=lane, at=at, intent="answer")


def _event(tool: str, given: dict[str, Any] | None, origin: Origin) -> AnyEvent:
    told = mapping(given)
    plain = tool.rpartition("__")[2]
    if plain == "text_editor" and told.get("command") == "write":
        return event_of("write", told, origin)
    if plain == "edit" and isinstance(told.get("before"), str):
        renamed = {**told, "old_string": told["before"], "new_string": told.get("after")}
        return event_of("edit", renamed, origin)
    if plain == "delegate" and "instructions" not in told and text(told.get("source")):
        return event_of("delegate", {**told, "instructions": told["source"]}, origin)
    return event_of(tool, given, origin)


def _exit(output: str, structured: Mapping[str, Any]) -> dict[str, object]:
    """A field says it in newer versions; the last line does when it is not 0."""
    code = exit_code(structured.get("exit_code"))
    if code is not None:
        return {"exit_code": code, "exit_from": "stated"}
    found = _FOOTER.search(output[-200:])
    if found and len(found[1]) < 12:
        return {"exit_code": int(found[1]), "exit_from": "parsed"}
    return {}


def _words(value: Any, result: Mapping[str, Any]) -> str:
    """The text of a result, as far as it is meant for the agent: the user's copy says it again."""
    contents = value if isinstance(value, list) else items(mapping(value).get("content"))
    texts = []
    for content in contents:
        told = mapping(content)
        audience = mapping(told.get("annotations")).get("audience", told.get("audience"))
        if isinstance(audience, list) and audience and "assistant" not in audience:
            continue
        if words := text(told.get("text")):
            texts.append(words)
    return "\n".join(texts) or text(result.get("error")) or ""


def _usage(about: Mapping[str, Any]) -> Usage:
    """A session's totals, cached input included: Goose keeps no others."""
    into = count(about.get("accumulated_input_tokens")) or count(about.get("input_tokens"))
    out = count(about.get("accumulated_output_tokens")) or count(about.get("output_tokens"))
    return Usage(input_tokens=into or None, output_tokens=out or None)


def _time(value: Any) -> datetime | None:
    """Seconds, milliseconds or words: versions differ."""
    number = count(value)
    if number is None:
        return moment(value)
    return millis(number) if number > 1 << 36 else seconds(number)
