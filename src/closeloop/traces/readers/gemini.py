"""Gemini CLI's sessions: a JSON document, or a log of patches to one, with sub-agents beside it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from closeloop.model.plural import plural
from closeloop.model.protocols import Source
from closeloop.model.session import Session
from closeloop.model.trace import AnyEvent, Handoff, Message, Thought, Turn
from closeloop.traces.builder import ROOT, Builder
from closeloop.traces.calls import Origin
from closeloop.traces.contents import (
    asked,
    calls_in,
    interrupt,
    responses_in,
    settle,
    told,
    usage_of,
    words,
)
from closeloop.traces.results import mark_claim, mark_corrections
from closeloop.traces.texts import shortened
from closeloop.traces.untrusted import arguments, items, label, mapping, moment, raw, text

name = "gemini"
version = 2

CHILDREN = 1000
_TOKENS = {name: name for name in ("input", "output", "cached", "thoughts", "tool", "total")}
_ABOUT = frozenset({"sessionId", "projectHash", "startTime", "lastUpdated", "kind", "directories",
                    "messages"})  # fmt: skip
_OWN_WORDS = ("<session_context>", "System: Please continue.", "Please continue.")
_DIRECTORY = re.compile(r"(?:Workspace Directories:\*\*\n  - |working in the directory: )(.+)")
_PLAIN = re.compile(r"[\w-]{1,128}")
_OK = {"success": True, "error": False, "cancelled": False}


def recognises(source: Source) -> bool:
    return bool(_header(source))


def parts(source: Source) -> Sequence[Path]:
    header = _header(source)
    return () if header.get("kind") == "subagent" else tuple(_children(source, header).values())


def owner(source: Source) -> Path | None:
    folder = source.path.parent
    if _header(source).get("kind") != "subagent" or not _PLAIN.fullmatch(folder.name):
        return None
    try:
        # The name only says where to look: the content decides.
        found = sorted(islice(folder.parent.glob(f"*{folder.name[:8]}*.json*"), 20))
    except OSError:
        return None
    for path in found:
        header = _header(source.beside(path))
        if header.get("sessionId") == folder.name and header.get("kind") != "subagent":
            return path
    return None


def read(source: Source) -> Iterator[Session]:
    log = _played(source)
    about = log.about
    builder = Builder(name, version)
    teller = _Teller(builder, source, _children(source, about))
    teller.tell(log, ROOT)
    teller.tell_the_rest()
    mark_corrections(builder)
    digest = hashlib.sha256(source.head).hexdigest()[:16]
    yield Session(
        id=label(about.get("sessionId")) or digest,
        agent="gemini-cli",
        model=max(teller.models, key=lambda model: teller.models[model], default=None),
        started=moment(about.get("startTime")) or teller.first,
        ended=max(filter(None, (moment(about.get("lastUpdated")), teller.last)), default=None),
        exit="crashed" if teller.fault else "finished",
        cause=teller.fault,
        usage=builder.usage(),
        summary=mark_claim(builder),
        directory=_directory(about) or teller.directory,
        parent=_parent(source, about),
        trace=builder.trace(source.skipped),
    )


def _header(source: Source) -> Mapping[str, Any]:
    """The record that names the session; empty where there is none."""
    if b'"projectHash"' not in source.head or b'"sessionId"' not in source.head:
        return {}
    for found in source.lines or [source.document]:
        if (
            isinstance(found, dict)
            and isinstance(found.get("sessionId"), str)
            and isinstance(found.get("projectHash"), str)
            and "uuid" not in found
        ):
            return found
    return {}


def _children(source: Source, header: Mapping[str, Any]) -> dict[str, Path]:
    session = header.get("sessionId")
    if not isinstance(session, str) or not _PLAIN.fullmatch(session):
        return {}
    try:
        found = sorted(islice((source.path.parent / session).iterdir(), CHILDREN))
    except OSError:
        return {}
    children: dict[str, Path] = {}
    for path in found:
        child = _header(source.beside(path))
        if child.get("kind") == "subagent" and path != source.path:
            children.setdefault(label(child["sessionId"]) or path.stem, path)
    return children


def _directory(about: Mapping[str, Any]) -> str | None:
    listed = items(about.get("directories"))
    return shortened(listed[0]) if listed and isinstance(listed[0], str) else None


def _parent(source: Source, about: Mapping[str, Any]) -> str | None:
    folder = source.path.parent.name
    inside = about.get("kind") == "subagent" and re.fullmatch(r"[0-9a-f]{8}-[0-9a-f-]{27}", folder)
    return folder if inside else None


class _Log:
    """A session's patches, played to their end: every message once, as it was last written."""

    def __init__(self) -> None:
        self.about: dict[str, Any] = {}
        self.entries: list[dict[str, Any] | tuple[str, str]] = []
        """Messages, and between them what notes are about and say."""
        self._places: dict[str, int] = {}
        self._order: list[str] = []

    def play(self, record: object) -> None:
        found = mapping(record)
        if isinstance(found.get("$rewindTo"), str):
            self._rewind(found["$rewindTo"])
        elif isinstance(found.get("id"), str):
            self._write(found)
        elif isinstance(found.get("$set"), dict):
            self._set(found["$set"])
        elif "sessionId" in found:
            self._set(found)
        else:
            self.entries.append(("unknown: record", raw(record)))

    def _write(self, message: dict[str, Any]) -> None:
        key = message["id"]
        place = self._places.get(key)
        if place is not None and isinstance(self.entries[place], dict):
            self.entries[place] = message
            return
        if place is None:
            self._order.append(key)
        self._places[key] = len(self.entries)
        self.entries.append(message)

    def _rewind(self, target: str) -> None:
        kept = len(self._order)
        while self._order:
            key = self._order.pop()
            self._places.pop(key, None)
            if key == target:
                break
        gone = kept - len(self._order)
        were = plural(gone, "message was", "messages were")
        self.entries.append(("rewind", f"{were} taken back, to before {target}."))

    def _set(self, found: dict[str, Any]) -> None:
        self.about |= {key: found[key] for key in _ABOUT & found.keys() if key != "messages"}
        if isinstance(found.get("messages"), list):
            self._checkpoint(
                [m for m in found["messages"] if isinstance(mapping(m).get("id"), str)]
            )
        for key in found.keys() - _ABOUT:
            known = key in ("summary", "memoryScratchpad")
            said = found[key] if isinstance(found[key], str) else raw(found[key])
            self.entries.append((key if known else f"unknown: {key}", said))

    def _checkpoint(self, messages: Sequence[dict[str, Any]]) -> None:
        """The history the model will see from now on: what leaves it happened all the same."""
        kept = dict.fromkeys(message["id"] for message in messages)
        gone = [key for key in self._order if key not in kept and self._is_talk(key)]
        new = [message for message in messages if message["id"] not in self._places]
        self._order = [key for key in kept if key in self._places]
        if gone:
            said = "\n".join(filter(None, (words(message.get("content")) for message in new)))
            left = f"{plural(len(gone), 'message')} left the context."
            about = "compaction" if said else "context"
            self.entries.append((about, f"{left}\n{said}" if said else left))
            self._places |= {message["id"]: len(self.entries) - 1 for message in new}
            self._order = list(kept)
            return
        for message in new:
            self._write(message)

    def _is_talk(self, key: str) -> bool:
        return mapping(self.entries[self._places[key]]).get("type") in ("user", "gemini")


def _played(source: Source) -> _Log:
    log = _Log()
    if source.lines:
        for record in source.records():
            log.play(record)
    else:
        log.play(source.document)
    return log


class _Teller:
    """Tells the messages of a session and of its sub-agents as events."""

    def __init__(self, builder: Builder, source: Source, children: dict[str, Path]) -> None:
        self.builder = builder
        self.source = source
        self.children = children
        self.models: dict[str, int] = {}
        self.first: datetime | None = None
        self.last: datetime | None = None
        self.fault: str | None = None
        self.directory: str | None = None

    def tell(self, log: _Log, lane: str) -> None:
        for entry in log.entries:
            if isinstance(entry, tuple):
                about, said = entry
                self.builder.note(shortened(said, self.source.skipped), about=about, lane=lane)
                continue
            at = moment(entry.get("timestamp"))
            if at is not None:
                self.first = self.first or at
                self.last = at
            kind = entry.get("type")
            if kind == "user":
                self._user(entry, lane, at)
            elif kind == "gemini":
                self._agent(entry, lane, at)
            elif kind in ("info", "error", "warning"):
                self._notice(entry, lane, at)
            else:
                self.builder.note(raw(entry), about=f"unknown: {label(kind)}", lane=lane, at=at)

    def tell_the_rest(self) -> None:
        """Sub-agents that no recorded call speaks of: their call was never finished."""
        for child in list(self.children):
            self._child(child, ROOT, None)

    def _child(self, child: str, parent: str, agent: str | None) -> bool:
        path = self.children.pop(child, None)
        if path is None or child == ROOT:
            return False
        self.builder.lane(child, parent, agent)
        self.tell(_played(self.source.beside(path)), child)
        return True

    def _user(self, message: Mapping[str, Any], lane: str, at: datetime | None) -> None:
        content = message.get("content")
        for response in responses_in(content):
            # Most are copies: their call has its result already.
            event = self.builder.waiting(lane, response.call)
            if event is not None:
                output = shortened(response.text, self.source.skipped)
                settle(self.builder, event, output, not response.failed)
        said = shortened(words(content), self.source.skipped)
        if not said.strip():
            return
        own = said.startswith(_OWN_WORDS)
        if own and self.directory is None and (found := _DIRECTORY.search(said)):
            self.directory = found[1].strip()
        self.builder.hear(said, lane=lane, at=at, own=own, asks=not said.startswith("/"))
        self.fault = None

    def _notice(self, message: Mapping[str, Any], lane: str, at: datetime | None) -> None:
        said = shortened(words(message.get("content")), self.source.skipped)
        kind = message["type"]
        if said in ("Request cancelled.", "User cancelled the request."):
            interrupt(self.builder, said, lane, at)
            return
        if kind == "error" and lane == ROOT:
            self.fault = said
        self.builder.note(said, about=kind, lane=lane, at=at)

    def _agent(self, message: Mapping[str, Any], lane: str, at: datetime | None) -> None:
        builder, skipped = self.builder, self.source.skipped
        model = label(message.get("model"))
        if model is not None:
            self.models[model] = self.models.get(model, 0) + 1
        usage = usage_of(message.get("tokens"), _TOKENS)
        turn = builder.turn(lane, Turn(usage=usage, model=model, at=at))
        content = message.get("content")
        thoughts = [_thought(one) for one in items(message.get("thoughts"))]
        for said, when in thoughts or [(words(content, thought=True), None)]:
            if said:
                thought = shortened(said, skipped)
                place: dict[str, Any] = {"number": builder.number, "lane": lane, "turn": turn}
                builder.add(Thought(**place, at=when or at, text=thought))
        if said := shortened(words(content), skipped):
            place = {"number": builder.number, "lane": lane, "turn": turn}
            builder.add(Message(**place, at=at, role="agent", text=said))
            self.fault = None if lane == ROOT else self.fault
        done = [call for call in items(message.get("toolCalls")) if isinstance(call, dict)]
        for call in done:
            self._call(call, lane, turn, at)
        known = {str(call.get("id")) for call in done}
        for wanted in calls_in(content):
            if str(wanted.get("id")) not in known:
                self._call(wanted, lane, turn, at)

    def _call(self, call: Mapping[str, Any], lane: str, turn: int, at: datetime | None) -> None:
        builder, skipped = self.builder, self.source.skipped
        called = label(call.get("name")) or "unknown"
        given = arguments(call.get("args"), skipped)
        origin = Origin(
            number=builder.number, lane=lane, turn=turn, at=at, call=label(call.get("id"))
        )
        event = builder.add(_event(called, given, call, origin))
        status = str(call.get("status"))
        child = label(call.get("agentId"))
        if isinstance(event, Handoff) and child is not None:
            agent = label(mapping(given).get("agent_name")) or called
            if self._child(child, lane, agent):
                event = builder.finish(event, child=child)
        result = call.get("result")
        if result is None and status not in _OK:
            return
        found = next(iter(responses_in(result)), None)
        output = found.text if found is not None else told(result)[0] or words(result)
        shown = call.get("resultDisplay")
        settle(builder, event, shortened(output, skipped), _OK.get(status), shown)


def _thought(thought: object) -> tuple[str, datetime | None]:
    found = mapping(thought)
    said = [text(found.get(key)) for key in ("subject", "description")]
    return "\n".join(filter(None, said)), moment(found.get("timestamp"))


def _event(
    called: str, given: dict[str, Any] | None, call: Mapping[str, Any], origin: Origin
) -> AnyEvent:
    """An agent's own tools: any of them may be a sub-agent, and one says that the work is done."""
    if called == "complete_task" and given is not None:
        result = given.get("result", given)
        said = result.get("response") if isinstance(result, dict) else result
        claimed = said if isinstance(said, str) else raw(result)
        place = {key: getattr(origin, key) for key in ("number", "lane", "turn", "at", "call")}
        return Message(**place, role="agent", text=claimed, intent="claim")
    if not _is_agent(call):
        return asked(called, given, origin)
    event = asked("invoke_agent", given, origin)
    if not isinstance(event, Handoff):
        brief = next((one for one in (given or {}).values() if isinstance(one, str)), "")
        return Handoff(**msgspec.structs.asdict(origin), brief=brief)
    return event


def _is_agent(call: Mapping[str, Any]) -> bool:
    """Whether a tool is a sub-agent, whatever it is called; the older ones only say so."""
    shown = call.get("resultDisplay")
    says = isinstance(shown, str) and shown.lstrip().startswith("Subagent ")
    return says or "agentId" in call or mapping(shown).get("isSubagentProgress") is True
