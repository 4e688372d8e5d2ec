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
version = 1


def recognises(source: Source) -> bool:
    if b"ATIF-v" not in source.head:
        return False
    lines = source.lines
    if lines and is_trajectory(lines[0]):
        return True
    return is_trajectory(source.document)


def parts(source: Source) -> Sequence[Path]:
    found: dict[Path, None] = {}
    waiting = [source.path]
    while waiting and len(found) < MOST_FILES:
        path = waiting.pop(0)
        document = source.document if path == source.path else source.beside(path).document
        for named in dict.fromkeys(named_in(document)):
            inner = beside(path, named)
            if inner is not None and inner != source.path and inner not in found:
                found[inner] = None
                waiting.append(inner)
    return list(found)


def owner(source: Source) -> Path | None:
    folder = source.path.parent
    try:
        names = sorted(path for path in folder.glob("*.json") if path != source.path)
    except OSError:
        return None
    mine = [path for path in names if source.path.name.startswith(f"{path.stem}.")]
    for path in (*mine, folder / "trajectory.json", folder.parent / "trajectory.json"):
        if path != source.path and path.is_file() and source.path in parts(source.beside(path)):
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
