"""Roo Code and Cline: a folder a task, its sub-tasks in the folders beside it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from closeloop.model.protocols import Source
from closeloop.model.record import digest
from closeloop.model.session import Session
from closeloop.traces.builder import ROOT, Builder
from closeloop.traces.cline import sessions
from closeloop.traces.cline.calls import ROO, Call, segments
from closeloop.traces.cline.tasks import Task, Telling
from closeloop.traces.results import mark_corrections
from closeloop.traces.source import FileSource
from closeloop.traces.untrusted import count, decoded, items, label, mapping, text

name = "cline"
version = 2

CONVERSATION, VIEW = "api_conversation_history.json", "ui_messages.json"
ABOUT = ("history_item.json", "task_metadata.json")
_FOLDERS = 5000
_BYTES = 256 << 20
_BEGINNING, _MOST_BEGINNINGS = 1 << 20, 1 << 14
_IDENTITY = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d{13}")


def recognises(source: Source) -> bool:
    document = source.document
    if isinstance(document, dict):
        return _is_about(document) or _is_session(document)
    return _is_conversation(document) or _is_view(document)


def _is_session(document: Any) -> bool:
    """Whether it is of Cline's own runtime, which its command line has."""
    return isinstance(document, dict) and (
        sessions.is_messages(document) or sessions.is_about(document)
    )


def _is_about(document: Mapping[str, Any]) -> bool:
    return (
        {"files_in_context", "model_usage"} <= document.keys()
        or {"id", "number", "ts", "task", "tokensIn", "tokensOut"} <= document.keys()
        or {"lastActivity", "messageCount", "workspace", "truncatedInstruction"} <= document.keys()
        or {"lastActivity", "messageCount", "actionCount", "totalSize"} <= document.keys()
    )


def _is_conversation(document: Any) -> bool:
    if not isinstance(document, list) or not document:
        return False
    shaped = all(
        isinstance(one, dict)
        and one.get("role") in ("user", "assistant")
        and isinstance(one.get("content"), str | list)
        for one in document[:4]
    )
    return shaped and any(_is_marked(one) for one in document[:4])


def _is_marked(message: Mapping[str, Any]) -> bool:
    """Whether a message bears what only these agents add."""
    blocks = message["content"] if isinstance(message["content"], list) else []
    words = [text(mapping(block).get("text")) or "" for block in blocks[:8]]
    if isinstance(message["content"], str):
        words = [message["content"]]
    return any(
        said.startswith(("<task>\n", "<environment_details>"))
        or (said.startswith("<user_message>\n") and count(message.get("ts")) is not None)
        for said in words
    )


def _is_view(document: Any) -> bool:
    return (
        isinstance(document, list)
        and bool(document)
        and all(
            isinstance(row, dict)
            and count(row.get("ts")) is not None
            and row.get("type") in ("say", "ask")
            and isinstance(row.get(row["type"]), str)
            for row in document[:4]
        )
    )


def parts(source: Source) -> Sequence[Path]:
    if _is_session(source.document):
        return sessions.parts(source)
    if owner(source) is not None:
        return ()
    own = [source.path.parent / file for file in (CONVERSATION, VIEW, *ABOUT)]
    found = [path for path in own if path != source.path and path.is_file()]
    for child in _family(source.path).descendants(source.path.parent):
        found += [path for file in (CONVERSATION, VIEW, *ABOUT) if (path := child / file).is_file()]
    return found


def owner(source: Source) -> Path | None:
    if _is_session(source.document):
        return sessions.owner(source)
    folder = source.path.parent
    root = _family(source.path).root(folder)
    for file in (CONVERSATION, VIEW):
        path = root / file
        if path == source.path:
            return None
        if path.is_file() and source.path.name in (CONVERSATION, VIEW, *ABOUT):
            # A conversation under another name is no part of the one beside it.
            return path
    return None


def read(source: Source) -> Iterator[Session]:
    document = source.document
    if isinstance(document, dict):
        yield from sessions.read(source, Builder(name, version))
        return
    task = _task(source, source.path.parent, document)
    if task is None:
        return
    family = _family(source.path)
    tasks: dict[str, Task] = {}
    for child in family.descendants(source.path.parent):
        found = _task(source, child, source.beside(child / CONVERSATION).document)
        if found is not None:
            tasks[found.id] = found
    yield _session(source, task, tasks)


def _session(source: Source, task: Task, tasks: Mapping[str, Task]) -> Session:
    builder = Builder(name, version)
    telling = Telling(builder, ROOT, tasks, source.skipped)
    about = _about(source.path.parent)
    telling.tell(task)
    mark_corrections(builder)
    builder.lane(agent=telling.mode)
    models = [mapping(one).get("model_id") for one in items(about.get("model_usage"))]
    stated = next((model for one in models if (model := label(one))), None)
    parent = label(about.get("parentTaskId"))
    return Session(
        id=task.id,
        agent=telling.flavour or ("roo-code" if _is_roo(telling, task, about) else "cline"),
        trace=builder.trace(source.skipped),
        model=max(telling.models, key=telling.models.__getitem__, default=telling.model) or stated,
        started=min(telling.times, default=None),
        ended=max(telling.times, default=None),
        exit="finished" if telling.claim else "gave_up",
        cause=None if telling.claim else "no completion was reported",
        usage=builder.usage(),
        summary=telling.claim,
        directory=label(about.get("workspace")) or telling.directory,
        parent=parent,
    )


def _is_roo(telling: Telling, task: Task, about: Mapping[str, Any]) -> bool:
    """By what only Roo Code writes; Cline notes the model beside each answer that has a time."""
    rows = list(_rows(task))
    kinds = {str(row.get(str(row.get("type")))) for row in rows}
    stamped = any(
        mapping(one).get("role") == "assistant" and "ts" in mapping(one) for one in task.messages
    )
    protocol = any("apiProtocol" in str(row.get("text")) for row in rows)
    return "tokensIn" in about or protocol or stamped or bool(ROO & (telling.tools | kinds))


def _task(source: Source, folder: Path, document: Any) -> Task | None:
    """The files of a task; its conversation may be missing, its view too."""
    messages: Sequence[Any] = ()
    rows: Sequence[Any] = ()
    if _is_conversation(document):
        messages = document
        beside = folder / VIEW
        view = source.beside(beside).document if beside.is_file() else None
        rows = items(view) if _is_view(view) else ()
    elif _is_view(document):
        rows = document
    else:
        return None
    about = _about(folder)
    identity = label(about.get("id")) or label(about.get("taskId"))
    if identity is None and _IDENTITY.fullmatch(folder.name):
        identity = folder.name
    children = _family(folder / CONVERSATION).briefs.get(folder, ())
    named = [(brief, _name(child)) for brief, child in children]
    return Task(identity or digest(_first(messages or rows))[:32], messages, rows, named)


def _rows(task: Task) -> Iterator[Mapping[str, Any]]:
    return (row for row in task.rows[:40] if isinstance(row, dict))


def _name(folder: Path) -> str:
    about = _about(folder)
    return label(about.get("id")) or label(about.get("taskId")) or folder.name


def _first(values: Sequence[Any]) -> str:
    return json.dumps(values[0], sort_keys=True, default=str)


def _about(folder: Path) -> dict[str, Any]:
    """What the small files beside a conversation say of the task."""
    told: dict[str, Any] = {}
    for file in ABOUT:
        try:
            path = folder / file
            if path.stat().st_size < _BEGINNING:
                told |= mapping(decoded(path.read_bytes()))
        except OSError:
            continue
    return told


class Family(NamedTuple):
    """Which task folders came of which."""

    parents: Mapping[Path, Path]
    briefs: Mapping[Path, Sequence[tuple[str, Path]]]
    """For each that sent off others: what it told them, and their folders."""

    def root(self, folder: Path) -> Path:
        seen = {folder}
        while (above := self.parents.get(folder)) and above not in seen:
            seen.add(above)
            folder = above
        return folder

    def descendants(self, folder: Path) -> list[Path]:
        found: list[Path] = []
        queue = [folder]
        while queue:
            for _, child in self.briefs.get(queue.pop(0), ()):
                if child not in found and child != folder:
                    found.append(child)
                    queue.append(child)
        return found


def _family(path: Path) -> Family:
    folder = path.parent.parent
    try:
        return _families(folder, folder.stat().st_mtime_ns)
    except OSError:
        return Family({}, {})


@lru_cache(maxsize=4)
def _families(folder: Path, changed: int) -> Family:
    """By what the small files say, and else by the words: a sub-task begins with its brief."""
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())[:_FOLDERS]
    tasks = [task for one in names if ((task := folder / one) / CONVERSATION).is_file()]
    begun = [found for task in tasks if (found := _beginning(task))]
    sent = [found for task in tasks for found in _sent(task)]
    stated = {task: folder / above for task in tasks if (above := _stated(task)) is not None}
    parents: dict[Path, Path] = {}
    briefs: dict[Path, list[tuple[str, Path]]] = {}
    waiting: dict[str, list[tuple[int, Path]]] = {}
    for at, words, task in sorted(begun):
        waiting.setdefault(words, []).append((at, task))
    for at, words, task in sorted(sent):
        for one in waiting.get(words, ()):
            if one[0] >= at and one[1] != task and stated.get(one[1], task) == task:
                waiting[words].remove(one)
                parents[one[1]] = task
                briefs.setdefault(task, []).append((words, one[1]))
                break
    known = set(tasks)
    for child, parent in stated.items():
        if child not in parents and parent in known and parent != child:
            parents[child] = parent
            briefs.setdefault(parent, []).append(("", child))
    return Family(parents, briefs)


def _stated(task: Path) -> str | None:
    """The parent that a task's own files name; "." where they say that there is none."""
    about = _about(task)
    parent = text(about.get("parentTaskId"))
    if parent is not None:
        return parent if _IDENTITY.fullmatch(parent) else None
    return "." if "tokensIn" in about and "parentTaskId" not in about else None


def _beginning(task: Path) -> tuple[int, str, Path] | None:
    """When a task began, and with which words, without reading the rest of it."""
    try:
        with (task / CONVERSATION).open("rb") as file:
            head = file.read(_MOST_BEGINNINGS)
            try:
                first = _first_object(head)
            except ValueError:
                first = _first_object(head + file.read(_BEGINNING))
    except (OSError, ValueError, RecursionError):
        return None
    for block in items(mapping(first).get("content")):
        said = text(mapping(block).get("text")) or ""
        for tag in ("task", "user_message"):
            if said.startswith(f"<{tag}>"):
                words = said.removeprefix(f"<{tag}>").partition(f"</{tag}>")[0].strip()
                return (count(mapping(first).get("ts")) or 0, words, task)
    return None


def _first_object(content: bytes) -> Any:
    told = content.decode(errors="ignore")
    return json.JSONDecoder().raw_decode(told, told.index("{"))[0]


def _sent(task: Path) -> list[tuple[int, str, Path]]:
    """What a task told the tasks it sent off."""
    try:
        path = task / CONVERSATION
        content = path.read_bytes() if path.stat().st_size < _BYTES else b""
    except OSError:
        return []
    if b"new_task" not in content:
        return []
    found = []
    for message in items(FileSource(path).document):
        if mapping(message).get("role") != "assistant":
            continue
        # A message is saved when the task it starts may have begun.
        at = (count(mapping(message).get("ts")) or 0) - 60_000
        found += [(at, words, task) for words in _told(mapping(message).get("content"))]
    return found


def _told(content: Any) -> Iterator[str]:
    for block in items(content):
        told = mapping(block)
        if told.get("type") == "tool_use" and told.get("name") == "new_task":
            yield (text(mapping(told.get("input")).get("message")) or "").strip()
        said = text(told.get("text")) or ""
        for segment in segments(said) if "<new_task>" in said else ():
            if isinstance(segment, Call) and segment.name == "new_task":
                yield segment.parameters.get("message", "").strip()
