"""Take secrets out of bodies that are to be kept, also where a stream brings them in parts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from closeloop.model.answers import heard
from closeloop.model.leaks import find, without

_GAP = re.compile(rb"(\r?\n\r?\n)")
Place = tuple[Any, ...]


def redacted(body: bytes) -> bytes:
    """A body without secrets."""
    return without(body, {})


def redacted_stream(body: bytes) -> bytes:
    """A stream without secrets; where one came in parts, its first part says what it was."""
    body = without(body, {})
    answer = heard(body).answer
    if answer is None or next(find(msgspec.json.encode(answer)), None) is None:
        return body
    blocks = _GAP.split(body)
    events = {at: data for at, block in enumerate(blocks) if (data := _data(block)) is not None}
    parts: dict[Place, list[tuple[Any, Any]]] = {}
    for event in events.values():
        number = event.get("index", event.get("output_index"))
        for path, holder, key in _texts(event):
            parts.setdefault((number, *path), []).append((holder, key))
    for each in parts.values():
        _redact_joined(each)
    for at, event in events.items():
        head = blocks[at].partition(b"data:")[0]
        blocks[at] = head + b"data: " + msgspec.json.encode(event)
    return b"".join(blocks)


def _data(block: bytes) -> dict[str, Any] | None:
    _, found, data = block.partition(b"data:")
    try:
        event = msgspec.json.decode(data) if found else None
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _texts(value: Any, path: Place = ()) -> Iterator[tuple[Place, Any, Any]]:
    """Every text in a value: the way to it, and what holds it under which key."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in items:
        if isinstance(each, str):
            yield (*path, key), value, key
        elif isinstance(each, dict | list):
            yield from _texts(each, (*path, key))


def _redact_joined(parts: list[tuple[Any, Any]]) -> None:
    """Take out what is a secret only when the parts are read as one text."""
    texts = [holder[key].encode() for holder, key in parts]
    joined = b"".join(texts)
    found = sorted(find(joined), key=lambda each: (each[0], -each[1]))
    if not found:
        return
    first = 0
    for (holder, key), text in zip(parts, texts, strict=True):
        last, kept, place = first + len(text), [], first
        for start, end, rule in found:
            if start < last and end > place:
                kept.append(joined[place : max(place, start)])
                if start >= first:
                    kept.append(f"[redacted: {rule}]".encode())
                place = min(end, last)
        kept.append(joined[place:last])
        holder[key] = b"".join(kept).decode("utf-8", "replace")
        first = last
