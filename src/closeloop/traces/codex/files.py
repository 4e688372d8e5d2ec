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

from closeloop.model.protocols import Source

DAYS = 31
"""How long after a thread began the ones that it starts are looked for."""
MANY = 5000
"""In a folder with more files than this, only those named as Codex names them are looked into."""
HEAD_BYTES = 16 << 10
_KEYS = re.compile(rb'"(id|parent_thread_id|timestamp)"\s*:\s*"([^"\\]{1,100})"')

_seen: dict[str, tuple[int, dict[str, Thread]]] = {}


class Thread(NamedTuple):
    """What the first line of a rollout says of it."""

    id: str
    parent: str | None
    began: str
    path: Path


def thread_of(source: Source) -> Thread | None:
    """The thread that a file holds, by its first line."""
    line = source.head[:HEAD_BYTES].lstrip().partition(b"\n")[0]
    if b'"session_meta"' not in line[:300]:
        return None
    began, ids, parents = "", "", ""
    for key, value in _KEYS.findall(line.partition(b'"base_instructions"')[0]):
        text = value.decode(errors="replace")
        if key == b"id":
            ids = ids or text
        elif key == b"parent_thread_id":
            parents = parents or text
        else:
            began = began or text
    return Thread(ids, parents or None, began, source.path) if ids else None


def children_of(source: Source) -> list[Thread]:
    """The threads that this one started, and theirs, as far as their files are there."""
    root = thread_of(source)
    if root is None:
        return []
    started: dict[str, list[Thread]] = {}
    known = {root.id}
    for folder in _folders(source.path.parent, range(DAYS + 1)):
        for thread in _threads(folder, source).values():
            if thread.parent is not None:
                started.setdefault(thread.parent, []).append(thread)
    found: list[Thread] = []
    waiting = [root.id]
    while waiting:
        for thread in started.get(waiting.pop(), ()):
            if thread.id not in known:
                known.add(thread.id)
                found.append(thread)
                waiting.append(thread.id)
    return sorted(found, key=lambda thread: (thread.began, thread.id))


def starter_of(source: Source) -> Path | None:
    """The file of the thread that started this one, or of the one that started that."""
    thread = thread_of(source)
    known, top = set(), None
    while thread is not None and thread.parent is not None and thread.id not in known:
        known.add(thread.id)
        folders = _folders(thread.path.parent, range(0, -DAYS - 1, -1))
        parent = thread.parent
        places = (_threads(folder, source).get(parent) for folder in folders)
        thread = next((place for place in places if place is not None), None)
        top = thread or top
    if top is None or top.path == source.path:
        return None
    # Both ways must lead to the same: a part that its owner does not list would be lost.
    listed = (child.path for child in children_of(source.beside(top.path)))
    return top.path if source.path in listed else None


@lru_cache(maxsize=256)
def _folders(folder: Path, days: range) -> Sequence[str]:
    """The folder, and those of the days around it; most files of a day ask for the same."""
    try:
        day = date(*(int(name) for name in folder.parts[-3:]))
        others = [day + timedelta(days=distance) for distance in days[1:]]
    except (ValueError, TypeError, OverflowError):
        return (str(folder),)
    top = folder.parents[2]
    return (str(folder), *(f"{top}/{o.year:04}/{o.month:02}/{o.day:02}" for o in others))


def _threads(folder: str, source: Source) -> dict[str, Thread]:
    """The threads in a folder, looked up once as long as no file comes or goes."""
    # Most are not there, and every file asks for all of them: this is the quickest way to know.
    if not os.access(folder, os.F_OK):
        return {}
    try:
        stamp = os.stat(folder).st_mtime_ns  # noqa: PTH116
    except OSError:
        return {}
    if folder in _seen and _seen[folder][0] == stamp:
        return _seen[folder][1]
    found = _look(folder, source)
    # A folder that changes right now may change again within the same tick of its clock.
    if time.time_ns() - stamp > 1_000_000_000:
        if len(_seen) > MANY:
            _seen.clear()
        _seen[folder] = (stamp, found)
    return found


def _look(folder: str, source: Source) -> dict[str, Thread]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_file())
    except OSError:
        return {}
    if len(names) > MANY:
        names = [name for name in names if name.startswith("rollout-")]
    found: dict[str, Thread] = {}
    for name in names:
        thread = thread_of(source.beside(Path(folder, name)))
        if thread is not None:
            found.setdefault(thread.id, thread)
    return found
