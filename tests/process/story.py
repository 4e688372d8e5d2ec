"""Short traces written down in a few lines: what the tests of rules and `make quality` are told.

Each event is a mapping with one of the words below, and `lane` where it is not the root's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from closeloop.records.attempt import Attempt, Grade
from closeloop.records.record import Record
from closeloop.records.task import Task
from closeloop.records.trace import (
    AnyEvent,
    Command,
    Edit,
    Handoff,
    Lane,
    Message,
    Note,
    Read,
    Thought,
    ToolUse,
    Trace,
)

Told = Mapping[str, Any]


def story(
    events: Sequence[Told], lanes: Mapping[str, str | None] | None = None, **trace: Any
) -> Trace:
    """A trace of those events, numbered from 1."""
    told = [dict(event) for event in events]
    parents = {"root": None, **(lanes or {})}
    first = _first_user(told)
    made = [_event(event, number, first=number == first) for number, event in enumerate(told, 1)]
    return Trace(
        reader="story",
        reader_version=1,
        lanes=tuple(Lane(id=name, parent=parent) for name, parent in parents.items()),
        events=tuple(made),
        **trace,
    )


def _first_user(told: Sequence[Told]) -> int:
    return next((number for number, event in enumerate(told, 1) if "user" in event), 0)


def _event(told: dict[str, Any], number: int, *, first: bool) -> AnyEvent:
    place = {"number": number, "lane": told.pop("lane", "root")}
    place |= {name: told.pop(name) for name in ("at", "turn", "seconds") if name in told}
    intent = told.pop("intent", None)
    ((word, given),) = told.items()
    if word == "user":
        intent = intent or ("request" if first else None)
        return Message(**place, role="user", text=given, intent=intent)
    return WORDS[word](given, place)


def _command(given: Any, place: dict[str, Any]) -> Command:
    given = {"command": given} if isinstance(given, str) else dict(given)
    code = given.pop("exit", None)
    mark = None if code is None else "stated"
    return Command(**place, exit_code=code, exit_from=mark, **given)


def _file(kind: type[Edit] | type[Read]) -> Callable[[Any, dict[str, Any]], AnyEvent]:
    def made(given: Any, place: dict[str, Any]) -> AnyEvent:
        given = {"path": given} if isinstance(given, str) else dict(given)
        return kind(**place, **{"ok": True, **given})

    return made


def _says(role: str, intent: str | None) -> Callable[[Any, dict[str, Any]], Message]:
    return lambda given, place: Message(**place, role=role, text=given, intent=intent)


WORDS: dict[str, Callable[[Any, dict[str, Any]], AnyEvent]] = {
    "say": _says("agent", None),
    "claim": _says("agent", "claim"),
    "ask": _says("agent", "question"),
    "system": _says("system", None),
    "think": lambda given, place: Thought(**place, text=given),
    "run": _command,
    "edit": _file(Edit),
    "read": _file(Read),
    "tool": lambda given, place: ToolUse(**place, **given),
    "handoff": lambda given, place: Handoff(**place, **given),
    "note": lambda given, place: Note(**place, **given),
}


class Labelled(Record):
    """A short trace, and what people say a rule should find in it."""

    name: str
    about: str
    trace: Trace
    expect: dict[str, list[int]]
    """Rule → events, at least one of which a finding of it must cite."""
    allow: list[str]
    """Rules on which the case says nothing."""
    task: Task | None
    attempt: Attempt | None
    grade: Grade | None = None


@cache
def labelled(folder: Path = Path(__file__).parent / "labelled") -> list[Labelled]:
    """All labelled traces, in the order of their names."""
    return [_labelled(path) for path in sorted(folder.glob("*/*.yaml"))]


def _labelled(path: Path) -> Labelled:
    given = msgspec.yaml.decode(path.read_bytes())
    task, end = given.pop("task", None), given.pop("exit", None)
    grade = given.pop("grade", None)
    return Labelled(
        name=f"{path.parent.name}/{path.stem}",
        about=given.pop("about"),
        expect=given.pop("expect", {}),
        allow=given.pop("allow", []),
        trace=story(given.pop("events"), given.pop("lanes", None), **given),
        task=msgspec.convert({"id": path.stem, "prompt": "", **task}, Task) if task else None,
        attempt=Attempt(id=path.stem, origin="production", exit=end) if end else None,
        grade=msgspec.convert({"attempt": path.stem, "grading": "g", "version": 2, **grade}, Grade)
        if grade
        else None,
    )
