"""OpenHands' log of model calls: which files of a folder make one dialogue, and what each cost."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from closeloop.records.attempt import Usage
from closeloop.records.protocols import RecordingSource
from closeloop.records.record import Record
from closeloop.text.untrusted import clean_unicode
from closeloop.traces.event_builder import derive_id, openai_content_text, usage_from_openai
from closeloop.traces.file_source import FileSource
from closeloop.traces.untrusted_json import (
    as_amount,
    as_list,
    as_mapping,
    as_text,
    time_from_seconds,
)


class LoggedCall(Record):
    """One call of the model, as far as its place in the dialogue goes."""

    path: Path
    request: str
    """The digest of what the user asked first."""
    messages: int
    opening: bool
    """Nothing was answered before: an attempt begins here."""
    at: datetime | None
    seconds: float | None
    known: str | None
    model: str | None
    usage: Usage


def is_completion_log(told: object) -> bool:
    """Whether a document is one call: what was sent, and what came back."""
    call = as_mapping(told)
    answer = as_mapping(call.get("response"))
    first = as_mapping(next(iter(as_list(call.get("messages"))), None))
    own = "fncall_messages" in call or "kwargs" in call or "raw_messages" in call
    return (
        "role" in first
        and own
        and isinstance(answer.get("choices"), list)
        and "timestamp" in call
        and "cost" in call
    )


def request_messages(call: Mapping[str, Any]) -> list[Any]:
    """The dialogue with its tool calls as such, where calls in text were made from them."""
    for key in ("fncall_messages", "raw_messages", "messages"):
        if isinstance(messages := call.get(key), list) and messages:
            return messages
    return []


def reply_message(call: Mapping[str, Any]) -> dict[str, Any]:
    """The message that came back, with its tool calls where there is such a form of it."""
    for key in ("fncall_response", "response"):
        choices = as_list(as_mapping(call.get(key)).get("choices"))
        if choices and (message := as_mapping(as_mapping(choices[0]).get("message"))):
            return message
    return {}


def parse_logged_call(path: Path, told: object) -> LoggedCall:
    """The facts of one call."""
    call = as_mapping(told)
    messages = [as_mapping(message) for message in request_messages(call)]
    first_request = next(
        (openai_content_text(one.get("content")) for one in messages if one.get("role") == "user"),
        "",
    )
    answer = as_mapping(call.get("response"))
    response_id, model = as_text(answer.get("id")), as_text(answer.get("model"))
    return LoggedCall(
        path=path,
        request=derive_id(first_request),
        messages=len(messages),
        opening=all(one.get("role") != "assistant" for one in messages),
        at=time_from_seconds(call.get("timestamp")),
        seconds=as_amount(call.get("latency_sec")),
        known=clean_unicode(response_id) if response_id else None,
        model=clean_unicode(model) if model else None,
        usage=usage_from_openai(answer.get("usage"), call.get("cost")),
    )


def list_attempt_calls(source: RecordingSource) -> list[LoggedCall]:
    """The calls of the attempt that a file belongs to, in order; the last one holds the most."""
    own_call = parse_logged_call(source.path, source.document)
    try:
        changed = source.path.parent.stat().st_mtime_ns
    except OSError:
        return [own_call]
    attempt_calls: list[LoggedCall] = []
    for other in _calls_in_folder(source.path.parent, changed).get(own_call.request, ()):
        if other.opening and attempt_calls:
            if any(one.path == source.path for one in attempt_calls):
                return attempt_calls
            attempt_calls = []
        attempt_calls.append(other)
    return attempt_calls if any(one.path == source.path for one in attempt_calls) else [own_call]


@lru_cache(maxsize=8)
def _calls_in_folder(folder: Path, changed: int) -> dict[str, list[LoggedCall]]:
    """The calls in a folder by their request, in order: read once, not once for each file."""
    calls: dict[str, list[LoggedCall]] = {}
    try:
        with os.scandir(folder) as entries:
            paths = sorted(folder / entry.name for entry in entries if entry.is_file())
    except OSError:
        return calls
    for path in paths:
        other = FileSource(path)
        document = other.document if b'"messages"' in other.head else None
        if is_completion_log(document):
            logged_call = parse_logged_call(path, document)
            calls.setdefault(logged_call.request, []).append(logged_call)
    for group in calls.values():
        group.sort(key=lambda one: (one.at.timestamp() if one.at else 0.0, one.messages))
    return calls
