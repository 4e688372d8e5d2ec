"""`closeloop attempts`: the list of what was tried."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.table import Table

    from closeloop.records.attempt import AttemptRow


def attempts(
    *,
    task: str | None = None,
    variant: str | None = None,
    outcome: Literal["pass", "fail", "unscored"] | None = None,
    limit: int = 50,
    json: bool = False,
) -> None:
    """List attempts and their outcomes, the newest first.

    Parameters
    ----------
    task
        Only attempts at this task.
    variant
        Only attempts of this variant.
    outcome
        Only attempts that ended so.
    limit
        How many at the most.
    json
        Print one JSON document instead of a table.
    """
    from closeloop import flow
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_line, print_parts
    from closeloop.cli.flag_checks import require_positive_flags
    from closeloop.tasks.sealed_tasks import hide_attempt

    require_positive_flags(limit=limit)
    project = load_project(Path.cwd())
    with flow.open_existing_store(project.settings, project.root) as store:
        rows = store.list_attempts(task=task, variant_name=variant, outcome=outcome, limit=limit)
        sealed = store.held_out.list_sealed_digests()
    rows = [hide_attempt(row, sealed) for row in rows]
    if json:
        print_json(rows)
        return
    if not rows:
        has_filter = task or variant or outcome
        hint = "No attempt is like that." if has_filter else "`closeloop run` makes some."
        print_line(f"No attempts: {hint}")
        return
    print_parts(attempts_table(rows))


def attempts_table(rows: Sequence[AttemptRow]) -> Table:
    """A row an attempt."""
    from rich.table import Table
    from rich.text import Text

    from closeloop.cli.console import make_visible
    from closeloop.cli.run_results import OUTCOME_MARKS, failure_reason

    table = Table(box=None)
    for name in ("attempt", "task", "variant", "no.", "", "exit", "turns", "seconds", "why"):
        table.add_column(name, no_wrap=name != "why")
    for row in rows:
        imported = row.origin == "production" and row.outcome is None
        mark, colour = ("·", "dim") if imported else OUTCOME_MARKS[row.outcome or "unscored"]
        agent = " ".join(name for name in (row.agent, row.model) if name)
        number = str(row.number) + (f" (retry {row.retry})" if row.retry else "")
        table.add_row(
            row.id,
            Text(make_visible(row.task or short_repo_name(row.repo) or "–")),
            Text(make_visible(row.variant_name or agent or "–")),
            "" if imported else number,
            Text(mark, style=colour),
            row.exit,
            "–" if row.turns is None else str(row.turns),
            "–" if row.seconds is None else f"{row.seconds:.1f}",
            Text(failure_reason(row), style="dim"),
        )
    return table


def short_repo_name(repo: str | None) -> str | None:
    """A repository by the last part of its address."""
    return repo and repo.rstrip("/").removesuffix(".git").replace(":", "/").rpartition("/")[2]
