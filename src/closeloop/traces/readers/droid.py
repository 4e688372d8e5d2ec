"""Factory's Droid: one message per line; model and tokens in a file beside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from closeloop.records.attempt import Usage
from closeloop.records.protocols import RecordingSource
from closeloop.records.trace import Session
from closeloop.traces.message_parts import MessageLog, MessagePart
from closeloop.traces.session_builder import SessionBuilder, derive_id
from closeloop.traces.untrusted_json import (
    as_count,
    as_mapping,
    as_text,
    json_excerpt,
    make_usage,
    time_from_text,
)

name = "droid"
version = 1

_CALL_NAMES = {"Execute": "bash", "ApplyPatch": "apply_patch"}


def recognises(source: RecordingSource) -> bool:
    if b'"session_start"' not in source.head:
        return False
    records = [as_mapping(line) for line in source.lines]
    return bool(records) and (
        records[0].get("type") == "session_start"
        and isinstance(records[0].get("id"), str)
        and any(
            record.get("type") == "message" and "role" in as_mapping(record.get("message"))
            for record in records[1:]
        )
    )


def parts(source: RecordingSource) -> Sequence[Path]:
    settings = _settings_path(source)
    return [settings] if settings.is_file() else []


def read(source: RecordingSource) -> Iterator[Session]:
    builder = SessionBuilder(name, version, source.skipped)
    settings = as_mapping(
        source.beside(path).document if (path := _settings_path(source)).is_file() else None
    )
    log = MessageLog(builder, change_call=_change_call)
    log.model = builder.text_or_none(settings.get("model"))
    start: dict[str, object] = {}
    for record in source.records():
        fields = as_mapping(record)
        if fields.get("type") == "session_start":
            start = start or fields
        elif fields.get("type") == "message":
            time = time_from_text(fields.get("timestamp"))
            log.add_message(as_mapping(fields.get("message")), time)
        elif fields.get("type") == "compaction_state":
            summary = as_text(fields.get("summaryText")) or json_excerpt(record)
            builder.add_note(summary, "compaction")
        elif fields.get("type") == "todo_state":
            builder.count_skip("todo_state")
        else:
            builder.add_note(json_excerpt(record), f"unknown: {fields.get('type')}"[:100])
    usage = _usage_from_settings(settings.get("tokenUsage"))
    yield builder.build_session(
        id=builder.text_or_none(start.get("id")) or derive_id(name, source.path.name),
        agent=name,
        directory=builder.text_or_none(start.get("cwd")),
        **({"usage": usage} if usage != Usage() else {}),
        **log.session_facts(),
    )


def _settings_path(source: RecordingSource) -> Path:
    return source.path.with_name(f"{source.path.stem}.settings.json")


def _usage_from_settings(record: object) -> Usage:
    """Usage of the whole session; messages have none."""
    fields = as_mapping(record)
    return make_usage(
        as_count(fields.get("inputTokens")),
        as_count(fields.get("outputTokens")),
        read=as_count(fields.get("cacheReadTokens")),
        write=as_count(fields.get("cacheCreationTokens")),
        reasoning=as_count(fields.get("thinkingTokens")),
    )


def _change_call(part: MessagePart) -> MessagePart:
    return part._replace(name=_CALL_NAMES.get(part.name or "", part.name))
