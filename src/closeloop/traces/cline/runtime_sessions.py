"""Sessions of Cline's own runtime, which its command line and newer clients share.

A folder a session: its messages, a file about it, and the messages of each agent it sent off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from closeloop.records.attempt import Exit
from closeloop.records.protocols import RecordingSource
from closeloop.records.session import Session
from closeloop.traces.cline.cline_task import ClineTask, ClineTaskBuilder
from closeloop.traces.session_builder import ROOT_LANE, SessionBuilder
from closeloop.traces.untrusted_json import as_label, as_list, as_mapping, as_text, time_from_text

_AGENTS = ("lead", "subagent", "teammate")
_MAX_CHILD_FILES = 1000
_FINISHED: tuple[Exit, str | None] = ("finished", None)
_EXITS: dict[str, tuple[Exit, str | None]] = {
    "failed": ("crashed", "The session failed."),
    "cancelled": ("gave_up", "The user cancelled it."),
}


def is_message_file(document: Mapping[str, Any]) -> bool:
    """Whether a document holds the messages of a session."""
    listed = document.get("messages")
    return (
        isinstance(document.get("sessionId"), str)
        and isinstance(listed, list)
        and (document.get("agent") in _AGENTS or "updated_at" in document)
        and all(as_mapping(one).get("role") in ("user", "assistant") for one in listed[:4])
    )


def is_session_info(document: Mapping[str, Any]) -> bool:
    """Whether a document says what a session was, without its messages."""
    return {"session_id", "pid", "started_at", "status", "cwd"} <= document.keys()


def list_runtime_parts(source: RecordingSource) -> list[Path]:
    """The other files of a session's folder; none for those that are parts themselves."""
    if runtime_owner(source) is not None:
        return []
    session_id = as_label(as_mapping(source.document).get("sessionId")) or ""
    about = source.path.parent / f"{session_id}.json"
    files = [about] if about.is_file() and about != source.path else []
    return files + [path for path, _ in _iter_child_tasks(source, session_id)]


def runtime_owner(source: RecordingSource) -> Path | None:
    document = as_mapping(source.document)
    session_id = as_label(document.get("sessionId")) or as_label(document.get("session_id")) or ""
    if not is_session_info(document) and "__" not in session_id:
        return None
    path = source.path.parent / f"{session_id.partition('__')[0]}.messages.json"
    return path if path != source.path and path.is_file() else None


def read_runtime_session(source: RecordingSource, reader: SessionBuilder) -> Iterator[Session]:
    document = as_mapping(source.document)
    session_id = as_label(document.get("sessionId"))
    if not is_message_file(document) or session_id is None or not document["messages"]:
        return
    tasks = {task.id: task for _, task in _iter_child_tasks(source, session_id)}
    children = [(_first_message_text(task.messages), task.id) for task in tasks.values()]
    telling = ClineTaskBuilder(reader, ROOT_LANE, tasks, source.skipped)
    telling.add_task(ClineTask(session_id, document["messages"], (), children))
    reader.mark_corrections()
    about = as_mapping(source.beside(source.path.parent / f"{session_id}.json").document)
    about = about if is_session_info(about) else {}
    origin = as_mapping(document.get("origin"))
    said = reader.mark_claim()
    ended, cause = _EXITS.get(str(about.get("status")), _FINISHED)
    system = as_text(document.get("system_prompt"))
    times = [at for at in (time_from_text(about.get("started_at")), *telling.times) if at]
    yield Session(
        id=session_id,
        agent="cline",
        agent_version=as_label(origin.get("version")),
        trace=reader.build_trace(),
        model=max(telling.models, key=telling.models.__getitem__, default=telling.model)
        or as_label(about.get("model")),
        system=telling.truncate_text(system) if system else None,
        started=min(times, default=None),
        ended=max(times, default=None),
        exit=ended,
        cause=cause,
        usage=reader.total_usage(),
        summary=telling.claim or said,
        directory=as_label(about.get("cwd")),
        parent=as_label(origin.get("parentThreadId")),
    )


def _iter_child_tasks(source: RecordingSource, named: str) -> Iterator[tuple[Path, ClineTask]]:
    """The agents that a session sent off, as far as their files are beside it."""
    try:
        beside = sorted(source.path.parent.glob("*.messages.json"))[:_MAX_CHILD_FILES]
    except OSError:
        return
    for path in beside:
        document = as_mapping(source.beside(path).document) if path != source.path else {}
        child = as_label(document.get("sessionId")) or ""
        if child.startswith(f"{named}__") and is_message_file(document):
            yield path, ClineTask(child, document["messages"], (), ())


def _first_message_text(messages: Any) -> str:
    for one in messages[:1]:
        words = [as_mapping(part).get("text") for part in as_list(as_mapping(one).get("content"))]
        return "\n".join(word for word in words if isinstance(word, str)).strip()
    return ""
