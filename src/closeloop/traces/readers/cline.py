"""Roo Code and Cline: one folder per task, sub-tasks in folders beside it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from closeloop.records.attempt import Exit
from closeloop.records.protocols import RecordingSource
from closeloop.records.record import content_digest
from closeloop.records.trace import Session
from closeloop.traces.file_source import FileSource
from closeloop.traces.readers.cline_calls import ROO_ONLY_NAMES, ClineCall, split_segments
from closeloop.traces.readers.cline_task import ClineTask, ClineTaskLane
from closeloop.traces.session_builder import ROOT_LANE, SessionBuilder
from closeloop.traces.untrusted_json import (
    as_count,
    as_label,
    as_list,
    as_mapping,
    as_text,
    time_from_text,
    try_decode_json,
)

name = "cline"
version = 3

CONVERSATION, VIEW = "api_conversation_history.json", "ui_messages.json"
INFO_FILES = ("history_item.json", "task_metadata.json")
_MAX_FOLDERS = 5000
_MAX_CONVERSATION_BYTES = 256 << 20
_BEGINNING, _MOST_BEGINNINGS = 1 << 20, 1 << 14
_TASK_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d{13}")
_AGENTS = ("lead", "subagent", "teammate")
_MAX_CHILD_FILES = 1000
_FINISHED: tuple[Exit, str | None] = ("finished", None)
_EXITS: dict[str, tuple[Exit, str | None]] = {
    "failed": ("crashed", "The session failed."),
    "cancelled": ("gave_up", "The user cancelled it."),
}


def recognises(source: RecordingSource) -> bool:
    document = source.document
    if isinstance(document, dict):
        return _is_task_info(document) or _is_runtime_session(document)
    return _is_conversation(document) or _is_view(document)


def _is_runtime_session(document: Any) -> bool:
    """Whether it belongs to Cline's own runtime, used by its command line."""
    return isinstance(document, dict) and (is_message_file(document) or is_session_info(document))


def _is_task_info(document: Mapping[str, Any]) -> bool:
    return (
        {"files_in_context", "model_usage"} <= document.keys()
        or {"id", "number", "ts", "task", "tokensIn", "tokensOut"} <= document.keys()
        or {"lastActivity", "messageCount", "workspace", "truncatedInstruction"} <= document.keys()
        or {"lastActivity", "messageCount", "actionCount", "totalSize"} <= document.keys()
    )


def _is_conversation(document: Any) -> bool:
    if not isinstance(document, list) or not document:
        return False
    has_shape = all(
        isinstance(message, dict)
        and message.get("role") in ("user", "assistant")
        and isinstance(message.get("content"), str | list)
        for message in document[:4]
    )
    return has_shape and any(_has_client_marks(message) for message in document[:4])


def _has_client_marks(message: Mapping[str, Any]) -> bool:
    """Whether a message has marks that only these agents add."""
    blocks = message["content"] if isinstance(message["content"], list) else []
    texts = [as_text(as_mapping(block).get("text")) or "" for block in blocks[:8]]
    if isinstance(message["content"], str):
        texts = [message["content"]]
    return any(
        text.startswith(("<task>\n", "<environment_details>"))
        or (text.startswith("<user_message>\n") and as_count(message.get("ts")) is not None)
        for text in texts
    )


def _is_view(document: Any) -> bool:
    return (
        isinstance(document, list)
        and bool(document)
        and all(
            isinstance(row, dict)
            and as_count(row.get("ts")) is not None
            and row.get("type") in ("say", "ask")
            and isinstance(row.get(row["type"]), str)
            for row in document[:4]
        )
    )


def parts(source: RecordingSource) -> Sequence[Path]:
    if _is_runtime_session(source.document):
        return list_runtime_parts(source)
    if owner(source) is not None:
        return ()
    task_files = [source.path.parent / file for file in (CONVERSATION, VIEW, *INFO_FILES)]
    files = [path for path in task_files if path != source.path and path.is_file()]
    for child in _load_family(source.path).list_descendants(source.path.parent):
        files += [
            path for file in (CONVERSATION, VIEW, *INFO_FILES) if (path := child / file).is_file()
        ]
    return files


def owner(source: RecordingSource) -> Path | None:
    if _is_runtime_session(source.document):
        return runtime_owner(source)
    folder = source.path.parent
    root = _load_family(source.path).find_root(folder)
    for file in (CONVERSATION, VIEW):
        path = root / file
        if path == source.path:
            return None
        if path.is_file() and source.path.name in (CONVERSATION, VIEW, *INFO_FILES):
            # A conversation under another name is not part of the neighbouring one.
            return path
    return None


def read(source: RecordingSource) -> Iterator[Session]:
    document = source.document
    if isinstance(document, dict):
        yield from read_runtime_session(source, SessionBuilder(name, version, source.skipped))
        return
    task = _load_task(source, source.path.parent, document)
    if task is None:
        return
    family = _load_family(source.path)
    tasks: dict[str, ClineTask] = {}
    for child in family.list_descendants(source.path.parent):
        child_task = _load_task(source, child, source.beside(child / CONVERSATION).document)
        if child_task is not None:
            tasks[child_task.id] = child_task
    yield _build_session(source, task, tasks)


def _build_session(
    source: RecordingSource, task: ClineTask, tasks: Mapping[str, ClineTask]
) -> Session:
    builder = SessionBuilder(name, version, source.skipped)
    task_lane = ClineTaskLane(builder, ROOT_LANE, tasks)
    info = _read_task_info(source.path.parent)
    task_lane.add_task(task)
    builder.mark_corrections()
    builder.open_lane(agent=task_lane.mode)
    models = [as_mapping(entry).get("model_id") for entry in as_list(info.get("model_usage"))]
    stated_model = next((model for model_id in models if (model := as_label(model_id))), None)
    parent = as_label(info.get("parentTaskId"))
    return builder.build_session(
        id=task.id,
        agent=task_lane.flavour or ("roo-code" if _is_roo(task_lane, task, info) else "cline"),
        model=builder.most_used_model() or task_lane.model or stated_model,
        exit="finished" if task_lane.claim else "gave_up",
        cause=None if task_lane.claim else "no completion was reported",
        summary=task_lane.claim,
        directory=as_label(info.get("workspace")) or task_lane.directory,
        parent=parent,
    )


def _is_roo(task_lane: ClineTaskLane, task: ClineTask, info: Mapping[str, Any]) -> bool:
    """Recognise Roo Code by what only it writes; Cline adds the model to each timed answer."""
    rows = list(_first_rows(task))
    kinds = {str(row.get(str(row.get("type")))) for row in rows}
    stamped = any(
        as_mapping(message).get("role") == "assistant" and "ts" in as_mapping(message)
        for message in task.messages
    )
    protocol = any("apiProtocol" in str(row.get("text")) for row in rows)
    return (
        "tokensIn" in info
        or protocol
        or stamped
        or bool(ROO_ONLY_NAMES & (task_lane.tools | kinds))
    )


def _load_task(source: RecordingSource, folder: Path, document: Any) -> ClineTask | None:
    """Load the files of a task; its conversation or its view may be missing."""
    messages: Sequence[Any] = ()
    rows: Sequence[Any] = ()
    if _is_conversation(document):
        messages = document
        view_path = folder / VIEW
        view = source.beside(view_path).document if view_path.is_file() else None
        rows = as_list(view) if _is_view(view) else ()
    elif _is_view(document):
        rows = document
    else:
        return None
    info = _read_task_info(folder)
    identity = as_label(info.get("id")) or as_label(info.get("taskId"))
    if identity is None and _TASK_ID.fullmatch(folder.name):
        identity = folder.name
    children = _load_family(folder / CONVERSATION).briefs.get(folder, ())
    named_children = [(brief, _task_name(child)) for brief, child in children]
    return ClineTask(
        identity or content_digest(_first_value_json(messages or rows))[:32],
        messages,
        rows,
        named_children,
    )


def _first_rows(task: ClineTask) -> Iterator[Mapping[str, Any]]:
    return (row for row in task.rows[:40] if isinstance(row, dict))


def _task_name(folder: Path) -> str:
    info = _read_task_info(folder)
    return as_label(info.get("id")) or as_label(info.get("taskId")) or folder.name


def _first_value_json(values: Sequence[Any]) -> str:
    return json.dumps(values[0], sort_keys=True, default=str)


def _read_task_info(folder: Path) -> dict[str, Any]:
    """Read the small files beside a conversation."""
    info: dict[str, Any] = {}
    for file in INFO_FILES:
        try:
            path = folder / file
            if path.stat().st_size < _BEGINNING:
                info |= as_mapping(try_decode_json(path.read_bytes()))
        except OSError:
            continue
    return info


class ClineFamily(NamedTuple):
    """Which task folders were started by which."""

    parents: Mapping[Path, Path]
    briefs: Mapping[Path, Sequence[tuple[str, Path]]]
    """For each parent, its briefs and the folders of its children."""

    def find_root(self, folder: Path) -> Path:
        seen_folders = {folder}
        while (parent := self.parents.get(folder)) and parent not in seen_folders:
            seen_folders.add(parent)
            folder = parent
        return folder

    def list_descendants(self, folder: Path) -> list[Path]:
        descendants: list[Path] = []
        queue = [folder]
        while queue:
            for _, child in self.briefs.get(queue.pop(0), ()):
                if child not in descendants and child != folder:
                    descendants.append(child)
                    queue.append(child)
        return descendants


def _load_family(path: Path) -> ClineFamily:
    folder = path.parent.parent
    try:
        return _scan_families(folder, folder.stat().st_mtime_ns)
    except OSError:
        return ClineFamily({}, {})


@lru_cache(maxsize=4)
def _scan_families(folder: Path, changed: int) -> ClineFamily:
    """Relate tasks by their small files, else by text: a sub-task begins with its brief."""
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())[:_MAX_FOLDERS]
    tasks = [task for name in names if ((task := folder / name) / CONVERSATION).is_file()]
    beginnings = [beginning for task in tasks if (beginning := _read_beginning(task))]
    sent_briefs = [beginning for task in tasks for beginning in _list_briefs(task)]
    stated_parents = {
        task: folder / parent_name
        for task in tasks
        if (parent_name := _stated_parent(task)) is not None
    }
    parents: dict[Path, Path] = {}
    briefs: dict[Path, list[tuple[str, Path]]] = {}
    tasks_by_brief: dict[str, list[tuple[int, Path]]] = {}
    for timestamp, text, task in sorted(beginnings):
        tasks_by_brief.setdefault(text, []).append((timestamp, task))
    for sent_at, brief, task in sorted(sent_briefs):
        for candidate in tasks_by_brief.get(brief, ()):
            if (
                candidate[0] >= sent_at
                and candidate[1] != task
                and stated_parents.get(candidate[1], task) == task
            ):
                tasks_by_brief[brief].remove(candidate)
                parents[candidate[1]] = task
                briefs.setdefault(task, []).append((brief, candidate[1]))
                break
    known_tasks = set(tasks)
    for child, parent in stated_parents.items():
        if child not in parents and parent in known_tasks and parent != child:
            parents[child] = parent
            briefs.setdefault(parent, []).append(("", child))
    return ClineFamily(parents, briefs)


def _stated_parent(task: Path) -> str | None:
    """Return the parent named by a task's own files; "." if they say that there is none."""
    info = _read_task_info(task)
    parent = as_text(info.get("parentTaskId"))
    if parent is not None:
        return parent if _TASK_ID.fullmatch(parent) else None
    return "." if "tokensIn" in info and "parentTaskId" not in info else None


def _read_beginning(task: Path) -> tuple[int, str, Path] | None:
    """Return when a task began and its first words, without reading the rest."""
    try:
        with (task / CONVERSATION).open("rb") as file:
            head = file.read(_MOST_BEGINNINGS)
            try:
                first = _decode_first_object(head)
            except ValueError:
                first = _decode_first_object(head + file.read(_BEGINNING))
    except (OSError, ValueError, RecursionError):
        return None
    for block in as_list(as_mapping(first).get("content")):
        text = as_text(as_mapping(block).get("text")) or ""
        for tag in ("task", "user_message"):
            if text.startswith(f"<{tag}>"):
                brief = text.removeprefix(f"<{tag}>").partition(f"</{tag}>")[0].strip()
                return (as_count(as_mapping(first).get("ts")) or 0, brief, task)
    return None


def _decode_first_object(content: bytes) -> Any:
    content_text = content.decode(errors="ignore")
    return json.JSONDecoder().raw_decode(content_text, content_text.index("{"))[0]


def _list_briefs(task: Path) -> list[tuple[int, str, Path]]:
    """Return a task's briefs to the tasks it started."""
    try:
        path = task / CONVERSATION
        content = path.read_bytes() if path.stat().st_size < _MAX_CONVERSATION_BYTES else b""
    except OSError:
        return []
    if b"new_task" not in content:
        return []
    briefs = []
    for message in as_list(FileSource(path).document):
        if as_mapping(message).get("role") != "assistant":
            continue
        # A message may be saved after the task that it starts has begun.
        timestamp = (as_count(as_mapping(message).get("ts")) or 0) - 60_000
        briefs += [
            (timestamp, brief, task)
            for brief in _briefs_in_content(as_mapping(message).get("content"))
        ]
    return briefs


def _briefs_in_content(content: Any) -> Iterator[str]:
    for block in as_list(content):
        block_fields = as_mapping(block)
        if block_fields.get("type") == "tool_use" and block_fields.get("name") == "new_task":
            yield (as_text(as_mapping(block_fields.get("input")).get("message")) or "").strip()
        text = as_text(block_fields.get("text")) or ""
        for segment in split_segments(text) if "<new_task>" in text else ():
            if isinstance(segment, ClineCall) and segment.name == "new_task":
                yield segment.parameters.get("message", "").strip()


def is_message_file(document: Mapping[str, Any]) -> bool:
    """Whether a document contains the messages of a session."""
    messages = document.get("messages")
    return (
        isinstance(document.get("sessionId"), str)
        and isinstance(messages, list)
        and (document.get("agent") in _AGENTS or "updated_at" in document)
        and all(
            as_mapping(message).get("role") in ("user", "assistant") for message in messages[:4]
        )
    )


def is_session_info(document: Mapping[str, Any]) -> bool:
    """Whether a document describes a session without its messages."""
    return {"session_id", "pid", "started_at", "status", "cwd"} <= document.keys()


def list_runtime_parts(source: RecordingSource) -> list[Path]:
    """Return the other files of a session's folder; empty for files that are parts themselves."""
    if runtime_owner(source) is not None:
        return []
    session_id = as_label(as_mapping(source.document).get("sessionId")) or ""
    info_path = source.path.parent / f"{session_id}.json"
    files = [info_path] if info_path.is_file() and info_path != source.path else []
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
    task_lane = ClineTaskLane(reader, ROOT_LANE, tasks)
    task_lane.add_task(ClineTask(session_id, document["messages"], (), children))
    reader.mark_corrections()
    info = as_mapping(source.beside(source.path.parent / f"{session_id}.json").document)
    info = info if is_session_info(info) else {}
    origin = as_mapping(document.get("origin"))
    text = reader.mark_claim()
    outcome, cause = _EXITS.get(str(info.get("status")), _FINISHED)
    system = as_text(document.get("system_prompt"))
    reader.record_time(time_from_text(info.get("started_at")))
    yield reader.build_session(
        id=session_id,
        agent="cline",
        agent_version=as_label(origin.get("version")),
        model=reader.most_used_model() or task_lane.model or as_label(info.get("model")),
        system=reader.truncate_text(system) if system else None,
        exit=outcome,
        cause=cause,
        summary=task_lane.claim or text,
        directory=as_label(info.get("cwd")),
        parent=as_label(origin.get("parentThreadId")),
    )


def _iter_child_tasks(source: RecordingSource, session_id: str) -> Iterator[tuple[Path, ClineTask]]:
    """Yield the agents that a session started, if their files are beside it."""
    try:
        message_files = sorted(source.path.parent.glob("*.messages.json"))[:_MAX_CHILD_FILES]
    except OSError:
        return
    for path in message_files:
        document = as_mapping(source.beside(path).document) if path != source.path else {}
        child = as_label(document.get("sessionId")) or ""
        if child.startswith(f"{session_id}__") and is_message_file(document):
            yield path, ClineTask(child, document["messages"], (), ())


def _first_message_text(messages: Any) -> str:
    for message in messages[:1]:
        texts = [
            as_mapping(part).get("text") for part in as_list(as_mapping(message).get("content"))
        ]
        return "\n".join(text for text in texts if isinstance(text, str)).strip()
    return ""
