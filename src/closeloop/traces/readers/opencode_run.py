"""Output of `opencode run --format json`: finished parts of the root session, one per line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from closeloop.records.protocols import RecordingSource
from closeloop.records.trace import Session
from closeloop.traces.readers.opencode_session import (
    OpencodeFamily,
    OpencodeRecording,
    session_from_opencode,
)
from closeloop.traces.session_builder import count_skip
from closeloop.traces.untrusted_json import as_mapping, as_text

name = "opencode-run"
version = 2

_PART_TYPES = {
    "tool_use": "tool", "step_start": "step-start", "step_finish": "step-finish",
    "text": "text", "reasoning": "reasoning",
}  # fmt: skip


def recognises(source: RecordingSource) -> bool:
    lines = source.lines
    return bool(lines) and all(_is_run_line(line) for line in lines[:3])


def _is_run_line(line: Any) -> bool:
    if not isinstance(line, dict) or as_text(line.get("sessionID")) is None:
        return False
    if line.get("type") == "error":
        return isinstance(line.get("error"), dict)
    kind = _PART_TYPES.get(str(line.get("type")))
    return kind is not None and as_mapping(line.get("part")).get("type") == kind


def read(source: RecordingSource) -> Iterator[Session]:
    # Several runs may have been written into one file.
    sessions: dict[str, dict[str, dict[str, Any]]] = {}
    for record in source.records():
        line = as_mapping(record)
        session = as_text(line.get("sessionID"))
        if session is None:
            count_skip(source.skipped, "a line of no session")
            continue
        _add_line(sessions.setdefault(session, {}), line)
    for session, messages in sessions.items():
        recorded = OpencodeRecording({"id": session}, messages.values())
        yield session_from_opencode(recorded, OpencodeFamily({}, source.skipped), (name, version))


def _add_line(messages: dict[str, dict[str, Any]], line: dict[str, Any]) -> None:
    """Group the lines of one message, whatever is between them."""
    part, time_fields = as_mapping(line.get("part")), {"created": line.get("timestamp")}
    if line.get("type") == "error":
        key = f"error {len(messages)}"
        info = {"role": "assistant", "id": key, "time": time_fields, "error": line.get("error")}
        messages[key] = {"info": info, "parts": []}
        return
    key = as_text(part.get("messageID")) or f"line {len(messages)}"
    if key not in messages:
        messages[key] = {"info": {"role": "assistant", "id": key, "time": time_fields}, "parts": []}
    messages[key]["info"]["time"]["completed"] = line.get("timestamp")
    messages[key]["parts"].append(part or line)
