"""The parts of OpenCode's messages: what a call starts, how it ended, what an answer used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from closeloop.records.attempt import Usage
from closeloop.records.trace import AnyEvent, Command, Edit, Handoff, Read, ToolUse
from closeloop.traces.edit_texts import files_in_patch
from closeloop.traces.provider_values import make_usage
from closeloop.traces.tool_calls import CallOrigin, event_from_call
from closeloop.traces.untrusted_json import (
    as_amount,
    as_count,
    as_exit_code,
    as_list,
    as_mapping,
    as_text,
    storable_value,
)

TASK_TAG = re.compile(r'<task id="([^"]{1,200})" state="(\w+)">')
REPORT_TAG = re.compile(r"<task_(?:result|error)>\n?(.*?)\n?</task_(?:result|error)>", re.DOTALL)


def usage_from_opencode(tokens: Any, cost: Any) -> Usage:
    """Tokens and cost; nothing but zeros is nothing known."""
    token_fields, cache = as_mapping(tokens), as_mapping(as_mapping(tokens).get("cache"))
    fresh, out = as_count(token_fields.get("input")), as_count(token_fields.get("output"))
    reasoning, total = as_count(token_fields.get("reasoning")), as_count(token_fields.get("total"))
    read, write = as_count(cache.get("read")), as_count(cache.get("write"))
    if not any((fresh, out, reasoning, read, write)):
        return Usage()
    # Newer versions keep reasoning apart from the output, older ones inside it.
    apart = total is not None and total == sum(n or 0 for n in (fresh, out, reasoning, read, write))
    paid = as_amount(cost) or None
    out = (out or 0) + (reasoning or 0) if apart else out
    reasoning = reasoning or None
    return make_usage(fresh, out, read=read, write=write, reasoning=reasoning, cost=paid)


def events_from_opencode_call(
    name: str, given: dict[str, Any] | None, metadata: Mapping[str, Any], origin: CallOrigin
) -> list[AnyEvent]:
    """What a call starts; a patch edits as many files as it names."""
    if name in ("apply_patch", "patch") and (edits := _patch_edits(given, metadata, origin)):
        return edits
    event = event_from_call(name, given, origin)
    patched = isinstance(event, Edit) and as_text(metadata.get("diff"))
    return (
        [msgspec.structs.replace(event, patch=storable_value(patched, {}))] if patched else [event]
    )


def _patch_edits(
    given: dict[str, Any] | None, metadata: Mapping[str, Any], origin: CallOrigin
) -> list[AnyEvent]:
    """The files that were changed; of what could not be applied, those that it names."""
    files = [as_mapping(file) for file in as_list(metadata.get("files"))]
    actions = {"add": "create", "delete": "delete", "move": "move"}
    file_edits = [
        {
            "path": storable_value(file["filePath"], {}),
            "action": actions.get(str(file.get("type")), "change"),
            "patch": storable_value(as_text(file.get("patch")) or as_text(file.get("diff")), {}),
        }
        for file in files
        if as_text(file.get("filePath"))
    ]
    written = as_text(as_mapping(given).get("patchText"))
    if not file_edits and written:
        file_edits = [file._asdict() for file in files_in_patch(written)]
    place = msgspec.structs.asdict(origin)
    return [
        Edit(**{**place, "number": n, **one}) for n, one in enumerate(file_edits, origin.number)
    ]


def _stop_reason(result: str) -> str | None:
    """What ended a command before its time."""
    if "terminated command after exceeding timeout" in result[-600:]:
        return "out of time"
    return "interrupted" if result == "Tool execution aborted" else None


def finish_opencode_call(
    event: AnyEvent, done: bool | None, result: str | None, metadata: Mapping[str, Any]
) -> AnyEvent:
    """The event with its result; `done` is whether the tool worked, not how a command ended."""
    event_fields: dict[str, Any] = {}
    match event:
        case Command():
            code = as_exit_code(metadata.get("exit"))
            event_fields = {"output": result, "stopped": _stop_reason(result or "")}
            if code is not None:
                event_fields |= {"exit_code": code, "exit_from": "stated"}
        case Edit():
            event_fields = {"ok": done, "error": result if done is False else None}
            if event.action == "create" and metadata.get("exists") is True:
                event_fields["action"] = "change"
        case Read():
            display = as_mapping(metadata.get("display"))
            event_fields = {"ok": done, "error": result if done is False else None}
            if done:
                event_fields |= {
                    "text": result,
                    "first_line": as_count(display.get("lineStart")),
                    "last_line": as_count(display.get("lineEnd")),
                }
        case Handoff():
            task = TASK_TAG.match(result) if result else None
            if task is None or task[2] != "running":
                report = REPORT_TAG.search(result) if result else None
                event_fields = {"report": report[1] if report else result, "ok": done}
        case ToolUse():
            event_fields = {"output": result, "ok": done}
    return msgspec.structs.replace(event, **event_fields) if event_fields else event
