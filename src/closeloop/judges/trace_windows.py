"""Traces as a judge reads them: numbered events, cut to what a question is about."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from closeloop.records.trace import (
    AnyEvent,
    Command,
    Edit,
    Handoff,
    Message,
    Note,
    Read,
    Thought,
    ToolUse,
    Trace,
)

MAX_EVENT_CHARS = 700
MAX_WINDOW_CHARS = 60_000
CONTEXT_EVENTS = 6
"""Events before and after one that a question is about."""


def select_window_events(trace: Trace, about: Collection[int] = ()) -> dict[int, str]:
    """By number, the events to show: those around what it is about, or both ends of it all."""
    events = trace.events
    if about:
        wanted = {
            near
            for number in about
            for near in range(number - CONTEXT_EVENTS, number + CONTEXT_EVENTS + 1)
        }
        # What was asked for is always part of the matter.
        events = tuple(one for place, one in enumerate(events) if not place or one.number in wanted)
    event_texts = {one.number: describe_event(one) for one in events}
    return (
        event_texts
        if _total_chars(event_texts) <= MAX_WINDOW_CHARS
        else dict(_keep_ends(event_texts))
    )


def _total_chars(told: dict[int, str]) -> int:
    return sum(map(len, told.values()))


def _keep_ends(told: dict[int, str]) -> Iterator[tuple[int, str]]:
    """As many from the beginning as from the end."""
    kept = {*_fitting_numbers(list(told), told), *_fitting_numbers(list(reversed(told)), told)}
    return ((number, text) for number, text in told.items() if number in kept)


def _fitting_numbers(numbers: list[int], told: dict[int, str]) -> Iterator[int]:
    left = MAX_WINDOW_CHARS // 2
    for number in numbers:
        left -= len(told[number])
        if left < 0:
            return
        yield number


def describe_event(event: AnyEvent) -> str:
    """One event on a few lines."""
    match event:
        case Message():
            return f"{event.role} says: {_truncate_middle(event.text)}"
        case Thought():
            return f"agent thinks: {_truncate_middle(event.text)}"
        case Command():
            code = "" if event.exit_code is None else f" (exit code {event.exit_code})"
            return (
                f"runs: {_truncate_middle(event.command)}{code}\n"
                f"{_truncate_middle(event.output or '')}".rstrip()
            )
        case Edit():
            text = event.patch or event.after or event.error or ""
            head = f"edits {_truncate_middle(event.path)} ({event.action}):"
            return f"{head}\n{_truncate_middle(text)}".rstrip()
        case Read():
            return f"reads {_truncate_middle(event.path)}"
        case ToolUse():
            return (
                f"uses {_truncate_middle(event.name)}:"
                f" {_truncate_middle(str(event.arguments or ''))}\n"
                + _truncate_middle(event.output or "")
            )
        case Handoff():
            return (
                f"hands off: {_truncate_middle(event.brief)}\nreport:"
                f" {_truncate_middle(event.report or '')}"
            )
        case Note():
            return f"note: {_truncate_middle(event.text)}"


def _truncate_middle(text: str) -> str:
    if len(text) <= MAX_EVENT_CHARS:
        return text
    half = MAX_EVENT_CHARS // 2
    return f"{text[:half]} […] {text[-half:]}"
