"""OpenHands' log of model calls: which files of a folder make one dialogue, and what each cost."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from closeloop.model.attempt import Usage
from closeloop.model.protocols import Source
from closeloop.model.record import Record
from closeloop.traces.source import FileSource
from closeloop.traces.telling import identity, text_of, usage_of
from closeloop.traces.texts import clean
from closeloop.traces.untrusted import amount, items, mapping, seconds, text


class Logged(Record):
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


def is_logged(told: object) -> bool:
    """Whether a document is one call: what was sent, and what came back."""
    call = mapping(told)
    answer = mapping(call.get("response"))
    first = mapping(next(iter(items(call.get("messages"))), None))
    own = "fncall_messages" in call or "kwargs" in call or "raw_messages" in call
    return (
        "role" in first
        and own
        and isinstance(answer.get("choices"), list)
        and "timestamp" in call
        and "cost" in call
    )


def sent(call: Mapping[str, Any]) -> list[Any]:
    """The dialogue with its tool calls as such, where calls in text were made from them."""
    for key in ("fncall_messages", "raw_messages", "messages"):
        if isinstance(found := call.get(key), list) and found:
            return found
    return []


def answered(call: Mapping[str, Any]) -> dict[str, Any]:
    """The message that came back, with its tool calls where there is such a form of it."""
    for key in ("fncall_response", "response"):
        choices = items(mapping(call.get(key)).get("choices"))
        if choices and (message := mapping(mapping(choices[0]).get("message"))):
            return message
    return {}


def logged(path: Path, told: object) -> Logged:
    """The facts of one call."""
    call = mapping(told)
    messages = [mapping(message) for message in sent(call)]
    asked = next((text_of(one.get("content")) for one in messages if one.get("role") == "user"), "")
    answer = mapping(call.get("response"))
    known, model = text(answer.get("id")), text(answer.get("model"))
    return Logged(
        path=path,
        request=identity(asked),
        messages=len(messages),
        opening=all(one.get("role") != "assistant" for one in messages),
        at=seconds(call.get("timestamp")),
        seconds=amount(call.get("latency_sec")),
        known=clean(known) if known else None,
        model=clean(model) if model else None,
        usage=usage_of(answer.get("usage"), call.get("cost")),
    )


def attempt_of(source: Source) -> list[Logged]:
    """The calls of the attempt that a file belongs to, in order; the last one holds the most."""
    mine = logged(source.path, source.document)
    try:
        changed = source.path.parent.stat().st_mtime_ns
    except OSError:
        return [mine]
    found: list[Logged] = []
    for other in _folder(source.path.parent, changed).get(mine.request, ()):
        if other.opening and found:
            if any(one.path == source.path for one in found):
                return found
            found = []
        found.append(other)
    return found if any(one.path == source.path for one in found) else [mine]


@lru_cache(maxsize=8)
def _folder(folder: Path, changed: int) -> dict[str, list[Logged]]:
    """The calls in a folder by their request, in order: read once, not once for each file."""
    calls: dict[str, list[Logged]] = {}
    try:
        with os.scandir(folder) as entries:
            paths = sorted(folder / entry.name for entry in entries if entry.is_file())
    except OSError:
        return calls
    for path in paths:
        other = FileSource(path)
        told = other.document if b'"messages"' in other.head else None
        if is_logged(told):
            one = logged(path, told)
            calls.setdefault(one.request, []).append(one)
    for group in calls.values():
        group.sort(key=lambda one: (one.at.timestamp() if one.at else 0.0, one.messages))
    return calls
