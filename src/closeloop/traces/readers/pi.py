"""pi's sessions: entries that form a tree; and what it prints with `--mode json`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import msgspec

from closeloop.model.attempt import Usage
from closeloop.model.plural import plural
from closeloop.model.protocols import Source
from closeloop.model.session import Session
from closeloop.model.trace import Command, Edit, Handoff, Message, Read, Thought, Turn
from closeloop.traces import single
from closeloop.traces.builder import ROOT, Builder
from closeloop.traces.calls import Origin, event_of
from closeloop.traces.results import mark_claim, mark_corrections, result_of
from closeloop.traces.texts import shortened
from closeloop.traces.untrusted import (
    amount,
    arguments,
    count,
    items,
    label,
    mapping,
    millis,
    moment,
    raw,
    text,
)

name = "pi"
version = 2
parts, owner = single.parts, single.owner

_REPEATS = frozenset({
    "agent_start", "agent_end", "turn_start", "turn_end", "message_start", "message_update",
    "tool_execution_start", "tool_execution_update", "tool_execution_end", "queue_update",
})  # fmt: skip
"""What is printed as it happens and told whole by a `message_end`."""
_NOTES = {
    "model_change": ("model", "modelId"),
    "thinking_level_change": ("thinking level", "thinkingLevel"),
    "compaction": ("compaction", "summary"), "branch_summary": ("branch summary", "summary"),
    "session_info": ("title", "name"), "label": ("label", "label"),
    "compactionSummary": ("compaction", "summary"), "branchSummary": ("branch summary", "summary"),
    "auto_retry_start": ("retry", "errorMessage"), "auto_retry_end": ("retry", "finalError"),
    "custom": ("extension", "customType"),
}  # fmt: skip
_EXIT = re.compile(r"Command exited with code (\d{1,10})\s*\Z")
_TIMEOUT = re.compile(r"Command timed out after \S+ seconds\s*\Z")


def recognises(source: Source) -> bool:
    return bool(source.lines) and _is_header(source.lines[0])


def read(source: Source) -> Iterator[Session]:
    teller = _Teller(source)
    for record in source.records():
        teller.take(record)
    builder, header = teller.builder, teller.header
    mark_corrections(builder)
    yield Session(
        id=label(header.get("id")) or "unknown",
        agent="pi",
        model=next((model for model, _ in teller.models.most_common(1)), None),
        started=teller.first or moment(header.get("timestamp")),
        ended=teller.last,
        exit="crashed" if teller.fault else "finished",
        cause=teller.fault,
        usage=builder.usage(),
        summary=mark_claim(builder),
        directory=label(header.get("cwd")),
        parent=_forked_from(header)[1],
        copy="printed" if teller.printed else None,
        trace=builder.trace(source.skipped),
    )


def _is_header(record: object) -> bool:
    found = mapping(record)
    needed = (found.get(key) for key in ("id", "timestamp", "cwd"))
    return found.get("type") == "session" and all(isinstance(value, str) for value in needed)


def _forked_from(header: Mapping[str, Any]) -> tuple[PurePosixPath | None, str | None]:
    """The file this session began as a copy of, and the id in its name."""
    given = text(header.get("parentSession"))
    if given is None or len(given) > 4000:
        return None, None
    path = PurePosixPath(PureWindowsPath(given).as_posix())
    return path, label(path.stem.rpartition("_")[2])


class _Teller:
    """Entries as they come, in the file's order: what was left by a branch happened too."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.builder = Builder(name, version)
        self.header: Mapping[str, Any] = {}
        self.models: Counter[str] = Counter()
        self.first: datetime | None = None
        self.last: datetime | None = None
        self.fault: str | None = None
        self.printed = False
        self._leaf: object = None
        self._born: datetime | None = None
        self._copies = 0

    def take(self, record: object) -> None:
        found = mapping(record)
        kind = found.get("type")
        if kind == "session":
            self._begin(found)
            return
        at = moment(found.get("timestamp"))
        if self._born is not None and at is not None and at < self._born:
            self._copies += 1
            self._leaf = found.get("id")
            return
        self._tell_copies()
        self._step(found, at)
        if at is not None:
            self._time(at)
        self.printed = self.printed or kind == "message_end"
        if kind in ("message", "message_end"):
            self._message(mapping(found.get("message")), ROOT, at)
        elif kind == "custom_message":
            self._message({**found, "role": "custom"}, ROOT, at)
        elif str(kind) not in _REPEATS:
            self._note(found, str(kind), ROOT, at)

    def _begin(self, header: Mapping[str, Any]) -> None:
        self.header = self.header or header
        path, parent = _forked_from(header)
        if path is None or parent is None:
            return
        folder = self.source.path.parent
        beside = (folder / path.name, folder.parent / path.parent.name / path.name)
        try:
            if any(file.is_file() and file != self.source.path for file in beside):
                # A fork begins with copies: they are told where they happened.
                self._born = moment(header.get("timestamp"))
        except (OSError, ValueError):
            return

    def _time(self, at: datetime) -> None:
        self.first = at if self.first is None else min(at, self.first)
        self.last = at if self.last is None else max(at, self.last)

    def _tell_copies(self) -> None:
        if self._copies:
            are = plural(self._copies, "entry is a copy", "entries are copies")
            said = f"{are} from {self.header.get('parentSession')}."
            self.builder.note(shortened(said), about="fork")
            self._copies = 0

    def _step(self, found: Mapping[str, Any], at: datetime | None) -> None:
        """An entry that does not follow the last one begins a branch."""
        if "parentId" not in found:
            return
        if found["parentId"] != self._leaf and self._leaf is not None:
            said = f"The session goes on from {raw(found['parentId'])}, not from {raw(self._leaf)}."
            self.builder.note(said, about="rewind", at=at)
        self._leaf = found.get("id")

    def _note(self, found: Mapping[str, Any], kind: str, lane: str, at: datetime | None) -> None:
        about, key = _NOTES.get(kind, (f"unknown: {shortened(kind, most=100)}", ""))
        said = text(found.get(key))
        self.builder.note(
            shortened(said, self.source.skipped) if said else raw(found),
            about=about,
            lane=lane,
            at=at,
        )

    def _message(self, message: Mapping[str, Any], lane: str, at: datetime | None) -> None:
        at = at or millis(message.get("timestamp"))
        if at is not None:
            self._time(at)
        role = message.get("role")
        if role == "user":
            self._user(message, lane, at)
        elif role == "assistant":
            self._assistant(message, lane, at)
        elif role == "toolResult":
            self._result(message, lane)
        elif role == "bashExecution":
            self._own_command(message, lane, at)
        elif role in ("custom", "hookMessage"):
            said = shortened(_words(message.get("content")), self.source.skipped)
            about = f"extension: {label(message.get('customType')) or 'unknown'}"
            self.builder.note(said, about=shortened(about, most=200), lane=lane, at=at)
        else:
            self._note(message, str(role), lane, at)

    def _user(self, message: Mapping[str, Any], lane: str, at: datetime | None) -> None:
        said = shortened(_words(message.get("content")), self.source.skipped)
        self.builder.hear(said, lane=lane, at=at, asks=not said.startswith("/"))
        if lane == ROOT:
            self.fault = None

    def _own_command(self, message: Mapping[str, Any], lane: str, at: datetime | None) -> None:
        """What the user ran, not the agent."""
        said = f"$ {text(message.get('command')) or ''}\n{text(message.get('output')) or ''}"
        code = count(message.get("exitCode"))
        if code is not None:
            said += f"\nexit code {code}"
        said = shortened(said, self.source.skipped)
        self.builder.note(said, about="command of the user", lane=lane, at=at)

    def _assistant(self, message: Mapping[str, Any], lane: str, at: datetime | None) -> None:
        builder, skipped = self.builder, self.source.skipped
        model = label(message.get("model"))
        if model is not None:
            self.models[model] += 1
        begun = millis(message.get("timestamp"))
        turn = builder.turn(lane, Turn(usage=_usage(message.get("usage")), model=model, at=begun))
        for block in items(message.get("content")):
            found = mapping(block)
            kind = found.get("type")
            place: dict[str, Any] = {
                "number": builder.number, "lane": lane, "turn": turn, "at": at,
            }  # fmt: skip
            if kind == "text" and (said := text(found.get("text"))):
                builder.add(Message(**place, role="agent", text=shortened(said, skipped)))
            elif kind == "thinking" and (said := text(found.get("thinking"))):
                builder.add(Thought(**place, text=shortened(said, skipped)))
            elif kind == "toolCall":
                self._call(found, Origin(**place, call=label(found.get("id"))))
        self._ended(message, lane, at)

    def _ended(self, message: Mapping[str, Any], lane: str, at: datetime | None) -> None:
        stop = message.get("stopReason")
        said = shortened(text(message.get("errorMessage")) or "", self.source.skipped)
        if stop == "aborted":
            number = self.builder.number
            said = said or "Request was aborted"
            self.builder.add(
                Message(number=number, lane=lane, at=at, role="user", text=said, intent="interrupt")
            )
        elif stop in ("error", "length"):
            self.builder.note(said or str(stop), about=str(stop), lane=lane, at=at)
        if lane == ROOT:
            self.fault = (said or "error") if stop == "error" else None

    def _call(self, call: Mapping[str, Any], origin: Origin) -> None:
        given = arguments(call.get("arguments"), self.source.skipped)
        event = event_of(label(call.get("name")) or "unknown", given, origin)
        if isinstance(event, Read) and given is not None:
            first, limit = count(given.get("offset")), count(given.get("limit"))
            last = None if limit is None else (first or 1) + limit - 1
            event = msgspec.structs.replace(event, first_line=first, last_line=last)
        self.builder.add(event)

    def _result(self, message: Mapping[str, Any], lane: str) -> None:
        event = self.builder.waiting(lane, label(message.get("toolCallId")))
        if event is None:
            self.builder.note(raw(message), about="result without a call", lane=lane)
            return
        output = shortened(_words(message.get("content")), self.source.skipped)
        failed = message.get("isError")
        ok = None if not isinstance(failed, bool) else not failed
        details = mapping(message.get("details"))
        if isinstance(event, Command):
            result = {"output": output, **_exit(output, ok)}
        else:
            result = result_of(event, output, ok)
        if isinstance(event, Edit) and (patch := text(details.get("diff"))):
            result["patch"] = shortened(patch, self.source.skipped)
        elif isinstance(event, Handoff):
            self._children(event, details)
            event = self.builder.events[event.number - 1]
        self.builder.finish(event, **result)
        if isinstance(event, Message) and event.intent == "question":
            at = millis(message.get("timestamp"))
            self.builder.hear(output, lane=lane, at=at, intent="answer")

    def _children(self, event: Handoff, details: Mapping[str, Any]) -> None:
        """The sub-agents of pi's own extension: their messages are part of the call's result."""
        for place, one in enumerate(items(details.get("results"))):
            messages = items(mapping(one).get("messages"))
            if not messages or event.lane != ROOT:
                continue
            lane = f"{event.number}-{place + 1}"
            self.builder.lane(lane, event.lane, label(mapping(one).get("agent")))
            if place == 0:
                known = msgspec.structs.replace(event, child=lane)
                self.builder.events[event.number - 1] = known
            for message in messages:
                self._message(mapping(message), lane, None)


def _words(content: object) -> str:
    if isinstance(content, str):
        return content
    said = []
    for block in items(content):
        found = mapping(block)
        if found.get("type") == "image":
            said.append(f"[{label(found.get('mimeType')) or 'image'}]")
        elif isinstance(found.get("text"), str):
            said.append(found["text"])
    return "\n".join(said)


def _usage(value: object) -> Usage:
    found = mapping(value)
    counts = [count(found.get(key)) for key in ("input", "output", "cacheRead", "cacheWrite")]
    if not any(counts):
        return Usage()
    cost = amount(mapping(found.get("cost")).get("total")) or None
    return Usage(
        input_tokens=counts[0],
        output_tokens=counts[1],
        cache_read_tokens=counts[2],
        cache_write_tokens=counts[3],
        cost=cost,
        cost_from=None if cost is None else "reported",
    )


def _exit(output: str, ok: bool | None) -> dict[str, object]:
    """pi fails a command that does not end with 0, and says with what it ended."""
    if ok:
        return {"exit_code": 0, "exit_from": "parsed"}
    if found := _EXIT.search(output[-200:]):
        return {"exit_code": int(found[1]), "exit_from": "parsed"}
    stopped = "out of time" if _TIMEOUT.search(output[-200:]) else None
    return {"exit_code": None, "exit_from": None, "stopped": stopped}
