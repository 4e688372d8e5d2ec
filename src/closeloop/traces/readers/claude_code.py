"""Read the session files of Claude Code, those of its sub-agents included."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from closeloop.records.protocols import RecordingSource
from closeloop.records.record import content_digest
from closeloop.records.session import Session
from closeloop.text.untrusted import truncate_middle
from closeloop.traces.file_source import FileSource
from closeloop.traces.readers.claude_session import ClaudeSession
from closeloop.traces.session_builder import count_skip

name = "claude-code"
version = 3

_MESSAGE_TYPES = ("user", "assistant", "system", "attachment", "progress")
_METADATA_FIELDS = {
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
_SAFE_NAME = re.compile(r"[\w.-]{1,128}")
_LONG_FIRST_LINE = (b'"parentUuid":', b'"isSidechain":', b'"sessionId":', b'"message":')
WARMUP = "a warm-up of a sub-agent"
_MAX_LINES_BEFORE_MESSAGE = 5000
"""How many lines may stand before the first message."""
ChildFile = tuple[str, int, str, RecordingSource]
"""When it starts, its place among the files, its lane, its file."""


def recognises(source: RecordingSource) -> bool:
    lines = source.lines
    if not lines:
        # The first line alone may be longer than the head of a file.
        start = source.head[:4096]
        return start[:1] == b"{" and all(word in source.head for word in _LONG_FIRST_LINE)
    if any(_is_message_line(line) for line in lines):
        return True
    return all(
        isinstance(line, dict) and _METADATA_FIELDS.get(str(line.get("type")), "\0") in line
        for line in lines
    )


def _is_message_line(line: Any) -> bool:
    if not isinstance(line, dict) or line.get("type") not in _MESSAGE_TYPES:
        return False
    message = line.get("message", {})
    return (
        "parentUuid" in line
        and "isSidechain" in line
        and isinstance(line.get("sessionId"), str)
        and isinstance(message, dict)
        and "parts" not in message
    )


def parts(source: RecordingSource) -> Sequence[Path]:
    """The files of its sub-agents: in a folder of the session's name, or (older) beside it."""
    first = read_first_message(source)
    session = _file_name(first.get("sessionId"))
    if session is None or first.get("isSidechain") is True:
        return ()
    folder = source.path.parent
    beside = _agent_files_by_session(folder, _modification_time(folder)).get(session, ())
    below = folder / session / "subagents"
    return [*beside, *(sorted(below.rglob("*.jsonl")) if below.is_dir() else ())]


def owner(source: RecordingSource) -> Path | None:
    first = read_first_message(source)
    session = _file_name(first.get("sessionId"))
    if session is None or first.get("isSidechain") is not True:
        return None
    for folder in source.path.parents[:6]:
        path = folder / f"{session}.jsonl"
        if path != source.path and path.is_file():
            return path
    return None


def _file_name(value: Any) -> str | None:
    return value if isinstance(value, str) and _SAFE_NAME.fullmatch(value) else None


def _modification_time(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=16)
def _agent_files_by_session(folder: Path, stamp: int) -> dict[str, list[Path]]:
    """The sub-agents' files of a folder by session; looked at again only when it has changed."""
    files_by_session: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("agent-*.jsonl")):
        first = read_first_message(FileSource(path))
        session = first.get("sessionId")
        if first.get("isSidechain") is True and isinstance(session, str):
            files_by_session.setdefault(session, []).append(path)
    return files_by_session


def read(source: RecordingSource) -> Iterator[Session]:
    """One session for each id in the file, but for those that have a file of their own beside."""
    first = read_first_message(source)
    if is_warmup(first):
        count_skip(source.skipped, WARMUP)
        return
    children = list_child_files(source, parts(source))
    builders: dict[str, ClaudeSession] = {}
    current = None
    for lane, record in merge_records_by_time(source, children):
        if not isinstance(record, dict):
            count_skip(source.skipped, "not a record")
            continue
        session = record.get("sessionId") or None
        if current is None or (isinstance(session, str) and session != current.id):
            builders_before = len(builders)
            current = _session_builder(builders, session, source)
            if len(builders) > builders_before:
                current.alone = first.get("isSidechain") is True
                current.files = {child[2] for child in children}
                _link_continuation(current, record.get("parentUuid"), builders)
        current.add_record(lane, record)
    for builder in builders.values():
        if not builder.is_empty:
            builder.id = builder.id or content_digest(source.head)[:32]
            yield builder.build_session(name)


def _session_builder(
    known: dict[str, ClaudeSession], session: Any, source: RecordingSource
) -> ClaudeSession:
    session_id = session if isinstance(session, str) else ""
    if session_id not in known:
        # Lines before the first with an id belong to the session that then begins.
        builder = known.pop("", None) or ClaudeSession(session_id, source, name, version)
        builder.id = session_id
        # A resumed session may begin with records of another: that one's file tells of them.
        own = source.path.parent / f"{session_id}.jsonl"
        elsewhere = _file_name(session_id) is not None and own != source.path and own.is_file()
        builder.copied = elsewhere and owner(source) is None
        known[session_id] = builder
    return known[session_id]


def _link_continuation(
    sitting: ClaudeSession, parent: Any, known: dict[str, ClaudeSession]
) -> None:
    """Name the session that this one goes on from, where that is told of in the same file."""
    for other in islice(known.values(), 100):
        if other is not sitting and isinstance(parent, str) and parent in other.after:
            sitting.links.setdefault("continues", other.id)


def read_first_message(source: RecordingSource) -> dict[str, Any]:
    """The first message of a file, or nothing."""
    for line in source.lines:
        if _is_message(line):
            return dict(line)
    before = dict(source.skipped)
    first_message: Any = next(
        (line for line in islice(source.records(), _MAX_LINES_BEFORE_MESSAGE) if _is_message(line)),
        {},
    )
    source.skipped.clear()
    source.skipped.update(before)
    return dict(first_message)


def _is_message(line: Any) -> bool:
    return isinstance(line, dict) and line.get("type") in ("user", "assistant")


def list_child_files(source: RecordingSource, paths: Sequence[Path]) -> list[ChildFile]:
    """The sub-agents with files, those that did something."""
    children: list[ChildFile] = []
    for order, path in enumerate(paths, 1):
        child = source.beside(path)
        first = read_first_message(child)
        if is_warmup(first):
            count_skip(source.skipped, WARMUP)
        elif first:
            agent, start = first.get("agentId"), first.get("timestamp")
            agent_name = agent if isinstance(agent, str) and agent else path.stem
            lane = truncate_middle(agent_name, most=200)
            children.append((start if isinstance(start, str) else "", order, lane, child))
    return children


def merge_records_by_time(
    source: RecordingSource, children: Sequence[ChildFile]
) -> Iterator[tuple[str | None, Any]]:
    """Every record with the sub-agent whose file it is from; None is the session's own file."""
    if not children:
        for record in source.records():
            yield None, record
        return
    waiting = sorted(children, key=lambda child: child[:2], reverse=True)
    streams: list[tuple[str, int, str | None, Any, Iterator[tuple[str, Any]]]] = []
    _push_next_record(streams, 0, None, _iter_timed_records(source))
    while streams or waiting:
        # A file is opened when its time has come: there may be hundreds.
        while waiting and (not streams or waiting[-1][0] <= streams[0][0]):
            _, order, lane, child = waiting.pop()
            _push_next_record(streams, order, lane, _iter_timed_records(child))
        if streams:
            _, number, whose, record, stream = heapq.heappop(streams)
            yield whose, record
            _push_next_record(streams, number, whose, stream)


def _push_next_record(
    streams: list[Any], order: int, lane: str | None, stream: Iterator[Any]
) -> None:
    for time, record in stream:
        heapq.heappush(streams, (time, order, lane, record, stream))
        return


def _iter_timed_records(source: RecordingSource) -> Iterator[tuple[str, Any]]:
    """Records with their time; one without has that of the record before it."""
    last = ""
    for record in source.records():
        time = record.get("timestamp") if isinstance(record, dict) else None
        if isinstance(time, str) and time > last:
            last = time
        yield last, record


def is_warmup(first: dict[str, Any]) -> bool:
    """Sub-agents are started once with nothing to do, so that they start faster later."""
    message = first.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        content = content[0].get("text")
    return first.get("isSidechain") is True and content == "Warmup"
