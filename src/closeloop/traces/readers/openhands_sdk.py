"""OpenHands 1.x: a conversation's folder, its events as one list, or an evaluation's lines."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from closeloop.model.protocols import Source
from closeloop.model.session import Session
from closeloop.traces.openhands.conversation import Conversation
from closeloop.traces.openhands.files import first_value
from closeloop.traces.results import mark_claim
from closeloop.traces.telling import identity
from closeloop.traces.untrusted import items, mapping, text

name = "openhands-sdk"
version = 1

STATE = "base_state.json"
EVENTS = "events"
KINDS = frozenset(
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


def recognises(source: Source) -> bool:
    if b'"kind"' not in source.head and b'"instance_id"' not in source.head:
        return False
    first = first_value(source)
    if isinstance(first, list):
        return bool(first) and all(_is_event(event) for event in first[:3])
    return isinstance(first, dict) and (_is_state(first) or _is_event(first) or _is_output(first))


def _is_event(told: object) -> bool:
    event = mapping(told)
    return text(event.get("kind")) in KINDS and "id" in event and "source" in event


def _is_state(told: Mapping[str, Any]) -> bool:
    agent, status = mapping(told.get("agent")), "execution_status" in told or "agent_status" in told
    return status and "kind" in agent and "workspace" in told and isinstance(told.get("id"), str)


def _is_output(told: Mapping[str, Any]) -> bool:
    return "instance_id" in told and any(_is_event(one) for one in items(told.get("history"))[:1])


def _folder(source: Source) -> Path | None:
    """Where the conversation's events are, for its state and for each of them."""
    first = first_value(source)
    if not isinstance(first, dict) or _is_output(first):
        return None
    return source.path.parent if _is_event(first) else source.path.parent / EVENTS


def parts(source: Source) -> Sequence[Path]:
    folder = _folder(source)
    if folder is None:
        return ()
    state = folder.parent / STATE
    files = [state, *_events(folder)] if folder.name == EVENTS else _events(folder)
    return [path for path in files if path != source.path and (path != state or path.is_file())]


def owner(source: Source) -> Path | None:
    first = first_value(source)
    if not isinstance(first, dict) or not _is_event(first) or not _is_part(source.path.name):
        return None
    folder = source.path.parent
    state = folder.parent / STATE
    if folder.name == EVENTS and state.is_file():
        return state
    files = _events(folder)
    return files[0] if files and files[0] != source.path else None


def _is_part(file: str) -> bool:
    return file.startswith("event-") and file.endswith(".json")


def _events(folder: Path) -> list[Path]:
    """Event files, by the number in their names."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if _is_part(entry.name)]
    except OSError:
        return []
    return [folder / file for file in sorted(names, key=lambda file: (_number(file), file))]


def _number(file: str) -> int:
    middle = file.removeprefix("event-").partition("-")[0][:15]
    return int(middle) if middle.isdecimal() else 0


def read(source: Source) -> Iterator[Session]:
    first = first_value(source)
    if isinstance(first, list):
        yield _session(source, first, {}, {})
    elif isinstance(first, dict) and _is_output(first):
        for line in source.records():
            if isinstance(line, dict) and _is_output(line):
                yield _session(source, items(line.get("history")), {}, line)
            else:
                why = "a line that is no instance"
                source.skipped[why] = source.skipped.get(why, 0) + 1
    elif isinstance(first, dict):
        yield _session(source, _documents(source, first), _state(source, first), {})


def _state(source: Source, first: Mapping[str, Any]) -> Mapping[str, Any]:
    if _is_state(first):
        return first
    path = source.path.parent.parent / STATE
    folder = source.path.parent.name == EVENTS and _is_part(source.path.name)
    return mapping(source.beside(path).document) if folder and path.is_file() else {}


def _documents(source: Source, first: Mapping[str, Any]) -> Iterator[Any]:
    """Events in order, one file at a time."""
    folder = _folder(source)
    if _is_event(first) and not _is_part(source.path.name):
        yield first
        return
    for path in _events(folder) if folder is not None else ():
        event = first if path == source.path else source.beside(path).document
        if event is None:
            why = "an event that cannot be read"
            source.skipped[why] = source.skipped.get(why, 0) + 1
        else:
            yield event


def _session(
    source: Source, events: Any, state: Mapping[str, Any], line: Mapping[str, Any]
) -> Session:
    metrics = mapping(mapping(state.get("stats")).get("usage_to_metrics"))
    talk = Conversation(name, version, source, metrics, mapping(line.get("metrics")))
    for event in events:
        talk.tell(event)
    teller = talk.teller
    error = text(line.get("error"))
    ended, cause = talk.ended(text(state.get("execution_status")), error)
    summary = mark_claim(teller.builder) if ended == "finished" else talk.summary
    if isinstance(patch := mapping(line.get("test_result")).get("git_patch"), str) and patch:
        teller.turn = None
        teller.note(patch, "submission")
    agent = mapping(state.get("agent"))
    model = mapping(agent.get("llm")).get("model")
    instance = teller.known(line.get("instance_id"))
    return Session(
        id=teller.known(state.get("id"))
        or identity(name, talk.first, instance, line.get("attempt")),
        agent="openhands",
        model=teller.known(model),
        system=talk.system,
        started=talk.started,
        ended=talk.last,
        exit=ended,
        cause=cause and teller.clean(cause),
        usage=talk.usage(),
        summary=summary,
        directory=teller.known(mapping(state.get("workspace")).get("working_dir")),
        links={"instance": instance} if instance else {},
        trace=teller.trace(),
    )
