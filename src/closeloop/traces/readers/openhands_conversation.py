"""A conversation of OpenHands 1.x: typed events, observations that name their action."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from closeloop.records.attempt import Exit, Usage, sum_usage
from closeloop.records.trace import AnyEvent, Command, Edit, Handoff, Message, Turn
from closeloop.traces.provider_values import (
    content_text,
    usage_from_openai,
    with_total_cost,
)
from closeloop.traces.session_builder import UNPAIRED_RESULT, SessionBuilder
from closeloop.traces.untrusted_json import (
    as_amount,
    as_exit_code,
    as_list,
    as_mapping,
    as_text,
    json_excerpt,
    seconds_between,
    time_from_text,
    try_decode_json,
)

_EXIT_BY_STATUS: dict[str, Exit] = {
    "error": "crashed",
    "stuck": "gave_up",
    "running": "crashed",
    "paused": "idle",
    "waiting_for_confirmation": "idle",
}


_TOOL_BY_PROGRAM_KIND = {"execute": "bash", "read": "read", "edit": "edit"}
"""What the tools of another agent's program do, by the names that others have for them."""


class OpenhandsChild(NamedTuple):
    """A sub-agent's conversation, which has a folder of its own."""

    lane: str
    brief: str
    state: Mapping[str, Any]
    events: Iterable[Any]
    children: list[OpenhandsChild]


class OpenhandsConversation:
    """A session in the making, or a lane of one."""

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
        """Of sub-agents, by the names that the agent calls them again by."""
        self.others: dict[int, list[AnyEvent]] = {}
        """What else was handed over with an action."""
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

    def add_event(self, told: Any) -> None:
        """One event, whatever it is."""
        event = as_mapping(told)
        self.first = self.first or f"{event.get('id')} {event.get('timestamp')}"
        self.builder.at = time_from_text(event.get("timestamp"))
        self.started = self.started or self.builder.at
        self.last = self.builder.at or self.last
        kind = event.get("kind")
        if isinstance(kind, str) and (handler := _EVENT_HANDLERS.get(kind)):
            handler(self, event)
        else:
            self.builder.add_note(json_excerpt(told), f"unknown: {kind}")

    def _add_system_prompt(self, event: dict[str, Any]) -> None:
        prompts = (event.get("system_prompt"), event.get("dynamic_context"))
        said = "\n\n".join(filter(None, (content_text([prompt]) for prompt in prompts)))
        self.system = self.system or self.builder.text_or_none(said)

    def _add_message(self, event: dict[str, Any]) -> None:
        message = as_mapping(event.get("llm_message"))
        said = content_text(message.get("content"))
        if event.get("source") == "agent" or message.get("role") == "assistant":
            self._begin_turn(event)
            self._add_reasoning(message)
            self.builder.add_agent_message(said)
            self.summary = self.builder.truncate_text(said)
        elif event.get("source") == "user":
            self.builder.add_user_message(said, None if self.requested else "request")
            self.requested = True
        else:
            self.builder.add_note(said, f"{event.get('source')} message")

    def _add_reasoning(self, told: Mapping[str, Any]) -> None:
        if isinstance(reasoning := told.get("reasoning_content"), str):
            self.builder.add_thought(reasoning)
        else:
            for block in as_list(told.get("thinking_blocks")):
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

    def _add_call(self, tool: str, given: dict[str, Any], known: str | None) -> AnyEvent | None:
        if tool == "think":
            self.builder.add_thought(as_text(given.get("thought")) or "", known)
            return None
        if tool == "finish":
            said = as_text(given.get("message")) or "finish"
            self.builder.add_agent_message(said, "claim", known)
            self.summary = self.builder.truncate_text(said)
            return None
        tasks = given.get("tasks")
        if tool == "delegate" and isinstance(tasks, dict) and tasks:
            first, *others = [
                self._add_handoff(str(task), known, name, name) for name, task in tasks.items()
            ]
            self.others[first.number] = others
            return first
        if tool == "task" and isinstance(brief := given.get("prompt"), str):
            again, kind = as_text(given.get("resume")), as_text(given.get("subagent_type"))
            return self._add_handoff(brief, known, again, kind)
        return self.builder.add_call(tool, given, known)

    def _add_handoff(
        self, brief: str, call: str | None, name: str | None, agent: str | None
    ) -> AnyEvent:
        """Work given to a sub-agent: a new one that was asked just this, or one known by name."""
        words = self.builder.truncate_text(brief)
        handoff = self.builder.add(Handoff(**self.builder.event_fields(call), brief=words))
        lane = self.lanes.get(name) if name else None
        child = next((one for one in self.children if one.brief == brief.strip()), None)
        if lane is None and child is not None:
            self.children.remove(child)
            self._add_child(child, agent)
            lane = child.lane
            if name:
                self.lanes[name] = lane
        return self.builder.update_event(handoff, child=lane) if lane else handoff

    def _add_child(self, child: OpenhandsChild, agent: str | None) -> None:
        """A sub-agent's whole conversation, told where it was started."""
        builder = self.builder
        here = builder.lane, builder.turn, builder.at
        builder.lane, builder.turn = builder.open_lane(child.lane, builder.lane, agent), None
        metrics = as_mapping(as_mapping(child.state.get("stats")).get("usage_to_metrics"))
        inner = OpenhandsConversation(builder, metrics, {}, child.children)
        inner.usages = self.usages | inner.usages
        inner.add_events(child.events)
        builder.lane, builder.turn, builder.at = here

    def _add_observation(self, event: dict[str, Any]) -> None:
        observation = as_mapping(event.get("observation"))
        said = content_text(observation.get("content")) or as_text(observation.get("output")) or ""
        action = self._take_action(event)
        if action is None:
            if event.get("tool_name") not in ("think", "finish"):
                self.builder.add_note(said or json_excerpt(event), UNPAIRED_RESULT)
            return
        failed = (
            observation.get("is_error") is True or as_text(observation.get("error")) is not None
        )
        said = said or as_text(observation.get("error")) or ""
        seconds = seconds_between(action.at, self.builder.at)
        finished_event = self.builder.add_result(action, said, ok=not failed)
        for other in self.others.pop(action.number, ()):
            self.builder.add_result(other, said, ok=not failed)
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
        self, done: AnyEvent, seen: Mapping[str, Any], failed: bool
    ) -> dict[str, object]:
        """What an observation states besides its text."""
        facts: dict[str, object] = {}
        if isinstance(done, Command):
            stated = seen.get("exit_code", as_mapping(seen.get("metadata")).get("exit_code"))
            code = as_exit_code(stated)
            # -1 says that it was still running.
            if code is not None and code != -1:
                facts |= {"exit_code": code, "exit_from": "stated"}
            if seen.get("timeout") is True:
                facts["stopped"] = "out of time"
        elif isinstance(done, Edit):
            if seen.get("prev_exist") is False and not failed:
                facts["action"] = "create"
            for key, source_key in (("before", "old_content"), ("after", "new_content")):
                if (
                    done.before is None
                    and done.after is None
                    and isinstance(seen.get(source_key), str)
                ):
                    facts[key] = self.builder.truncate_text(seen[source_key])
        return facts

    def _take_action(self, event: Mapping[str, Any]) -> AnyEvent | None:
        action = self.actions.pop(str(event.get("action_id")), None)
        if action is None and isinstance(known := event.get("tool_call_id"), str):
            action = self.calls.pop(known, None)
            for key in [key for key, one in self.actions.items() if one is action]:
                del self.actions[key]
        return action

    def _add_program_call(self, event: dict[str, Any]) -> None:
        """A tool of another agent's program: what is told of it grows until it has ended."""
        call_id, ended = as_text(event.get("tool_call_id")) or "", as_text(event.get("status"))
        raw_input = event.get("raw_input")
        call_event = self.calls.get(call_id)
        if call_event is None and (raw_input or ended in ("completed", "failed")):
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
        if call_event is not None and ended in ("completed", "failed"):
            raw_output = event.get("raw_output")
            said = (
                raw_output
                if isinstance(raw_output, str)
                else json_excerpt(raw_output)
                if raw_output
                else ""
            )
            self.builder.add_result(
                call_event, said, ok=ended == "completed" and not event.get("is_error")
            )

    def _add_rejection(self, event: dict[str, Any]) -> None:
        said = as_text(event.get("rejection_reason")) or "rejected"
        if (action := self._take_action(event)) is not None:
            self.builder.add_refusal(action, said)
        if event.get("rejection_source") == "hook":
            self.builder.add_note(said, "hook rejected")
        else:
            self.builder.add_user_message(said, "correction")

    def _add_agent_error(self, event: dict[str, Any]) -> None:
        said = as_text(event.get("error")) or ""
        if (action := self._take_action(event)) is not None:
            self.builder.add_result(action, said, ok=False)
        else:
            self.builder.add_note(said, "error")

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
        said = as_text(event.get("message")) or str(event.get("kind"))
        self.builder.add(
            Message(
                **self.builder.event_fields(),
                role="user",
                text=self.builder.truncate_text(said),
                intent="interrupt",
            )
        )

    def _update_state(self, event: dict[str, Any]) -> None:
        """The state as it changed: its last word counts, the copies do not."""
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
        """All that was counted, the condenser's calls too; else what the turns have."""
        totals = [as_mapping(one) for one in (*self.metrics.values(), self.overall) if one]
        counted = sum_usage(
            with_total_cost(
                usage_from_openai(one.get("accumulated_token_usage")), one.get("accumulated_cost")
            )
            for one in totals
        )
        return counted if counted != Usage() else self.builder.total_usage()

    def session_outcome(self, status: str | None, error: str | None) -> tuple[Exit, str | None]:
        """How it ended, by the evaluation's word, an error, or its last state."""
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
    """What each answer of a provider used; costs are listed in the same order."""
    usage_by_id: dict[str, Usage] = {}
    for one in metrics:
        fields = as_mapping(one)
        usages, costs = as_list(fields.get("token_usages")), as_list(fields.get("costs"))
        for place, usage in enumerate(usages):
            response_id = as_text(as_mapping(usage).get("response_id"))
            same = len(costs) == len(usages)
            cost = as_amount(as_mapping(costs[place]).get("cost")) if same else None
            if response_id is not None:
                usage_by_id[response_id] = usage_from_openai(usage, cost)
    return usage_by_id
