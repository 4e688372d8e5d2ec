"""Copilot CLI's calls and counts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from closeloop.model.attempt import Exit, Usage
from closeloop.model.trace import AnyEvent, Edit, Read, ToolUse
from closeloop.traces.calls import Origin, event_of
from closeloop.traces.codex.patches import in_patch
from closeloop.traces.untrusted import count, mapping, text

_GOES_ON = re.compile(
    r"<command (?:with|started in background with) shellId: ([^\s>]{1,100})(?: is still running|>)"
)
_PATCHED = re.compile(r"^\*\*\* (Add|Update|Delete) File: (.+)$", re.MULTILINE)


def events_for(tool: str, given: dict[str, Any] | None, origin: Origin) -> list[AnyEvent]:
    """What a call starts; a patch may come as bare text, and be of several files."""
    event = _event_for(tool, given, origin)
    files = []
    if tool == "apply_patch" and isinstance(event, ToolUse):
        files = in_patch(text(mapping(given).get("input")) or "")
    place = msgspec.structs.asdict(origin)
    edits = [
        Edit(**place | {"number": number}, **file._asdict())
        for number, file in enumerate(files, origin.number)
    ]
    return [*edits] or [event]


def _event_for(tool: str, given: dict[str, Any] | None, origin: Origin) -> AnyEvent:
    event = event_of(tool, given, origin)
    if tool == "apply_patch" and isinstance(event, ToolUse):
        words = text(mapping(given).get("input")) or text(mapping(given).get("patch")) or ""
        files = _PATCHED.findall(words)
        if len(files) == 1:
            actions = {"Add": "create", "Delete": "delete"}
            return Edit(
                number=origin.number, lane=origin.lane, turn=origin.turn, at=origin.at,
                call=origin.call, path=files[0][1].strip(),
                action=actions.get(files[0][0], "change"), patch=words,  # type: ignore[arg-type]
            )  # fmt: skip
    lines = mapping(given).get("view_range")
    if isinstance(event, Read) and isinstance(lines, list) and len(lines) == 2:
        first, last = count(lines[0]), count(lines[1])
        return msgspec.structs.replace(event, first_line=first, last_line=last)
    return event


def ended_by(error: Mapping[str, Any]) -> Exit:
    """What an error was the end by: the provider's are not the agent's."""
    if error.get("errorType") == "context_limit":
        return "out_of_budget"
    return "machine" if count(error.get("statusCode")) else "crashed"


def shell_in(output: str | None) -> str | None:
    """The shell in which a command goes on, as its result says at the end."""
    found = _GOES_ON.search((output or "")[-1000:])
    return found[1] if found else None


def usage_in(data: Mapping[str, Any]) -> Usage:
    """Counts of a model; nothing but zeros is nothing known. Input includes what was cached."""
    into, out = count(data.get("inputTokens")), count(data.get("outputTokens"))
    read, write = count(data.get("cacheReadTokens")), count(data.get("cacheWriteTokens"))
    if not any((into, out, read, write)):
        return Usage()
    fresh = None if into is None else into - (read or 0) - (write or 0)
    return Usage(
        input_tokens=fresh if fresh is None or fresh >= 0 else into,
        output_tokens=out,
        cache_read_tokens=read,
        cache_write_tokens=write,
        reasoning_tokens=count(data.get("reasoningTokens")) or None,
    )
