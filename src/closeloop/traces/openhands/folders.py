"""Where OpenHands 1.x keeps a conversation: its state, its events, and its sub-agents below."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

STATE, EVENTS, SUBAGENTS = "base_state.json", "events", "subagents"
MOST, DEEPEST = 500, 5


def is_event_file(name: str) -> bool:
    return name.startswith("event-") and name.endswith(".json")


def event_files(folder: Path) -> list[Path]:
    """In the order of the numbers in their names."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if is_event_file(entry.name)]
    except OSError:
        return []
    return [folder / name for name in sorted(names, key=lambda name: (_number(name), name))]


def _number(name: str) -> int:
    middle = name.removeprefix("event-").partition("-")[0][:15]
    return int(middle) if middle.isdecimal() else 0


def states_below(state: Path) -> list[Path]:
    """The states of the sub-agents that a conversation started itself."""
    try:
        return sorted(islice((state.parent / SUBAGENTS).glob(f"*/{STATE}"), MOST))
    except OSError:
        return []


def files_below(state: Path, depth: int = DEEPEST) -> Iterable[Path]:
    """All that tells of a conversation's sub-agents, and of theirs."""
    for inner in states_below(state) if depth else ():
        yield inner
        yield from event_files(inner.parent / EVENTS)
        yield from files_below(inner, depth - 1)


def state_above(state: Path) -> Path | None:
    """The state of the conversation that one was started by, if it is a sub-agent's."""
    above = state.parent.parent
    return above.parent / STATE if above.name == SUBAGENTS else None
