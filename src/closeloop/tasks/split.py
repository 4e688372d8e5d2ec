"""Which tasks to hold out: the newest, or a share of every kind; never half of a family."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import PurePosixPath
from typing import Literal

from closeloop.model.errors import BadInput
from closeloop.model.patches import parse
from closeloop.model.record import digest
from closeloop.model.task import Task

By = Literal["time", "tags"]
Family = tuple[Task, ...]
When = Callable[[Task], datetime | None]

NOWHERE = "–"
AREA_DEPTH = 2
_COMMIT = re.compile(r"\b[0-9a-f]{12,40}\b")
_PARENT = re.compile(r"\btask:([\w.-]+)")


def hold_out(tasks: Sequence[Task], by: By, share: float, when: When) -> frozenset[str]:
    """The digests of the tasks to hold out. What is held out already stays so."""
    if not 0 < share < 1:
        raise BadInput("--share must be more than 0 and less than 1, such as 0.3.")
    kin = families(tasks)
    held = [family for family in kin if any(task.split == "held-out" for task in family)]
    free = [family for family in kin if family not in held]
    wanted = max(1, round(share * len(tasks))) - sum(map(len, held))
    if wanted > 0 and len(kin) < 2:
        raise BadInput(
            "All tasks are about the same work, and one family cannot be split: make more tasks."
        )
    chosen = _newest(free, wanted, when) if by == "time" else _spread(free, wanted)
    if len(held) + len(chosen) == len(kin):
        chosen = chosen[:-1]
    return frozenset(task.digest for family in (*held, *chosen) for task in family)


def families(tasks: Sequence[Task]) -> list[Family]:
    """Tasks that share a commit, a reference or a parent, together: one would give away another."""
    root: dict[str, str] = {}

    def find(key: str) -> str:
        while root.setdefault(key, key) != key:
            key = root[key]
        return key

    for task in tasks:
        first, *others = _keys(task)
        for other in others:
            root[find(other)] = find(first)
    found: dict[str, list[Task]] = {}
    for task in tasks:
        found.setdefault(find(next(_keys(task))), []).append(task)
    return [tuple(family) for family in found.values()]


def area(task: Task) -> str:
    """The part of the repository that the change belongs to, two folders deep."""
    patch = task.reference or task.acceptance.patch
    if patch is None:
        return NOWHERE
    return area_of(file.path for file in parse(patch).files)


def area_of(paths: Iterable[str]) -> str:
    """The folder of most of these files."""
    folders = Counter(folder(path) for path in paths)
    # Of equals the first by name: the same on every machine.
    return min(folders, key=lambda name: (-folders[name], name)) if folders else NOWHERE


def folder(path: str) -> str:
    return "/".join(PurePosixPath(path).parent.parts[:AREA_DEPTH]) or "."


def _keys(task: Task) -> Iterator[str]:
    yield f"task:{task.id}"
    yield from (f"task:{name}" for name in _PARENT.findall(task.origin))
    yield from (f"commit:{name[:12]}" for name in _COMMIT.findall(task.origin))
    if task.reference is not None:
        yield f"reference:{digest(task.base, task.reference)}"


def _newest(free: Sequence[Family], wanted: int, when: When) -> list[Family]:
    """The latest work, which a model can least have seen and which is most like what comes."""

    def age(family: Family) -> tuple[float, str]:
        times = [moment.timestamp() for task in family if (moment := when(task)) is not None]
        # What has no date is old.
        return (-max(times, default=0.0), family[0].digest)

    return _filled(sorted(free, key=age), wanted)


def _filled(ordered: Sequence[Family], wanted: int) -> list[Family]:
    chosen: list[Family] = []
    for family in ordered:
        room = wanted - sum(map(len, chosen))
        # Half of a family more than wanted is nearer than half of it less.
        if len(family) <= 2 * room:
            chosen.append(family)
    return chosen


def _spread(free: Sequence[Family], wanted: int) -> list[Family]:
    """Every so many of the families, ordered by kind: each kind gives its share."""
    total = sum(map(len, free))
    ordered = sorted(free, key=lambda family: (_stratum(family), family[0].digest))
    chosen: list[Family] = []
    seen = taken = 0
    for family in ordered:
        seen += len(family)
        if wanted > 0 and taken + len(family) / 2 <= wanted * seen / total:
            chosen.append(family)
            taken += len(family)
    return chosen


def _stratum(family: Family) -> tuple[tuple[str, ...], str]:
    tags = {tag for task in family for tag in task.tags}
    return tuple(sorted(tags)), area(family[0])
