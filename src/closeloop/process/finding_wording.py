"""Sentences that several rules need: what fails, and why something cannot be said."""

from __future__ import annotations

from collections.abc import Iterable

from closeloop.process.reading_cache import cache_on_reading
from closeloop.records.trace_steps import CheckFailures, TraceReading

MAX_QUOTE_CHARS = 80


def truncate_line(text: str, length: int = MAX_QUOTE_CHARS) -> str:
    """The first line of a text, cut where it is long."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= length else line[: length - 1] + "…"


def join_names(names: Iterable[str]) -> str:
    """The first names, whole, and how many more there are."""
    short_lines = [truncate_line(name, 2 * MAX_QUOTE_CHARS) for name in names]
    shown = 1
    while shown < len(short_lines) and len(", ".join(short_lines[: shown + 1])) <= MAX_QUOTE_CHARS:
        shown += 1
    more = len(short_lines) - shown
    return ", ".join(short_lines[:shown]) + (f" and {more} more" if more > 0 else "")


def describe_failures(failures: CheckFailures) -> str:
    """The first thing that fails, and how many more do."""
    key, message = next(iter(failures.errors.items()))
    first = truncate_line(f"{key} ({message})" if message else key, 2 * MAX_QUOTE_CHARS)
    more = len(failures.errors) - 1
    return f"{first} and {more} more" if more else first


@cache_on_reading
def explain_unreadable_checks(reading: TraceReading) -> str | None:
    """Why rules about checks cannot be applied, where that is so."""
    if not reading.trace.events:
        return "the trace is empty"
    has_checks = False
    for lane in reading.lanes.values():
        for step in lane.checks:
            if step.check is not None and step.check.passed is not None:
                return None
            has_checks = True
    return "no check in the trace says whether it passed" if has_checks else None
