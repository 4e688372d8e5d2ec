"""OpenHands 1.x: a conversation's folder, its events in one file, or an evaluation's lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from closeloop.model.protocols import Source
from closeloop.model.session import Session
from closeloop.traces.openhands.conversation import Child, Conversation
from closeloop.traces.openhands.files import first_value
from closeloop.traces.openhands.folders import (
    DEEPEST,
    EVENTS,
    STATE,
    SUBAGENTS,
    event_files,
    files_below,
    is_event_file,
    state_above,
    states_below,
)
from closeloop.traces.results import mark_claim, mark_corrections
from closeloop.traces.telling import Teller, identity, text_of
from closeloop.traces.untrusted import items, label, mapping, text

name = "openhands-sdk"
version = 2

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
    files = event_files(folder)
    if folder.name == EVENTS and state.is_file():
        files = [state, *files, *files_below(state)]
    return [path for path in files if path != source.path]


def owner(source: Source) -> Path | None:
    first = first_value(source)
    if not isinstance(first, dict):
        return None
    folder = source.path.parent
    if _is_state(first):
        top = _topmost(source, source.path)
        return top if top != source.path else None
    if not _is_event(first) or not is_event_file(source.path.name):
        return None
    state = folder.parent / STATE
    if folder.name == EVENTS and state.is_file():
        return _topmost(source, state)
    files = event_files(folder)
    return files[0] if files and files[0] != source.path else None


def _topmost(source: Source, state: Path) -> Path:
    """The state of the conversation that all others were started for."""
    for _ in range(DEEPEST):
        above = state_above(state)
        if above is None or not _is_state(mapping(source.beside(above).document)):
            break
        state = above
    return state


def read(source: Source) -> Iterator[Session]:
    first = first_value(source)
    if isinstance(first, list):
        yield _session(source, first, {}, {}, [])
    elif isinstance(first, dict) and _is_output(first):
        for line in source.records():
            if isinstance(line, dict) and _is_output(line):
                yield _session(source, items(line.get("history")), {}, line, [])
            else:
                why = "a line that is no instance"
                source.skipped[why] = source.skipped.get(why, 0) + 1
    elif isinstance(first, dict) and _is_event(first) and source.document is None:
        yield _session(source, source.records(), {}, {}, [])
    elif isinstance(first, dict):
        children = _children(source, source.path) if _is_state(first) else []
        yield _session(source, _documents(source, first), _state(source, first), {}, children)


def _state(source: Source, first: Mapping[str, Any]) -> Mapping[str, Any]:
    if _is_state(first):
        return first
    path = source.path.parent.parent / STATE
    folder = source.path.parent.name == EVENTS and is_event_file(source.path.name)
    return mapping(source.beside(path).document) if folder and path.is_file() else {}


def _children(source: Source, state: Path, depth: int = DEEPEST) -> list[Child]:
    """The sub-agents of a conversation, by what the first of their events says they were asked."""
    found = []
    for path in states_below(state) if depth else ():
        inner, files = source.beside(path), event_files(path.parent / EVENTS)
        first = (mapping(source.beside(file).document) for file in files[:5])
        asked = (event for event in first if event.get("source") == "user")
        brief = text_of(mapping(next(asked, {}).get("llm_message")).get("content"))
        found.append(
            Child(
                lane=label(str(path.parent.relative_to(source.path.parent))) or SUBAGENTS,
                brief=brief.strip(),
                state=mapping(inner.document),
                events=_in_order(source, files),
                children=_children(source, path, depth - 1),
            )
        )
    return found


def _documents(source: Source, first: Mapping[str, Any]) -> Iterator[Any]:
    folder = _folder(source)
    if _is_event(first) and not is_event_file(source.path.name):
        yield first
    elif folder is not None:
        yield from _in_order(source, event_files(folder))


def _in_order(source: Source, files: Sequence[Path]) -> Iterator[Any]:
    """Events, one file at a time."""
    for path in files:
        event = source.beside(path).document
        if event is None:
            why = "an event that cannot be read"
            source.skipped[why] = source.skipped.get(why, 0) + 1
        else:
            yield event


def _session(
    source: Source,
    events: Iterable[Any],
    state: Mapping[str, Any],
    line: Mapping[str, Any],
    children: list[Child],
) -> Session:
    metrics = mapping(mapping(state.get("stats")).get("usage_to_metrics"))
    teller = Teller(name, version, source)
    talk = Conversation(teller, metrics, mapping(line.get("metrics")), children)
    talk.tell_all(events)
    error = text(line.get("error"))
    ended, cause = talk.ended(text(state.get("execution_status")), error)
    mark_corrections(teller.builder)
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
