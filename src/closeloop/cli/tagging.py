"""`closeloop task list` and `closeloop task tag`: tasks by what they are and what they show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from closeloop.cli.console import make_visible
from closeloop.records.plural import count_with_noun
from closeloop.records.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from closeloop.cli.config import ProjectConfiguration
    from closeloop.records.task import Task


class TaskListLine(Record):
    """A task, as the list shows it."""

    id: str
    state: str
    """Proved, unproved, unchecked, or unknown before it was looked at."""
    tags: tuple[str, ...]
    modes: tuple[str, ...]
    """Failure modes that attempts at it have shown."""


def list_(*, tag: str | None = None, json: bool = False) -> None:
    """List dev tasks with their tags, those that show several failure modes first.

    Parameters
    ----------
    tag
        Only tasks with this tag.
    json
        Print one JSON document instead of a table.
    """
    from closeloop import flow
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_line, print_parts

    project = load_project(Path.cwd())
    tasks = flow.select_tasks(project.settings, project.root, ())
    task_lines = task_list_lines([task for task in tasks if task.split == "dev"], project)
    task_lines = [one for one in task_lines if tag is None or tag in one.tags]
    if json:
        print_json(task_lines)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for name in ("task", "state", "failure modes", "tags"):
        table.add_column(name, no_wrap=name in ("task", "state"))
    for task_line in task_lines:
        cells = (
            task_line.id,
            task_line.state,
            ", ".join(task_line.modes),
            ", ".join(task_line.tags),
        )
        table.add_row(*(Text(make_visible(cell)) for cell in cells))
    print_parts(table)
    if held_out_count := sum(task.split == "held-out" for task in tasks):
        print_line(f"{count_with_noun(held_out_count, 'more is', 'more are')} held out.")


def task_list_lines(tasks: Sequence[Task], found: ProjectConfiguration) -> list[TaskListLine]:
    """Tasks with what the store knows of them."""
    from closeloop import flow
    from closeloop.metrics.attempt_measuring import measure_attempts, project_rulebook
    from closeloop.tasks.task_tags import infer_kind_tags, tag_from_mode

    modes: dict[str, dict[str, None]] = {}
    with flow.open_existing_store(found.settings, found.root) as store:
        rows = store.list_attempts(task_digests=[task.digest for task in tasks])
        for one in measure_attempts(store, rows, project_rulebook(found.settings)):
            task_modes = modes.setdefault(one.row.task_digest or "", {})
            task_modes |= {tag_from_mode(each.mode): None for each in one.measurement.modes}
        proofs = {task.digest: store.load_proof(task.grading) for task in tasks}
    task_lines = [
        TaskListLine(
            id=task.id,
            state=proof.state if (proof := proofs[task.digest]) else "unknown",
            tags=tuple(
                dict.fromkeys([*task.tags, *infer_kind_tags(task), *modes.get(task.digest, ())])
            ),
            modes=tuple(sorted(modes.get(task.digest, ()))),
        )
        for task in tasks
    ]
    return sorted(task_lines, key=lambda one: (-len(one.modes), one.id))


def tag(
    task: str,
    *changes: Annotated[str, Parameter(allow_leading_hyphen=True)],
    json: bool = False,
) -> None:
    """Add tags to a task's file and take others away: +billing -mined.

    Parameters
    ----------
    task
        The id of the task.
    changes
        +NAME adds a tag, -NAME takes it away.
    json
        Print one JSON document instead of text.
    """
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_line
    from closeloop.records.errors import unknown_name_error
    from closeloop.sandbox.workspaces import resolve_commit
    from closeloop.tasks.sealed_tasks import require_unsealed
    from closeloop.tasks.task_edit import set_task_field
    from closeloop.tasks.task_sets import load_task_files
    from closeloop.tasks.task_tags import apply_tag_changes

    project = load_project(Path.cwd())
    task_files = load_task_files(
        project.root / project.settings.tasks, project.root, resolve_commit
    )
    files_by_id = {one.task.id: one for one in task_files}
    if task not in files_by_id:
        raise unknown_name_error(
            "task", task, [one.task.id for one in task_files if one.task.split == "dev"]
        )
    require_unsealed(files_by_id[task].task)
    tags = apply_tag_changes(files_by_id[task].task.tags, changes)
    if changes:
        set_task_field(files_by_id[task].path, "tags", tags or None)
    print_json({"id": task, "tags": tags}) if json else print_line(
        f"{task}: {', '.join(tags) or 'no tags'}"
    )
