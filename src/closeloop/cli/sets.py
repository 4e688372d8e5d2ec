"""`closeloop sets`: dev and held-out tasks, how they differ, and who looked."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from closeloop.cli.console import visible
from closeloop.model.plural import plural
from closeloop.tasks.split import By

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from closeloop.cli.config import Configuration
    from closeloop.model.estimate import Estimate
    from closeloop.model.look import Gap, Look
    from closeloop.model.plan import Plan
    from closeloop.store import Store
    from closeloop.tasks.sets import Kept, SetFacts

MOST_NAMES = 4


def sets(
    action: Literal["list", "split", "looks"] = "list",
    /,
    *,
    by: By = "time",
    share: float = 0.3,
    json: bool = False,
) -> None:
    """List dev and held-out tasks as sets; hold some out; or see who looked at those.

    Parameters
    ----------
    action
        What to do: list, split or looks.
    by
        How to split: time holds out the newest, tags a share of every tag and area.
    share
        The part of the tasks to hold out.
    json
        Print one JSON document instead of tables.
    """
    from closeloop import flow
    from closeloop.cli.config import load
    from closeloop.cli.console import say_json, show
    from closeloop.runs.workspaces import resolve_commit
    from closeloop.tasks.sets import read_kept

    found = load(Path.cwd())
    opening = flow.open_named_store if action == "split" else flow.open_kept_store
    with opening(found.settings, found.root) as store:
        if action == "looks":
            looks = store.held_out.looks()
            say_json(looks) if json else show(*looks_told(looks))
            return
        kept = read_kept(found.root / found.settings.tasks, found.root, resolve_commit)
        if action == "split":
            kept = split(kept, by, share, found)
        for one in kept:
            store.save_task(one.task)
        told = standing(kept, store)
    say_json(told) if json else show(*sets_told(**told))


def split(kept: Sequence[Kept], by: By, share: float, found: Configuration) -> list[Kept]:
    """Write into the tasks' files which are held out; the tasks as they are then."""
    from msgspec.structs import replace

    from closeloop.tasks.edit import set_field
    from closeloop.tasks.sets import times_of
    from closeloop.tasks.split import hold_out

    tasks = [one.task for one in kept]
    held = hold_out(tasks, by, share, times_of(tasks))
    new = []
    for one in kept:
        if one.task.digest in held and one.task.split == "dev":
            set_field(one.path, "split", "held-out")
            one = replace(one, task=replace(one.task, split="held-out"))  # noqa: PLW2901
        new.append(one)
    return new


def standing(kept: Sequence[Kept], store: Store) -> dict[str, Any]:
    """All that may be said of the sets."""
    from closeloop.measuring.looks import gaps, reminders
    from closeloop.tasks.sets import facts_of

    tasks, now = [one.task for one in kept], datetime.now(UTC)
    facts = facts_of(tasks, now)
    looks = store.held_out.looks()
    ages = [one.median_days for one in facts if one.median_days is not None]
    return {
        "sets": facts,
        "gaps": gaps(store, tasks),
        "looks": looks,
        "reminders": reminders(looks, store.attempts(), max(ages, default=None), now),
    }


def write_down(plan: Plan, store: Store, root: Path, reason: str | None) -> None:
    """Put a look at held-out tasks into the ledger, before it is taken."""
    from closeloop.cli.console import warn
    from closeloop.measuring.looks import look_of, warning

    look = look_of(plan, reason or "", who(root), datetime.now(UTC))
    if look is None:
        return
    told = warning(look, store.held_out.looks())
    store.held_out.add_look(look)
    if told is not None:
        warn(told)


def who(root: Path) -> str:
    """Whoever git would name here, else the account."""
    import getpass

    from closeloop.git import try_text

    for name in ("user.email", "user.name"):
        if told := try_text(str(root), "config", name).strip():
            return told
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def sets_told(
    sets: Sequence[SetFacts], gaps: Sequence[Gap], looks: Sequence[Look], reminders: Sequence[str]
) -> Iterator[RenderableType]:
    """The sets, the gap between them, and what to do about them."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for name in ("set", "tasks", "from", "to", "areas", "tags"):
        table.add_column(name, no_wrap=name in ("set", "from", "to"))
    for one in sets:
        dates = [f"{moment:%Y-%m-%d}" if moment else "–" for moment in (one.oldest, one.newest)]
        table.add_row(one.name, str(one.tasks), *dates, most(one.areas), most(one.tags))
    yield table
    for one in sets:
        if one.gone:
            names = f": {', '.join(one.gone_tasks[:MOST_NAMES])}" if one.gone_tasks else ""
            yield Text(
                visible(f"{one.gone} of {one.name} change files that are gone{names}"), "yellow"
            )
        if one.uncovered is not None and one.name == "dev":
            yield Text(
                f"{one.uncovered:.0%} of the last 90 days' work is where no dev task is", "dim"
            )
    if gaps:
        yield Text()
        yield gap_table(gaps)
    if looks:
        last = looks[0]
        changes = len({look.change for look in looks if look.tasks == last.tasks})
        yield Text(
            visible(
                f"\n{plural(len(looks), 'look')} at held-out tasks, {plural(changes, 'change')} "
                "on the set as it was last; "
                f"the last on {last.at:%Y-%m-%d} by {last.who}: {last.reason}"
            )
        )
    for line in reminders:
        yield Text(visible(line), style="yellow")


def most(counts: dict[str, int]) -> str:
    """The most frequent, each with its count."""
    shown = [f"{visible(name)} {count}" for name, count in list(counts.items())[:MOST_NAMES]]
    more = len(counts) - MOST_NAMES
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def gap_table(gaps: Sequence[Gap]) -> RenderableType:
    """A row a variant: its pass rate on both sets, on tasks like these."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Passed, and what dev promises too much", title_justify="left", box=None)
    for name in ("variant", "dev", "held-out", "gap"):
        table.add_column(name, no_wrap=True)
    for one in gaps:
        style = "red" if one.gap.low > 0 else ""
        gap = f"{one.gap.value:+.2f} ({one.gap.low:+.2f} … {one.gap.high:+.2f})"
        table.add_row(
            Text(visible(one.variant)), rate(one.dev), rate(one.held_out), Text(gap, style)
        )
    return table


def rate(one: Estimate) -> str:
    return f"{one.value:.2f} ({one.low:.2f} … {one.high:.2f}), {plural(one.n, 'task')}"


def looks_told(looks: Sequence[Look]) -> Iterator[RenderableType]:
    """The ledger, the latest first."""
    from rich.table import Table
    from rich.text import Text

    if not looks:
        yield Text("Nobody has looked at held-out tasks.")
        return
    table = Table(box=None)
    for name in ("when", "who", "why", "change", "tasks", "variants"):
        table.add_column(name, no_wrap=name in ("when", "change", "tasks"))
    for look in looks:
        table.add_row(
            f"{look.at:%Y-%m-%d %H:%M}",
            Text(visible(look.who)),
            Text(visible(look.reason)),
            look.change,
            f"{look.count} in {look.tasks}",
            Text(visible(", ".join(look.variants))),
        )
    yield table
