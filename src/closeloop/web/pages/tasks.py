"""Tasks and sets: what is proved, what has grown old, how each does, and who looked at the rest."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from closeloop.measuring.looks import gaps, reminders
from closeloop.model.listing import Filter
from closeloop.model.look import Gap, Look
from closeloop.model.rates import Rate, rate
from closeloop.model.record import Record
from closeloop.model.task import Task
from closeloop.tasks.seal import alias, demand_open
from closeloop.tasks.sets import SetFacts, facts_of
from closeloop.tasks.tags import kinds
from closeloop.web.desk import Desk
from closeloop.web.page import Nothing, NotThere, Page
from closeloop.web.pages.attempts import AttemptLine, lines_of

MOST_TASKS = 1000
MOST_ATTEMPTS = 100
LATELY = 500
"""Attempts whose models are asked for a look at the held-out set."""


class TaskLine(Record):
    """One task of the list."""

    id: str
    split: str
    state: str
    """Proved, unproved, unchecked, or unknown before it was looked at."""
    tags: tuple[str, ...]
    rate: Rate | None
    """Of the scored attempts at it, those that passed."""


class TasksView(Record):
    """The tasks of dev; of those held out no more than how many there are and how they do."""

    tasks: tuple[TaskLine, ...]
    more: int
    held_out: int
    fresh: bool = True
    """False while the rates are counted anew."""


class SetsView(Record):
    """The sets in numbers, how far dev can be believed, and the ledger of looks."""

    sets: tuple[SetFacts, ...]
    gaps: tuple[Gap, ...]
    looks: tuple[Look, ...]
    reminders: tuple[str, ...]


class TaskAsked(Record):
    task: str


class TaskView(Record):
    """One task: what is asked, how it is graded, its proof, and the attempts at it."""

    task: Task
    kinds: tuple[str, ...]
    state: str
    reasons: tuple[str, ...]
    rate: Rate | None
    lines: tuple[AttemptLine, ...]


def tasks(desk: Desk, asked: Nothing) -> TasksView:
    known = _newest(desk)
    states = desk.store.listing.proof_states()
    counted = desk.counting.of_store("passed", desk.mark(), desk.store.listing.passed)
    passed = counted.value or {}
    lines = [_line(task, states, passed) for task in known.values()]
    lines.sort(key=lambda line: (line.split, line.id))
    return TasksView(
        tasks=tuple(lines[:MOST_TASKS]),
        more=max(0, len(lines) - MOST_TASKS),
        held_out=sum(line.split == "held-out" for line in lines),
        fresh=counted.fresh,
    )


def sets(desk: Desk, asked: Nothing) -> SetsView:
    """This asks git, and may take a moment."""
    every, now = list(_newest(desk).values()), datetime.now(UTC)
    facts = facts_of(every, now)
    looks = desk.store.held_out.looks()
    ages = [one.median_days for one in facts if one.median_days is not None]
    rows = desk.store.listing.page(Filter(origin="experiment"), LATELY)
    return SetsView(
        sets=tuple(facts),
        gaps=tuple(gaps(desk.store, every)) if len(facts) > 1 else (),
        looks=tuple(looks[:100]),
        reminders=tuple(reminders(looks, rows, max(ages, default=None), now)),
    )


def task(desk: Desk, asked: TaskAsked) -> TaskView:
    found = _newest(desk).get(asked.task)
    if found is None:
        raise NotThere(f"There is no task {asked.task!r} here.")
    demand_open(found)
    proof = desk.store.proof(found.grading)
    rows = desk.store.listing.page(Filter(task=found.id), MOST_ATTEMPTS)
    passed = desk.counting.of_store("passed", desk.mark(), desk.store.listing.passed).value or {}
    return TaskView(
        task=found,
        kinds=kinds(found),
        state=proof.state if proof else "unknown",
        reasons=proof.reasons if proof else (),
        rate=_rate(found, passed),
        lines=lines_of(desk, rows),
    )


def _newest(desk: Desk) -> dict[str, Task]:
    """By id, each task as it was last said to be."""
    return {one.id: one for one in desk.store.numbers.tasks().values()}


def _line(one: Task, states: Mapping[str, str], passed: Mapping[str, tuple[int, int]]) -> TaskLine:
    sealed = one.split == "held-out"
    return TaskLine(
        id=alias(one.digest) if sealed else one.id,
        split=one.split,
        state=states.get(one.grading, "unknown"),
        tags=() if sealed else tuple(dict.fromkeys((*one.tags, *kinds(one)))),
        rate=_rate(one, passed),
    )


def _rate(one: Task, passed: Mapping[str, tuple[int, int]]) -> Rate | None:
    hits, of = passed.get(one.digest, (0, 0))
    return rate(hits, of)


PAGES = (
    Page(
        path="/tasks",
        show=tasks,
        template="tasks.html",
        about="Tasks: whether they are proved, and how agents do on them.",
        section="Tasks",
        key="t",
    ),
    Page(
        path="/sets",
        show=sets,
        template="sets.html",
        about="Dev and held-out tasks as sets, and who looked at those held out.",
        section="Tasks",
        part=True,
    ),
    Page(
        path="/tasks/{task}",
        show=task,
        template="task.html",
        about="One task, its proof, and the attempts at it.",
        section="Tasks",
    ),
)
