"""OpenHands 1.x: a conversation's folder, its events in one file, or an evaluation's lines."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from closeloop.records.protocols import RecordingSource
from closeloop.records.session import Session
from closeloop.traces.provider_values import content_text
from closeloop.traces.readers.openhands_conversation import (
    OpenhandsChild,
    OpenhandsConversation,
)
from closeloop.traces.session_builder import SessionBuilder, count_skip, derive_id
from closeloop.traces.untrusted_json import as_label, as_list, as_mapping, as_text

name = "openhands-sdk"
version = 2

EVENT_KINDS = frozenset(
    {
        "ActionEvent",
        "ObservationEvent",
        "MessageEvent",
        "SystemPromptEvent",
        "UserRejectObservation",
        "AgentErrorEvent",
        "ConversationStateUpdateEvent",
        "ConversationErrorEvent",
        "Condensation",
        "CondensationRequest",
        "CondensationSummaryEvent",
        "PauseEvent",
        "InterruptEvent",
        "TokenEvent",
        "LLMCompletionLogEvent",
        "HookExecutionEvent",
        "StreamingDeltaEvent",
        "ACPToolCallEvent",
        "ResumeTranscriptEvent",
    }
)
STATE, EVENTS, SUBAGENTS = "base_state.json", "events", "subagents"
MAX_CHILD_STATES, MAX_CHILD_DEPTH = 500, 5


def recognises(source: RecordingSource) -> bool:
    if b'"kind"' not in source.head and b'"instance_id"' not in source.head:
        return False
    first = read_first_value(source)
    if isinstance(first, list):
        return bool(first) and all(_is_event(event) for event in first[:3])
    return isinstance(first, dict) and (_is_state(first) or _is_event(first) or _is_output(first))


def _is_event(told: object) -> bool:
    event = as_mapping(told)
    return as_text(event.get("kind")) in EVENT_KINDS and "id" in event and "source" in event


def _is_state(told: Mapping[str, Any]) -> bool:
    agent, status = (
        as_mapping(told.get("agent")),
        "execution_status" in told or "agent_status" in told,
    )
    return status and "kind" in agent and "workspace" in told and isinstance(told.get("id"), str)


def _is_output(told: Mapping[str, Any]) -> bool:
    return "instance_id" in told and any(_is_event(one) for one in as_list(told.get("history"))[:1])


def _events_folder(source: RecordingSource) -> Path | None:
    """Where the conversation's events are, for its state and for each of them."""
    first = read_first_value(source)
    if not isinstance(first, dict) or _is_output(first):
        return None
    return source.path.parent if _is_event(first) else source.path.parent / EVENTS


def parts(source: RecordingSource) -> Sequence[Path]:
    folder = _events_folder(source)
    if folder is None:
        return ()
    state = folder.parent / STATE
    files = list_event_files(folder)
    if folder.name == EVENTS and state.is_file():
        files = [state, *files, *iter_child_files(state)]
    return [path for path in files if path != source.path]


def owner(source: RecordingSource) -> Path | None:
    first = read_first_value(source)
    if not isinstance(first, dict):
        return None
    folder = source.path.parent
    if _is_state(first):
        top = _find_top_state(source, source.path)
        return top if top != source.path else None
    if not _is_event(first) or not is_event_file(source.path.name):
        return None
    state = folder.parent / STATE
    if folder.name == EVENTS and state.is_file():
        return _find_top_state(source, state)
    files = list_event_files(folder)
    return files[0] if files and files[0] != source.path else None


def _find_top_state(source: RecordingSource, state: Path) -> Path:
    """The state of the conversation that all others were started for."""
    for _ in range(MAX_CHILD_DEPTH):
        above = parent_state_path(state)
        if above is None or not _is_state(as_mapping(source.beside(above).document)):
            break
        state = above
    return state


def read(source: RecordingSource) -> Iterator[Session]:
    first = read_first_value(source)
    if isinstance(first, list):
        yield _build_session(source, first, {}, {}, [])
    elif isinstance(first, dict) and _is_output(first):
        for line in source.records():
            if isinstance(line, dict) and _is_output(line):
                yield _build_session(source, as_list(line.get("history")), {}, line, [])
            else:
                why = "a line that is no instance"
                count_skip(source.skipped, why)
    elif isinstance(first, dict) and _is_event(first) and source.document is None:
        yield _build_session(source, source.records(), {}, {}, [])
    elif isinstance(first, dict):
        children = _load_children(source, source.path) if _is_state(first) else []
        yield _build_session(
            source, _iter_documents(source, first), _load_state(source, first), {}, children
        )


def _load_state(source: RecordingSource, first: Mapping[str, Any]) -> Mapping[str, Any]:
    if _is_state(first):
        return first
    path = source.path.parent.parent / STATE
    folder = source.path.parent.name == EVENTS and is_event_file(source.path.name)
    return as_mapping(source.beside(path).document) if folder and path.is_file() else {}


def _load_children(
    source: RecordingSource, state: Path, depth: int = MAX_CHILD_DEPTH
) -> list[OpenhandsChild]:
    """The sub-agents of a conversation, by what the first of their events says they were asked."""
    children = []
    for path in list_child_states(state) if depth else ():
        inner, files = source.beside(path), list_event_files(path.parent / EVENTS)
        first = (as_mapping(source.beside(file).document) for file in files[:5])
        user_events = (event for event in first if event.get("source") == "user")
        brief = content_text(as_mapping(next(user_events, {}).get("llm_message")).get("content"))
        children.append(
            OpenhandsChild(
                lane=as_label(str(path.parent.relative_to(source.path.parent))) or SUBAGENTS,
                brief=brief.strip(),
                state=as_mapping(inner.document),
                events=_iter_events(source, files),
                children=_load_children(source, path, depth - 1),
            )
        )
    return children


def _iter_documents(source: RecordingSource, first: Mapping[str, Any]) -> Iterator[Any]:
    folder = _events_folder(source)
    if _is_event(first) and not is_event_file(source.path.name):
        yield first
    elif folder is not None:
        yield from _iter_events(source, list_event_files(folder))


def _iter_events(source: RecordingSource, files: Sequence[Path]) -> Iterator[Any]:
    """Events, one file at a time."""
    for path in files:
        event = source.beside(path).document
        if event is None:
            why = "an event that cannot be read"
            count_skip(source.skipped, why)
        else:
            yield event


def _build_session(
    source: RecordingSource,
    events: Iterable[Any],
    state: Mapping[str, Any],
    line: Mapping[str, Any],
    children: list[OpenhandsChild],
) -> Session:
    metrics = as_mapping(as_mapping(state.get("stats")).get("usage_to_metrics"))
    builder = SessionBuilder(name, version, source.skipped, several=True)
    conversation = OpenhandsConversation(
        builder, metrics, as_mapping(line.get("metrics")), children
    )
    conversation.add_events(events)
    error = as_text(line.get("error"))
    outcome, cause = conversation.session_outcome(as_text(state.get("execution_status")), error)
    builder.mark_corrections()
    summary = builder.mark_claim() if outcome == "finished" else conversation.summary
    if isinstance(patch := as_mapping(line.get("test_result")).get("git_patch"), str) and patch:
        builder.turn = None
        builder.add_note(patch, "submission")
    agent = as_mapping(state.get("agent"))
    model = as_mapping(agent.get("llm")).get("model")
    instance = builder.text_or_none(line.get("instance_id"))
    return builder.build_session(
        id=builder.text_or_none(state.get("id"))
        or derive_id(name, conversation.first, instance, line.get("attempt")),
        agent="openhands",
        model=builder.text_or_none(model),
        system=conversation.system,
        started=conversation.started,
        ended=conversation.last,
        exit=outcome,
        cause=cause and builder.truncate_text(cause),
        usage=conversation.total_usage(),
        summary=summary,
        directory=builder.text_or_none(as_mapping(state.get("workspace")).get("working_dir")),
        links={"instance": instance} if instance else {},
    )


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


def read_first_value(source: RecordingSource) -> Any:
    """The document, or the first line of a file with one JSON value a line."""
    if source.lines:
        # A whole document is given only where it is not one of many lines.
        return source.lines[0] if len(source.lines) > 1 else source.document or source.lines[0]
    if b"\n" in source.head:
        return source.document
    before = dict(source.skipped)
    first = next(source.records(), None)
    source.skipped.clear()
    source.skipped.update(before)
    return first
