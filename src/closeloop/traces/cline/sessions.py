"""Sessions of Cline's own runtime, which its command line and newer clients share.

A folder a session: its messages, a file about it, and the messages of each agent it sent off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from closeloop.model.attempt import Exit
from closeloop.model.protocols import Source
from closeloop.model.session import Session
from closeloop.traces.builder import ROOT, Builder
from closeloop.traces.cline.tasks import Task, Telling
from closeloop.traces.results import mark_claim, mark_corrections
from closeloop.traces.untrusted import items, label, mapping, moment, text

_AGENTS = ("lead", "subagent", "teammate")
_MOST = 1000
_FINISHED: tuple[Exit, str | None] = ("finished", None)
_EXITS: dict[str, tuple[Exit, str | None]] = {
    "failed": ("crashed", "The session failed."),
    "cancelled": ("gave_up", "The user cancelled it."),
}


def is_messages(document: Mapping[str, Any]) -> bool:
    """Whether a document holds the messages of a session."""
    listed = document.get("messages")
    return (
        isinstance(document.get("sessionId"), str)
        and isinstance(listed, list)
        and (document.get("agent") in _AGENTS or "updated_at" in document)
        and all(mapping(one).get("role") in ("user", "assistant") for one in listed[:4])
    )


def is_about(document: Mapping[str, Any]) -> bool:
    """Whether a document says what a session was, without its messages."""
    return {"session_id", "pid", "started_at", "status", "cwd"} <= document.keys()


def parts(source: Source) -> list[Path]:
    """The other files of a session's folder; none for those that are parts themselves."""
    if owner(source) is not None:
        return []
    named = label(mapping(source.document).get("sessionId")) or ""
    about = source.path.parent / f"{named}.json"
    found = [about] if about.is_file() and about != source.path else []
    return found + [path for path, _ in _children(source, named)]


def owner(source: Source) -> Path | None:
    document = mapping(source.document)
    named = label(document.get("sessionId")) or label(document.get("session_id")) or ""
    if not is_about(document) and "__" not in named:
        return None
    path = source.path.parent / f"{named.partition('__')[0]}.messages.json"
    return path if path != source.path and path.is_file() else None


def read(source: Source, reader: Builder) -> Iterator[Session]:
    document = mapping(source.document)
    named = label(document.get("sessionId"))
    if not is_messages(document) or named is None or not document["messages"]:
        return
    tasks = {task.id: task for _, task in _children(source, named)}
    children = [(_brief(task.messages), task.id) for task in tasks.values()]
    telling = Telling(reader, ROOT, tasks, source.skipped)
    telling.tell(Task(named, document["messages"], (), children))
    mark_corrections(reader)
    about = mapping(source.beside(source.path.parent / f"{named}.json").document)
    about = about if is_about(about) else {}
    origin = mapping(document.get("origin"))
    said = mark_claim(reader)
    ended, cause = _EXITS.get(str(about.get("status")), _FINISHED)
    system = text(document.get("system_prompt"))
    times = [at for at in (moment(about.get("started_at")), *telling.times) if at]
    yield Session(
        id=named,
        agent="cline",
        agent_version=label(origin.get("version")),
        trace=reader.trace(source.skipped),
        model=max(telling.models, key=telling.models.__getitem__, default=telling.model)
        or label(about.get("model")),
        system=telling.clean(system) if system else None,
        started=min(times, default=None),
        ended=max(times, default=None),
        exit=ended,
        cause=cause,
        usage=reader.usage(),
        summary=telling.claim or said,
        directory=label(about.get("cwd")),
        parent=label(origin.get("parentThreadId")),
    )


def _children(source: Source, named: str) -> Iterator[tuple[Path, Task]]:
    """The agents that a session sent off, as far as their files are beside it."""
    try:
        beside = sorted(source.path.parent.glob("*.messages.json"))[:_MOST]
    except OSError:
        return
    for path in beside:
        document = mapping(source.beside(path).document) if path != source.path else {}
        child = label(document.get("sessionId")) or ""
        if child.startswith(f"{named}__") and is_messages(document):
            yield path, Task(child, document["messages"], (), ())


def _brief(messages: Any) -> str:
    for one in messages[:1]:
        words = [mapping(part).get("text") for part in items(mapping(one).get("content"))]
        return "\n".join(word for word in words if isinstance(word, str)).strip()
    return ""
