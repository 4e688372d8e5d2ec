"""Where OpenHands 1.x keeps a conversation: its state, its events, and its sub-agents below."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

STATE, EVENTS, SUBAGENTS = "base_state.json", "events", "subagents"
MAX_CHILD_STATES, MAX_CHILD_DEPTH = 500, 5


def is_event_file(name: str) -> bool:
    return name.startswith("event-") and name.endswith(".json")


def list_event_files(folder: Path) -> list[Path]:
    """In the order of the numbers in their names."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if is_event_file(entry.name)]
    except OSError:
        return []
    return [folder / name for name in sorted(names, key=lambda name: (_event_number(name), name))]


def _event_number(name: str) -> int:
    middle = name.removeprefix("event-").partition("-")[0][:15]
    return int(middle) if middle.isdecimal() else 0


def list_child_states(state: Path) -> list[Path]:
    """The states of the sub-agents that a conversation started itself."""
    try:
        return sorted(islice((state.parent / SUBAGENTS).glob(f"*/{STATE}"), MAX_CHILD_STATES))
    except OSError:
        return []


def iter_child_files(state: Path, depth: int = MAX_CHILD_DEPTH) -> Iterable[Path]:
    """All that tells of a conversation's sub-agents, and of theirs."""
    for inner in list_child_states(state) if depth else ():
        yield inner
        yield from list_event_files(inner.parent / EVENTS)
        yield from iter_child_files(inner, depth - 1)


def parent_state_path(state: Path) -> Path | None:
    """The state of the conversation that one was started by, if it is a sub-agent's."""
    above = state.parent.parent
    return above.parent / STATE if above.name == SUBAGENTS else None
