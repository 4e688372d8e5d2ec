"""Sentences that several rules need: what fails, and why something cannot be said."""

from __future__ import annotations

from collections.abc import Iterable

from closeloop.model.steps import Failures, Reading
from closeloop.process.once import once

QUOTED = 80


def short(text: str, length: int = QUOTED) -> str:
    """The first line of a text, cut where it is long."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= length else line[: length - 1] + "…"


def listed(names: Iterable[str]) -> str:
    """The first names, whole, and how many more there are."""
    every = [short(name, 2 * QUOTED) for name in names]
    shown = 1
    while shown < len(every) and len(", ".join(every[: shown + 1])) <= QUOTED:
        shown += 1
    more = len(every) - shown
    return ", ".join(every[:shown]) + (f" and {more} more" if more > 0 else "")


def told_failures(failures: Failures) -> str:
    """The first thing that fails, and how many more do."""
    key, message = next(iter(failures.errors.items()))
    first = short(f"{key} ({message})" if message else key, 2 * QUOTED)
    more = len(failures.errors) - 1
    return f"{first} and {more} more" if more else first


@once
def unreadable_checks(reading: Reading) -> str | None:
    """Why rules about checks cannot be applied, where that is so."""
    if not reading.trace.events:
        return "the trace is empty"
    silent = False
    for lane in reading.lanes.values():
        for step in lane.checks:
            if step.check is not None and step.check.passed is not None:
                return None
            silent = True
    return "no check in the trace says whether it passed" if silent else None
