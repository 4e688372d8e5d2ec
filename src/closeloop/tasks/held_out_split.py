"""Which tasks to hold out: the newest, or a share of every kind; never half of a family."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import PurePosixPath
from typing import Literal

from closeloop.records.errors import BadInput
from closeloop.records.record import content_digest
from closeloop.records.task import Task
from closeloop.text.patches import parse_patch

SplitMethod = Literal["time", "tags"]
TaskFamily = tuple[Task, ...]
TaskTime = Callable[[Task], datetime | None]

NO_AREA = "–"
AREA_DEPTH = 2
_COMMIT_ID = re.compile(r"\b[0-9a-f]{12,40}\b")
_PARENT_TASK = re.compile(r"\btask:([\w.-]+)")


def choose_held_out(
    tasks: Sequence[Task], by: SplitMethod, share: float, when: TaskTime
) -> frozenset[str]:
    """The digests of the tasks to hold out. What is held out already stays so."""
    if not 0 < share < 1:
        raise BadInput("--share must be more than 0 and less than 1, such as 0.3.")
    all_families = group_families(tasks)
    held_families = [
        family for family in all_families if any(task.split == "held-out" for task in family)
    ]
    free_families = [family for family in all_families if family not in held_families]
    wanted = max(1, round(share * len(tasks))) - sum(map(len, held_families))
    if wanted > 0 and len(all_families) < 2:
        raise BadInput(
            "All tasks are about the same work, and one family cannot be split: make more tasks."
        )
    chosen = (
        _choose_newest(free_families, wanted, when)
        if by == "time"
        else _choose_spread(free_families, wanted)
    )
    if len(held_families) + len(chosen) == len(all_families):
        chosen = chosen[:-1]
    return frozenset(task.digest for family in (*held_families, *chosen) for task in family)


def group_families(tasks: Sequence[Task]) -> list[TaskFamily]:
    """Tasks that share a commit, a reference or a parent, together: one would give away another."""
    root: dict[str, str] = {}

    def find(key: str) -> str:
        while root.setdefault(key, key) != key:
            key = root[key]
        return key

    for task in tasks:
        first, *others = _family_keys(task)
        for other in others:
            root[find(other)] = find(first)
    tasks_by_root: dict[str, list[Task]] = {}
    for task in tasks:
        tasks_by_root.setdefault(find(next(_family_keys(task))), []).append(task)
    return [tuple(family) for family in tasks_by_root.values()]


def task_area(task: Task) -> str:
    """The part of the repository that the change belongs to, two folders deep."""
    patch = task.reference or task.acceptance.patch
    if patch is None:
        return NO_AREA
    return main_area(file.path for file in parse_patch(patch).files)


def main_area(paths: Iterable[str]) -> str:
    """The folder of most of these files."""
    folders = Counter(area_folder(path) for path in paths)
    # Of equals the first by name: the same on every machine.
    return min(folders, key=lambda name: (-folders[name], name)) if folders else NO_AREA


def area_folder(path: str) -> str:
    return "/".join(PurePosixPath(path).parent.parts[:AREA_DEPTH]) or "."


def _family_keys(task: Task) -> Iterator[str]:
    yield f"task:{task.id}"
    yield from (f"task:{name}" for name in _PARENT_TASK.findall(task.origin))
    yield from (f"commit:{name[:12]}" for name in _COMMIT_ID.findall(task.origin))
    if task.reference is not None:
        yield f"reference:{content_digest(task.base, task.reference)}"


def _choose_newest(free: Sequence[TaskFamily], wanted: int, when: TaskTime) -> list[TaskFamily]:
    """The latest work, which a model can least have seen and which is most like what comes."""

    def age(family: TaskFamily) -> tuple[float, str]:
        times = [moment.timestamp() for task in family if (moment := when(task)) is not None]
        # What has no date is old.
        return (-max(times, default=0.0), family[0].digest)

    return _fill_share(sorted(free, key=age), wanted)


def _fill_share(ordered: Sequence[TaskFamily], wanted: int) -> list[TaskFamily]:
    chosen: list[TaskFamily] = []
    for family in ordered:
        room = wanted - sum(map(len, chosen))
        # Half of a family more than wanted is nearer than half of it less.
        if len(family) <= 2 * room:
            chosen.append(family)
    return chosen


def _choose_spread(free: Sequence[TaskFamily], wanted: int) -> list[TaskFamily]:
    """Every so many of the families, ordered by kind: each kind gives its share."""
    total = sum(map(len, free))
    ordered = sorted(free, key=lambda family: (_family_stratum(family), family[0].digest))
    chosen: list[TaskFamily] = []
    seen = taken = 0
    for family in ordered:
        seen += len(family)
        if wanted > 0 and taken + len(family) / 2 <= wanted * seen / total:
            chosen.append(family)
            taken += len(family)
    return chosen


def _family_stratum(family: TaskFamily) -> tuple[tuple[str, ...], str]:
    tags = {tag for task in family for tag in task.tags}
    return tuple(sorted(tags)), task_area(family[0])
