"""A conversation of OpenHands 1.x: typed events, observations that name their action."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from closeloop.model.attempt import Exit, Usage
from closeloop.model.trace import AnyEvent, Command, Edit, Handoff, Message, Turn
from closeloop.model.usage import total
from closeloop.traces.telling import Teller, text_of, usage_of, with_total
from closeloop.traces.untrusted import (
    amount,
    between,
    decoded,
    exit_code,
    items,
    mapping,
    moment,
    raw,
    text,
)

_STATUSES: dict[str, Exit] = {
    "error": "crashed",
    "stuck": "gave_up",
    "running": "crashed",
    "paused": "idle",
    "waiting_for_confirmation": "idle",
}


_PROGRAMS = {"execute": "bash", "read": "read", "edit": "edit"}
"""What the tools of another agent's program do, by the names that others have for them."""


class Child(NamedTuple):
    """A sub-agent's conversation, which has a folder of its own."""

    lane: str
    brief: str
    state: Mapping[str, Any]
    events: Iterable[Any]
    children: list[Child]


class Conversation:
    """A session in the making, or a lane of one."""

    def __init__(
        self,
        teller: Teller,
        metrics: Mapping[str, Any],
        overall: Mapping[str, Any],
        children: list[Child],
    ) -> None:
        self.teller = teller
        self.metrics = metrics
        self.overall = overall
        self.children = children
        self.lanes: dict[str, str] = {}
        """Of sub-agents, by the names that the agent calls them again by."""
        self.others: dict[int, list[AnyEvent]] = {}
        """What else was handed over with an action."""
        self.usages = _by_response([*metrics.values(), overall])
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

    def tell_all(self, events: Iterable[Any]) -> None:
        for event in events:
            self.tell(event)
        while self.children:
            self._child(self.children.pop(0), None)

    def tell(self, told: Any) -> None:
        """One event, whatever it is."""
        event = mapping(told)
        self.first = self.first or f"{event.get('id')} {event.get('timestamp')}"
        self.teller.at = moment(event.get("timestamp"))
        self.started = self.started or self.teller.at
        self.last = self.teller.at or self.last
        kind = event.get("kind")
        if isinstance(kind, str) and (tell := _KINDS.get(kind)):
            tell(self, event)
        else:
            self.teller.note(raw(told), f"unknown: {kind}")

    def _system(self, event: dict[str, Any]) -> None:
        prompts = (event.get("system_prompt"), event.get("dynamic_context"))
        said = "\n\n".join(filter(None, (text_of([prompt]) for prompt in prompts)))
        self.system = self.system or self.teller.known(said)

    def _message(self, event: dict[str, Any]) -> None:
        message = mapping(event.get("llm_message"))
        said = text_of(message.get("content"))
        if event.get("source") == "agent" or message.get("role") == "assistant":
            self._provider(event)
            self._reasoning(message)
            self.teller.agent(said)
            self.summary = self.teller.clean(said)
        elif event.get("source") == "user":
            self.teller.user(said, None if self.requested else "request")
            self.requested = True
        else:
            self.teller.note(said, f"{event.get('source')} message")

    def _reasoning(self, told: Mapping[str, Any]) -> None:
        if isinstance(reasoning := told.get("reasoning_content"), str):
            self.teller.thought(reasoning)
        else:
            for block in items(told.get("thinking_blocks")):
                self.teller.thought(text(mapping(block).get("thinking")) or "")

    def _action(self, event: dict[str, Any]) -> None:
        self._provider(event)
        self._reasoning(event)
        self.teller.thought(text_of(event.get("thought")))
        call, tool = mapping(event.get("tool_call")), text(event.get("tool_name")) or ""
        given = event.get("action")
        if not isinstance(given, dict):
            given = mapping(decoded(call.get("arguments")))
        given = {key: value for key, value in given.items() if key != "kind" and value is not None}
        known = text(event.get("tool_call_id")) or text(call.get("id"))
        done = self._done(tool or text(call.get("name")) or "unknown", given, known)
        if done is not None:
            self.actions[str(event.get("id"))] = done
            if known is not None:
                self.calls[known] = done

    def _done(self, tool: str, given: dict[str, Any], known: str | None) -> AnyEvent | None:
        if tool == "think":
            self.teller.thought(text(given.get("thought")) or "", known)
            return None
        if tool == "finish":
            said = text(given.get("message")) or "finish"
            self.teller.agent(said, "claim", known)
            self.summary = self.teller.clean(said)
            return None
        tasks = given.get("tasks")
        if tool == "delegate" and isinstance(tasks, dict) and tasks:
            first, *others = [
                self._hand_over(str(task), known, name, name) for name, task in tasks.items()
            ]
            self.others[first.number] = others
            return first
        if tool == "task" and isinstance(brief := given.get("prompt"), str):
            again, kind = text(given.get("resume")), text(given.get("subagent_type"))
            return self._hand_over(brief, known, again, kind)
        return self.teller.call(tool, given, known)

    def _hand_over(
        self, brief: str, call: str | None, name: str | None, agent: str | None
    ) -> AnyEvent:
        """Work given to a sub-agent: a new one that was asked just this, or one known by name."""
        words = self.teller.clean(brief)
        done = self.teller.add(Handoff(**self.teller.place(call), brief=words))
        lane = self.lanes.get(name) if name else None
        child = next((one for one in self.children if one.brief == brief.strip()), None)
        if lane is None and child is not None:
            self.children.remove(child)
            self._child(child, agent)
            lane = child.lane
            if name:
                self.lanes[name] = lane
        return self.teller.more(done, child=lane) if lane else done

    def _child(self, child: Child, agent: str | None) -> None:
        """A sub-agent's whole conversation, told where it was started."""
        teller = self.teller
        here = teller.lane, teller.turn, teller.at
        teller.lane, teller.turn = teller.builder.lane(child.lane, teller.lane, agent), None
        metrics = mapping(mapping(child.state.get("stats")).get("usage_to_metrics"))
        inner = Conversation(teller, metrics, {}, child.children)
        inner.usages = self.usages | inner.usages
        inner.tell_all(child.events)
        teller.lane, teller.turn, teller.at = here

    def _observation(self, event: dict[str, Any]) -> None:
        seen = mapping(event.get("observation"))
        said = text_of(seen.get("content")) or text(seen.get("output")) or ""
        action = self._cause(event)
        if action is None:
            if event.get("tool_name") not in ("think", "finish"):
                self.teller.note(said or raw(event), "result without a call")
            return
        failed = seen.get("is_error") is True or text(seen.get("error")) is not None
        said = said or text(seen.get("error")) or ""
        seconds = between(action.at, self.teller.at)
        done = self.teller.result(action, said, ok=not failed)
        for other in self.others.pop(action.number, ()):
            self.teller.result(other, said, ok=not failed)
        if isinstance(done, Handoff) and done.child and (task := text(seen.get("task_id"))):
            self.lanes[task] = done.child
        self.teller.more(done, seconds=seconds, **self._facts(done, seen, failed))

    def _facts(self, done: AnyEvent, seen: Mapping[str, Any], failed: bool) -> dict[str, object]:
        """What an observation states besides its text."""
        facts: dict[str, object] = {}
        if isinstance(done, Command):
            stated = seen.get("exit_code", mapping(seen.get("metadata")).get("exit_code"))
            code = exit_code(stated)
            # -1 says that it was still running.
            if code is not None and code != -1:
                facts |= {"exit_code": code, "exit_from": "stated"}
            if seen.get("timeout") is True:
                facts["stopped"] = "out of time"
        elif isinstance(done, Edit):
            if seen.get("prev_exist") is False and not failed:
                facts["action"] = "create"
            for key, told in (("before", "old_content"), ("after", "new_content")):
                if done.before is None and done.after is None and isinstance(seen.get(told), str):
                    facts[key] = self.teller.clean(seen[told])
        return facts

    def _cause(self, event: Mapping[str, Any]) -> AnyEvent | None:
        action = self.actions.pop(str(event.get("action_id")), None)
        if action is None and isinstance(known := event.get("tool_call_id"), str):
            action = self.calls.pop(known, None)
            for key in [key for key, one in self.actions.items() if one is action]:
                del self.actions[key]
        return action

    def _program(self, event: dict[str, Any]) -> None:
        """A tool of another agent's program: what is told of it grows until it has ended."""
        known, ended = text(event.get("tool_call_id")) or "", text(event.get("status"))
        asked = event.get("raw_input")
        done = self.calls.get(known)
        if done is None and (asked or ended in ("completed", "failed")):
            title = text(event.get("title")) or "unknown"
            tool = _PROGRAMS.get(str(event.get("tool_kind")), title)
            given = asked if isinstance(asked, dict) else {"input": asked} if asked else {}
            done = self.calls[known] = self.teller.call(tool, given, known)
        if done is not None and ended in ("completed", "failed"):
            seen = event.get("raw_output")
            said = seen if isinstance(seen, str) else raw(seen) if seen else ""
            self.teller.result(done, said, ok=ended == "completed" and not event.get("is_error"))

    def _rejected(self, event: dict[str, Any]) -> None:
        said = text(event.get("rejection_reason")) or "rejected"
        if (action := self._cause(event)) is not None:
            self.teller.refused(action, said)
        if event.get("rejection_source") == "hook":
            self.teller.note(said, "hook rejected")
        else:
            self.teller.user(said, "correction")

    def _failed(self, event: dict[str, Any]) -> None:
        said = text(event.get("error")) or ""
        if (action := self._cause(event)) is not None:
            self.teller.result(action, said, ok=False)
        else:
            self.teller.note(said, "error")

    def _condensed(self, event: dict[str, Any]) -> None:
        self.teller.note(text(event.get("summary")) or raw(event), "compaction")

    def _asked_to_condense(self, event: dict[str, Any]) -> None:
        self.teller.note(raw(event), "compaction requested")

    def _broke(self, event: dict[str, Any]) -> None:
        code, detail = text(event.get("code")) or "error", text(event.get("detail")) or ""
        self.error = (code, detail or code)
        self.teller.note(f"{code}: {detail}", "error")

    def _interrupted(self, event: dict[str, Any]) -> None:
        self.teller.turn = None
        said = text(event.get("message")) or str(event.get("kind"))
        self.teller.add(
            Message(
                **self.teller.place(), role="user", text=self.teller.clean(said), intent="interrupt"
            )
        )

    def _updated(self, event: dict[str, Any]) -> None:
        """The state as it changed: its last word counts, the copies do not."""
        if event.get("key") == "execution_status":
            self.status = text(event.get("value"))
        elif event.get("key") == "full_state":
            self.status = text(mapping(event.get("value")).get("execution_status")) or self.status
        self.teller.skip("a copy of the state")

    def _hooked(self, event: dict[str, Any]) -> None:
        self.teller.note(raw(event), "hook")

    def _ignored(self, event: dict[str, Any]) -> None:
        self.teller.skip(f"a {event.get('kind')}")

    def _provider(self, event: Mapping[str, Any]) -> None:
        known = text(event.get("llm_response_id"))
        usage = self.usages.get(known or "", Usage())
        self.teller.provider(Turn(usage=usage, at=self.teller.at), known)

    def usage(self) -> Usage:
        """All that was counted, the condenser's calls too; else what the turns have."""
        totals = [mapping(one) for one in (*self.metrics.values(), self.overall) if one]
        counted = total(
            with_total(usage_of(one.get("accumulated_token_usage")), one.get("accumulated_cost"))
            for one in totals
        )
        return counted if counted != Usage() else self.teller.builder.usage()

    def ended(self, status: str | None, error: str | None) -> tuple[Exit, str | None]:
        """How it ended, by the evaluation's word, an error, or its last state."""
        if error or self.error:
            code, detail = self.error or ("", error or "")
            spent = "MaxIterations" in code or "maximum iteration" in detail.lower()
            return ("out_of_budget" if spent else "crashed"), error or detail
        state = status or self.status or "finished"
        return _STATUSES.get(state, "finished"), state if state in _STATUSES else None


_KINDS: dict[str, Callable[[Conversation, dict[str, Any]], None]] = {
    "SystemPromptEvent": Conversation._system,
    "MessageEvent": Conversation._message,
    "ActionEvent": Conversation._action,
    "ObservationEvent": Conversation._observation,
    "UserRejectObservation": Conversation._rejected,
    "AgentErrorEvent": Conversation._failed,
    "Condensation": Conversation._condensed,
    "CondensationSummaryEvent": Conversation._condensed,
    "CondensationRequest": Conversation._asked_to_condense,
    "ACPToolCallEvent": Conversation._program,
    "HookExecutionEvent": Conversation._hooked,
    "ConversationErrorEvent": Conversation._broke,
    "InterruptEvent": Conversation._interrupted,
    "PauseEvent": Conversation._interrupted,
    "ConversationStateUpdateEvent": Conversation._updated,
    "TokenEvent": Conversation._ignored,
    "StreamingDeltaEvent": Conversation._ignored,
    "LLMCompletionLogEvent": Conversation._ignored,
}


def _by_response(metrics: list[Any]) -> dict[str, Usage]:
    """What each answer of a provider used; costs are listed in the same order."""
    found: dict[str, Usage] = {}
    for one in metrics:
        told = mapping(one)
        usages, costs = items(told.get("token_usages")), items(told.get("costs"))
        for place, usage in enumerate(usages):
            known = text(mapping(usage).get("response_id"))
            same = len(costs) == len(usages)
            cost = amount(mapping(costs[place]).get("cost")) if same else None
            if known is not None:
                found[known] = usage_of(usage, cost)
    return found
