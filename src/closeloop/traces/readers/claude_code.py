"""Claude Code's session files, with those of their sub-agents."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from closeloop.model.protocols import Source
from closeloop.model.record import digest
from closeloop.model.session import Session
from closeloop.traces.claude.files import WARMUP, children_of, in_order, is_warmup, opening
from closeloop.traces.claude.sitting import Sitting
from closeloop.traces.source import FileSource

name = "claude-code"
version = 2

_SPOKEN = ("user", "assistant", "system", "attachment", "progress")
_BESIDES = {
    # Lines that may stand before the first message, each with a field that tells them apart.
    "summary": "leafUuid",
    "file-history-snapshot": "snapshot",
    "queue-operation": "operation",
    "last-prompt": "sessionId",
    "mode": "sessionId",
    "permission-mode": "sessionId",
    "ai-title": "sessionId",
    "custom-title": "sessionId",
    "agent-name": "sessionId",
    "pr-link": "sessionId",
}
_NAME = re.compile(r"[\w.-]{1,128}")
_LONG_FIRST_LINE = (b'"parentUuid":', b'"isSidechain":', b'"sessionId":', b'"message":')


def recognises(source: Source) -> bool:
    lines = source.lines
    if not lines:
        # The first line alone may be longer than the head of a file.
        start = source.head[:4096]
        return start[:1] == b"{" and all(word in source.head for word in _LONG_FIRST_LINE)
    if any(_is_spoken(line) for line in lines):
        return True
    return all(
        isinstance(line, dict) and _BESIDES.get(str(line.get("type")), "\0") in line
        for line in lines
    )


def _is_spoken(line: Any) -> bool:
    if not isinstance(line, dict) or line.get("type") not in _SPOKEN:
        return False
    message = line.get("message", {})
    return (
        "parentUuid" in line
        and "isSidechain" in line
        and isinstance(line.get("sessionId"), str)
        and isinstance(message, dict)
        and "parts" not in message
    )


def parts(source: Source) -> Sequence[Path]:
    """The files of its sub-agents: in a folder of the session's name, or (older) beside it."""
    first = opening(source)
    session = _file_name(first.get("sessionId"))
    if session is None or first.get("isSidechain") is True:
        return ()
    folder = source.path.parent
    beside = _agents(folder, _stamp(folder)).get(session, ())
    below = folder / session / "subagents"
    return [*beside, *(sorted(below.rglob("*.jsonl")) if below.is_dir() else ())]


def owner(source: Source) -> Path | None:
    first = opening(source)
    session = _file_name(first.get("sessionId"))
    if session is None or first.get("isSidechain") is not True:
        return None
    for folder in source.path.parents[:6]:
        path = folder / f"{session}.jsonl"
        if path != source.path and path.is_file():
            return path
    return None


def _file_name(value: Any) -> str | None:
    return value if isinstance(value, str) and _NAME.fullmatch(value) else None


def _stamp(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=16)
def _agents(folder: Path, stamp: int) -> dict[str, list[Path]]:
    """The sub-agents' files of a folder by session; looked at again only when it has changed."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("agent-*.jsonl")):
        first = opening(FileSource(path))
        session = first.get("sessionId")
        if first.get("isSidechain") is True and isinstance(session, str):
            found.setdefault(session, []).append(path)
    return found


def read(source: Source) -> Iterator[Session]:
    """One session for each id in the file, but for those that have a file of their own beside."""
    first = opening(source)
    if is_warmup(first):
        source.skipped[WARMUP] = source.skipped.get(WARMUP, 0) + 1
        return
    children = children_of(source, parts(source))
    sittings: dict[str, Sitting] = {}
    current = None
    for lane, record in in_order(source, children):
        if not isinstance(record, dict):
            source.skipped["not a record"] = source.skipped.get("not a record", 0) + 1
            continue
        session = record.get("sessionId") or None
        if current is None or (isinstance(session, str) and session != current.id):
            known = len(sittings)
            current = _sitting(sittings, session, source)
            if len(sittings) > known:
                current.alone = first.get("isSidechain") is True
                current.files = {child[2] for child in children}
                _link(current, record.get("parentUuid"), sittings)
        current.take(lane, record)
    for sitting in sittings.values():
        if not sitting.empty:
            sitting.id = sitting.id or digest(source.head)[:32]
            yield sitting.session(name)


def _sitting(known: dict[str, Sitting], session: Any, source: Source) -> Sitting:
    named = session if isinstance(session, str) else ""
    if named not in known:
        # Lines before the first with an id belong to the session that then begins.
        sitting = known.pop("", None) or Sitting(named, source, name, version)
        sitting.id = named
        # A resumed session may begin with records of another: that one's file tells of them.
        own = source.path.parent / f"{named}.jsonl"
        elsewhere = _file_name(named) is not None and own != source.path and own.is_file()
        sitting.copied = elsewhere and owner(source) is None
        known[named] = sitting
    return known[named]


def _link(sitting: Sitting, parent: Any, known: dict[str, Sitting]) -> None:
    """Name the session that this one goes on from, where that is told of in the same file."""
    for other in islice(known.values(), 100):
        if other is not sitting and isinstance(parent, str) and parent in other.after:
            sitting.links.setdefault("continues", other.id)
