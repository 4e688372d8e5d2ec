"""Cursor's transcripts: lines of role and message, mostly without ids, times and results."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from closeloop.records.protocols import RecordingSource
from closeloop.records.trace import Session
from closeloop.traces.message_parts import MessageLog, MessagePart
from closeloop.traces.session_builder import SessionBuilder, derive_id
from closeloop.traces.tool_calls import has_result
from closeloop.traces.untrusted_json import as_mapping, json_excerpt, text_or_json, time_from_text

name = "cursor"
version = 1

_OTHER_KEYS = frozenset({"type", "uuid", "sessionId"})
"""Keys of other agents' lines."""
_CALL_NAMES = {"StrReplace": "str_replace", "ApplyPatch": "apply_patch"}
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def recognises(source: RecordingSource) -> bool:
    if b'"message"' not in source.head or b'"role"' not in source.head:
        return False
    first = as_mapping(next(iter(source.lines), None))
    return (
        first.get("role") in ("user", "assistant")
        and first.keys().isdisjoint(_OTHER_KEYS)
        and isinstance(as_mapping(first.get("message")).get("content"), list)
        and "role" not in first["message"]
    )


def read(source: RecordingSource) -> Iterator[Session]:
    builder = SessionBuilder(name, version, source.skipped)
    log = MessageLog(builder, change_call=_change_call)
    opening: list[str] = []
    for record in source.records():
        fields = as_mapping(record)
        message = as_mapping(fields.get("message"))
        if fields.get("role") in ("user", "assistant") and message:
            if len(opening) < 2:
                opening.append(text_or_json(message.get("content")))
            time = time_from_text(fields.get("timestamp"))
            log.add_message({**message, "role": fields["role"]}, time)
        elif fields.get("type") == "turn_ended":
            builder.count_skip("turn_ended")
        else:
            builder.add_note(json_excerpt(record), "unknown: record")
    stem = source.path.stem
    facts: dict[str, Any] = log.session_facts()
    if facts["exit"] == "crashed" and not _holds_results(builder):
        # Transcripts usually lack all results.
        facts |= {"exit": "finished", "cause": None}
    yield builder.build_session(
        id=stem if _UUID.fullmatch(stem) else derive_id(name, *opening), agent=name, **facts
    )


def _holds_results(builder: SessionBuilder) -> bool:
    return any(has_result(event) for event in builder.events)


def _change_call(part: MessagePart) -> MessagePart:
    return part._replace(name=_CALL_NAMES.get(part.name or "", part.name))
