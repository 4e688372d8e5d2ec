"""Work that somebody points at, with what is known of it besides the commit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from closeloop.records.record import Record
from closeloop.records.task import Task
from closeloop.tasks.mining.work_history import PastWork

MAX_REMARKS = 20
MAX_REMARK_CHARS = 500


class SourcedWork(Record):
    """One accepted piece of work: its message is what was asked for."""

    work: PastWork
    tags: tuple[str, ...] = ()
    rubric: str | None = None
    """What reviewers or the user said on the way."""


class GatheredWork(Record):
    """What a source holds: work to try, and why the rest cannot be."""

    given: tuple[SourcedWork, ...]
    passed_over: dict[str, str] = {}


def with_source_tags(task: Task, given: SourcedWork | None) -> Task:
    """A proved task with the tags and words of its source; neither is part of what it asks."""
    if given is None:
        return task
    tags = dict.fromkeys([*task.tags, *given.tags])
    return replace(task, tags=tuple(tags), rubric=given.rubric or task.rubric)


def format_remarks(title: str, words: Sequence[str]) -> str | None:
    """Remarks of people as a list, shortened."""
    remarks = [" ".join(word.split())[:MAX_REMARK_CHARS] for word in words]
    lines = [f"- {word}" for word in remarks if word][:MAX_REMARKS]
    return "\n".join([f"{title}:", *lines]) if lines else None


def unique_by_commit(given: Iterable[SourcedWork]) -> tuple[SourcedWork, ...]:
    """Each commit once, as it was first given."""
    by_commit: dict[str, SourcedWork] = {}
    for one in given:
        by_commit.setdefault(one.work.commit, one)
    return tuple(by_commit.values())
