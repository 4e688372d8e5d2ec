"""`closeloop task list` and `closeloop task tag`: tasks by what they are and what they show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from closeloop.cli.console import visible
from closeloop.model.plural import plural
from closeloop.model.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from closeloop.cli.config import Configuration
    from closeloop.model.task import Task


class Listed(Record):
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
    from closeloop.cli.config import load
    from closeloop.cli.console import say, say_json, show

    found = load(Path.cwd())
    tasks = flow.choose(found.settings, found.root, ())
    listed = rows_of([task for task in tasks if task.split == "dev"], found)
    listed = [one for one in listed if tag is None or tag in one.tags]
    if json:
        say_json(listed)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for name in ("task", "state", "failure modes", "tags"):
        table.add_column(name, no_wrap=name in ("task", "state"))
    for one in listed:
        cells = (one.id, one.state, ", ".join(one.modes), ", ".join(one.tags))
        table.add_row(*(Text(visible(cell)) for cell in cells))
    show(table)
    if held := sum(task.split == "held-out" for task in tasks):
        say(f"{plural(held, 'more is', 'more are')} held out.")


def rows_of(tasks: Sequence[Task], found: Configuration) -> list[Listed]:
    """Tasks with what the store knows of them."""
    from closeloop import flow
    from closeloop.measuring.attempts import book_of, measured
    from closeloop.tasks.tags import kinds, tag_of

    modes: dict[str, dict[str, None]] = {}
    with flow.open_kept_store(found.settings, found.root) as store:
        rows = store.attempts(task_digests=[task.digest for task in tasks])
        for one in measured(store, rows, book_of(found.settings)):
            shown = modes.setdefault(one.row.task_digest or "", {})
            shown |= {tag_of(each.mode): None for each in one.measurement.modes}
        proofs = {task.digest: store.proof(task.grading) for task in tasks}
    listed = [
        Listed(
            id=task.id,
            state=proof.state if (proof := proofs[task.digest]) else "unknown",
            tags=tuple(dict.fromkeys([*task.tags, *kinds(task), *modes.get(task.digest, ())])),
            modes=tuple(sorted(modes.get(task.digest, ()))),
        )
        for task in tasks
    ]
    return sorted(listed, key=lambda one: (-len(one.modes), one.id))


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
    from closeloop.cli.config import load
    from closeloop.cli.console import say, say_json
    from closeloop.model.errors import unknown
    from closeloop.runs.workspaces import resolve_commit
    from closeloop.tasks.edit import set_field
    from closeloop.tasks.seal import demand_open
    from closeloop.tasks.sets import read_kept
    from closeloop.tasks.tags import changed

    found = load(Path.cwd())
    kept = read_kept(found.root / found.settings.tasks, found.root, resolve_commit)
    known = {one.task.id: one for one in kept}
    if task not in known:
        raise unknown("task", task, [one.task.id for one in kept if one.task.split == "dev"])
    demand_open(known[task].task)
    tags = changed(known[task].task.tags, changes)
    if changes:
        set_field(known[task].path, "tags", tags or None)
    say_json({"id": task, "tags": tags}) if json else say(f"{task}: {', '.join(tags) or 'no tags'}")
