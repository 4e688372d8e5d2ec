"""Kimi CLI's `context.jsonl`: the dialogue with its model, with its own marks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from closeloop.records.protocols import RecordingSource
from closeloop.records.trace import Session
from closeloop.traces.message_parts import MessageLog, MessagePart
from closeloop.traces.session_builder import SessionBuilder, derive_id
from closeloop.traces.untrusted_json import as_mapping, as_text, json_excerpt, text_or_json

name = "kimi"
version = 1

_MARKS = frozenset({"_checkpoint", "_usage", "_system_prompt"})
_MESSAGE_ROLES = frozenset({"user", "assistant", "tool", "system"})
_CALL_NAMES = {
    "ReadFile": "read_file",
    "WriteFile": "write_file",
    "StrReplaceFile": "str_replace",
    "Agent": "task",
}
_FAILED = re.compile(r"\A<system>ERROR: Command failed with exit code: (-?\d{1,10})\.")
_SUCCEEDED = "<system>Command executed successfully."


def recognises(source: RecordingSource) -> bool:
    if not any(marker.encode() in source.head for marker in _MARKS):
        return False
    records = [as_mapping(line) for line in source.lines]
    roles = {str(record.get("role")) for record in records}
    return bool(roles & _MARKS) and roles <= _MARKS | _MESSAGE_ROLES


def read(source: RecordingSource) -> Iterator[Session]:
    builder = SessionBuilder(name, version, source.skipped)
    log = MessageLog(builder, change_call=_change_call, parse_exit_code=_parse_exit_code)
    system: str | None = None
    opening: list[str] = []
    for record in source.records():
        fields = as_mapping(record)
        role = as_text(fields.get("role")) or ""
        if role == "_system_prompt":
            system = system or builder.text_or_none(fields.get("content"))
        elif role in _MARKS:
            builder.count_skip(role)
        elif role in _MESSAGE_ROLES:
            if len(opening) < 4:
                opening.append(text_or_json(fields))
            if role == "tool":
                text = _result_text(fields.get("content"))
                result = {**fields, "content": text}
                log.add_message(result, ok=not text.startswith("<system>ERROR"))
            else:
                log.add_message(fields)
        else:
            builder.add_note(json_excerpt(record), "unknown: record")
    folder = source.path.parent.name
    yield builder.build_session(
        id=derive_id(name, *opening),
        agent=name,
        system=system,
        links={"session": folder} if source.path.name == "context.jsonl" and folder else {},
        **log.session_facts(),
    )


def _result_text(content: object) -> str:
    """Return a tool's answer: its status between tags of the client, then its output."""
    blocks = content if isinstance(content, list) else [content]
    texts = [as_text(block) or as_text(as_mapping(block).get("text")) or "" for block in blocks]
    return "\n".join(text for text in texts if text)


def _parse_exit_code(text: str) -> int | None:
    if failed := _FAILED.match(text):
        return int(failed[1])
    return 0 if text.startswith(_SUCCEEDED) else None


def _change_call(part: MessagePart) -> MessagePart:
    """Convert a call to the common form; of several edits, the first stands for all."""
    arguments = as_mapping(part.arguments)
    if part.name == "StrReplaceFile":
        edits = arguments.get("edit")
        first = as_mapping(edits[0] if isinstance(edits, list) and edits else edits)
        replaced = {"old_str": first.get("old"), "new_str": first.get("new")}
        part = part._replace(arguments={**arguments, **replaced})
    return part._replace(name=_CALL_NAMES.get(part.name or "", part.name))
