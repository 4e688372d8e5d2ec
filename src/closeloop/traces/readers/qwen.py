"""Qwen Code's chats, with the sub-agents recorded beside them; and what it prints as it works."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from closeloop.model.plural import plural
from closeloop.model.protocols import Source
from closeloop.model.session import Session
from closeloop.model.trace import AnyEvent, Handoff, Message, Thought, Turn
from closeloop.traces.builder import ROOT, Builder
from closeloop.traces.calls import Origin
from closeloop.traces.contents import asked, calls_in, responses_in, settle, usage_of, words
from closeloop.traces.qwen.stream import Stream, is_stream
from closeloop.traces.qwen.telemetry import Telemetry
from closeloop.traces.results import mark_claim
from closeloop.traces.rounds import Rounds
from closeloop.traces.texts import shortened
from closeloop.traces.untrusted import amount, arguments, label, mapping, moment, raw

name = "qwen"
version = 2

CHILDREN = 1000
_PLAIN = re.compile(r"[\w-]{1,128}")
_OK = {"success": True, "error": False, "cancelled": False}
_TOKENS = {
    "input": "promptTokenCount",
    "output": "candidatesTokenCount",
    "cached": "cachedContentTokenCount",
    "thoughts": "thoughtsTokenCount",
    "tool": "toolUsePromptTokenCount",
    "total": "totalTokenCount",
}
_OWN_WORDS = ("notification", "cron", "goal_runtime")
_BOOKKEEPING = frozenset({
    "attribution_snapshot", "branch_checkpoint", "file_history_snapshot", "goal_state",
    "session_artifact_event", "session_artifact_snapshot", "session_source", "user_text_elements",
})  # fmt: skip
_ABOUT = {
    "agent_bootstrap": "context", "at_command": "files given", "custom_title": "title",
    "rewind": "rewind", "session_model": "model", "slash_command": "command of the user",
    "turn_result": "end of a turn", "agent_retry": "retry", "agent_launch_prompt": "brief",
}  # fmt: skip


def recognises(source: Source) -> bool:
    if source.lines:
        return any(_is_chat(line) or is_stream(line) for line in source.lines)
    # The first line alone may be longer than what is looked at.
    start = source.head[:2000]
    return start.startswith(b'{"uuid":') and b'"parentUuid":' in start and b'"parts":[' in start


def parts(source: Source) -> Sequence[Path]:
    return [path for child in _children(source) for path in (child.path, child.meta) if path]


def owner(source: Source) -> Path | None:
    first = _first(source)
    session = first.get("sessionId")
    if first.get("isSidechain") is not True or not isinstance(session, str):
        return None
    if not _PLAIN.fullmatch(session):
        return None
    folder = source.path.parent.parent
    for path in (folder.parent / "chats" / f"{session}.jsonl", folder / f"{session}.jsonl"):
        found = _first(source.beside(path))
        if found.get("sessionId") == session and found.get("isSidechain") is not True:
            return path
    return None


def read(source: Source) -> Iterator[Session]:
    builder = Builder(name, version)
    digest = hashlib.sha256(source.head).hexdigest()[:16]
    if any(is_stream(line) for line in source.lines):
        stream = Stream(builder, source)
        for record in source.records():
            stream.take(record)
        yield stream.session(digest)
        return
    chat = _Chat(builder, source)
    for record in source.records():
        chat.take(record, ROOT)
    chat.end()
    about = chat.about
    inside = about.get("isSidechain") is True
    session = label(about.get("sessionId"))
    yield Session(
        id=(label(about.get("agentId")) if inside else session) or digest,
        agent="qwen-code",
        agent_version=label(about.get("version")),
        model=next((model for model, _ in chat.models.most_common(1)), None),
        started=chat.first,
        ended=chat.last,
        exit="crashed" if chat.fault else "finished",
        cause=chat.fault,
        usage=builder.usage(),
        summary=mark_claim(builder),
        directory=label(about.get("cwd")),
        branch=label(about.get("gitBranch")),
        parent=session if inside else chat.parent,
        trace=builder.trace(source.skipped),
    )


def _is_chat(record: object) -> bool:
    found = mapping(record)
    if not isinstance(found.get("uuid"), str) or not isinstance(found.get("sessionId"), str):
        return False
    spoken = isinstance(mapping(found.get("message")).get("parts"), list)
    return "parentUuid" in found and (spoken or "systemPayload" in found)


def _first(source: Source) -> Mapping[str, Any]:
    return next((mapping(line) for line in source.lines if _is_chat(line)), {})


class _Child(NamedTuple):
    """A sub-agent's own file, and what is known of why it was started."""

    path: Path
    meta: Path | None
    agent: str
    kind: str | None
    call: str | None
    brief: str


def _children(source: Source) -> list[_Child]:
    first = _first(source)
    session = first.get("sessionId")
    inside = first.get("isSidechain") is True
    if inside or not isinstance(session, str) or not _PLAIN.fullmatch(session):
        return []
    folder = source.path.parent.parent / "subagents" / session
    try:
        found = sorted(islice(folder.glob("*.jsonl"), CHILDREN))
    except OSError:
        return []
    return [child for path in found if (child := _child(source.beside(path), session))]


def _child(source: Source, session: str) -> _Child | None:
    first = _first(source)
    agent = label(first.get("agentId"))
    if agent is None or first.get("sessionId") != session or first.get("isSidechain") is not True:
        return None
    beside = source.path.with_suffix(".meta.json")
    meta = beside if beside.is_file() else None
    said = mapping(source.beside(beside).document) if meta else {}
    brief = next((words(line.get("message")) for line in source.lines if _is_brief(line)), "")
    kind = label(said.get("agentType")) or label(first.get("agentName"))
    return _Child(source.path, meta, agent, kind, label(said.get("toolUseId")), brief)


def _is_brief(line: object) -> bool:
    return mapping(line).get("type") == "user"


class _Chat:
    """Records as they come, those of sub-agents where they were started."""

    def __init__(self, builder: Builder, source: Source) -> None:
        self.builder = builder
        self.source = source
        self.about: Mapping[str, Any] = {}
        self.models: Counter[str] = Counter()
        self.first: datetime | None = None
        self.last: datetime | None = None
        self.parent: str | None = None
        self._children = _children(source)
        self._rounds = Rounds(builder)
        recorded = {child.agent for child in self._children}
        self._telemetry = Telemetry(builder, source, recorded)
        self._lanes = {ROOT}
        self._copies = 0

    @property
    def fault(self) -> str | None:
        """What the recording ends on, where that is a failure."""
        return self._telemetry.fault

    def take(self, record: object, lane: str) -> None:
        found = mapping(record)
        if not _is_chat(found) and "message" not in found:
            self.builder.note(raw(record), about=f"unknown: {label(found.get('type'))}", lane=lane)
            return
        self.about = self.about or found
        if self._is_copy(found):
            self._copies += 1
            return
        self._tell_copies()
        at = moment(found.get("timestamp"))
        if at is not None:
            self.first = self.first or at
            self.last = at
        kind = found.get("type")
        if kind == "user":
            self._user(found, lane, at)
        elif kind == "assistant":
            self._assistant(found, lane, at)
        elif kind == "tool_result":
            self._result(found, lane)
        elif kind == "system":
            self._system(found, lane, at)
        else:
            self.builder.note(raw(found), about=f"unknown: {label(kind)}", lane=lane, at=at)

    def end(self) -> None:
        """Sub-agents that no call speaks of are told last."""
        self._tell_copies()
        for child in list(self._children):
            self._start(child, ROOT)

    def _is_copy(self, found: Mapping[str, Any]) -> bool:
        """A branch begins with copies of what it leaves: told there, where that file is."""
        origin = mapping(found.get("forkedFrom")).get("sessionId")
        if not isinstance(origin, str) or not _PLAIN.fullmatch(origin):
            return False
        self.parent = origin
        return self.source.path.with_name(f"{origin}.jsonl").is_file()

    def _tell_copies(self) -> None:
        if self._copies:
            are = plural(self._copies, "record is a copy", "records are copies")
            said = f"{are} from session {self.parent}."
            self.builder.note(said, about="fork")
            self._copies = 0

    def _user(self, found: Mapping[str, Any], lane: str, at: datetime | None) -> None:
        self._rounds.close(lane)
        said = shortened(words(found.get("message")), self.source.skipped)
        if not said.strip():
            return
        own = found.get("subtype") in _OWN_WORDS
        self.builder.hear(said, lane=lane, at=at, own=own)

    def _assistant(self, found: Mapping[str, Any], lane: str, at: datetime | None) -> None:
        model = label(found.get("model"))
        if model is not None:
            self.models[model] += 1
        usage = usage_of(found.get("usageMetadata"), _TOKENS)
        took = self._telemetry.waited() if lane == ROOT else None
        turn = self._rounds.turn(lane, Turn(usage=usage, model=model, at=at, seconds=took))
        message = found.get("message")
        for thought in (True, False):
            if said := shortened(words(message, thought), self.source.skipped):
                place: dict[str, Any] = {"number": self.builder.number, "lane": lane, "at": at}
                event = Thought(**place, turn=turn, text=said) if thought else None
                self.builder.add(event or Message(**place, turn=turn, role="agent", text=said))
        for call in calls_in(message):
            self._call(call, Origin(number=self.builder.number, lane=lane, turn=turn, at=at))

    def _call(self, call: Mapping[str, Any], origin: Origin) -> None:
        origin = msgspec.structs.replace(origin, call=label(call.get("id")))
        given = arguments(call.get("args"), self.source.skipped)
        event = self.builder.add(asked(label(call.get("name")) or "unknown", given, origin))
        if not isinstance(event, Handoff):
            return
        for child in self._children:
            if (child.call or child.brief) in (event.call, event.brief):
                self._start(child, event.lane, event)
                return
        if event.lane == ROOT:
            self._telemetry.handed(event.number, label(mapping(given).get("subagent_type")) or "")

    def _start(self, child: _Child, parent: str, event: AnyEvent | None = None) -> None:
        self._children.remove(child)
        if child.agent in self._lanes:
            return
        self._lanes.add(child.agent)
        self.builder.lane(child.agent, parent, child.kind)
        if event is not None:
            self.builder.events[event.number - 1] = msgspec.structs.replace(
                event, child=child.agent
            )
        for record in self.source.beside(child.path).records():
            self.take(record, child.agent)

    def _result(self, found: Mapping[str, Any], lane: str) -> None:
        self._rounds.close(lane)
        said = mapping(found.get("toolCallResult"))
        status, display = said.get("status"), said.get("resultDisplay")
        for response in responses_in(found.get("message")):
            event = self.builder.waiting(lane, response.call or label(said.get("callId")))
            if event is None:
                self.builder.note(raw(found), about="result without a call", lane=lane)
                continue
            ok = _OK.get(status) if isinstance(status, str) else not response.failed
            output = shortened(response.text, self.source.skipped)
            took = amount(said.get("durationMs"))
            seconds = None if took is None else took / 1000
            if lane == ROOT:
                seconds = self._telemetry.seconds(response.name or "") if took is None else seconds
                self._telemetry.settled(event.number)
            settle(self.builder, event, output, ok, display, seconds=seconds)

    def _system(self, found: Mapping[str, Any], lane: str, at: datetime | None) -> None:
        subtype = found.get("subtype")
        payload = mapping(found.get("systemPayload"))
        if subtype == "ui_telemetry":
            self._telemetry.take(mapping(payload.get("uiEvent")), at)
        elif subtype == "chat_compression":
            history = payload.get("compressedHistory")
            kept = "\n".join(words(one) for one in history) if isinstance(history, list) else ""
            said = shortened(kept or raw(payload), self.source.skipped)
            self.builder.note(said, about="compaction", lane=lane, at=at)
        elif subtype == "parent_session":
            self.parent = label(payload.get("parentSessionId")) or self.parent
        elif str(subtype) in _BOOKKEEPING:
            why = f"bookkeeping: {subtype}"
            self.source.skipped[why] = self.source.skipped.get(why, 0) + 1
        else:
            about = _ABOUT.get(str(subtype), f"unknown: {label(subtype)}")
            self.builder.note(raw(payload), about=about, lane=lane, at=at)
