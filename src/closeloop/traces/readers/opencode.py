"""OpenCode's `export`: one session as a JSON document."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from closeloop.records.protocols import RecordingSource
from closeloop.records.trace import Session
from closeloop.traces.readers.opencode_session import (
    OpencodeFamily,
    OpencodeRecording,
    session_from_opencode,
)
from closeloop.traces.untrusted_json import as_list, as_mapping, as_text

name = "opencode"
version = 2

_MAX_FOLDER_FILES = 2000
"""Number of files of a folder that are searched for children."""
_MAX_INFO_BYTES = 1 << 20


def recognises(source: RecordingSource) -> bool:
    return b'"info"' in source.head and _export_info(source.document) is not None


def _export_info(document: Any) -> dict[str, Any] | None:
    """Return an export's session info; None for other documents."""
    if not isinstance(document, dict) or not isinstance(document.get("messages"), list):
        return None
    info = as_mapping(document.get("info"))
    if as_text(info.get("id")) is None or not isinstance(info.get("time"), dict):
        return None
    if as_text(info.get("version")) is None or as_text(info.get("directory")) is None:
        return None
    messages = document["messages"][:3]
    shaped = (isinstance(as_mapping(message).get("parts"), list) for message in messages)
    return info if all(shaped) else None


def parts(source: RecordingSource) -> Sequence[Path]:
    document = source.document
    info = _export_info(document)
    if info is None:
        return ()
    return [path for path, _ in _find_descendants(source, info, document["messages"]).values()]


def owner(source: RecordingSource) -> Path | None:
    info = _export_info(source.document)
    seen_ids, owner_path = {as_text(as_mapping(info).get("id"))}, None
    parent = as_text(as_mapping(info).get("parentID"))
    exports = _exports_beside(source.path) if parent else {}
    while parent and parent not in seen_ids and parent in exports:
        seen_ids.add(parent)
        owner_path, parent = exports[parent]
    return owner_path if owner_path != source.path else None


def read(source: RecordingSource) -> Iterator[Session]:
    document = source.document
    info = _export_info(document)
    if info is None:
        return
    children: dict[str, OpencodeRecording] = {}
    for child, (path, _) in _find_descendants(source, info, document["messages"]).items():
        child_document = source.beside(path).document
        child_info = _export_info(child_document)
        if child_info is not None:
            children[child] = OpencodeRecording(child_info, child_document["messages"])
    family = OpencodeFamily(children, source.skipped)
    yield session_from_opencode(
        OpencodeRecording(info, document["messages"]), family, (name, version)
    )


def _find_descendants(
    source: RecordingSource, info: Mapping[str, Any], messages: list[Any]
) -> dict[str, tuple[Path, str | None]]:
    """Return the exports beside this one that belong to its descendants."""
    if not _has_delegations(messages):
        return {}
    exports, family_ids = _exports_beside(source.path), {str(info.get("id"))}
    result: dict[str, tuple[Path, str | None]] = {}
    grown = True
    while grown:
        grown = False
        for child, (path, parent) in exports.items():
            if parent in family_ids and child not in family_ids and path != source.path:
                family_ids.add(child)
                result[child] = (path, parent)
                grown = True
    return result


def _has_delegations(messages: list[Any]) -> bool:
    for message in messages:
        for part in as_list(as_mapping(message).get("parts")):
            state = as_mapping(as_mapping(part).get("state"))
            if as_text(as_mapping(state.get("metadata")).get("sessionId")):
                return True
    return False


def _exports_beside(path: Path) -> Mapping[str, tuple[Path, str | None]]:
    """Return the exports in a folder: session → its file and its parent."""
    try:
        return _scan_exports(path.parent, path.parent.stat().st_mtime_ns)
    except OSError:
        return {}


@lru_cache(maxsize=4)
def _scan_exports(folder: Path, changed: int) -> Mapping[str, tuple[Path, str | None]]:
    exports: dict[str, tuple[Path, str | None]] = {}
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name)[:_MAX_FOLDER_FILES]:
        info = _read_info(Path(entry.path)) if entry.is_file() else None
        if info is not None and (identity := as_text(info.get("id"))):
            exports.setdefault(identity, (Path(entry.path), as_text(info.get("parentID"))))
    return exports


def _decode_info(content: bytes) -> Any:
    content_text = content.decode(errors="ignore")
    start = content_text.index("{", content_text.index('"info"'))
    return json.JSONDecoder().raw_decode(content_text, start)[0]


def _read_info(path: Path) -> dict[str, Any] | None:
    """Read the description at the beginning of an export, without the rest."""
    try:
        with path.open("rb") as file:
            head = file.read(4096)
            if head.lstrip()[:1] != b"{" or b'"info"' not in head[:200]:
                return None
            try:
                info = _decode_info(head)
            except ValueError:
                info = _decode_info(head + file.read(_MAX_INFO_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return info if isinstance(info, dict) and as_text(info.get("version")) else None
