"""`closeloop due`: what to run again, which tasks are stale, and what changed since."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from closeloop.cli.console import JsonFlag, make_visible
from closeloop.text.wording import count_with_noun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from closeloop.records.evaluation_due import DueReport, LastRun

MAX_TASKS = 30


def due(*, json: JsonFlag = False) -> None:
    """Say which tasks are stale, what changed since the last comparison, and when that was."""
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_parts
    from closeloop.metrics.evaluation_due import report_due
    from closeloop.sandbox.workspaces import resolve_commit
    from closeloop.store.store_opening import open_existing_store
    from closeloop.tasks.task_sets import load_task_files

    project = load_project(Path.cwd())
    folder = project.root / project.settings.tasks
    # Prompts may be run from anywhere: what ran is due all the same.
    has_tasks = folder.is_dir() and any(folder.iterdir())
    files = load_task_files(folder, project.root, resolve_commit) if has_tasks else []
    with open_existing_store(project.settings, project.root) as store:
        report = report_due(
            store,
            [one.task for one in files],
            project.settings,
            project.root,
            datetime.now(UTC),
        )
    print_json(report) if json else print_parts(*render_due(report))


def render_due(report: DueReport) -> Iterator[RenderableType]:
    """What is due first; then the evidence."""
    from rich.table import Table
    from rich.text import Text

    for line in report.says:
        yield Text(make_visible(line), style="bold yellow")
    if not report.says:
        yield Text("Nothing is due.", style="bold green")
    yield Text()
    yield Text(make_visible(f"last comparison: {describe_last_run(report.last_comparison)}"))
    yield Text(make_visible(f"last on the whole set: {describe_last_run(report.last_full_run)}"))
    look = report.last_look
    when = f"{look.at:%Y-%m-%d} by {look.who}: {look.reason}" if look else "never"
    yield Text(make_visible(f"last look at held-out tasks: {when}"))
    for change in report.changes:
        yield Text(make_visible(f"changed: {change.name}: {change.says}"))
    if report.stale:
        yield Text()
        table = Table(box=None)
        table.add_column("stale task", no_wrap=True)
        table.add_column("why")
        for one in report.stale[:MAX_TASKS]:
            table.add_row(Text(make_visible(one.task)), ", ".join(one.reasons))
        if len(report.stale) > MAX_TASKS:
            table.caption = f"… and {len(report.stale) - MAX_TASKS} more: --json has all"
        yield table


def describe_last_run(run: LastRun | None) -> str:
    """`2026-11-02, 14 days ago, 9 tasks, closer and spiraller (experiment 8c1f2a)`."""
    if run is None:
        return "never"
    names = ", ".join(run.variants)
    return (
        f"{run.at:%Y-%m-%d}, {count_with_noun(run.days, 'day')} ago,"
        f" {count_with_noun(run.tasks, 'task')} by {names}"
        f" (experiment {run.experiment})"
    )
