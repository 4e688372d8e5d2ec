"""`closeloop experiments`: how far each one is, and whether it may go on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.table import Table

    from closeloop.records.experiment_plan import ExperimentStatus

MAX_NAMES = 3


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
    from closeloop.attempts.experiment_status import (
        list_experiment_statuses,
        read_experiment_status,
    )
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_parts
    from closeloop.metrics.attempt_measuring import find_experiment
    from closeloop.records.errors import BadInput

    project = load_project(Path.cwd())
    if action != "list" and experiment is None:
        raise BadInput(f"Say which one to {action}: `closeloop experiments` lists them.")
    with flow.open_existing_store(project.settings, project.root) as store:
        if action == "list" and experiment is None:
            statuses = list_experiment_statuses(store)
        else:
            chosen_experiment = find_experiment(store, experiment)
            if action != "list":
                store.course.set_paused(chosen_experiment.id, paused=action == "pause")
            statuses = [
                read_experiment_status(store, chosen_experiment, store.course.list_claimed_jobs())
            ]
    if json:
        print_json(statuses)
    else:
        print_parts(
            experiments_table(statuses)
            if statuses
            else Text("No experiments: `closeloop run` makes one.")
        )


def experiments_table(courses: list[ExperimentStatus]) -> Table:
    """A row an experiment."""
    from rich.table import Table
    from rich.text import Text

    from closeloop.cli.console import make_visible

    table = Table(box=None)
    for name in ("experiment", "name", "tasks", "variants", "done", "running", "cost", "state"):
        table.add_column(name, no_wrap=name != "variants")
    for course in courses:
        names = ", ".join(course.variants[:MAX_NAMES])
        more = len(course.variants) - MAX_NAMES
        table.add_row(
            course.experiment.id,
            Text(make_visible(course.experiment.name or "–")),
            str(len(course.experiment.tasks)),
            Text(make_visible(names + (f" and {more} more" if more > 0 else ""))),
            f"{course.done}/{course.total}",
            str(course.running),
            "–" if course.cost is None else f"${course.cost:.2f}",
            course.state,
        )
    return table
