"""Make a proved task harder in one way: the way in which one failure mode shows.

Nothing is left to chance: the same task gives the same variants. Each is proved like any other
task before it counts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from closeloop.grading.integrity.restore import find_test_folder
from closeloop.grading.touched_paths import list_patch_paths, list_test_files
from closeloop.records.errors import BadInput
from closeloop.records.record import Record
from closeloop.records.task import Task
from closeloop.tasks.stress.import_variants import name_distant_entry, protect_shared_helper
from closeloop.tasks.stress.planted_variants import plant_lookalike, plant_neighbour
from closeloop.tasks.stress.prompt_variants import add_constraints, remove_decision
from closeloop.text.wording import escape_glob, matches_globs

StressMode = Literal[
    "context-blindness",
    "instruction-drift",
    "silent-regression",
    "scope-creep",
    "hallucinated-api",
    "ambiguity",
]


class StressVariant(Record):
    """A variant of a task, and the files that its base needs besides."""

    task: Task
    planted: dict[str, str] = {}


_VARIANT_MAKERS: dict[StressMode, Callable[[Task, Path], tuple[Task, dict[str, str]]]] = {
    "context-blindness": name_distant_entry,
    "instruction-drift": add_constraints,
    "silent-regression": protect_shared_helper,
    "scope-creep": plant_neighbour,
    "hallucinated-api": plant_lookalike,
    "ambiguity": remove_decision,
}
STRESS_MODES = tuple(_VARIANT_MAKERS)


def stress_task(task: Task, mode: StressMode, tree: Path) -> StressVariant:
    """A variant that stresses one mode, given the files of its base; BadInput where none is."""
    if task.reference is None or not task.acceptance.run:
        raise BadInput(f"{task.id} has no reference or no tests: nothing would prove a variant.")
    variant, planted = _VARIANT_MAKERS[mode](task, tree)
    if planted.keys() & {str(path.relative_to(tree)) for path in tree.rglob("*")}:
        raise BadInput(f"{task.id} has a file already where one would be planted.")
    tags = dict.fromkeys([*task.tags, "stress", mode])
    variant = replace(
        variant,
        id=f"{task.id[:80]}-{mode}",
        scope=_widen_scope(variant),
        tags=tuple(tags),
        origin=f"stress:{mode} of task:{task.id} {task.origin}",
    )
    return StressVariant(task=variant, planted=planted)


def _widen_scope(variant: Task) -> tuple[str, ...]:
    """The scope with all that a right answer may touch: the reference's files, and tests.

    Where nothing is declared, all is in scope already.
    """
    if not variant.scope:
        return ()
    acceptance = variant.acceptance
    tests = [
        *map(escape_glob, list_patch_paths(acceptance.patch)),
        *list_test_files(acceptance.fail_to_pass, acceptance.runner),
    ]
    folders = [find_test_folder(path) for path in tests]
    places = {
        *map(escape_glob, list_patch_paths(variant.reference)),
        *(f"{folder}/**" if folder else path for path, folder in zip(tests, folders, strict=True)),
    }
    missing = {glob for glob in places if not matches_globs(glob, variant.scope)}
    return (*variant.scope, *sorted(missing))
