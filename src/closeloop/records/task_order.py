"""Tasks that wait for each other, put in an order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

from closeloop.records.errors import BadInput
from closeloop.records.evaluation import Subtask


def sort_by_dependencies(tasks: Sequence[Subtask]) -> list[Subtask]:
    """Each after those it depends on; BadInput for a plan that has no such order."""
    counts = Counter(task.id for task in tasks)
    repeated_ids = [name for name, count in counts.items() if count > 1]
    if repeated_ids:
        raise BadInput(
            f"The plan has {counts[repeated_ids[0]]} tasks {repeated_ids[0]!r}: give each its"
            " own id."
        )
    by_id = {task.id: task for task in tasks}
    for task in tasks:
        for name in task.depends_on:
            if name not in by_id:
                raise BadInput(
                    f"Task {task.id!r} depends on {name!r}, which the plan does not have: add it."
                )
    try:
        order = list(TopologicalSorter({one.id: one.depends_on for one in tasks}).static_order())
    except CycleError as error:
        circle = " → ".join(map(repr, error.args[1]))
        raise BadInput(
            f"The plan's tasks wait for each other: break the circle {circle}."
        ) from None
    return [by_id[name] for name in order]
