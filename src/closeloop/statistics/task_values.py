"""What estimators take: for each task, the values of its scored repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from closeloop.records.errors import BadInput

TaskValues = Mapping[str, Sequence[float]]
"""Task → the values of its repeats. What was not scored is left out, never 0."""


def common_tasks(first: TaskValues, second: TaskValues) -> list[str]:
    """The tasks of which both have a value."""
    return [task for task in first if len(first[task]) and len(second.get(task, ()))]


def check_shares(values: TaskValues) -> None:
    """Rates are made of values from 0 to 1."""
    for task, repeats in values.items():
        for value in repeats:
            if not 0 <= value <= 1:
                raise BadInput(
                    f"Task {task!r} has the value {value}, but rates are made of 0 to 1."
                )


def check_finite(values: TaskValues) -> None:
    """Whatever is measured, it is a number."""
    for task, repeats in values.items():
        for value in repeats:
            if not isfinite(value):
                raise BadInput(f"{task!r} has the value {value}: leave out what is no number.")
