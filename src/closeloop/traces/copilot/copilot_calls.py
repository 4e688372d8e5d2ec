"""Copilot CLI's calls and counts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from closeloop.records.attempt import Exit, Usage
from closeloop.records.trace import AnyEvent, Edit, Read, ToolUse
from closeloop.traces.codex.codex_patches import files_in_patch
from closeloop.traces.tool_calls import CallOrigin, event_from_call
from closeloop.traces.untrusted_json import as_count, as_mapping, as_text

_RUNNING_SHELL = re.compile(
    r"<command (?:with|started in background with) shellId: ([^\s>]{1,100})(?: is still running|>)"
)
_PATCH_FILE = re.compile(r"^\*\*\* (Add|Update|Delete) File: (.+)$", re.MULTILINE)


def events_from_copilot_call(
    tool: str, given: dict[str, Any] | None, origin: CallOrigin
) -> list[AnyEvent]:
    """What a call starts; a patch may come as bare text, and be of several files."""
    event = _event_from_call(tool, given, origin)
    files = []
    if tool == "apply_patch" and isinstance(event, ToolUse):
        files = files_in_patch(as_text(as_mapping(given).get("input")) or "")
    place = msgspec.structs.asdict(origin)
    edits = [
        Edit(**place | {"number": number}, **file._asdict())
        for number, file in enumerate(files, origin.number)
    ]
    return [*edits] or [event]


def _event_from_call(tool: str, given: dict[str, Any] | None, origin: CallOrigin) -> AnyEvent:
    event = event_from_call(tool, given, origin)
    if tool == "apply_patch" and isinstance(event, ToolUse):
        words = (
            as_text(as_mapping(given).get("input")) or as_text(as_mapping(given).get("patch")) or ""
        )
        files = _PATCH_FILE.findall(words)
        if len(files) == 1:
            actions = {"Add": "create", "Delete": "delete"}
            return Edit(
                number=origin.number, lane=origin.lane, turn=origin.turn, at=origin.at,
                call=origin.call, path=files[0][1].strip(),
                action=actions.get(files[0][0], "change"), patch=words,  # type: ignore[arg-type]
            )  # fmt: skip
    lines = as_mapping(given).get("view_range")
    if isinstance(event, Read) and isinstance(lines, list) and len(lines) == 2:
        first, last = as_count(lines[0]), as_count(lines[1])
        return msgspec.structs.replace(event, first_line=first, last_line=last)
    return event


def exit_from_error(error: Mapping[str, Any]) -> Exit:
    """What an error was the end by: the provider's are not the agent's."""
    if error.get("errorType") == "context_limit":
        return "out_of_budget"
    return "machine" if as_count(error.get("statusCode")) else "crashed"


def running_shell_id(output: str | None) -> str | None:
    """The shell in which a command goes on, as its result says at the end."""
    match = _RUNNING_SHELL.search((output or "")[-1000:])
    return match[1] if match else None


def usage_from_copilot(data: Mapping[str, Any]) -> Usage:
    """Counts of a model; nothing but zeros is nothing known. Input includes what was cached."""
    into, out = as_count(data.get("inputTokens")), as_count(data.get("outputTokens"))
    read, write = as_count(data.get("cacheReadTokens")), as_count(data.get("cacheWriteTokens"))
    if not any((into, out, read, write)):
        return Usage()
    fresh = None if into is None else into - (read or 0) - (write or 0)
    return Usage(
        input_tokens=fresh if fresh is None or fresh >= 0 else into,
        output_tokens=out,
        cache_read_tokens=read,
        cache_write_tokens=write,
        reasoning_tokens=as_count(data.get("reasoningTokens")) or None,
    )
