"""The files of one session, read side by side in the order of their times."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from closeloop.records.protocols import RecordingSource
from closeloop.text.untrusted import truncate_middle

WARMUP = "a warm-up of a sub-agent"
_MAX_LINES_BEFORE_MESSAGE = 5000
"""How many lines may stand before the first message."""

ChildFile = tuple[str, int, str, RecordingSource]
"""When it starts, its place among the files, its lane, its file."""


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
            source.skipped[WARMUP] = source.skipped.get(WARMUP, 0) + 1
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
