"""Copilot CLI's calls and counts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from closeloop.model.attempt import Usage
from closeloop.model.trace import AnyEvent, Edit, Read, ToolUse
from closeloop.traces.calls import Origin, event_of
from closeloop.traces.untrusted import count, mapping, text

_PATCHED = re.compile(r"^\*\*\* (Add|Update|Delete) File: (.+)$", re.MULTILINE)


def event_for(tool: str, given: dict[str, Any] | None, origin: Origin) -> AnyEvent:
    """What a call starts; a patch may come as bare text."""
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
