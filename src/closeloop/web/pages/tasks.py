"""Tasks and sets."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

from closeloop.metrics.held_out_runs import (
    count_dev_attempts,
    list_held_out_reminders,
    report_held_out,
)
from closeloop.records.attempt import AttemptFilter
from closeloop.records.estimate import Rate, wilson_rate
from closeloop.records.experiment_plan import HeldOutReport, HeldOutRun
from closeloop.records.record import Record
from closeloop.records.task import Task
from closeloop.tasks.task_files import infer_kind_tags
from closeloop.tasks.task_sets import (
    SetFacts,
    describe_sets,
    find_renewable_age,
    require_unsealed,
    task_alias,
)
from closeloop.text.wording import natural_order
from closeloop.web.page import NoQuery, Page, PageContext, PageNotFound
from closeloop.web.pages.attempts import AttemptLine, attempt_lines

MAX_TITLE_CHARS = 200
MAX_TASKS = 1000
MAX_ATTEMPTS = 100


class TaskLine(Record):
    """One task of the list."""

    id: str
    title: str
    """First line of the request; empty for a held-out task."""
    split: str
    state: str
    """Proved, unproved, unchecked, or unknown if not examined yet."""
    tags: tuple[str, ...]
    rate: Rate | None
    """Share of its scored attempts that passed; None for a held-out task."""


class TasksAsked(Record):
    sort: Literal["name", "passed"] = "name"
    """`passed`: the lowest share of passed attempts first, tasks without one last."""


class TasksView(Record):
    """The dev tasks; of held-out tasks only their number."""

    asked: TasksAsked
    tasks: tuple[TaskLine, ...]
    more: int
    held_out: int
    fresh: bool = True
    """False while the rates are recomputed."""


class SetsView(Record):
    """Sizes of the sets, how reliable dev is, and the ledger of held-out runs."""

    sets: tuple[SetFacts, ...]
    held_out: HeldOutReport | None
    """Results of held-out runs; None before the first one."""
    looks: tuple[HeldOutRun, ...]
    run_as_dev: int
    """Held-out tasks that were run as dev tasks before they were sealed."""
    reminders: tuple[str, ...]


class TaskQuery(Record):
    task: str


class TaskView(Record):
    """One task: its request, grading, proof, and attempts."""

    task: Task
    kinds: tuple[str, ...]
    state: str
    reasons: tuple[str, ...]
    rate: Rate | None
    lines: tuple[AttemptLine, ...]


def tasks(page_context: PageContext, query: TasksAsked) -> TasksView:
    newest_tasks = _newest_tasks(page_context)
    states = page_context.store.listing.proof_states()
    cached_passes = page_context.metric_cache.compute_from_store(
        "passed", page_context.store_mark(), page_context.store.listing.count_passes
    )
    passed = cached_passes.value or {}
    lines = [_task_line(task, states, passed) for task in newest_tasks.values()]
    lines.sort(key=lambda line: (line.split, natural_order(line.id)))
    if query.sort == "passed":
        lines.sort(key=lambda line: line.rate.value if line.rate else 2.0)
    return TasksView(
        asked=query,
        tasks=tuple(lines[:MAX_TASKS]),
        more=max(0, len(lines) - MAX_TASKS),
        held_out=sum(line.split == "held-out" for line in lines),
        fresh=cached_passes.fresh,
    )


def sets(page_context: PageContext, query: NoQuery) -> SetsView:
    """Return the view of the sets; this runs git and may take a moment."""
    all_tasks, now = list(_newest_tasks(page_context).values()), datetime.now(UTC)
    facts = describe_sets(all_tasks, now)
    unsealings = page_context.store.held_out.list_unsealings()
    models = page_context.store.held_out.list_tried_models()
    return SetsView(
        sets=tuple(facts),
        held_out=report_held_out(page_context.store, all_tasks),
        looks=tuple(unsealings[:100]),
        run_as_dev=len(count_dev_attempts(page_context.store, all_tasks)),
        reminders=tuple(
            list_held_out_reminders(unsealings, models, find_renewable_age(facts), now)
        ),
    )


def task(page_context: PageContext, query: TaskQuery) -> TaskView:
    newest_task = _newest_tasks(page_context).get(query.task)
    if newest_task is None:
        raise PageNotFound(f"There is no task {query.task!r} in this project.")
    require_unsealed(newest_task)
    proof = page_context.store.load_proof(newest_task.grading)
    rows = page_context.store.listing.list_page(AttemptFilter(task=newest_task.id), MAX_ATTEMPTS)
    passed = (
        page_context.metric_cache.compute_from_store(
            "passed", page_context.store_mark(), page_context.store.listing.count_passes
        ).value
        or {}
    )
    return TaskView(
        task=newest_task,
        kinds=infer_kind_tags(newest_task),
        state=proof.state if proof else "unknown",
        reasons=proof.reasons if proof else (),
        rate=_task_pass_rate(newest_task, passed),
        lines=attempt_lines(page_context, rows),
    )


def _newest_tasks(page_context: PageContext) -> dict[str, Task]:
    """Return the latest definition of each task by id."""
    return {task.id: task for task in page_context.store.numbers.load_tasks().values()}


def _task_line(
    task: Task, states: Mapping[str, str], passed: Mapping[str, tuple[int, int]]
) -> TaskLine:
    sealed = task.split == "held-out"
    return TaskLine(
        id=task_alias(task.digest) if sealed else task.id,
        title="" if sealed else task.prompt.strip().partition("\n")[0][:MAX_TITLE_CHARS],
        split=task.split,
        state=states.get(task.grading, "unknown"),
        tags=() if sealed else tuple(dict.fromkeys((*task.tags, *infer_kind_tags(task)))),
        rate=None if sealed else _task_pass_rate(task, passed),
    )


def _task_pass_rate(task: Task, passed: Mapping[str, tuple[int, int]]) -> Rate | None:
    passes, attempts = passed.get(task.digest, (0, 0))
    return wilson_rate(passes, attempts)


PAGES = (
    Page(
        path="/tasks",
        show=tasks,
        template="tasks.html",
        about="Tasks: whether they are verified, and agents' results on them.",
        section="Tasks",
        key="t",
    ),
    Page(
        path="/sets",
        show=sets,
        template="sets.html",
        about="The dev and held-out sets of tasks, and the runs of held-out tasks.",
        section="Tasks",
    ),
    Page(
        path="/tasks/{task}",
        show=task,
        template="task.html",
        about="One task: verification and attempts.",
        section="Tasks",
    ),
)
