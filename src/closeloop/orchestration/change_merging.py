"""Whose changes a try begins with, and in which order all of them are put together.

A try begins with the changes of the tasks it depends on, and of those that these were built on.
One that did not go together with the others begins its next try with all of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from closeloop.records.evaluation import EvaluationIssue
from closeloop.records.orchestration import (
    MERGE_CHECK,
    Orchestration,
    SubtaskExecution,
    SubtaskSpec,
    SubtaskTry,
)

AcceptedExecutions = Mapping[str, SubtaskExecution]
"""By task, the try that counts."""


def order_by_plan(plan: Orchestration, accepted: AcceptedExecutions) -> list[SubtaskExecution]:
    """Each after those it was built on, else as the plan lists them."""
    placed: dict[str, SubtaskExecution] = {}
    depends = {task.id: task.depends_on for task in plan.tasks}

    def place_task(name: str) -> None:
        if name in accepted and name not in placed:
            for below in (*depends[name], *accepted[name].built_on):
                place_task(below)
            placed[name] = accepted[name]

    for task in plan.tasks:
        place_task(task.id)
    return list(placed.values())


def find_base_executions(
    plan: Orchestration, task: SubtaskSpec, accepted: AcceptedExecutions, last: SubtaskTry | None
) -> list[SubtaskExecution]:
    """The changes that the next try at a task begins with."""
    if last is not None and has_merge_conflict(last):
        return order_by_plan(plan, accepted)
    depends = {one.id: one.depends_on for one in plan.tasks}
    needed_tasks: set[str] = set()
    open_tasks = [*task.depends_on, *(last.execution.built_on if last else ())]
    while open_tasks:
        name = open_tasks.pop()
        if name in accepted and name not in needed_tasks:
            needed_tasks.add(name)
            open_tasks += [*depends[name], *accepted[name].built_on]
    return order_by_plan(plan, {name: accepted[name] for name in needed_tasks})


def has_merge_conflict(one: SubtaskTry) -> bool:
    """Whether a try failed because its change does not go together with others."""
    return one.assessment is not None and any(
        issue.check == MERGE_CHECK for issue in one.assessment.issues
    )


def build_conflict_issue(why: str) -> EvaluationIssue:
    """What whoever tries again is told."""
    text = (
        f"The change does not go together with what other tasks have changed meanwhile: {why} "
        "Their changes are in the working tree now: make yours on top of them."
    )
    return EvaluationIssue(check=MERGE_CHECK, criterion=None, text=text, source="fact")
