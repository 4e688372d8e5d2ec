"""Codex rollouts: the JSONL files under `~/.codex/sessions`, packed or not."""

from __future__ import annotations

import heapq
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from closeloop.records.attempt import Exit
from closeloop.records.protocols import RecordingSource
from closeloop.records.record import content_digest
from closeloop.records.session import Session
from closeloop.records.trace import Handoff, Message
from closeloop.traces.readers.codex_records import handle_record
from closeloop.traces.readers.codex_rollout import CodexRollout
from closeloop.traces.session_builder import ROOT_LANE, SessionBuilder
from closeloop.traces.untrusted_json import as_label, as_mapping, as_text, time_from_text

name = "codex"
version = 3

_FIRST_LINE = re.compile(
    rb'\s*\{"timestamp":"[^"]*",(?:"ordinal":\d+,)?"type":"session_meta","payload":\{'
)
_RECORD_TYPES = frozenset(
    {"session_meta", "response_item", "event_msg", "turn_context", "compacted"}
)
_OPENING = object()
_EXITS: dict[str, Exit] = {"budget_limited": "out_of_budget"}
MAX_DAYS_APART = 31
"""How long after a thread began the ones that it starts are looked for."""
MAX_FOLDER_FILES = 5000
"""In a folder with more files than this, only those named as Codex names them are looked into."""
HEAD_BYTES = 16 << 10
_HEADER_KEYS = re.compile(rb'"(id|parent_thread_id|timestamp)"\s*:\s*"([^"\\]{1,100})"')
_thread_cache: dict[str, tuple[int, dict[str, CodexThread]]] = {}


def recognises(source: RecordingSource) -> bool:
    # The first line holds the system prompt: it may be longer than what was read of the file.
    if _FIRST_LINE.match(source.head):
        return True
    lines = source.lines[:4]
    return bool(lines) and (_is_old_format(lines) or all(_has_envelope(line) for line in lines))


def _has_envelope(line: Any) -> bool:
    if not isinstance(line, dict) or not isinstance(line.get("timestamp"), str):
        return False
    kind, payload = line.get("type"), line.get("payload")
    if not isinstance(kind, str) or kind not in _RECORD_TYPES or not isinstance(payload, dict):
        return False
    return kind in ("session_meta", "turn_context", "compacted") or "type" in payload


def _is_old_format(lines: Sequence[Any]) -> bool:
    """A file of the first versions: no envelopes, and a first line without a type."""
    first = lines[0]
    return (
        isinstance(first, dict)
        and {"id", "timestamp", "instructions"} <= first.keys()
        and "type" not in first
        and all(isinstance(line, dict) and line.keys() & {"type", "record_type"}
                for line in lines[1:])
    )  # fmt: skip


def parts(source: RecordingSource) -> Sequence[Path]:
    return [thread.path for thread in list_descendant_threads(source)]


def owner(source: RecordingSource) -> Path | None:
    return find_starter_file(source)


def read(source: RecordingSource) -> Iterator[Session]:
    builder = SessionBuilder(name, version, source.skipped)
    children = list_descendant_threads(source)
    lanes = {child.id: child.id for child in children}
    root = CodexRollout(builder, ROOT_LANE, lanes)
    readings = [root]
    if children:
        streams = [_iter_timed_records(source, root)]
        for child in children:
            reading = CodexRollout(builder, child.id, lanes)
            builder.open_lane(child.id, lanes.get(child.parent or "", ROOT_LANE))
            readings.append(reading)
            streams.append(_iter_timed_records(source.beside(child.path), reading, child))
        for _, reading, record in heapq.merge(*streams, key=lambda item: item[0]):
            if record is not _OPENING:
                handle_record(reading, record)
    else:
        for record in source.records():
            handle_record(root, record)
    for reading in readings:
        reading.finish()
        builder.open_lane(reading.lane.name, agent=_agent_name(reading))
    _join_reviews(builder, readings)
    builder.mark_corrections()
    if root.meta or builder.events:
        yield _build_session(source, builder, readings)


def _iter_timed_records(
    source: RecordingSource, reading: CodexRollout, child: CodexThread | None = None
) -> Iterator[tuple[str, CodexRollout, Any]]:
    """Records with the time by which the threads' files are woven together."""
    latest = ""
    if child is not None:
        # The file is opened only when its time has come: there may be many.
        latest = child.began
        yield latest, reading, _OPENING
    for record in source.records():
        time = record.get("timestamp") if isinstance(record, dict) else None
        if isinstance(time, str) and time > latest:
            latest = time
        yield latest, reading, record


def _agent_name(reading: CodexRollout) -> str | None:
    meta = reading.meta
    fields = {**as_mapping(_spawn_info(meta)), **meta}
    return (
        as_label(fields.get("agent_role"))
        or as_label(fields.get("agent_nickname"))
        or _subagent_kind(meta)
    )


def _subagent_kind(meta: dict[str, Any]) -> str | None:
    return as_label(as_mapping(meta.get("source")).get("subagent"))


def _join_reviews(builder: SessionBuilder, readings: Sequence[CodexRollout]) -> None:
    """A review's thread is told apart only by its first line: the first is for the first."""
    for reading in readings:
        mine = reading.meta.get("id")
        reviews = [
            other.lane.name
            for other in readings
            if _subagent_kind(other.meta) == "review" and other.meta.get("parent_thread_id") == mine
        ]
        for number, lane in zip(reading.reviews, reviews, strict=False):
            event = builder.events[number - 1]
            if isinstance(event, Handoff):
                builder.finish(event, child=lane)


def _build_session(
    source: RecordingSource, builder: SessionBuilder, readings: Sequence[CodexRollout]
) -> Session:
    root = readings[0]
    meta, git = root.meta, as_mapping(root.meta.get("git"))
    models: Counter[str] = sum((reading.lane.models for reading in readings), Counter())
    ends = [reading.ended_at for reading in readings if reading.ended_at is not None]
    last_message = (
        None if root.lane.last_words is None else root.lane.event_at(root.lane.last_words)
    )
    ending, cause = _session_exit(root)
    parent = as_label(as_mapping(_spawn_info(meta)).get("parent_thread_id")) or as_label(
        meta.get("parent_thread_id")
    )
    links = {"repository": git.get("repository_url"), "forked from": meta.get("forked_from_id")}
    return builder.build_session(
        id=as_label(meta.get("id")) or content_digest(source.head),
        agent="codex",
        agent_version=as_label(meta.get("cli_version")),
        model=models.most_common(1)[0][0] if models else root.lane.model,
        system=_system_prompt(root),
        started=time_from_text(meta.get("timestamp")) or root.started_at,
        ended=max(ends, default=None),
        exit=ending,
        cause=cause,
        summary=last_message.text if isinstance(last_message, Message) else None,
        directory=as_label(meta.get("cwd")),
        branch=as_label(git.get("branch")),
        commit=as_label(git.get("commit_hash")),
        parent=parent,
        links={
            key: known for key, value in links.items() if (known := as_label(value)) is not None
        },
    )


def _spawn_info(meta: dict[str, Any]) -> Any:
    return as_mapping(as_mapping(meta.get("source")).get("subagent")).get("thread_spawn")


def _system_prompt(root: CodexRollout) -> str | None:
    instructions = root.meta.get("base_instructions") or root.meta.get("instructions")
    words = (
        instructions
        if isinstance(instructions, str)
        else as_text(as_mapping(instructions).get("text"))
    )
    return root.talk.system if words is None else root.lane.builder.truncate_text(words)


def _session_exit(root: CodexRollout) -> tuple[Exit, str | None]:
    if root.lane.stopped is not None:
        return _EXITS.get(root.lane.stopped, "gave_up"), f"The turn was {root.lane.stopped}."
    if root.running:
        return "gave_up", "The recording ends within a turn."
    return "finished", None


class CodexThread(NamedTuple):
    """What the first line of a rollout says of it."""

    id: str
    parent: str | None
    began: str
    path: Path


def read_thread_header(source: RecordingSource) -> CodexThread | None:
    """The thread that a file holds, by its first line."""
    line = source.head[:HEAD_BYTES].lstrip().partition(b"\n")[0]
    if b'"session_meta"' not in line[:300]:
        return None
    began, ids, parents = "", "", ""
    for key, value in _HEADER_KEYS.findall(line.partition(b'"base_instructions"')[0]):
        text = value.decode(errors="replace")
        if key == b"id":
            ids = ids or text
        elif key == b"parent_thread_id":
            parents = parents or text
        else:
            began = began or text
    return CodexThread(ids, parents or None, began, source.path) if ids else None


def list_descendant_threads(source: RecordingSource) -> list[CodexThread]:
    """The threads that this one started, and theirs, as far as their files are there."""
    root = read_thread_header(source)
    if root is None:
        return []
    started: dict[str, list[CodexThread]] = {}
    known_ids = {root.id}
    for folder in _day_folders(source.path.parent, range(MAX_DAYS_APART + 1)):
        for thread in _threads_in_folder(folder, source).values():
            if thread.parent is not None:
                started.setdefault(thread.parent, []).append(thread)
    descendants: list[CodexThread] = []
    waiting = [root.id]
    while waiting:
        for thread in started.get(waiting.pop(), ()):
            if thread.id not in known_ids:
                known_ids.add(thread.id)
                descendants.append(thread)
                waiting.append(thread.id)
    return sorted(descendants, key=lambda thread: (thread.began, thread.id))


def find_starter_file(source: RecordingSource) -> Path | None:
    """The file of the thread that started this one, or of the one that started that."""
    thread = read_thread_header(source)
    known_ids, top = set(), None
    while thread is not None and thread.parent is not None and thread.id not in known_ids:
        known_ids.add(thread.id)
        folders = _day_folders(thread.path.parent, range(0, -MAX_DAYS_APART - 1, -1))
        parent = thread.parent
        places = (_threads_in_folder(folder, source).get(parent) for folder in folders)
        thread = next((place for place in places if place is not None), None)
        top = thread or top
    if top is None or top.path == source.path:
        return None
    # Both ways must lead to the same: a part that its owner does not list would be lost.
    listed = (child.path for child in list_descendant_threads(source.beside(top.path)))
    return top.path if source.path in listed else None


@lru_cache(maxsize=256)
def _day_folders(folder: Path, days: range) -> Sequence[str]:
    """The folder, and those of the days around it; most files of a day ask for the same."""
    try:
        day = date(*(int(name) for name in folder.parts[-3:]))
        others = [day + timedelta(days=distance) for distance in days[1:]]
    except (ValueError, TypeError, OverflowError):
        return (str(folder),)
    top = folder.parents[2]
    return (str(folder), *(f"{top}/{o.year:04}/{o.month:02}/{o.day:02}" for o in others))


def _threads_in_folder(folder: str, source: RecordingSource) -> dict[str, CodexThread]:
    """The threads in a folder, looked up once as long as no file comes or goes."""
    # Most are not there, and every file asks for all of them: this is the quickest way to know.
    if not os.access(folder, os.F_OK):
        return {}
    try:
        stamp = os.stat(folder).st_mtime_ns  # noqa: PTH116
    except OSError:
        return {}
    if folder in _thread_cache and _thread_cache[folder][0] == stamp:
        return _thread_cache[folder][1]
    threads = _scan_folder(folder, source)
    # A folder that changes right now may change again within the same tick of its clock.
    if time.time_ns() - stamp > 1_000_000_000:
        if len(_thread_cache) > MAX_FOLDER_FILES:
            _thread_cache.clear()
        _thread_cache[folder] = (stamp, threads)
    return threads


def _scan_folder(folder: str, source: RecordingSource) -> dict[str, CodexThread]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_file())
    except OSError:
        return {}
    if len(names) > MAX_FOLDER_FILES:
        names = [name for name in names if name.startswith("rollout-")]
    threads: dict[str, CodexThread] = {}
    for name in names:
        thread = read_thread_header(source.beside(Path(folder, name)))
        if thread is not None:
            threads.setdefault(thread.id, thread)
    return threads
