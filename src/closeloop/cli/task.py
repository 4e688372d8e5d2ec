"""The commands that write tasks: `closeloop init` and `closeloop task`."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from closeloop.cli.console import JsonFlag, make_visible
from closeloop.records.record import Record
from closeloop.records.task import SplitMethod
from closeloop.tasks.stress import STRESS_MODES, StressMode
from closeloop.text.wording import count_with_noun, format_percent, format_percent_range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from rich.console import RenderableType
    from rich.table import Table

    from closeloop.changes.change_check import CommandTrial
    from closeloop.cli.config import ProjectConfiguration
    from closeloop.records.attempt import Proof
    from closeloop.records.estimate import Estimate
    from closeloop.records.experiment_plan import (
        DueReport,
        ExperimentPlan,
        HeldOutGap,
        HeldOutReport,
        HeldOutRun,
        LastRun,
    )
    from closeloop.records.settings import Settings
    from closeloop.records.task import Task
    from closeloop.store import Store
    from closeloop.tasks.project_discovery import Discovery
    from closeloop.tasks.stress import StressVariant
    from closeloop.tasks.task_sets import SetFacts, TaskFile


# `closeloop task due`: what to run again, which tasks are stale, and what changed.


MAX_TASKS = 30


def due(*, json: JsonFlag = False) -> None:
    """List stale tasks, the date of the last comparison, and the changes since then."""
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_parts
    from closeloop.metrics.evaluation_due import report_due
    from closeloop.store.store import open_store_if_any
    from closeloop.tasks.task_sets import load_task_files

    project = load_project(Path.cwd())
    folder = project.root / project.settings.tasks
    # Prompt files may be outside the project: their variants are due all the same.
    has_tasks = folder.is_dir() and any(folder.iterdir())
    files = load_task_files(project.settings, project.root) if has_tasks else []
    with open_store_if_any(project.settings, project.root) as store:
        report = report_due(
            store, [file.task for file in files], project.settings, project.root, datetime.now(UTC)
        )
    print_json(report) if json else print_parts(*render_due(report))


def render_due(report: DueReport) -> Iterator[RenderableType]:
    """Render what is due first; then the evidence."""
    from rich.table import Table
    from rich.text import Text

    for line in report.says:
        yield Text(make_visible(line), style="bold yellow")
    if not report.says:
        yield Text("Nothing is due.", style="bold green")
    yield Text()
    yield Text(make_visible(f"last comparison: {describe_last_run(report.last_comparison)}"))
    yield Text(
        make_visible(f"last run of the whole set: {describe_last_run(report.last_full_run)}")
    )
    unsealing = report.last_look
    when = (
        f"{unsealing.at:%Y-%m-%d} by {unsealing.who}: {unsealing.reason}" if unsealing else "never"
    )
    yield Text(make_visible(f"last run of held-out tasks: {when}"))
    for change in report.changes:
        yield Text(make_visible(f"changed: {change.name}: {change.says}"))
    if report.stale:
        yield Text()
        table = Table(box=None)
        table.add_column("stale task", no_wrap=True)
        table.add_column("why")
        for stale_task in report.stale[:MAX_TASKS]:
            table.add_row(Text(make_visible(stale_task.task)), ", ".join(stale_task.reasons))
        if len(report.stale) > MAX_TASKS:
            table.caption = f"… and {len(report.stale) - MAX_TASKS} more: --json lists all"
        yield table


def describe_last_run(run: LastRun | None) -> str:
    """Describe `2026-11-02, 14 days ago, 9 tasks, careful and looping (experiment 8c1f2a)`."""
    if run is None:
        return "never"
    names = ", ".join(run.variants)
    when = f"{count_with_noun(run.days, 'day')} ago" if run.days else "today"
    return (
        f"{run.at:%Y-%m-%d}, {when},"
        f" {count_with_noun(run.tasks, 'task')} by {names}"
        f" (experiment {run.experiment})"
    )


# The dev set and the held-out set of tasks, and the record of runs of held-out tasks.


MAX_NAMES = 4


def sets(*, json: JsonFlag = False) -> None:
    """List the dev set and the held-out set, and the gap between their pass rates."""
    from closeloop.store.store import open_store_if_any

    report_sets(open_store_if_any, json=json)


def split(*, method: SplitMethod = "time", share: float = 0.3, json: JsonFlag = False) -> None:
    """Move part of the tasks to the held-out set, which is kept for decisions.

    Parameters
    ----------
    method
        `time` holds out the newest tasks, `tags` a share of every tag and area.
    share
        The share of tasks to hold out.
    """
    from closeloop.store.store import open_project_store

    report_sets(open_project_store, json=json, method=method, share=share)


def unsealed(*, json: JsonFlag = False) -> None:
    """List runs of held-out tasks: when, who and why."""
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_parts
    from closeloop.store.store import open_store_if_any

    project = load_project(Path.cwd())
    with open_store_if_any(project.settings, project.root) as store:
        unsealings = store.held_out.list_unsealings()
    print_json(unsealings) if json else print_parts(*render_unsealings(unsealings))


def report_sets(
    store_opener: Callable[[Settings, Path], AbstractContextManager[Store]],
    *,
    json: bool,
    method: SplitMethod | None = None,
    share: float = 0.0,
) -> None:
    """Print the sets; with a method, split them first."""
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_parts
    from closeloop.tasks.task_sets import load_task_files

    project = load_project(Path.cwd())
    with store_opener(project.settings, project.root) as store:
        task_files = load_task_files(project.settings, project.root)
        if method is not None:
            task_files = write_held_out_split(task_files, method, share, project)
        tasks = [task_file.task for task_file in task_files]
        known_before = find_newly_sealed(tasks, store)
        for task in tasks:
            store.save_task(task)
        set_report = describe_standing(tasks, store) | {"sealed_now": known_before}
    print_json(set_report) if json else print_parts(*render_sets(**set_report))


def write_held_out_split(
    task_files: Sequence[TaskFile], method: SplitMethod, share: float, project: ProjectConfiguration
) -> list[TaskFile]:
    """Write into the tasks' files which ones are held out; return the updated tasks."""
    from msgspec.structs import replace

    from closeloop.tasks.task_files import set_task_field
    from closeloop.tasks.task_sets import choose_held_out, read_base_times

    tasks = [file.task for file in task_files]
    held_out_digests = choose_held_out(tasks, method, share, read_base_times(tasks))
    new_files = []
    for task_file in task_files:
        if task_file.task.digest in held_out_digests and task_file.task.split == "dev":
            set_task_field(task_file.path, "split", "held-out")
            task_file = replace(task_file, task=replace(task_file.task, split="held-out"))  # noqa: PLW2901
        new_files.append(task_file)
    return new_files


def find_newly_sealed(tasks: Sequence[Task], store: Store) -> dict[str, int]:
    """Return tasks that are newly held out although they were run as dev: attempts by id.

    Their names are not reported again later.
    """
    from closeloop.metrics.held_out_runs import count_dev_attempts

    sealed = store.held_out.list_sealed_digests()
    return count_dev_attempts(store, [task for task in tasks if task.digest not in sealed])


def describe_standing(tasks: Sequence[Task], store: Store) -> dict[str, Any]:
    """Return everything about the sets that may be disclosed."""
    from closeloop.metrics.held_out_runs import (
        count_dev_attempts,
        list_held_out_reminders,
        report_held_out,
    )
    from closeloop.tasks.task_sets import describe_sets, find_renewable_age

    now = datetime.now(UTC)
    facts = describe_sets(tasks, now)
    unsealings = store.held_out.list_unsealings()
    return {
        "sets": facts,
        "held_out": report_held_out(store, tasks),
        "looks": unsealings,
        "run_as_dev": len(count_dev_attempts(store, tasks)),
        "reminders": list_held_out_reminders(
            unsealings, store.held_out.list_tried_models(), find_renewable_age(facts), now
        ),
    }


def record_unsealing(
    plan: ExperimentPlan, store: Store, root: Path, reason: str | None
) -> HeldOutRun | None:
    """Record a held-out run in the ledger before it starts; None if the plan has no held-out
    task."""
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
    unsealings = store.held_out.list_unsealings()
    looked_at = {past_unsealing.experiment for past_unsealing in unsealings}
    seen_tasks = {
        key
        for experiment in store.list_experiments()
        if experiment.id in looked_at
        for key in experiment.tasks
    }
    first_seen = [task for task in plan.tasks if task.digest not in seen_tasks]
    if known_before := count_dev_attempts(store, first_seen):
        print_warning(describe_newly_sealed(known_before))
    warning_text = overuse_warning(unsealing, unsealings)
    store.held_out.add_unsealing(unsealing)
    store.events.add([build_look_event(unsealing)])
    if warning_text is not None:
        print_warning(warning_text)
    return unsealing


def git_user_or_account(root: Path) -> str:
    """Return git's user name here, else the account's."""
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
    """Describe `Sealed now though run as dev before: fix (3 attempts). …`."""
    names = ", ".join(
        f"{name} ({count_with_noun(count, 'attempt')})" for name, count in attempts_by_task.items()
    )
    return (
        f"Now held out, but run as dev tasks before: {names}. Later tuning may have "
        "used them, so their pass rate may be too high: also hold out tasks that were "
        "never run."
    )


def render_sets(
    sets: Sequence[SetFacts],
    held_out: HeldOutReport | None,
    looks: Sequence[HeldOutRun],
    run_as_dev: int,
    sealed_now: Mapping[str, int],
    reminders: Sequence[str],
) -> Iterator[RenderableType]:
    """Render the sets, the gap between them, and what to do about them."""
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
                    f"{set_facts.gone} of {set_facts.name} change files that no longer exist{names}"
                ),
                "yellow",
            )
        if set_facts.uncovered is not None and set_facts.name == "dev":
            yield Text(
                f"{format_percent(set_facts.uncovered)} of the changes of the last 90 "
                "days are in areas without a dev task",
                "dim",
            )
    if sealed_now:
        yield Text(make_visible(describe_newly_sealed(sealed_now)), style="yellow")
    elif run_as_dev:
        were = count_with_noun(run_as_dev, "held-out task was", "held-out tasks were")
        yield Text(f"{were} run as dev before being held out", style="yellow")
    if held_out is not None:
        yield from render_held_out(held_out)
        changes = len(
            {unsealing.change for unsealing in looks if unsealing.tasks == held_out.last_look.tasks}
        )
        yield Text(
            f"{count_with_noun(changes, 'change')} tested on the current held-out set", "dim"
        )
    for line in reminders:
        yield Text(make_visible(line), style="yellow")


def render_held_out(report: HeldOutReport) -> Iterator[RenderableType]:
    """Render a heading with the ledger's last entry; then the gaps, and what they mean."""
    from rich.text import Text

    last = report.last_look
    yield Text("\nHeld-out tasks", style="bold")
    yield Text(
        make_visible(
            f"unsealed {count_with_noun(report.looks, 'time')}; last on "
            f"{last.at:%Y-%m-%d} by {last.who}: {last.reason}"
        )
    )
    if report.gaps:
        yield held_out_gap_table(report.gaps)
    for change in report.changes:
        style = "bold red" if change.overfitted else "dim"
        yield Text(make_visible(change.says), style=style)


def list_most_frequent(counts: dict[str, int]) -> str:
    """List the most frequent ones, each with its count."""
    counts_shown = [
        f"{make_visible(name)} {count}" for name, count in list(counts.items())[:MAX_NAMES]
    ]
    hidden_count = len(counts) - MAX_NAMES
    return ", ".join(counts_shown) + (f" and {hidden_count} more" if hidden_count > 0 else "")


def held_out_gap_table(gaps: Sequence[HeldOutGap]) -> RenderableType:
    """Build a table with one row per variant: its pass rates on both sets, and the gap."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for name in ("variant", "dev", "held-out", "gap"):
        table.add_column(name, no_wrap=True)
    for gap_facts in gaps:
        style = "red" if gap_facts.gap.low > 0 else ""
        gap = f"{gap_facts.gap.value:+.2f} ({gap_facts.gap.low:+.2f} … {gap_facts.gap.high:+.2f})"
        table.add_row(
            Text(make_visible(gap_facts.label)),
            format_pass_estimate(gap_facts.dev),
            format_pass_estimate(gap_facts.held_out),
            Text(gap, style),
        )
    return table


def format_pass_estimate(estimate: Estimate) -> str:
    bounds = format_percent_range(estimate.low, estimate.high)
    return f"{format_percent(estimate.value)} ({bounds}), {count_with_noun(estimate.n, 'task')}"


def render_unsealings(unsealings: Sequence[HeldOutRun]) -> Iterator[RenderableType]:
    """Render the ledger, latest first."""
    from rich.table import Table
    from rich.text import Text

    if not unsealings:
        yield Text("No run of held-out tasks is recorded.")
        return
    table = Table(box=None)
    for name in ("when", "who", "why", "change", "tasks", "variants"):
        table.add_column(name, no_wrap=name in ("when", "change", "tasks"))
    for unsealing in unsealings:
        table.add_row(
            f"{unsealing.at:%Y-%m-%d %H:%M}",
            Text(make_visible(unsealing.who)),
            Text(make_visible(unsealing.reason)),
            unsealing.change,
            f"{unsealing.count} in {unsealing.tasks}",
            Text(make_visible(", ".join(unsealing.variants))),
        )
    yield table


# `closeloop init`: inspect a repository and write its closeloop.toml.


def init(
    path: Path = Path(), *, force: bool = False, untried: bool = False, json: JsonFlag = False
) -> int:
    """Find the project's test, lint, type and build commands and write closeloop.toml.

    Each command runs once in the sandbox, at the last commit. A command that cannot run there, or
    fails without naming a test or complaint, is written as a comment. Exit code 1 when that is the
    setup or the test command; the file is written.

    Parameters
    ----------
    path
        A folder of the git repository; its closeloop.toml goes to the repository's root.
    force
        Replace an existing closeloop.toml.
    untried
        Find the commands without running them.
    """
    from closeloop.cli.config import CONFIG_NAME, find_repository_root
    from closeloop.cli.console import print_json, print_line
    from closeloop.records.errors import BadInput, MachineFailed
    from closeloop.tasks.project_discovery import discover_commands, render_config

    if not path.is_dir():
        raise BadInput(f"{path} is not a folder: name one inside a git repository.")
    root = find_repository_root(path.resolve())
    if root is None:
        raise BadInput(f"{path.resolve()} is not in a git repository: create one with `git init`.")
    file = root / CONFIG_NAME
    if file.exists() and not force:
        raise BadInput(f"{file} already exists: edit it, or replace it with --force.")
    discovery = discover_commands(root)
    discovery, trials = (discovery, {}) if untried else try_discovered(discovery, root)
    texts = {name: trial.text for name, trial in trials.items()}
    # Without its setup nothing runs, but it may work later, or with one more line.
    useless = [name for name, trial in trials.items() if not trial.works and name != "setup"]
    try:
        file.write_text(render_config(discovery, texts, useless), encoding="utf-8")
    except OSError as error:
        raise MachineFailed(f"{error.filename} cannot be written: {error.strerror}.") from error
    failed_command = next(
        (name for name in ("setup", "test") if name in trials and not trials[name].works), None
    )
    if json:
        print_json({"file": str(file), "found": discovery, "tried": trials})
        return 1 if failed_command else 0
    print_line(f"Wrote {file}")
    for name in ("setup", "test", "lint", "types", "build"):
        value = getattr(discovery.commands, name)
        line = " && ".join(value) if isinstance(value, tuple) else value
        print_line(
            f"  {name:6} {line}  ({discovery.sources[name]})" if line else f"  {name:6} not found"
        )
        if name in texts:
            trial = trials[name]
            mark = "✗" if not trial.works else "!" if trial.fails else "✓"
            print_line(f"         {mark} {texts[name]}")
    if discovery.seen:
        print_line(
            "  Also found: "
            f"{', '.join(discovery.seen[:8])}{' …' if len(discovery.seen) > 8 else ''}"
        )
    if failed_command is not None:
        warn_of_failed_command(failed_command, texts[failed_command])
        return 1
    print_line("Next: review the file, then create tasks from past commits with `closeloop mine`,")
    print_line("or write one with `closeloop task new NAME`. To run them without a key:")
    print_line("`closeloop run --agent noop --agent reference` (no change, and the reference).")
    return 0


def warn_of_failed_command(name: str, text: str) -> None:
    """Print why the setup or the test command failed, and what to do."""
    from closeloop.cli.console import print_warning

    if name == "setup":
        print_warning(
            f"{text}\nThe other commands were not tried: correct `setup` in the file; "
            "`closeloop check` then runs them."
        )
    else:
        print_warning(
            f"The test command {text}\nIt is only a comment in the file, and `closeloop "
            "check` and `closeloop mine` run no tests: add what it needs to `setup`, and remove "
            "the `#` before `test`."
        )


def try_discovered(
    discovery: Discovery, root: Path
) -> tuple[Discovery, Mapping[str, CommandTrial]]:
    """Run each command in the sandbox; return no results, after a message, if nothing can run.

    If the project's package manager is not installed, npm's commands are used instead.
    """
    from closeloop.grading.tool_outcomes import find_missing_program
    from closeloop.tasks.project_discovery import use_npm_instead

    trials = _try_once(discovery, root)
    setup = trials.get("setup")
    if setup is not None and not setup.works:
        instead = use_npm_instead(discovery, find_missing_program(setup.text))
        if instead is not None:
            return instead, _try_once(instead, root)
    return discovery, trials


def _try_once(discovery: Discovery, root: Path) -> Mapping[str, CommandTrial]:
    import anyio

    from closeloop.changes.change_check import try_commands
    from closeloop.cli.check import cache_folder
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_warning, show_progress
    from closeloop.records.errors import Fault
    from closeloop.sandbox.workspaces import WorkspacePool, resolve_commit

    project = load_project(root)

    async def run_trials() -> Mapping[str, CommandTrial]:
        folder = cache_folder(project, os.environ) / "workspaces"
        async with WorkspacePool(folder, project.settings.sandbox) as workspaces:
            commit = resolve_commit(root, "HEAD")
            return await try_commands(
                workspaces, str(root), commit, discovery.commands, report_stage
            )

    try:
        with show_progress("trying the commands") as report_stage:
            return anyio.run(run_trials)
    except Fault as fault:
        print_warning(f"The commands were not tried: {fault}")
        return {}


def new(name: str, *, request: str | None = None, json: JsonFlag = False) -> None:
    """Create a task file, with the fields that can be detected filled in.

    With --request the task can run immediately: reviewers and judges score the results.

    Parameters
    ----------
    name
        The task's id: letters, digits, '.', '_' and '-'.
    request
        The request to the agent; if omitted, write it into the file.
    """
    from closeloop.cli.config import find_repository_root, load_project
    from closeloop.cli.console import print_json, print_line
    from closeloop.records.errors import BadInput
    from closeloop.sandbox.workspaces import resolve_commit
    from closeloop.tasks.task_files import render_new_task, require_valid_id, write_new_file

    require_valid_id(name, "The name of a task")
    if request is not None and not request.strip():
        raise BadInput("The request is empty: describe what the agent should do.")
    project = load_project(Path.cwd())
    folder = project.root / project.settings.tasks
    root = find_repository_root(folder.resolve())
    if root is None:
        raise BadInput(f"{folder} is not in a git repository: create one with `git init`.")
    head_commit = resolve_commit(root, "HEAD")
    path = folder / f"{name}.md"
    write_new_file(path, render_new_task(name, project.settings.commands, head_commit, request))
    if json:
        print_json({"file": str(path), "id": name, "base": head_commit})
        return
    print_line(f"Wrote {path}")
    print_line(
        f"Next: `closeloop run {name}`, then score the results with `closeloop "
        "review`; or add a check to the file."
        if request
        else "Next: write the prompt and the check, then verify the task with `closeloop "
        "task check`."
    )


def check(*tasks: str, test_runs: int = 3, json: JsonFlag = False) -> int:
    """Verify that tasks can be graded: the reference passes, and no change fails, every time.

    Parameters
    ----------
    tasks
        Ids or files of tasks; all tasks of the project by default.
    test_runs
        How often the tests run before and after the reference change, to find flaky tests.
    """
    import anyio

    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_parts, require_positive_flags
    from closeloop.tasks.task_files import select_tasks

    require_positive_flags(test_runs=test_runs)
    project = load_project(Path.cwd())
    settings = project.settings

    chosen_tasks = select_tasks(settings, project.root, tasks)
    proofs = anyio.run(prove_and_hide, chosen_tasks, settings, project.root, test_runs)
    print_json(proofs) if json else print_parts(proofs_table(proofs))
    return 0 if all(proof.state != "unproved" for proof in proofs) else 1


async def prove_and_hide(
    tasks: Sequence[Task], settings: Settings, root: Path, repeats: int
) -> list[Proof]:
    """Verify tasks by their controls; proofs of held-out tasks reveal only the result."""
    from closeloop.attempts.run_resources import open_workspaces, prove_tasks
    from closeloop.cli.console import WaitingLog, open_console, print_warning
    from closeloop.cli.run import warn_of_sandbox_gaps
    from closeloop.sandbox.admission import report_waiting
    from closeloop.store.store import open_project_store
    from closeloop.tasks.task_sets import hide_proof, hide_task

    visible_ids = {task.id: hide_task(task).id for task in tasks}
    async with open_workspaces(settings, root) as workspaces:
        warn_of_sandbox_gaps(workspaces)
        with (
            open_project_store(settings, root) as store,
            report_waiting(WaitingLog(print_warning, time.monotonic).note),
            open_console(stderr=True).status("verifying …") as status,
        ):
            task_proofs = await prove_tasks(
                tasks,
                store,
                workspaces,
                repeats=repeats,
                report_progress=lambda progress: status.update(
                    f"verifying {visible_ids[progress.task]} …"
                ),
            )
    return [hide_proof(*pair) for pair in zip(task_proofs, tasks, strict=True)]


PROOF_LABELS = {
    "proved": "verified",
    "unproved": "not verified",
    "unchecked": "unchecked",
    "unknown": "unchecked",
}


def proofs_table(proofs: Sequence[Proof]) -> Table:
    """Build a table with one row per task: its state, its tests, and its problems."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    for name in ("task", "state", "tests at base", "flaky", "why"):
        table.add_column(name, no_wrap=name != "why")
    colours = {"proved": "green", "unproved": "red", "unchecked": "yellow"}
    for proof in proofs:
        runs = [run for run in (proof.before, proof.reference) if run is not None]
        flaky = {name for run in runs for name in run.flaky}
        table.add_row(
            Text(make_visible(proof.task)),
            Text(PROOF_LABELS[proof.state], style=colours[proof.state]),
            str(len(proof.before.tests)) if proof.before else "–",
            str(len(flaky)) if flaky else "",
            Text(make_visible("\n".join(proof.reasons)), style="dim"),
        )
    return table


# `closeloop task list` and `closeloop task tag`: tasks by kind of work and failure mode.


class TaskListLine(Record):
    """A task in the list."""

    id: str
    state: str
    """Proved, unproved, unchecked, or unknown if not examined yet."""
    tags: tuple[str, ...]
    modes: tuple[str, ...]
    """Failure modes that attempts at it have shown."""


def list_(*, tag: str | None = None, json: JsonFlag = False) -> None:
    """List dev tasks with their tags, those that show several failure modes first.

    Parameters
    ----------
    tag
        Only tasks with this tag.
    """
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_line, print_parts
    from closeloop.tasks.task_files import select_tasks

    project = load_project(Path.cwd())
    tasks = select_tasks(project.settings, project.root, ())
    task_lines = task_list_lines([task for task in tasks if task.split == "dev"], project)
    task_lines = [line for line in task_lines if tag is None or tag in line.tags]
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
            PROOF_LABELS.get(task_line.state, task_line.state),
            ", ".join(task_line.modes),
            ", ".join(task_line.tags),
        )
        table.add_row(*(Text(make_visible(cell)) for cell in cells))
    print_parts(table)
    if held_out_count := sum(task.split == "held-out" for task in tasks):
        print_line(f"{count_with_noun(held_out_count, 'more is', 'more are')} held out.")


def task_list_lines(tasks: Sequence[Task], project: ProjectConfiguration) -> list[TaskListLine]:
    """Return tasks with the store's facts about them."""
    from closeloop.metrics.attempt_measuring import collect_task_modes, project_rulebook
    from closeloop.store.store import open_store_if_any
    from closeloop.tasks.task_files import infer_kind_tags, tag_from_mode

    with open_store_if_any(project.settings, project.root) as store:
        modes_by_digest = collect_task_modes(
            store, [task.digest for task in tasks], project_rulebook(project.settings)
        )
        modes = {
            digest: [*map(tag_from_mode, task_modes)]
            for digest, task_modes in modes_by_digest.items()
        }
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
    return sorted(task_lines, key=lambda line: (-len(line.modes), line.id))


def tag(
    task: str,
    *changes: Annotated[str, Parameter(allow_leading_hyphen=True)],
    json: JsonFlag = False,
) -> None:
    """Add tags to a task's file or remove them: +billing -mined.

    Parameters
    ----------
    task
        The id of the task.
    changes
        +NAME adds a tag, -NAME removes it.
    """
    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, print_line
    from closeloop.records.errors import unknown_name_error
    from closeloop.tasks.task_files import apply_tag_changes, set_task_field
    from closeloop.tasks.task_sets import load_task_files, require_unsealed

    project = load_project(Path.cwd())
    task_files = load_task_files(project.settings, project.root)
    files_by_id = {task_file.task.id: task_file for task_file in task_files}
    if task not in files_by_id:
        raise unknown_name_error(
            "task",
            task,
            [task_file.task.id for task_file in task_files if task_file.task.split == "dev"],
        )
    require_unsealed(files_by_id[task].task)
    tags = apply_tag_changes(files_by_id[task].task.tags, changes)
    if changes:
        set_task_field(files_by_id[task].path, "tags", tags or None)
    print_json({"id": task, "tags": tags}) if json else print_line(
        f"{task}: {', '.join(tags) or 'no tags'}"
    )


# `closeloop task stress`: variants of a proved task, each hard in one way.


def stress(
    task: str, *, mode: list[StressMode] | None = None, test_runs: int = 3, json: JsonFlag = False
) -> int:
    """Create harder versions of a verified task, each for one failure mode, and verify them.

    Parameters
    ----------
    task
        The id of the task.
    mode
        A failure mode; repeatable. All of them by default.
    test_runs
        How often the tests run before and after the reference change, to find flaky tests.
    """
    import anyio

    from closeloop.cli.config import load_project
    from closeloop.cli.console import print_json, require_positive_flags
    from closeloop.records.errors import BadInput
    from closeloop.store.store import open_store_if_any
    from closeloop.tasks.task_files import select_tasks
    from closeloop.tasks.task_sets import require_unsealed

    require_positive_flags(test_runs=test_runs)
    project = load_project(Path.cwd())
    settings = project.settings
    [chosen_task] = select_tasks(project.settings, project.root, [task])
    require_unsealed(chosen_task)
    proved_ids: list[str] = []
    refused: dict[str, str] = {}
    with open_store_if_any(project.settings, project.root) as store:
        known_proof = store.load_proof(chosen_task.grading)
        if known_proof is None or known_proof.state != "proved":
            raise BadInput(f"{task} is not verified: run `closeloop task check {task}` first.")
        for stress_mode in mode or STRESS_MODES:
            try:
                variant = make_stress_task(chosen_task, stress_mode, project)
                [proof] = anyio.run(prove_and_hide, [variant], settings, project.root, test_runs)
                save_stress_task(variant, proof, project)
                proved_ids.append(variant.id)
            except BadInput as fault:
                refused[stress_mode] = str(fault)
    print_json({"tasks": proved_ids, "refused": refused}) if json else print_stress_results(
        proved_ids, refused
    )
    return 0 if proved_ids else 1


def print_stress_results(verified_names: Sequence[str], refused: Mapping[str, str]) -> None:
    from closeloop.cli.console import print_line

    for name in verified_names:
        print_line(f"verified {name}")
    for name, reason in refused.items():
        print_line(f"rejected {name}: {reason}")


def make_stress_task(task: Task, mode: StressMode, project: ProjectConfiguration) -> Task:
    """Create one variant, with its own repository if files are planted."""
    from closeloop.records.errors import BadInput
    from closeloop.tasks.stress import stress_task
    from closeloop.tasks.task_exchange import check_out_commit
    from closeloop.tasks.task_files import with_digests

    if task.repo is None or task.base is None or not Path(task.repo).is_dir():
        raise BadInput(f"{task.id} has no repository on this machine: clone it first.")
    with TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        check_out_commit(task.repo, task.base, tree)
        variant = stress_task(task, mode, tree)
        # Before anything is planted: an existing variant needs the files planted for it.
        if (project.root / project.settings.tasks / f"{variant.task.id}.md").exists():
            raise BadInput(f"{variant.task.id} already exists.")
        new_task = plant_files(variant, tree, project) if variant.planted else variant.task
    return with_digests(new_task)


def plant_files(variant: StressVariant, tree: Path, project: ProjectConfiguration) -> Task:
    """Create the variant in a repository with the extra files it needs."""
    from msgspec.structs import replace

    from closeloop.tasks.task_exchange import commit_folder

    repo = project.root / ".closeloop" / "stress" / variant.task.id
    shutil.rmtree(repo, ignore_errors=True)
    shutil.copytree(tree, repo, symlinks=True)
    for name, text in variant.planted.items():
        (repo / name).write_text(text, encoding="utf-8")
    return replace(variant.task, repo=str(repo.resolve()), base=commit_folder(repo))


def save_stress_task(task: Task, proof: Proof, project: ProjectConfiguration) -> None:
    """Save a variant that is proved; raise BadInput with the reason for any other."""
    from closeloop.records.errors import BadInput
    from closeloop.tasks.miner import write_task_files

    if proof.state != "proved":
        raise BadInput(proof.reasons[0] if proof.reasons else "it could not be verified.")
    write_task_files(task, project.root / project.settings.tasks)
