"""`closeloop experiments`: how far each one is, and whether it may go on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.table import Table

    from closeloop.model.plan import Course

MOST_NAMES = 3


def experiments(
    action: Literal["list", "pause", "resume"] = "list",
    experiment: str | None = None,
    /,
    *,
    json: bool = False,
) -> None:
    """List experiments, the newest first; or hold one back, and let it go on.

    While an experiment is paused no process begins an attempt of it; those that run are finished.

    Parameters
    ----------
    action
        What to do: list, pause or resume.
    experiment
        Which one to pause or resume, by its id or the beginning of it.
    json
        Print one JSON document instead of a table.
    """
    from rich.text import Text

    from closeloop import flow
    from closeloop.cli.config import load
    from closeloop.cli.console import say_json, show
    from closeloop.measuring.attempts import experiment_of
    from closeloop.model.errors import BadInput
    from closeloop.running.courses import course_of, courses

    found = load(Path.cwd())
    if action != "list" and experiment is None:
        raise BadInput(f"Say which one to {action}: `closeloop experiments` lists them.")
    with flow.open_kept_store(found.settings, found.root) as store:
        if action == "list" and experiment is None:
            listed = courses(store)
        else:
            one = experiment_of(store, experiment)
            if action != "list":
                store.course.pause(one.id, paused=action == "pause")
            listed = [course_of(store, one, store.course.in_hand())]
    if json:
        say_json(listed)
    else:
        show(table(listed) if listed else Text("No experiments: `closeloop run` makes one."))


def table(courses: list[Course]) -> Table:
    """A row an experiment."""
    from rich.table import Table
    from rich.text import Text

    from closeloop.cli.console import visible

    made = Table(box=None)
    for name in ("experiment", "name", "tasks", "variants", "done", "running", "cost", "state"):
        made.add_column(name, no_wrap=name != "variants")
    for course in courses:
        names = ", ".join(course.variants[:MOST_NAMES])
        more = len(course.variants) - MOST_NAMES
        made.add_row(
            course.experiment.id,
            Text(visible(course.experiment.name or "–")),
            str(len(course.experiment.tasks)),
            Text(visible(names + (f" and {more} more" if more > 0 else ""))),
            f"{course.done}/{course.total}",
            str(course.running),
            "–" if course.cost is None else f"${course.cost:.2f}",
            course.state,
        )
    return made
