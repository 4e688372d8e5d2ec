"""Harbor's Agent Trajectory Interchange Format, ATIF 1.0 to 1.8.

A sub-agent's trajectory is embedded in its parent's or lies in a file of its own; a long run
goes on in another file, which begins with a copy of what came before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from closeloop.model.protocols import Source
from closeloop.model.session import Session
from closeloop.traces.atif.files import MOST_FILES, beside, is_trajectory, named_in
from closeloop.traces.atif.run import Run
from closeloop.traces.builder import Builder

name = "atif"
version = 2


def recognises(source: Source) -> bool:
    if b"ATIF-v" not in source.head:
        return False
    lines = source.lines
    if lines and is_trajectory(lines[0]):
        return True
    return is_trajectory(source.document)


def parts(source: Source) -> Sequence[Path]:
    return list(_named(source))


def _named(source: Source) -> Iterator[Path]:
    """The files that a trajectory names and those that they name, the nearest first."""
    found = {source.path}
    waiting = [source.path]
    while waiting:
        path = waiting.pop(0)
        document = source.document if path == source.path else source.beside(path).document
        for named in dict.fromkeys(named_in(document)):
            inner = beside(path, named)
            if inner is not None and inner not in found and len(found) <= MOST_FILES:
                found.add(inner)
                waiting.append(inner)
                yield inner


def owner(source: Source) -> Path | None:
    folder, own = source.path.parent, source.path.name
    # `run.json` may own `run.agent.json`: no other file of the folder needs a look.
    ends = [place for place, letter in enumerate(own) if letter == "."]
    mine = sorted(folder / f"{own[:end]}.json" for end in ends)
    for path in (*mine, folder / "trajectory.json", folder.parent / "trajectory.json"):
        if path != source.path and path.is_file() and source.path in _named(source.beside(path)):
            return path
    return None


def read(source: Source) -> Iterator[Session]:
    document = source.document
    for trajectory in source.records() if document is None else [document]:
        if is_trajectory(trajectory):
            yield Run(source, trajectory, Builder(name, version)).session()
        else:
            key = "a record that is no trajectory"
            source.skipped[key] = source.skipped.get(key, 0) + 1
