"""Make a proved task harder in one way: the way in which one failure mode shows.

Nothing is left to chance: the same task gives the same variants. Each is proved like any other
task before it counts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from closeloop.model.errors import BadInput
from closeloop.model.record import Record
from closeloop.model.task import Task
from closeloop.tasks.stress.imports import far_away, shared_helper
from closeloop.tasks.stress.planted import lookalike, neighbour
from closeloop.tasks.stress.words import constraints, missing_decision

Stress = Literal[
    "context-blindness",
    "instruction-drift",
    "silent-regression",
    "scope-creep",
    "hallucinated-api",
    "ambiguity",
]


class Stressed(Record):
    """A variant of a task, and the files that its base needs besides."""

    task: Task
    planted: dict[str, str] = {}


_MAKERS: dict[Stress, Callable[[Task, Path], tuple[Task, dict[str, str]]]] = {
    "context-blindness": far_away,
    "instruction-drift": constraints,
    "silent-regression": shared_helper,
    "scope-creep": neighbour,
    "hallucinated-api": lookalike,
    "ambiguity": missing_decision,
}
MODES = tuple(_MAKERS)


def stress(task: Task, mode: Stress, tree: Path) -> Stressed:
    """A variant that stresses one mode, given the files of its base; BadInput where none is."""
    if task.reference is None or not task.acceptance.run:
        raise BadInput(f"{task.id} has no reference or no tests: nothing would prove a variant.")
    made, planted = _MAKERS[mode](task, tree)
    if planted.keys() & {str(path.relative_to(tree)) for path in tree.rglob("*")}:
        raise BadInput(f"{task.id} has a file already where one would be planted.")
    tags = dict.fromkeys([*task.tags, "stress", mode])
    made = replace(
        made,
        id=f"{task.id[:80]}-{mode}",
        tags=tuple(tags),
        origin=f"stress:{mode} of task:{task.id} {task.origin}",
    )
    return Stressed(task=made, planted=planted)
