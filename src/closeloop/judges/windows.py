"""Traces as a judge reads them: numbered events, cut to what a question is about."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from closeloop.model.trace import (
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

LONGEST_EVENT = 700
MOST_CHARACTERS = 60_000
AROUND = 6
"""Events before and after one that a question is about."""


def window(trace: Trace, about: Collection[int] = ()) -> dict[int, str]:
    """By number, the events to show: those around what it is about, or both ends of it all."""
    events = trace.events
    if about:
        wanted = {near for number in about for near in range(number - AROUND, number + AROUND + 1)}
        # What was asked for is always part of the matter.
        events = tuple(one for place, one in enumerate(events) if not place or one.number in wanted)
    told = {one.number: told_event(one) for one in events}
    return told if _size(told) <= MOST_CHARACTERS else dict(_ends(told))


def _size(told: dict[int, str]) -> int:
    return sum(map(len, told.values()))


def _ends(told: dict[int, str]) -> Iterator[tuple[int, str]]:
    """As many from the beginning as from the end."""
    kept = {*_fitting(list(told), told), *_fitting(list(reversed(told)), told)}
    return ((number, text) for number, text in told.items() if number in kept)


def _fitting(numbers: list[int], told: dict[int, str]) -> Iterator[int]:
    left = MOST_CHARACTERS // 2
    for number in numbers:
        left -= len(told[number])
        if left < 0:
            return
        yield number


def told_event(event: AnyEvent) -> str:
    """One event on a few lines."""
    match event:
        case Message():
            return f"{event.role} says: {_short(event.text)}"
        case Thought():
            return f"agent thinks: {_short(event.text)}"
        case Command():
            code = "" if event.exit_code is None else f" (exit code {event.exit_code})"
            return f"runs: {_short(event.command)}{code}\n{_short(event.output or '')}".rstrip()
        case Edit():
            text = event.patch or event.after or event.error or ""
            return f"edits {_short(event.path)} ({event.action}):\n{_short(text)}".rstrip()
        case Read():
            return f"reads {_short(event.path)}"
        case ToolUse():
            return f"uses {_short(event.name)}: {_short(str(event.arguments or ''))}\n" + _short(
                event.output or ""
            )
        case Handoff():
            return f"hands off: {_short(event.brief)}\nreport: {_short(event.report or '')}"
        case Note():
            return f"note: {_short(event.text)}"


def _short(text: str) -> str:
    if len(text) <= LONGEST_EVENT:
        return text
    half = LONGEST_EVENT // 2
    return f"{text[:half]} […] {text[-half:]}"
