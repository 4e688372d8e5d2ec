"""The parts of OpenCode's messages: what a call starts, how it ended, what an answer used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from closeloop.model.attempt import Usage
from closeloop.model.trace import AnyEvent, Command, Edit, Handoff, Read, ToolUse
from closeloop.traces.calls import Origin, event_of
from closeloop.traces.codex.patches import in_patch
from closeloop.traces.untrusted import amount, count, exit_code, items, mapping, safe, text

TASK = re.compile(r'<task id="([^"]{1,200})" state="(\w+)">')
REPORT = re.compile(r"<task_(?:result|error)>\n?(.*?)\n?</task_(?:result|error)>", re.DOTALL)


def usage_of(tokens: Any, cost: Any) -> Usage:
    """Tokens and cost; nothing but zeros is nothing known."""
    told, cache = mapping(tokens), mapping(mapping(tokens).get("cache"))
    fresh, out = count(told.get("input")), count(told.get("output"))
    reasoning, total = count(told.get("reasoning")), count(told.get("total"))
    read, write = count(cache.get("read")), count(cache.get("write"))
    if not any((fresh, out, reasoning, read, write)):
        return Usage()
    # Newer versions keep reasoning apart from the output, older ones inside it.
    apart = total is not None and total == sum(n or 0 for n in (fresh, out, reasoning, read, write))
    paid = amount(cost) or None
    return Usage(
        input_tokens=fresh,
        output_tokens=(out or 0) + (reasoning or 0) if apart else out,
        cache_read_tokens=read,
        cache_write_tokens=write,
        reasoning_tokens=reasoning or None,
        cost=paid,
        cost_from="reported" if paid else None,
    )


def started(
    name: str, given: dict[str, Any] | None, metadata: Mapping[str, Any], origin: Origin
) -> list[AnyEvent]:
    """What a call starts; a patch edits as many files as it names."""
    if name in ("apply_patch", "patch") and (edits := _edits(given, metadata, origin)):
        return edits
    event = event_of(name, given, origin)
    patched = isinstance(event, Edit) and text(metadata.get("diff"))
    return [msgspec.structs.replace(event, patch=safe(patched, {}))] if patched else [event]


def _edits(
    given: dict[str, Any] | None, metadata: Mapping[str, Any], origin: Origin
) -> list[AnyEvent]:
    """The files that were changed; of what could not be applied, those that it names."""
    files = [mapping(file) for file in items(metadata.get("files"))]
    actions = {"add": "create", "delete": "delete", "move": "move"}
    told = [
        {
            "path": safe(file["filePath"], {}),
            "action": actions.get(str(file.get("type")), "change"),
            "patch": safe(text(file.get("patch")) or text(file.get("diff")), {}),
        }
        for file in files
        if text(file.get("filePath"))
    ]
    written = text(mapping(given).get("patchText"))
    if not told and written:
        told = [file._asdict() for file in in_patch(written)]
    place = msgspec.structs.asdict(origin)
    return [Edit(**{**place, "number": n, **one}) for n, one in enumerate(told, origin.number)]


def _stopped(result: str) -> str | None:
    """What ended a command before its time."""
    if "terminated command after exceeding timeout" in result[-600:]:
        return "out of time"
    return "interrupted" if result == "Tool execution aborted" else None


def finished(
    event: AnyEvent, done: bool | None, result: str | None, metadata: Mapping[str, Any]
) -> AnyEvent:
    """The event with its result; `done` is whether the tool worked, not how a command ended."""
    more: dict[str, Any] = {}
    match event:
        case Command():
            code = exit_code(metadata.get("exit"))
            more = {"output": result, "stopped": _stopped(result or "")}
            if code is not None:
                more |= {"exit_code": code, "exit_from": "stated"}
        case Edit():
            more = {"ok": done, "error": result if done is False else None}
            if event.action == "create" and metadata.get("exists") is True:
                more["action"] = "change"
        case Read():
            display = mapping(metadata.get("display"))
            more = {"ok": done, "error": result if done is False else None}
            if done:
                more |= {
                    "text": result,
                    "first_line": count(display.get("lineStart")),
                    "last_line": count(display.get("lineEnd")),
                }
        case Handoff():
            task = TASK.match(result) if result else None
            if task is None or task[2] != "running":
                found = REPORT.search(result) if result else None
                more = {"report": found[1] if found else result, "ok": done}
        case ToolUse():
            more = {"output": result, "ok": done}
    return msgspec.structs.replace(event, **more) if more else event
