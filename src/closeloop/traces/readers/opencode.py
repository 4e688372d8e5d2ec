"""OpenCode's `export`: one session as a JSON document."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from closeloop.model.protocols import Source
from closeloop.model.session import Session
from closeloop.traces.opencode.sessions import Family, Recorded, session_of
from closeloop.traces.untrusted import items, mapping, text

name = "opencode"
version = 2

_FOLDER = 2000
"""How many files of a folder are looked at for children."""
_INFO_BYTES = 1 << 20


def recognises(source: Source) -> bool:
    return b'"info"' in source.head and _info(source.document) is not None


def _info(document: Any) -> dict[str, Any] | None:
    """What an export says of its session; None for other documents."""
    if not isinstance(document, dict) or not isinstance(document.get("messages"), list):
        return None
    info = mapping(document.get("info"))
    if text(info.get("id")) is None or not isinstance(info.get("time"), dict):
        return None
    if text(info.get("version")) is None or text(info.get("directory")) is None:
        return None
    messages = document["messages"][:3]
    shaped = (isinstance(mapping(message).get("parts"), list) for message in messages)
    return info if all(shaped) else None


def parts(source: Source) -> Sequence[Path]:
    document = source.document
    info = _info(document)
    if info is None:
        return ()
    return [path for path, _ in _descendants(source, info, document["messages"]).values()]


def owner(source: Source) -> Path | None:
    info = _info(source.document)
    seen, found = {text(mapping(info).get("id"))}, None
    parent = text(mapping(info).get("parentID"))
    beside = _beside(source.path) if parent else {}
    while parent and parent not in seen and parent in beside:
        seen.add(parent)
        found, parent = beside[parent]
    return found if found != source.path else None


def read(source: Source) -> Iterator[Session]:
    document = source.document
    info = _info(document)
    if info is None:
        return
    children: dict[str, Recorded] = {}
    for child, (path, _) in _descendants(source, info, document["messages"]).items():
        found = source.beside(path).document
        about = _info(found)
        if about is not None:
            children[child] = Recorded(about, found["messages"])
    family = Family(children, source.skipped)
    yield session_of(Recorded(info, document["messages"]), family, (name, version))


def _descendants(
    source: Source, info: Mapping[str, Any], messages: list[Any]
) -> dict[str, tuple[Path, str | None]]:
    """The exports beside this one that are of its children, and theirs."""
    if not _delegates(messages):
        return {}
    beside, found = _beside(source.path), {str(info.get("id"))}
    result: dict[str, tuple[Path, str | None]] = {}
    grown = True
    while grown:
        grown = False
        for child, (path, parent) in beside.items():
            if parent in found and child not in found and path != source.path:
                found.add(child)
                result[child] = (path, parent)
                grown = True
    return result


def _delegates(messages: list[Any]) -> bool:
    for message in messages:
        for part in items(mapping(message).get("parts")):
            state = mapping(mapping(part).get("state"))
            if text(mapping(state.get("metadata")).get("sessionId")):
                return True
    return False


def _beside(path: Path) -> Mapping[str, tuple[Path, str | None]]:
    """The exports in a folder: session → its file and its parent."""
    try:
        return _exports(path.parent, path.parent.stat().st_mtime_ns)
    except OSError:
        return {}


@lru_cache(maxsize=4)
def _exports(folder: Path, changed: int) -> Mapping[str, tuple[Path, str | None]]:
    found: dict[str, tuple[Path, str | None]] = {}
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name)[:_FOLDER]:
        info = _described(Path(entry.path)) if entry.is_file() else None
        if info is not None and (identity := text(info.get("id"))):
            found.setdefault(identity, (Path(entry.path), text(info.get("parentID"))))
    return found


def _first_object(content: bytes) -> Any:
    told = content.decode(errors="ignore")
    start = told.index("{", told.index('"info"'))
    return json.JSONDecoder().raw_decode(told, start)[0]


def _described(path: Path) -> dict[str, Any] | None:
    """The description at the beginning of an export, without reading the rest."""
    try:
        with path.open("rb") as file:
            head = file.read(4096)
            if head.lstrip()[:1] != b"{" or b'"info"' not in head[:200]:
                return None
            try:
                info = _first_object(head)
            except ValueError:
                info = _first_object(head + file.read(_INFO_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return info if isinstance(info, dict) and text(info.get("version")) else None
