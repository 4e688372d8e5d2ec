"""What OpenCode's messages and parts say, wherever they are kept: an export, a stream, a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple

import msgspec

from closeloop.model.attempt import Exit
from closeloop.model.session import Session
from closeloop.model.trace import (
    Handoff,
    Message,
    Note,
    Thought,
    Turn,
)
from closeloop.traces.builder import ROOT, Builder
from closeloop.traces.calls import Origin
from closeloop.traces.opencode.parts import REPORT, TASK, finished, started, usage_of
from closeloop.traces.results import mark_corrections
from closeloop.traces.texts import shortened
from closeloop.traces.untrusted import (
    arguments,
    between,
    items,
    label,
    mapping,
    millis,
    raw,
    text,
)

AGENT = "opencode"
DEPTH = 20
_COPIES: dict[str, Literal["exported", "printed"]] = {
    "opencode": "exported",
    "opencode-run": "printed",
}
REJECTED = "The user rejected permission to use this specific tool call"
_EXITS: dict[str, Exit] = {
    "MessageAbortedError": "gave_up",
    "MessageOutputLengthError": "out_of_budget",
    "ContextOverflowError": "out_of_budget",
    "APIError": "machine",
    "ProviderAuthError": "machine",
}


class Recorded(NamedTuple):
    """A session as it was found: what it says of itself, and its messages in order."""

    info: Mapping[str, Any]
    messages: Iterable[Any]
    """Each with `info` and `parts`."""


class Family:
    """The sessions that came of one: children are looked up by their id."""

    def __init__(self, children: Mapping[str, Any], skipped: dict[str, int]) -> None:
        self.children = children
        self.skipped = skipped
        self.told: set[str] = set()

    def find(self, name: str | None) -> Recorded | None:
        """A child that is there and was not told yet."""
        if name is None or name in self.told or name not in self.children:
            return None
        self.told.add(name)
        found = self.children[name]
        return found if isinstance(found, Recorded) else None


class _Lane:
    """One session while it is told."""

    def __init__(self, builder: Builder, name: str, family: Family, depth: int) -> None:
        self.builder = builder
        self.name = name
        self.family = family
        self.depth = depth
        self.model: str | None = None
        self.system: str | None = None
        self.finish: str | None = None
        self.error: tuple[Exit, str] | None = None
        self.asked = False
        self.last: int | None = None
        """The number of the last thing the agent said."""
        self.words: dict[str, int] = {}
        self.handoffs: dict[str, int] = {}
        """Child → the number of the event that sent it off."""
        self.first: datetime | None = None
        self.until: datetime | None = None

    def seen(self, at: datetime | None) -> datetime | None:
        if at is not None:
            self.first = at if self.first is None else min(self.first, at)
            self.until = at if self.until is None else max(self.until, at)
        return at

    def clean(self, value: str) -> str:
        return shortened(value, self.family.skipped)


def session_of(recorded: Recorded, family: Family, reader: tuple[str, int]) -> Session:
    """A session with its children as lanes."""
    builder = Builder(*reader)
    info = recorded.info
    builder.lane(agent=label(info.get("agent")))
    identity = label(info.get("id"))
    if identity:
        family.told.add(identity)
    lane = _Lane(builder, ROOT, family, 0)
    _tell(lane, recorded)
    claimed = lane.error is None and lane.finish == "stop"
    if claimed and lane.last is not None:
        event = builder.events[lane.last - 1]
        builder.events[lane.last - 1] = msgspec.structs.replace(event, intent="claim")
    said = builder.events[lane.last - 1] if lane.last is not None else None
    mark_corrections(builder)
    exit_, cause = lane.error or ("finished", None)
    time = mapping(info.get("time"))
    return Session(
        id=identity or "unnamed",
        agent=AGENT,
        trace=builder.trace(family.skipped),
        agent_version=label(info.get("version")),
        model=max(lane.words, key=lane.words.__getitem__) if lane.words else lane.model,
        system=lane.system,
        started=millis(time.get("created")) or lane.first,
        ended=lane.until or millis(time.get("updated")),
        exit=exit_,
        cause=cause,
        usage=builder.usage(),
        summary=said.text if isinstance(said, Message) else None,
        directory=label(info.get("directory")),
        parent=label(info.get("parentID")),
        copy=_COPIES.get(reader[0]),
        links={"share": url} if (url := label(mapping(info.get("share")).get("url"))) else {},
    )


def _tell(lane: _Lane, recorded: Recorded) -> None:
    reverted = text(mapping(recorded.info.get("revert")).get("messageID"))
    for message in recorded.messages:
        told = mapping(message)
        info = mapping(told.get("info"))
        if reverted and info.get("id") == reverted:
            lane.builder.note("What follows was taken back.", about="rewind", lane=lane.name)
        parts = (mapping(part) for part in items(told.get("parts")))
        if info.get("role") == "user":
            _user(lane, info, parts)
        elif info.get("role") == "assistant":
            _assistant(lane, info, parts)
        else:
            lane.builder.note(raw(message), about="unknown: message", lane=lane.name)


def _user(lane: _Lane, info: Mapping[str, Any], parts: Iterator[dict[str, Any]]) -> None:
    at = lane.seen(millis(mapping(info.get("time")).get("created")))
    system = text(info.get("system"))
    if system and lane.system is None:
        lane.system = lane.clean(system)
    for part in parts:
        said = text(part.get("text"))
        if part.get("type") == "text" and said is not None:
            if part.get("synthetic") is True and _returned(lane, said):
                continue
            if part.get("synthetic") is True or part.get("ignored") is True:
                lane.builder.note(lane.clean(said), about="added by agent", lane=lane.name, at=at)
                continue
            intent = None if lane.asked else "request"
            lane.asked = True
            lane.builder.add(
                Message(
                    number=lane.builder.number, lane=lane.name, at=at, role="user",
                    text=lane.clean(said), intent=intent,  # type: ignore[arg-type]
                )
            )  # fmt: skip
        else:
            _aside(lane, part, at)


def _returned(lane: _Lane, said: str) -> bool:
    """The report of a child that worked in the background."""
    found = TASK.match(said)
    number = lane.handoffs.get(found[1]) if found else None
    if found is None or number is None or found[2] == "running":
        return False
    report = REPORT.search(said)
    lane.builder.finish(
        lane.builder.events[number - 1],
        report=lane.clean(report[1] if report else said),
        ok=found[2] == "completed",
    )
    return True


def _aside(lane: _Lane, part: Mapping[str, Any], at: datetime | None, turn: Any = None) -> None:
    """What is neither said nor done, but worth keeping."""
    kind = part.get("type")
    match kind:
        case "text" | "reasoning" | "step-start" | "snapshot":
            return
        case "compaction":
            about, told = "compaction", "The conversation was shortened."
        case "patch":
            files = [path for path in items(part.get("files")) if isinstance(path, str)]
            about, told = "files changed", "\n".join(files)
        case "file":
            about, told = "attachment", text(part.get("filename")) or text(part.get("mime")) or ""
        case "agent" | "subtask":
            about, told = str(kind), text(part.get("prompt")) or text(part.get("name")) or ""
        case "retry":
            about, told = "retry", raw(part.get("error"))
        case _:
            about, told = f"unknown: {kind}"[:100], raw(part)
    lane.builder.add(
        Note(
            number=lane.builder.number, lane=lane.name, turn=turn, at=at,
            text=lane.clean(told), about=lane.clean(about),
        )
    )  # fmt: skip


def _assistant(lane: _Lane, info: Mapping[str, Any], parts: Iterator[dict[str, Any]]) -> None:
    builder, time = lane.builder, mapping(info.get("time"))
    at, until = lane.seen(millis(time.get("created"))), lane.seen(millis(time.get("completed")))
    # Ids need not differ: who publishes sessions may have blackened them.
    model, key = label(info.get("modelID")), f"message {builder.turns(lane.name)}"
    lane.model = lane.model or model
    base = Turn(model=model, at=at, seconds=between(at, until))
    step, turn, counted = 0, None, False
    for part in parts:
        kind = part.get("type")
        # Older versions put several answers of the provider into one message, as steps.
        if turn is None or (kind == "step-start" and counted):
            step, counted = step + 1, False
            turn = builder.turn(lane.name, base, f"{key} {step}")
        if kind == "step-finish":
            usage = usage_of(part.get("tokens"), part.get("cost"))
            builder.turn(lane.name, msgspec.structs.replace(base, usage=usage), f"{key} {step}")
            counted = True
            lane.finish = text(part.get("reason")) or lane.finish
        else:
            _part(lane, part, Origin(number=builder.number, lane=lane.name, turn=turn, at=at), info)
    if turn is None:
        step, turn = 1, builder.turn(lane.name, base, f"{key} 1")
    if not counted and step == 1:
        usage = usage_of(info.get("tokens"), info.get("cost"))
        builder.turn(lane.name, msgspec.structs.replace(base, usage=usage), f"{key} 1")
    lane.finish = text(info.get("finish")) or lane.finish
    lane.error = None
    if info.get("error") is not None:
        failed(lane, info["error"], at)


def failed(lane: _Lane, error: Any, at: datetime | None) -> None:
    """An answer that was broken off, and why."""
    name = text(mapping(error).get("name")) or "error"
    told = text(mapping(mapping(error).get("data")).get("message")) or raw(error)
    lane.error = (_EXITS.get(name, "crashed"), lane.clean(f"{name}: {told}")[:500])
    if name != "MessageAbortedError":
        lane.builder.note(lane.clean(told), about="error", lane=lane.name, at=at)
        return
    number = lane.builder.number
    lane.builder.add(
        Message(
            number=number, lane=lane.name, at=at, role="user", text=lane.clean(told),
            intent="interrupt",
        )
    )  # fmt: skip


def _part(lane: _Lane, part: dict[str, Any], origin: Origin, info: Mapping[str, Any]) -> None:
    kind, said = part.get("type"), part.get("text")
    time = mapping(part.get("time"))
    at = lane.seen(millis(time.get("start"))) or origin.at
    lane.seen(millis(time.get("end")))
    number, name, turn = origin.number, origin.lane, origin.turn
    if kind == "tool":
        _tool(lane, part, origin)
    elif kind == "text" and isinstance(said, str) and said.strip():
        if info.get("summary") is True:
            _summary(lane, lane.clean(said), at)
            return
        model = label(info.get("modelID"))
        if model:
            lane.words[model] = lane.words.get(model, 0) + len(said)
        lane.last = number
        lane.builder.add(
            Message(number=number, lane=name, turn=turn, at=at, role="agent", text=lane.clean(said))
        )
    elif kind == "reasoning" and isinstance(said, str) and said.strip():
        lane.builder.add(Thought(number=number, lane=name, turn=turn, at=at, text=lane.clean(said)))
    else:
        _aside(lane, part, at, turn)


def _summary(lane: _Lane, said: str, at: datetime | None) -> None:
    """What is left of a conversation that was shortened; that it was may be noted already."""
    mark = lane.builder.events[-1] if lane.builder.events else None
    if isinstance(mark, Note) and mark.about == "compaction" and mark.lane == lane.name:
        lane.builder.finish(mark, text=said)
    else:
        lane.builder.note(said, about="compaction", lane=lane.name, at=at)


def _tool(lane: _Lane, part: Mapping[str, Any], origin: Origin) -> None:
    state = mapping(part.get("state"))
    time, metadata = mapping(state.get("time")), mapping(state.get("metadata"))
    start, end = lane.seen(millis(time.get("start"))), lane.seen(millis(time.get("end")))
    name = lane.clean(text(part.get("tool")) or "unnamed")
    call = text(part.get("callID"))
    given = arguments(state.get("input"), lane.family.skipped)
    origin = Origin(
        number=origin.number, lane=origin.lane, turn=origin.turn, at=start or origin.at,
        call=lane.clean(call) if call else None,
    )  # fmt: skip
    status = state.get("status")
    done = None if status not in ("completed", "error") else status == "completed"
    told = text(state.get("output")) if done else text(state.get("error"))
    result = lane.clean(told) if told is not None else "" if done else None
    for event in started(name, given, metadata, origin):
        ended = finished(event, done, result, metadata)
        lane.builder.add(msgspec.structs.replace(ended, seconds=between(start, end)))
    if isinstance(event, Handoff):
        _child(lane, event, text(metadata.get("sessionId")), given)
    elif isinstance(event, Message) and done is not None:
        _answer(lane, done, result, metadata, end)
    if done is False and result and result.startswith(REJECTED):
        why = result.partition("with the following feedback: ")[2] or result
        lane.builder.add(
            Message(
                number=lane.builder.number, lane=lane.name, at=end, role="user",
                text=why, intent="correction",
            )
        )  # fmt: skip


def _answer(
    lane: _Lane, done: bool, result: str | None, metadata: Mapping[str, Any], at: datetime | None
) -> None:
    """What the user said to a question, or that there was no answer."""
    answers = [
        ", ".join(str(choice) for choice in answer) if isinstance(answer, list) else str(answer)
        for answer in items(metadata.get("answers"))
    ]
    if not done:
        lane.builder.note(result or "", about="question unanswered", lane=lane.name, at=at)
        return
    said = lane.clean("\n".join(answers) or result or "")
    lane.builder.hear(said, lane=lane.name, at=at, intent="answer")


def _child(lane: _Lane, event: Handoff, name: str | None, given: Mapping[str, Any] | None) -> None:
    """Tell the session that took the work, and say which lane it is."""
    if name is None:
        return
    lane.handoffs[name] = event.number
    builder, family = lane.builder, lane.family
    found = family.find(name) if lane.depth < DEPTH else None
    if found is None:
        if name in family.told and name in family.children:
            # The same child was sent on with more work.
            builder.finish(builder.events[event.number - 1], child=lane.clean(name))
        return
    agent = text(found.info.get("agent")) or text(mapping(given).get("subagent_type"))
    child = builder.lane(lane.clean(name), lane.name, lane.clean(agent) if agent else None)
    builder.finish(builder.events[event.number - 1], child=child)
    inner = _Lane(builder, child, family, lane.depth + 1)
    _tell(inner, found)
    for model, words in inner.words.items():
        lane.words[model] = lane.words.get(model, 0) + words
    lane.seen(inner.first)
    lane.seen(inner.until)
