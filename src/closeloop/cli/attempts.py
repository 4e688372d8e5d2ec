"""`closeloop attempts`: the list of what was tried."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.table import Table

    from closeloop.model.attempt import AttemptRow


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
    from closeloop.cli.config import load
    from closeloop.cli.console import say, say_json, show
    from closeloop.cli.typed import demand_positive
    from closeloop.tasks.seal import hide_row

    demand_positive(limit=limit)
    found = load(Path.cwd())
    with flow.open_kept_store(found.settings, found.root) as store:
        rows = store.attempts(task=task, variant_name=variant, outcome=outcome, limit=limit)
        sealed = store.held_out.sealed()
    rows = [hide_row(row, sealed) for row in rows]
    if json:
        say_json(rows)
        return
    if not rows:
        chosen = task or variant or outcome
        hint = "No attempt is like that." if chosen else "`closeloop run` makes some."
        say(f"No attempts: {hint}")
        return
    show(table_of(rows))


def table_of(rows: Sequence[AttemptRow]) -> Table:
    """A row an attempt."""
    from rich.table import Table
    from rich.text import Text

    from closeloop.cli.console import visible
    from closeloop.cli.results import MARKS, why

    table = Table(box=None)
    for name in ("attempt", "task", "variant", "no.", "", "exit", "turns", "seconds", "why"):
        table.add_column(name, no_wrap=name != "why")
    for row in rows:
        imported = row.origin == "production" and row.outcome is None
        mark, colour = ("·", "dim") if imported else MARKS[row.outcome or "unscored"]
        agent = " ".join(name for name in (row.agent, row.model) if name)
        number = str(row.number) + (f" (retry {row.retry})" if row.retry else "")
        table.add_row(
            row.id,
            Text(visible(row.task or short(row.repo) or "–")),
            Text(visible(row.variant_name or agent or "–")),
            "" if imported else number,
            Text(mark, style=colour),
            row.exit,
            "–" if row.turns is None else str(row.turns),
            "–" if row.seconds is None else f"{row.seconds:.1f}",
            Text(why(row), style="dim"),
        )
    return table


def short(repo: str | None) -> str | None:
    """A repository by the last part of its address."""
    return repo and repo.rstrip("/").removesuffix(".git").replace(":", "/").rpartition("/")[2]
