"""Take secrets out of bodies that are to be kept, also where a stream brings them in parts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from closeloop.records.provider_streams import read_provider_reply
from closeloop.records.secret_search import find_secrets, redact_secrets

_BLANK_LINE = re.compile(rb"(\r?\n\r?\n)")
TextPath = tuple[Any, ...]


def redact_body(body: bytes) -> bytes:
    """A body without secrets."""
    return redact_secrets(body, {})


def redact_stream(body: bytes) -> bytes:
    """A stream without secrets; where one came in parts, its first part says what it was."""
    body = redact_secrets(body, {})
    answer = read_provider_reply(body).answer
    if answer is None or next(find_secrets(msgspec.json.encode(answer)), None) is None:
        return body
    blocks = _BLANK_LINE.split(body)
    events = {
        at: data
        for at, block in enumerate(blocks)
        if (data := _parse_event_data(block)) is not None
    }
    parts: dict[TextPath, list[tuple[Any, Any]]] = {}
    for event in events.values():
        number = event.get("index", event.get("output_index"))
        for path, holder, key in _walk_texts(event):
            parts.setdefault((number, *path), []).append((holder, key))
    for text_parts in parts.values():
        _redact_split_secrets(text_parts)
    for at, event in events.items():
        head = blocks[at].partition(b"data:")[0]
        blocks[at] = head + b"data: " + msgspec.json.encode(event)
    return b"".join(blocks)


def _parse_event_data(block: bytes) -> dict[str, Any] | None:
    _, marker, data = block.partition(b"data:")
    try:
        event = msgspec.json.decode(data) if marker else None
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _walk_texts(value: Any, path: TextPath = ()) -> Iterator[tuple[TextPath, Any, Any]]:
    """Every text in a value: the way to it, and what holds it under which key."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in items:
        if isinstance(each, str):
            yield (*path, key), value, key
        elif isinstance(each, dict | list):
            yield from _walk_texts(each, (*path, key))


def _redact_split_secrets(parts: list[tuple[Any, Any]]) -> None:
    """Take out what is a secret only when the parts are read as one text."""
    texts = [holder[key].encode() for holder, key in parts]
    whole_text = b"".join(texts)
    leaks = sorted(find_secrets(whole_text), key=lambda each: (each[0], -each[1]))
    if not leaks:
        return
    first = 0
    for (holder, key), text in zip(parts, texts, strict=True):
        last, kept, position = first + len(text), [], first
        for start, end, rule in leaks:
            if start < last and end > position:
                kept.append(whole_text[position : max(position, start)])
                if start >= first:
                    kept.append(f"[redacted: {rule}]".encode())
                position = min(end, last)
        kept.append(whole_text[position:last])
        holder[key] = b"".join(kept).decode("utf-8", "replace")
        first = last
