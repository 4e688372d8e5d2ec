"""`closeloop sets`: dev and held-out tasks, how they differ, and who looked."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from closeloop.cli.console import JsonFlag, make_visible
from closeloop.records.task import SplitMethod
from closeloop.text.wording import count_with_noun, format_percent, format_percent_range

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from closeloop.cli.config import ProjectConfiguration
    from closeloop.records.estimate import Estimate
    from closeloop.records.experiment_plan import ExperimentPlan
    from closeloop.records.held_out import HeldOutGap, HeldOutReport, HeldOutRun
    from closeloop.records.task import Task
    from closeloop.store import Store
    from closeloop.tasks.task_sets import SetFacts, TaskFile

MAX_NAMES = 4


def sets(
    action: Literal["list", "split", "looks"] = "list",
    /,
    *,
    by: SplitMethod = "time",
    share: float = 0.3,
    json: JsonFlag = False,
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
    """
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_parts
    from closeloop.sandbox.workspaces import resolve_commit
    from closeloop.store.store_opening import open_existing_store, open_project_store
    from closeloop.tasks.task_sets import load_task_files

    project = load_project(Path.cwd())
    store_opener = open_project_store if action == "split" else open_existing_store
    with store_opener(project.settings, project.root) as store:
        if action == "looks":
            looks = store.held_out.list_unsealings()
            print_json(looks) if json else print_parts(*render_unsealings(looks))
            return
        task_files = load_task_files(
            project.root / project.settings.tasks, project.root, resolve_commit
        )
        if action == "split":
            task_files = write_held_out_split(task_files, by, share, project)
        tasks = [one.task for one in task_files]
        known_before = find_newly_sealed(tasks, store)
        for task in tasks:
            store.save_task(task)
        set_report = describe_standing(tasks, store) | {"sealed_now": known_before}
    print_json(set_report) if json else print_parts(*render_sets(**set_report))


def write_held_out_split(
    kept: Sequence[TaskFile], by: SplitMethod, share: float, found: ProjectConfiguration
) -> list[TaskFile]:
    """Write into the tasks' files which are held out; the tasks as they are then."""
    from msgspec.structs import replace

    from closeloop.tasks.task_sets import choose_held_out, read_base_times
    from closeloop.tasks.task_writer import set_task_field

    tasks = [one.task for one in kept]
    held_out_digests = choose_held_out(tasks, by, share, read_base_times(tasks))
    new_files = []
    for one in kept:
        if one.task.digest in held_out_digests and one.task.split == "dev":
            set_task_field(one.path, "split", "held-out")
            one = replace(one, task=replace(one.task, split="held-out"))  # noqa: PLW2901
        new_files.append(one)
    return new_files


def find_newly_sealed(tasks: Sequence[Task], store: Store) -> dict[str, int]:
    """Tasks that are held out from now on though they were run as dev: by id, with attempts.

    This is the last time that anybody is told which.
    """
    from closeloop.metrics.held_out_runs import count_dev_attempts

    sealed = store.held_out.list_sealed_digests()
    return count_dev_attempts(store, [task for task in tasks if task.digest not in sealed])


def describe_standing(tasks: Sequence[Task], store: Store) -> dict[str, Any]:
    """All that may be said of the sets."""
    from closeloop.metrics.held_out_runs import (
        count_dev_attempts,
        list_held_out_reminders,
        report_held_out,
    )
    from closeloop.tasks.task_sets import describe_sets

    now = datetime.now(UTC)
    facts = describe_sets(tasks, now)
    looks = store.held_out.list_unsealings()
    ages = [one.median_days for one in facts if one.median_days is not None]
    return {
        "sets": facts,
        "held_out": report_held_out(store, tasks),
        "looks": looks,
        "run_as_dev": len(count_dev_attempts(store, tasks)),
        "reminders": list_held_out_reminders(
            looks, store.held_out.list_tried_models(), max(ages, default=None), now
        ),
    }


def record_unsealing(
    plan: ExperimentPlan, store: Store, root: Path, reason: str | None
) -> HeldOutRun | None:
    """Put a look at held-out tasks into the ledger, before it is taken; None where it is none."""
    from closeloop.cli.console import print_warning
    from closeloop.metrics.held_out_runs import (
        build_look_event,
        build_unsealing,
        count_dev_attempts,
        overuse_warning,
    )

    unsealing = build_unsealing(plan, reason or "", git_user_or_account(root), datetime.now(UTC))
    if unsealing is None:
        return None
    looks = store.held_out.list_unsealings()
    looked_at = {look.experiment for look in looks}
    seen = {key for one in store.list_experiments() if one.id in looked_at for key in one.tasks}
    first_seen = [task for task in plan.tasks if task.digest not in seen]
    if known_before := count_dev_attempts(store, first_seen):
        print_warning(describe_newly_sealed(known_before))
    warning_text = overuse_warning(unsealing, looks)
    store.held_out.add_unsealing(unsealing)
    store.events.add([build_look_event(unsealing)])
    if warning_text is not None:
        print_warning(warning_text)
    return unsealing


def git_user_or_account(root: Path) -> str:
    """Whoever git would name here, else the account."""
    import getpass

    from closeloop.git import try_git_text

    for name in ("user.email", "user.name"):
        if git_name := try_git_text(str(root), "config", name).strip():
            return git_name
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def describe_newly_sealed(attempts_by_task: Mapping[str, int]) -> str:
    """`Sealed now though run as dev before: fix (3 attempts). …`"""
    names = ", ".join(
        f"{name} ({count_with_noun(count, 'attempt')})" for name, count in attempts_by_task.items()
    )
    return (
        f"Sealed now though run as dev before: {names}. What was tuned since then may know them:"
        " their pass rate promises too much, so hold out tasks that nobody has run, too."
    )


def render_sets(
    sets: Sequence[SetFacts],
    held_out: HeldOutReport | None,
    looks: Sequence[HeldOutRun],
    run_as_dev: int,
    sealed_now: Mapping[str, int],
    reminders: Sequence[str],
) -> Iterator[RenderableType]:
    """The sets, the gap between them, and what to do about them."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for name in ("set", "tasks", "from", "to", "areas", "tags"):
        table.add_column(name, no_wrap=name in ("set", "from", "to"))
    for set_facts in sets:
        dates = [
            f"{moment:%Y-%m-%d}" if moment else "–"
            for moment in (set_facts.oldest, set_facts.newest)
        ]
        table.add_row(
            set_facts.name,
            str(set_facts.tasks),
            *dates,
            list_most_frequent(set_facts.areas),
            list_most_frequent(set_facts.tags),
        )
    yield table
    for set_facts in sets:
        if set_facts.gone:
            names = (
                f": {', '.join(set_facts.gone_tasks[:MAX_NAMES])}" if set_facts.gone_tasks else ""
            )
            yield Text(
                make_visible(
                    f"{set_facts.gone} of {set_facts.name} change files that are gone{names}"
                ),
                "yellow",
            )
        if set_facts.uncovered is not None and set_facts.name == "dev":
            yield Text(
                f"{format_percent(set_facts.uncovered)} of the last 90 days' work is where no dev"
                " task is",
                "dim",
            )
    if sealed_now:
        yield Text(make_visible(describe_newly_sealed(sealed_now)), style="yellow")
    elif run_as_dev:
        were = count_with_noun(run_as_dev, "held-out task was", "held-out tasks were")
        yield Text(f"{were} run as dev before being sealed", style="yellow")
    if held_out is not None:
        yield from render_held_out(held_out)
        changes = len({look.change for look in looks if look.tasks == held_out.last_look.tasks})
        yield Text(f"{count_with_noun(changes, 'change')} tried on the set as it was last", "dim")
    for line in reminders:
        yield Text(make_visible(line), style="yellow")


def render_held_out(report: HeldOutReport) -> Iterator[RenderableType]:
    """A heading of its own with the ledger's last entry; then the gaps, and what they mean."""
    from rich.text import Text

    last = report.last_look
    yield Text("\nHeld out", style="bold")
    yield Text(
        make_visible(
            f"{count_with_noun(report.looks, 'look')}; the last on {last.at:%Y-%m-%d} by"
            f" {last.who}: {last.reason}"
        )
    )
    if report.gaps:
        yield held_out_gap_table(report.gaps)
    for change in report.changes:
        style = "bold red" if change.overfitted else "dim"
        yield Text(make_visible(change.says), style=style)


def list_most_frequent(counts: dict[str, int]) -> str:
    """The most frequent, each with its count."""
    counts_shown = [
        f"{make_visible(name)} {count}" for name, count in list(counts.items())[:MAX_NAMES]
    ]
    more = len(counts) - MAX_NAMES
    return ", ".join(counts_shown) + (f" and {more} more" if more > 0 else "")


def held_out_gap_table(gaps: Sequence[HeldOutGap]) -> RenderableType:
    """A row a variant: its pass rate on both sets, on tasks like these."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for name in ("variant", "dev", "held-out", "gap"):
        table.add_column(name, no_wrap=True)
    for gap_facts in gaps:
        style = "red" if gap_facts.gap.low > 0 else ""
        gap = f"{gap_facts.gap.value:+.2f} ({gap_facts.gap.low:+.2f} … {gap_facts.gap.high:+.2f})"
        table.add_row(
            Text(make_visible(gap_facts.variant)),
            format_pass_estimate(gap_facts.dev),
            format_pass_estimate(gap_facts.held_out),
            Text(gap, style),
        )
    return table


def format_pass_estimate(one: Estimate) -> str:
    bounds = format_percent_range(one.low, one.high)
    return f"{format_percent(one.value)} ({bounds}), {count_with_noun(one.n, 'task')}"


def render_unsealings(looks: Sequence[HeldOutRun]) -> Iterator[RenderableType]:
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
            Text(make_visible(look.who)),
            Text(make_visible(look.reason)),
            look.change,
            f"{look.count} in {look.tasks}",
            Text(make_visible(", ".join(look.variants))),
        )
    yield table
