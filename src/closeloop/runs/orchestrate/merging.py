"""Whose changes a try begins with, and in which order all of them are put together.

A try begins with the changes of the tasks it depends on, and of those that these were built on.
One that did not go together with the others begins its next try with all of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from closeloop.model.evaluation import Issue
from closeloop.model.orchestration import MERGE, Execution, Orchestration, Part, Try

Accepted = Mapping[str, Execution]
"""By task, the try that counts."""


def in_plan_order(plan: Orchestration, accepted: Accepted) -> list[Execution]:
    """Each after those it was built on, else as the plan lists them."""
    done: dict[str, Execution] = {}
    depends = {task.id: task.depends_on for task in plan.tasks}

    def place(name: str) -> None:
        if name in accepted and name not in done:
            for below in (*depends[name], *accepted[name].built_on):
                place(below)
            done[name] = accepted[name]

    for task in plan.tasks:
        place(task.id)
    return list(done.values())


def beneath(
    plan: Orchestration, task: Part, accepted: Accepted, last: Try | None
) -> list[Execution]:
    """The changes that the next try at a task begins with."""
    if last is not None and clashed(last):
        return in_plan_order(plan, accepted)
    depends = {one.id: one.depends_on for one in plan.tasks}
    wanted: set[str] = set()
    waiting = [*task.depends_on, *(last.execution.built_on if last else ())]
    while waiting:
        name = waiting.pop()
        if name in accepted and name not in wanted:
            wanted.add(name)
            waiting += [*depends[name], *accepted[name].built_on]
    return in_plan_order(plan, {name: accepted[name] for name in wanted})


def clashed(one: Try) -> bool:
    """Whether a try failed because its change does not go together with others."""
    return one.assessment is not None and any(
        issue.check == MERGE for issue in one.assessment.issues
    )


def conflict(why: str) -> Issue:
    """What whoever tries again is told."""
    text = (
        f"The change does not go together with what other tasks have changed meanwhile: {why} "
        "Their changes are in the working tree now: make yours on top of them."
    )
    return Issue(check=MERGE, criterion=None, text=text, source="fact")
