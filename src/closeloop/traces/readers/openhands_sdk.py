"""OpenHands 1.x: a conversation's folder, its events in one file, or an evaluation's lines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from closeloop.records.attempt import Exit, Usage, sum_usage
from closeloop.records.protocols import RecordingSource
from closeloop.records.trace import AnyEvent, Command, Edit, Handoff, Message, Session, Turn
from closeloop.traces.session_builder import UNPAIRED_RESULT, SessionBuilder, count_skip, derive_id
from closeloop.traces.untrusted_json import (
    as_amount,
    as_exit_code,
    as_label,
    as_list,
    as_mapping,
    as_text,
    content_text,
    json_excerpt,
    seconds_between,
    time_from_text,
    try_decode_json,
    usage_from_openai,
    with_total_cost,
)

# A conversation of OpenHands 1.x: typed events, observations that name their action.


_EXIT_BY_STATUS: dict[str, Exit] = {
    "error": "crashed",
    "stuck": "gave_up",
    "running": "crashed",
    "paused": "idle",
    "waiting_for_confirmation": "idle",
}


_TOOL_BY_PROGRAM_KIND = {"execute": "bash", "read": "read", "edit": "edit"}
"""Common names of another program's tools, by kind."""


class OpenhandsChild(NamedTuple):
    """A sub-agent's conversation, in its own folder."""

    lane: str
    brief: str
    state: Mapping[str, Any]
    events: Iterable[Any]
    children: list[OpenhandsChild]


class OpenhandsConversation:
    """Builds a session, or a lane of one."""

    def __init__(
        self,
        builder: SessionBuilder,
        metrics: Mapping[str, Any],
        overall: Mapping[str, Any],
        children: list[OpenhandsChild],
    ) -> None:
        self.builder = builder
        self.metrics = metrics
        self.overall = overall
        self.children = children
        self.lanes: dict[str, str] = {}
        """Lanes of sub-agents, by the names that the agent reuses."""
        self.others: dict[int, list[AnyEvent]] = {}
        """Further handoffs of the same action."""
        self.usages = _usage_by_response([*metrics.values(), overall])
        self.actions: dict[str, AnyEvent] = {}
        self.calls: dict[str, AnyEvent] = {}
        self.requested = False
        self.first: str | None = None
        self.system: str | None = None
        self.started: datetime | None = None
        self.last: datetime | None = None
        self.error: tuple[str, str] | None = None
        self.status: str | None = None
        self.summary: str | None = None

    def add_events(self, events: Iterable[Any]) -> None:
        for event in events:
            self.add_event(event)
        while self.children:
            self._add_child(self.children.pop(0), None)

    def add_event(self, record: Any) -> None:
        """Add one event of any kind."""
        event = as_mapping(record)
        self.first = self.first or f"{event.get('id')} {event.get('timestamp')}"
        self.builder.at = time_from_text(event.get("timestamp"))
        self.started = self.started or self.builder.at
        self.last = self.builder.at or self.last
        kind = event.get("kind")
        if isinstance(kind, str) and (handler := _EVENT_HANDLERS.get(kind)):
            handler(self, event)
        else:
            self.builder.add_note(json_excerpt(record), f"unknown: {kind}")

    def _add_system_prompt(self, event: dict[str, Any]) -> None:
        prompts = (event.get("system_prompt"), event.get("dynamic_context"))
        text = "\n\n".join(filter(None, (content_text([prompt]) for prompt in prompts)))
        self.system = self.system or self.builder.text_or_none(text)

    def _add_message(self, event: dict[str, Any]) -> None:
        message = as_mapping(event.get("llm_message"))
        text = content_text(message.get("content"))
        if event.get("source") == "agent" or message.get("role") == "assistant":
            self._begin_turn(event)
            self._add_reasoning(message)
            self.builder.add_agent_message(text)
            self.summary = self.builder.truncate_text(text)
        elif event.get("source") == "user":
            self.builder.add_user_message(text, None if self.requested else "request")
            self.requested = True
        else:
            self.builder.add_note(text, f"{event.get('source')} message")

    def _add_reasoning(self, record: Mapping[str, Any]) -> None:
        if isinstance(reasoning := record.get("reasoning_content"), str):
            self.builder.add_thought(reasoning)
        else:
            for block in as_list(record.get("thinking_blocks")):
                self.builder.add_thought(as_text(as_mapping(block).get("thinking")) or "")

    def _add_action(self, event: dict[str, Any]) -> None:
        self._begin_turn(event)
        self._add_reasoning(event)
        self.builder.add_thought(content_text(event.get("thought")))
        call, tool = as_mapping(event.get("tool_call")), as_text(event.get("tool_name")) or ""
        call_arguments = event.get("action")
        if not isinstance(call_arguments, dict):
            call_arguments = as_mapping(try_decode_json(call.get("arguments")))
        call_arguments = {
            key: value
            for key, value in call_arguments.items()
            if key != "kind" and value is not None
        }
        call_id = as_text(event.get("tool_call_id")) or as_text(call.get("id"))
        call_event = self._add_call(
            tool or as_text(call.get("name")) or "unknown", call_arguments, call_id
        )
        if call_event is not None:
            self.actions[str(event.get("id"))] = call_event
            if call_id is not None:
                self.calls[call_id] = call_event

    def _add_call(
        self, tool: str, arguments: dict[str, Any], call_id: str | None
    ) -> AnyEvent | None:
        if tool == "think":
            self.builder.add_thought(as_text(arguments.get("thought")) or "", call_id)
            return None
        if tool == "finish":
            text = as_text(arguments.get("message")) or "finish"
            self.builder.add_agent_message(text, "claim", call_id)
            self.summary = self.builder.truncate_text(text)
            return None
        tasks = arguments.get("tasks")
        if tool == "delegate" and isinstance(tasks, dict) and tasks:
            first, *other_handoffs = [
                self._add_handoff(str(task), call_id, name, name) for name, task in tasks.items()
            ]
            self.others[first.number] = other_handoffs
            return first
        if tool == "task" and isinstance(brief := arguments.get("prompt"), str):
            resumed_name, kind = (
                as_text(arguments.get("resume")),
                as_text(arguments.get("subagent_type")),
            )
            return self._add_handoff(brief, call_id, resumed_name, kind)
        return self.builder.add_call(tool, arguments, call_id)

    def _add_handoff(
        self, brief: str, call: str | None, name: str | None, agent: str | None
    ) -> AnyEvent:
        """Add work for a sub-agent: a new one with this request, or a known one by name."""
        brief_text = self.builder.truncate_text(brief)
        handoff = self.builder.add(Handoff(**self.builder.event_fields(call), brief=brief_text))
        lane = self.lanes.get(name) if name else None
        child = next((child for child in self.children if child.brief == brief.strip()), None)
        if lane is None and child is not None:
            self.children.remove(child)
            self._add_child(child, agent)
            lane = child.lane
            if name:
                self.lanes[name] = lane
        return self.builder.update_event(handoff, child=lane) if lane else handoff

    def _add_child(self, child: OpenhandsChild, agent: str | None) -> None:
        """Add a sub-agent's whole conversation where it was started."""
        builder = self.builder
        position = builder.lane, builder.turn, builder.at
        builder.lane, builder.turn = builder.open_lane(child.lane, builder.lane, agent), None
        metrics = as_mapping(as_mapping(child.state.get("stats")).get("usage_to_metrics"))
        inner = OpenhandsConversation(builder, metrics, {}, child.children)
        inner.usages = self.usages | inner.usages
        inner.add_events(child.events)
        builder.lane, builder.turn, builder.at = position

    def _add_observation(self, event: dict[str, Any]) -> None:
        observation = as_mapping(event.get("observation"))
        text = content_text(observation.get("content")) or as_text(observation.get("output")) or ""
        action = self._take_action(event)
        if action is None:
            if event.get("tool_name") not in ("think", "finish"):
                self.builder.add_note(text or json_excerpt(event), UNPAIRED_RESULT)
            return
        failed = (
            observation.get("is_error") is True or as_text(observation.get("error")) is not None
        )
        text = text or as_text(observation.get("error")) or ""
        seconds = seconds_between(action.at, self.builder.at)
        finished_event = self.builder.add_result(action, text, ok=not failed)
        for handoff in self.others.pop(action.number, ()):
            self.builder.add_result(handoff, text, ok=not failed)
        if (
            isinstance(finished_event, Handoff)
            and finished_event.child
            and (task := as_text(observation.get("task_id")))
        ):
            self.lanes[task] = finished_event.child
        self.builder.update_event(
            finished_event,
            seconds=seconds,
            **self._observation_fields(finished_event, observation, failed),
        )

    def _observation_fields(
        self, event: AnyEvent, observation: Mapping[str, Any], failed: bool
    ) -> dict[str, object]:
        """Return what an observation states besides its text."""
        facts: dict[str, object] = {}
        if isinstance(event, Command):
            stated_code = observation.get(
                "exit_code", as_mapping(observation.get("metadata")).get("exit_code")
            )
            code = as_exit_code(stated_code)
            # -1 means that it was still running.
            if code is not None and code != -1:
                facts |= {"exit_code": code, "exit_from": "stated"}
            if observation.get("timeout") is True:
                facts["stopped"] = "out of time"
        elif isinstance(event, Edit):
            if observation.get("prev_exist") is False and not failed:
                facts["action"] = "create"
            for key, source_key in (("before", "old_content"), ("after", "new_content")):
                if (
                    event.before is None
                    and event.after is None
                    and isinstance(observation.get(source_key), str)
                ):
                    facts[key] = self.builder.truncate_text(observation[source_key])
        return facts

    def _take_action(self, event: Mapping[str, Any]) -> AnyEvent | None:
        action = self.actions.pop(str(event.get("action_id")), None)
        if action is None and isinstance(call_id := event.get("tool_call_id"), str):
            action = self.calls.pop(call_id, None)
            for key in [key for key, event in self.actions.items() if event is action]:
                del self.actions[key]
        return action

    def _add_program_call(self, event: dict[str, Any]) -> None:
        """Add a tool call of another program, whose record grows until it ends."""
        call_id, status = as_text(event.get("tool_call_id")) or "", as_text(event.get("status"))
        raw_input = event.get("raw_input")
        call_event = self.calls.get(call_id)
        if call_event is None and (raw_input or status in ("completed", "failed")):
            title = as_text(event.get("title")) or "unknown"
            tool = _TOOL_BY_PROGRAM_KIND.get(str(event.get("tool_kind")), title)
            call_arguments = (
                raw_input
                if isinstance(raw_input, dict)
                else {"input": raw_input}
                if raw_input
                else {}
            )
            call_event = self.calls[call_id] = self.builder.add_call(tool, call_arguments, call_id)
        if call_event is not None and status in ("completed", "failed"):
            raw_output = event.get("raw_output")
            text = (
                raw_output
                if isinstance(raw_output, str)
                else json_excerpt(raw_output)
                if raw_output
                else ""
            )
            self.builder.add_result(
                call_event, text, ok=status == "completed" and not event.get("is_error")
            )

    def _add_rejection(self, event: dict[str, Any]) -> None:
        text = as_text(event.get("rejection_reason")) or "rejected"
        if (action := self._take_action(event)) is not None:
            self.builder.add_refusal(action, text)
        if event.get("rejection_source") == "hook":
            self.builder.add_note(text, "hook rejected")
        else:
            self.builder.add_user_message(text, "correction")

    def _add_agent_error(self, event: dict[str, Any]) -> None:
        text = as_text(event.get("error")) or ""
        if (action := self._take_action(event)) is not None:
            self.builder.add_result(action, text, ok=False)
        else:
            self.builder.add_note(text, "error")

    def _add_compaction(self, event: dict[str, Any]) -> None:
        self.builder.add_note(as_text(event.get("summary")) or json_excerpt(event), "compaction")

    def _note_compaction_request(self, event: dict[str, Any]) -> None:
        self.builder.add_note(json_excerpt(event), "compaction requested")

    def _add_conversation_error(self, event: dict[str, Any]) -> None:
        code, detail = as_text(event.get("code")) or "error", as_text(event.get("detail")) or ""
        self.error = (code, detail or code)
        self.builder.add_note(f"{code}: {detail}", "error")

    def _add_interrupt(self, event: dict[str, Any]) -> None:
        self.builder.turn = None
        text = as_text(event.get("message")) or str(event.get("kind"))
        self.builder.add(
            Message(
                **self.builder.event_fields(),
                role="user",
                text=self.builder.truncate_text(text),
                intent="interrupt",
            )
        )

    def _update_state(self, event: dict[str, Any]) -> None:
        """Update the state; its last value counts."""
        if event.get("key") == "execution_status":
            self.status = as_text(event.get("value"))
        elif event.get("key") == "full_state":
            self.status = (
                as_text(as_mapping(event.get("value")).get("execution_status")) or self.status
            )
        self.builder.count_skip("a copy of the state")

    def _note_hook(self, event: dict[str, Any]) -> None:
        self.builder.add_note(json_excerpt(event), "hook")

    def _skip_event(self, event: dict[str, Any]) -> None:
        self.builder.count_skip(f"a {event.get('kind')}")

    def _begin_turn(self, event: Mapping[str, Any]) -> None:
        response_id = as_text(event.get("llm_response_id"))
        usage = self.usages.get(response_id or "", Usage())
        self.builder.begin_turn(Turn(usage=usage, at=self.builder.at), response_id)

    def total_usage(self) -> Usage:
        """Return everything counted, including the condenser's calls; else the turns' usage."""
        totals = [
            as_mapping(metrics) for metrics in (*self.metrics.values(), self.overall) if metrics
        ]
        usage = sum_usage(
            with_total_cost(
                usage_from_openai(total.get("accumulated_token_usage")),
                total.get("accumulated_cost"),
            )
            for total in totals
        )
        return usage if usage != Usage() else self.builder.total_usage()

    def session_outcome(self, status: str | None, error: str | None) -> tuple[Exit, str | None]:
        """Return how it ended, by the evaluation, an error, or its last state."""
        if error or self.error:
            code, detail = self.error or ("", error or "")
            spent = "MaxIterations" in code or "maximum iteration" in detail.lower()
            return ("out_of_budget" if spent else "crashed"), error or detail
        state = status or self.status or "finished"
        return _EXIT_BY_STATUS.get(state, "finished"), state if state in _EXIT_BY_STATUS else None


_EVENT_HANDLERS: dict[str, Callable[[OpenhandsConversation, dict[str, Any]], None]] = {
    "SystemPromptEvent": OpenhandsConversation._add_system_prompt,
    "MessageEvent": OpenhandsConversation._add_message,
    "ActionEvent": OpenhandsConversation._add_action,
    "ObservationEvent": OpenhandsConversation._add_observation,
    "UserRejectObservation": OpenhandsConversation._add_rejection,
    "AgentErrorEvent": OpenhandsConversation._add_agent_error,
    "Condensation": OpenhandsConversation._add_compaction,
    "CondensationSummaryEvent": OpenhandsConversation._add_compaction,
    "CondensationRequest": OpenhandsConversation._note_compaction_request,
    "ACPToolCallEvent": OpenhandsConversation._add_program_call,
    "HookExecutionEvent": OpenhandsConversation._note_hook,
    "ConversationErrorEvent": OpenhandsConversation._add_conversation_error,
    "InterruptEvent": OpenhandsConversation._add_interrupt,
    "PauseEvent": OpenhandsConversation._add_interrupt,
    "ConversationStateUpdateEvent": OpenhandsConversation._update_state,
    "TokenEvent": OpenhandsConversation._skip_event,
    "StreamingDeltaEvent": OpenhandsConversation._skip_event,
    "LLMCompletionLogEvent": OpenhandsConversation._skip_event,
}


def _usage_by_response(metrics: list[Any]) -> dict[str, Usage]:
    """Return the usage of each answer; costs are listed in the same order."""
    usage_by_id: dict[str, Usage] = {}
    for metric in metrics:
        fields = as_mapping(metric)
        usages, costs = as_list(fields.get("token_usages")), as_list(fields.get("costs"))
        for index, usage in enumerate(usages):
            response_id = as_text(as_mapping(usage).get("response_id"))
            is_paired = len(costs) == len(usages)
            cost = as_amount(as_mapping(costs[index]).get("cost")) if is_paired else None
            if response_id is not None:
                usage_by_id[response_id] = usage_from_openai(usage, cost)
    return usage_by_id


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


def _is_event(record: object) -> bool:
    event = as_mapping(record)
    return as_text(event.get("kind")) in EVENT_KINDS and "id" in event and "source" in event


def _is_state(record: Mapping[str, Any]) -> bool:
    agent, status = (
        as_mapping(record.get("agent")),
        "execution_status" in record or "agent_status" in record,
    )
    return (
        status and "kind" in agent and "workspace" in record and isinstance(record.get("id"), str)
    )


def _is_output(record: Mapping[str, Any]) -> bool:
    return "instance_id" in record and any(
        _is_event(event) for event in as_list(record.get("history"))[:1]
    )


def _events_folder(source: RecordingSource) -> Path | None:
    """Return the folder of a conversation's events, for its state and for each event."""
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
    """Return the state of the conversation that started all others."""
    for _ in range(MAX_CHILD_DEPTH):
        parent_state = parent_state_path(state)
        if parent_state is None or not _is_state(as_mapping(source.beside(parent_state).document)):
            break
        state = parent_state
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
                reason = "a line that is no instance"
                count_skip(source.skipped, reason)
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
    """Return the sub-agents of a conversation, by the request in their first event."""
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
    """Yield events, one file at a time."""
    for path in files:
        event = source.beside(path).document
        if event is None:
            reason = "an event that cannot be read"
            count_skip(source.skipped, reason)
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
    """Return the states of the sub-agents that a conversation started itself."""
    try:
        return sorted(islice((state.parent / SUBAGENTS).glob(f"*/{STATE}"), MAX_CHILD_STATES))
    except OSError:
        return []


def iter_child_files(state: Path, depth: int = MAX_CHILD_DEPTH) -> Iterable[Path]:
    """Yield the files of a conversation's descendants."""
    for inner in list_child_states(state) if depth else ():
        yield inner
        yield from list_event_files(inner.parent / EVENTS)
        yield from iter_child_files(inner, depth - 1)


def parent_state_path(state: Path) -> Path | None:
    """Return the state of the parent conversation of a sub-agent."""
    folder = state.parent.parent
    return folder.parent / STATE if folder.name == SUBAGENTS else None


def read_first_value(source: RecordingSource) -> Any:
    """Return the document, or the first value of a JSONL file."""
    if source.lines:
        # A whole document is used only if it is not one of many lines.
        return source.lines[0] if len(source.lines) > 1 else source.document or source.lines[0]
    if b"\n" in source.head:
        return source.document
    before = dict(source.skipped)
    first = next(source.records(), None)
    source.skipped.clear()
    source.skipped.update(before)
    return first
