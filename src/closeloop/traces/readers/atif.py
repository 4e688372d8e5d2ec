"""Harbor's Agent Trajectory Interchange Format, ATIF 1.0 to 1.8.

A sub-agent's trajectory is embedded in its parent's or lies in a file of its own; a long run
goes on in another file, which begins with a copy of what came before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from closeloop.records.protocols import RecordingSource
from closeloop.records.session import Session
from closeloop.traces.atif.atif_session import AtifSessionBuilder
from closeloop.traces.atif.trajectory_files import (
    MAX_FILES,
    find_trajectory_file,
    is_trajectory,
    iter_referenced_paths,
)
from closeloop.traces.session_builder import SessionBuilder

name = "atif"
version = 2


def recognises(source: RecordingSource) -> bool:
    if b"ATIF-v" not in source.head:
        return False
    lines = source.lines
    if lines and is_trajectory(lines[0]):
        return True
    return is_trajectory(source.document)


def parts(source: RecordingSource) -> Sequence[Path]:
    return list(_iter_named_files(source))


def _iter_named_files(source: RecordingSource) -> Iterator[Path]:
    """The files that a trajectory names and those that they name, the nearest first."""
    seen = {source.path}
    waiting = [source.path]
    while waiting:
        path = waiting.pop(0)
        document = source.document if path == source.path else source.beside(path).document
        for named in dict.fromkeys(iter_referenced_paths(document)):
            inner = find_trajectory_file(path, named)
            if inner is not None and inner not in seen and len(seen) <= MAX_FILES:
                seen.add(inner)
                waiting.append(inner)
                yield inner


def owner(source: RecordingSource) -> Path | None:
    folder, own = source.path.parent, source.path.name
    # `run.json` may own `run.agent.json`: no other file of the folder needs a look.
    ends = [place for place, letter in enumerate(own) if letter == "."]
    mine = sorted(folder / f"{own[:end]}.json" for end in ends)
    for path in (*mine, folder / "trajectory.json", folder.parent / "trajectory.json"):
        if (
            path != source.path
            and path.is_file()
            and source.path in _iter_named_files(source.beside(path))
        ):
            return path
    return None


def read(source: RecordingSource) -> Iterator[Session]:
    document = source.document
    for trajectory in source.records() if document is None else [document]:
        if is_trajectory(trajectory):
            yield AtifSessionBuilder(
                source, trajectory, SessionBuilder(name, version, source.skipped)
            ).build_session()
        else:
            key = "a record that is no trajectory"
            source.skipped[key] = source.skipped.get(key, 0) + 1
