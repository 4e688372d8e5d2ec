"""Codex rollouts: the JSONL files under `~/.codex/sessions`, packed or not."""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from closeloop.model.attempt import Exit
from closeloop.model.protocols import Source
from closeloop.model.record import digest
from closeloop.model.session import Session
from closeloop.model.trace import Handoff, Message
from closeloop.traces.builder import ROOT, Builder
from closeloop.traces.codex.files import Thread, children_of, starter_of
from closeloop.traces.codex.reading import Reading
from closeloop.traces.codex.records import take
from closeloop.traces.results import mark_corrections
from closeloop.traces.untrusted import label, mapping, moment, text

name = "codex"
version = 2

_FIRST = re.compile(
    rb'\s*\{"timestamp":"[^"]*",(?:"ordinal":\d+,)?"type":"session_meta","payload":\{'
)
_TYPES = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})
_OPENING = object()
_EXITS: dict[str, Exit] = {"budget_limited": "out_of_budget"}


def recognises(source: Source) -> bool:
    # The first line holds the system prompt: it may be longer than what was read of the file.
    if _FIRST.match(source.head):
        return True
    lines = source.lines[:4]
    return bool(lines) and (_old(lines) or all(_enveloped(line) for line in lines))


def _enveloped(line: Any) -> bool:
    if not isinstance(line, dict) or not isinstance(line.get("timestamp"), str):
        return False
    kind, payload = line.get("type"), line.get("payload")
    if not isinstance(kind, str) or kind not in _TYPES or not isinstance(payload, dict):
        return False
    return kind in ("session_meta", "turn_context", "compacted") or "type" in payload


def _old(lines: Sequence[Any]) -> bool:
    """A file of the first versions: no envelopes, and a first line without a type."""
    first = lines[0]
    return (
        isinstance(first, dict)
        and {"id", "timestamp", "instructions"} <= first.keys()
        and "type" not in first
        and all(isinstance(line, dict) and line.keys() & {"type", "record_type"}
                for line in lines[1:])
    )  # fmt: skip


def parts(source: Source) -> Sequence[Path]:
    return [thread.path for thread in children_of(source)]


def owner(source: Source) -> Path | None:
    return starter_of(source)


def read(source: Source) -> Iterator[Session]:
    builder = Builder(name, version)
    children = children_of(source)
    lanes = {child.id: child.id for child in children}
    root = Reading(builder, ROOT, source.skipped, lanes)
    readings = [root]
    if children:
        streams = [_records(source, root)]
        for child in children:
            reading = Reading(builder, child.id, source.skipped, lanes)
            builder.lane(child.id, lanes.get(child.parent or "", ROOT))
            readings.append(reading)
            streams.append(_records(source.beside(child.path), reading, child))
        for _, reading, record in heapq.merge(*streams, key=lambda item: item[0]):
            if record is not _OPENING:
                take(reading, record)
    else:
        for record in source.records():
            take(root, record)
    for reading in readings:
        reading.finish()
        builder.lane(reading.lane.name, agent=_agent(reading))
    _join_reviews(builder, readings)
    mark_corrections(builder)
    if root.meta or builder.events:
        yield _session(source, builder, readings)


def _records(
    source: Source, reading: Reading, child: Thread | None = None
) -> Iterator[tuple[str, Reading, Any]]:
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


def _agent(reading: Reading) -> str | None:
    meta = reading.meta
    told = {**mapping(_spawn(meta)), **meta}
    return label(told.get("agent_role")) or label(told.get("agent_nickname")) or _kind(meta)


def _kind(meta: dict[str, Any]) -> str | None:
    return label(mapping(meta.get("source")).get("subagent"))


def _join_reviews(builder: Builder, readings: Sequence[Reading]) -> None:
    """A review's thread is told apart only by its first line: the first is for the first."""
    for reading in readings:
        mine = reading.meta.get("id")
        reviews = [
            other.lane.name
            for other in readings
            if _kind(other.meta) == "review" and other.meta.get("parent_thread_id") == mine
        ]
        for number, lane in zip(reading.reviews, reviews, strict=False):
            event = builder.events[number - 1]
            if isinstance(event, Handoff):
                builder.finish(event, child=lane)


def _session(source: Source, builder: Builder, readings: Sequence[Reading]) -> Session:
    root = readings[0]
    meta, git = root.meta, mapping(root.meta.get("git"))
    models: Counter[str] = sum((reading.lane.models for reading in readings), Counter())
    ends = [reading.ended for reading in readings if reading.ended is not None]
    spoken = None if root.lane.last_words is None else root.lane.event(root.lane.last_words)
    ending, cause = _exit(root)
    parent = label(mapping(_spawn(meta)).get("parent_thread_id")) or label(
        meta.get("parent_thread_id")
    )
    links = {"repository": git.get("repository_url"), "forked from": meta.get("forked_from_id")}
    return Session(
        id=label(meta.get("id")) or digest(source.head),
        agent="codex",
        agent_version=label(meta.get("cli_version")),
        model=models.most_common(1)[0][0] if models else root.lane.model,
        system=_system(root),
        started=moment(meta.get("timestamp")) or root.began,
        ended=max(ends, default=None),
        exit=ending,
        cause=cause,
        usage=builder.usage(),
        summary=spoken.text if isinstance(spoken, Message) else None,
        directory=label(meta.get("cwd")),
        branch=label(git.get("branch")),
        commit=label(git.get("commit_hash")),
        parent=parent,
        links={key: known for key, value in links.items() if (known := label(value)) is not None},
        trace=builder.trace(source.skipped),
    )


def _spawn(meta: dict[str, Any]) -> Any:
    return mapping(mapping(meta.get("source")).get("subagent")).get("thread_spawn")


def _system(root: Reading) -> str | None:
    given = root.meta.get("base_instructions") or root.meta.get("instructions")
    words = given if isinstance(given, str) else text(mapping(given).get("text"))
    return root.talk.system if words is None else root.lane.text(words)


def _exit(root: Reading) -> tuple[Exit, str | None]:
    if root.lane.stopped is not None:
        return _EXITS.get(root.lane.stopped, "gave_up"), f"The turn was {root.lane.stopped}."
    if root.running:
        return "gave_up", "The recording ends within a turn."
    return "finished", None
