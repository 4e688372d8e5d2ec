"""Work that somebody points at, with what is known of it besides the commit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from closeloop.model.record import Record
from closeloop.model.task import Task
from closeloop.tasks.mining.history import Work

MOST_WORDS = 20
LONGEST_WORD = 500


class Given(Record):
    """One accepted piece of work: its message is what was asked for."""

    work: Work
    tags: tuple[str, ...] = ()
    rubric: str | None = None
    """What reviewers or the user said on the way."""


class Gathered(Record):
    """What a source holds: work to try, and why the rest cannot be."""

    given: tuple[Given, ...]
    passed_over: dict[str, str] = {}


def dressed(task: Task, given: Given | None) -> Task:
    """A proved task with the tags and words of its source; neither is part of what it asks."""
    if given is None:
        return task
    tags = dict.fromkeys([*task.tags, *given.tags])
    return replace(task, tags=tuple(tags), rubric=given.rubric or task.rubric)


def said(title: str, words: Sequence[str]) -> str | None:
    """Remarks of people as a list, shortened."""
    plain = [" ".join(word.split())[:LONGEST_WORD] for word in words]
    lines = [f"- {word}" for word in plain if word][:MOST_WORDS]
    return "\n".join([f"{title}:", *lines]) if lines else None


def distinct(given: Iterable[Given]) -> tuple[Given, ...]:
    """Each commit once, as it was first given."""
    found: dict[str, Given] = {}
    for one in given:
        found.setdefault(one.work.commit, one)
    return tuple(found.values())
