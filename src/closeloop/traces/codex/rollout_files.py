"""Where the threads of a rollout are: its sub-agents' files lie beside it, or in a later day's."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from datetime import date, timedelta
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from closeloop.records.protocols import RecordingSource

MAX_DAYS_APART = 31
"""How long after a thread began the ones that it starts are looked for."""
MAX_FOLDER_FILES = 5000
"""In a folder with more files than this, only those named as Codex names them are looked into."""
HEAD_BYTES = 16 << 10
_HEADER_KEYS = re.compile(rb'"(id|parent_thread_id|timestamp)"\s*:\s*"([^"\\]{1,100})"')

_thread_cache: dict[str, tuple[int, dict[str, CodexThread]]] = {}


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
