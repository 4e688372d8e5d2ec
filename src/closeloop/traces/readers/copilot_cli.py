"""Copilot CLI's `events.jsonl`: a session as the events its own clients are sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from closeloop.model.attempt import Exit, Usage
from closeloop.model.protocols import Source
from closeloop.model.session import Session
from closeloop.model.trace import AnyEvent, Command, Edit, Handoff, Message, Thought, ToolUse, Turn
from closeloop.model.usage import total
from closeloop.traces import single
from closeloop.traces.builder import ROOT, Builder
from closeloop.traces.calls import Origin, exit_code_in
from closeloop.traces.copilot.calls import ended_by, events_for, shell_in, usage_in
from closeloop.traces.results import mark_corrections, result_of
from closeloop.traces.texts import shortened
from closeloop.traces.untrusted import (
    arguments,
    between,
    count,
    exit_code,
    items,
    label,
    mapping,
    moment,
    raw,
    text,
)

name = "copilot-cli"
version = 2
parts, owner = single.parts, single.owner

_FAMILIES = frozenset({"session", "user", "assistant", "tool", "system", "hook", "permission",
                       "subagent", "skill", "abort", "model", "user_input", "mcp", "commands",
                       "capabilities"})  # fmt: skip
_ECHOES = frozenset({"hook.start", "hook.end", "hook.progress", "assistant.turn_start",
                     "assistant.turn_end", "assistant.message_start", "assistant.message_delta",
                     "assistant.reasoning_delta", "assistant.streaming_delta",
                     "assistant.tool_call_delta", "tool.execution_partial_result",
                     "tool.execution_progress", "permission.requested", "user_input.requested",
                     "user_input.completed", "session.idle", "session.usage_info",
                     "session.usage_checkpoint", "model.call_start", "assistant.idle",
                     "session.compaction_start", "subagent.completed"})  # fmt: skip
"""What says again what other events say, or only that something goes on."""
_ASIDES = {
    "session.model_change": "model change", "session.mode_changed": "mode change",
    "session.info": "info", "session.warning": "warning", "session.error": "error",
    "session.resume": "resumed", "session.compaction_complete": "compaction",
    "session.truncation": "compaction", "session.context_cleared": "compaction",
    "session.snapshot_rewind": "rewind", "session.plan_changed": "plan",
    "session.handoff": "handoff", "assistant.intent": "intent", "assistant.turn_retry": "retry",
    "model.call_failure": "error", "agent.interrupted": "interrupt",
    "skill.invoked": "skill", "system.notification": "notification",
    "session.title_changed": "title", "subagent.failed": "error",
    "subagent.selected": "agent change", "subagent.deselected": "agent change",
}  # fmt: skip
_WORDS = ("summaryContent", "message", "reason", "content", "newModel", "newMode", "intent",
          "title", "name", "errorMessage", "error", "agentName")  # fmt: skip
_NOBODY = "The user is not available to respond"
_ANSWER = re.compile(r"\AUser (?:responded|selected|answered): ")


def recognises(source: Source) -> bool:
    lines = source.lines
    if not lines or not all(_is_event(line) for line in lines[:4]):
        return False
    return lines[0]["type"] == "session.start" or all("parentId" in line for line in lines[:4])


def _is_event(line: Any) -> bool:
    return (
        isinstance(line, dict)
        and isinstance(line.get("type"), str)
        and line["type"].partition(".")[0] in _FAMILIES
        and ("." in line["type"] or line["type"] == "abort")
        and isinstance(line.get("data"), dict)
        and isinstance(line.get("id"), str)
        and isinstance(line.get("timestamp"), str)
    )


def read(source: Source) -> Iterator[Session]:
    told = _Telling(source.skipped)
    for record in source.records():
        if isinstance(record, dict):
            told.record(record)
        else:
            told.skip("a line that is no event")
    if told.builder.events or told.start:
        yield told.session(source.path)


class _Telling:
    """A session while its events are read."""

    def __init__(self, skipped: dict[str, int]) -> None:
        self.builder = Builder(name, version)
        self.skipped = skipped
        self.start: dict[str, Any] = {}
        self.result: dict[str, Any] = {}
        """The last line of what is printed; the agent's own files have none."""
        self.system: str | None = None
        self.model: str | None = None
        self.words: dict[str, int] = {}
        self.lanes: dict[str, str] = {}
        self.calls: dict[str, int] = {}
        self.running: set[int] = set()
        self.shells: dict[str, int] = {}
        """Commands that go on after their result, by the shell they are in."""
        self.totals: list[Usage] = []
        self.usages: dict[str, list[Usage]] = {}
        self.times: list[datetime] = []
        self.last: int | None = None
        self.ending: tuple[Exit, str | None] = ("finished", None)
        self.open = False
        """Whether the agent is in the middle of a turn."""

    def skip(self, why: str) -> None:
        self.skipped[why] = self.skipped.get(why, 0) + 1

    def clean(self, value: str) -> str:
        return shortened(value, self.skipped)

    def record(self, record: Mapping[str, Any]) -> None:
        kind, data = record.get("type"), mapping(record.get("data"))
        at = moment(record.get("timestamp"))
        if at is not None:
            self.times = [min(self.times[0], at), max(self.times[-1], at)] if self.times else [at]
        self._state(kind, data)
        if isinstance(kind, str) and kind in _ECHOES:
            return
        lane = self._lane(record, data)
        handler = _HANDLERS.get(kind) if isinstance(kind, str) else None
        if handler is not None:
            handler(self, data, lane, at)
        elif isinstance(kind, str) and kind in _ASIDES:
            words = next((w for n in _WORDS if (w := text(data.get(n)))), None) or raw(data)
            self.note(words, _ASIDES[kind], lane, at)
        elif kind == "result" and "data" not in record:
            self.result = dict(record)
        elif record.get("ephemeral") is not True:
            # What is sent once and kept nowhere only says that something goes on.
            self.note(raw(record), f"unknown: {kind}"[:100], lane, at)

    def _state(self, kind: Any, data: Mapping[str, Any]) -> None:
        if kind in ("assistant.turn_start", "assistant.turn_end"):
            self.open = kind == "assistant.turn_start"
        elif kind == "abort":
            self.open = False
            self.ending = ("gave_up", f"interrupted: {text(data.get('reason')) or 'no reason'}")
        elif kind == "user.message":
            self.ending = ("finished", None)
        elif kind == "session.error":
            self.ending = (ended_by(data), text(data.get("message")))

    def _lane(self, record: Mapping[str, Any], data: Mapping[str, Any]) -> str:
        key = label(record.get("agentId")) or label(data.get("parentToolCallId"))
        if key is None or record.get("type") == "subagent.started":
            return ROOT
        if key not in self.lanes:
            self.lanes[key] = self.builder.lane(f"agent {key}", ROOT)
            self._join(key, self.lanes[key])
        return self.lanes[key]

    def _join(self, call: str | None, lane: str) -> None:
        number = self.calls.get(call or "")
        event = self.builder.events[number - 1] if number else None
        if isinstance(event, Handoff) and event.lane != lane:
            self.builder.events[event.number - 1] = msgspec.structs.replace(event, child=lane)

    def note(self, words: str, about: str, lane: str, at: datetime | None) -> None:
        self.builder.note(self.clean(words), about=self.clean(about), lane=lane, at=at)

    def began(self, data: Mapping[str, Any], lane: str, at: datetime | None) -> None:
        if self.start:
            self.note(raw(data), "resumed", lane, at)
        self.start = self.start or dict(data)
        self.model = label(data.get("selectedModel")) or self.model

    def prompted(self, data: Mapping[str, Any], lane: str, at: datetime | None) -> None:
        said = text(data.get("content"))
        if said is None:
            return
        said = self.clean(said)
        if self.system is None:
            self.system = said
        elif self.system != said:
            self.note(said, "system prompt", lane, at)

    def user(self, data: Mapping[str, Any], lane: str, at: datetime | None) -> None:
        said, origin = text(data.get("content")), text(data.get("source"))
        if said is not None and origin not in (None, "user"):
            self.note(said, f"added by {origin}"[:100], lane, at)
        elif said is not None:
            self.builder.hear(self.clean(said), lane=lane, at=at)
        for attached in items(data.get("attachments")):
            self.note(raw(attached), "attachment", lane, at)

    def assistant(self, data: Mapping[str, Any], lane: str, at: datetime | None) -> None:
        builder, model = self.builder, label(data.get("model"))
        out = count(data.get("outputTokens")) or None
        call = label(data.get("apiCallId")) or label(data.get("messageId"))
        turn = builder.turn(lane, Turn(usage=Usage(output_tokens=out), model=model, at=at), call)
        thought, said = text(data.get("reasoningText")), text(data.get("content"))
        if thought and thought.strip():
            builder.add(
                Thought(
                    number=builder.number, lane=lane, turn=turn, at=at, text=self.clean(thought)
                )
            )
        if said and said.strip():
            if model:
                self.words[model] = self.words.get(model, 0) + len(said)
            if lane == ROOT:
                self.last = builder.number
            self._said(self.clean(said), lane, at, role="agent", turn=turn)
        for request in items(data.get("toolRequests")):
            asked = mapping(request)
            self.call(asked.get("toolCallId"), asked.get("name"), asked, (lane, turn, at))

    def call(
        self, identity: Any, tool: Any, data: Mapping[str, Any], place: tuple[str, int | None, Any]
    ) -> int:
        lane, turn, at = place
        call, given = label(identity), arguments(data.get("arguments"), self.skipped)
        words = data.get("arguments")
        if given is None and isinstance(words, str):
            given = {"input": self.clean(words)}
        origin = Origin(number=self.builder.number, lane=lane, turn=turn, at=at, call=call)
        first, *_ = map(self.builder.add, events_for(label(tool) or "unnamed", given, origin))
        if call is not None:
            self.calls[call] = first.number
        return first.number

    def waiting(self, identity: Any, lane: str) -> AnyEvent | None:
        """A call that has no result yet, in its lane or wherever it was asked for."""
        call = label(identity)
        asked = self.calls.get(call or "")
        found = self.builder.waiting(lane, call)
        if found is None and asked is not None:
            found = self.builder.waiting(self.builder.events[asked - 1].lane, call)
        return found

    def started(self, data: Mapping[str, Any], lane: str, at: datetime | None) -> None:
        event = self.waiting(data.get("toolCallId"), lane)
        if event is None or event.number in self.running:
            place = (lane, None, at)
            self.running.add(self.call(data.get("toolCallId"), data.get("toolName"), data, place))
        else:
            self.running.add(event.number)
            self.builder.events[event.number - 1] = msgspec.structs.replace(event, at=at)

    def completed(self, data: Mapping[str, Any], lane: str, at: datetime | None) -> None:
        event = self.waiting(data.get("toolCallId"), lane)
        if event is None:
            self.note(raw(data), "result without a call", lane, at)
            return
        ok = data.get("success") if isinstance(data.get("success"), bool) else None
        result, error = mapping(data.get("result")), mapping(data.get("error"))
        words = text(result.get("content")) or text(error.get("message"))
        output = self.clean(words) if words else "" if ok is not None else None
        # `success` says that the tool worked, not that a command did: its words say that.
        more = result_of(event, output, ok)
        refused = ok is False and error.get("code") in ("rejected", "denied", "user_rejected")
        if refused and isinstance(event, Command):
            more["stopped"] = "rejected"
        event = self.builder.finish(event, **more, seconds=between(event.at, at))
        while isinstance(event, Edit) and (other := self.waiting(event.call, lane)) is not None:
            self.builder.finish(other, **result_of(other, output, ok))
        if isinstance(event, Command) and (shell := shell_in(output)):
            self.shells[shell] = event.number
        elif isinstance(event, ToolUse) and self.shells and output:
            self._went_on(label((event.arguments or {}).get("shellId")), output)
        if isinstance(event, Message) and event.intent == "question" and output:
            answer = _ANSWER.sub("", output)
            if answer.startswith(_NOBODY):
                self.note(answer, "question unanswered", lane, at)
            else:
                self._said(answer, lane, at, role="user", intent="answer" if ok else None)
        if refused:
            why = (output or "").partition("User feedback: ")[2] or output or ""
            self._said(why, lane, at, role="user", intent="correction")

    def _went_on(self, shell: str | None, output: str) -> None:
        """What another call tells of a command that was left running; its end, once it ends."""
        code, number = exit_code_in(output), self.shells.get(shell or "")
        event = self.builder.events[number - 1] if number else None
        if isinstance(event, Command) and code is not None:
            del self.shells[shell or ""]
            told = self.clean(f"{event.output or ''}\n{output}")
            self.builder.finish(event, output=told, exit_code=code, exit_from="parsed")

    def _said(self, words: str, lane: str, at: datetime | None, **more: Any) -> None:
        number = self.builder.number
        self.builder.add(Message(number=number, lane=lane, at=at, text=words, **more))

    def aborted(self, data: Mapping[str, Any], lane: str, at: datetime | None) -> None:
        why = self.clean(text(data.get("reason")) or "aborted")
        self._said(why, lane, at, role="user", intent="interrupt")

    def child(self, data: Mapping[str, Any], lane: str, at: datetime | None) -> None:
        """A sub-agent begins: its lane, and the call that sent it off."""
        call = label(data.get("toolCallId"))
        if call is None:
            return
        number = self.calls.get(call)
        parent = self.builder.events[number - 1].lane if number else ROOT
        key = self.lanes.get(call) or f"agent {call}"
        self.lanes[call] = self.builder.lane(
            key, parent if parent != key else None, label(data.get("agentName"))
        )
        self._join(call, key)

    def usage(self, data: Mapping[str, Any], lane: str, at: datetime | None) -> None:
        self.usages.setdefault(lane, []).append(usage_in(data))

    def shutdown(self, data: Mapping[str, Any], lane: str, at: datetime | None) -> None:
        metrics = mapping(data.get("modelMetrics"))
        self.totals = [usage_in(mapping(mapping(one).get("usage"))) for one in metrics.values()]
        if metrics and not self.words:
            self.model = self.model or label(next(iter(metrics)))
        if data.get("shutdownType") == "error":
            self.ending = ("crashed", text(data.get("errorReason")))

    def finished(self, data: Mapping[str, Any], lane: str, at: datetime | None) -> None:
        if said := text(data.get("summary")):
            self._said(self.clean(said), lane, at, role="agent", intent="claim")

    def decided(self, data: Mapping[str, Any], lane: str, at: datetime | None) -> None:
        kind = text(mapping(data.get("result")).get("kind"))
        if kind and kind.startswith("denied"):
            self.note(kind, "permission", lane, at)

    def session(self, path: Path) -> Session:
        mark_corrections(self.builder)
        events, context = self.builder.events, mapping(self.start.get("context"))
        said = events[self.last - 1] if self.last is not None else None
        exit_, cause = self.ending
        if exit_ == "finished" and self.open:
            exit_, cause = "crashed", "the recording ends in the middle of a turn"
        claimed = any(isinstance(event, Message) and event.intent == "claim" for event in events)
        if said is not None and exit_ == "finished" and not claimed:
            events[said.number - 1] = msgspec.structs.replace(said, intent="claim")
        every = [usage for usages in self.usages.values() for usage in usages]
        known = [usage for usage in self.totals or every if usage != Usage()]
        if exit_ == "finished" and exit_code(self.result.get("exitCode")):
            exit_, cause = "crashed", f"Copilot ended with exit code {self.result['exitCode']}."
        repository = label(context.get("repository"))
        named = label(self.start.get("sessionId")) or label(self.result.get("sessionId"))
        return Session(
            id=named or (path.parent.name if path.name == "events.jsonl" else path.stem),
            agent="copilot-cli",
            trace=self.builder.trace(self.skipped),
            agent_version=label(self.start.get("copilotVersion")),
            model=max(self.words, key=self.words.__getitem__) if self.words else self.model,
            system=self.system,
            started=moment(self.start.get("startTime")) or (self.times[0] if self.times else None),
            ended=self.times[-1] if self.times else None,
            exit=exit_,
            cause=self.clean(cause) if cause else None,
            usage=total(known) if known else self.builder.usage(),
            summary=said.text if isinstance(said, Message) else None,
            directory=label(context.get("cwd")),
            branch=label(context.get("branch")),
            commit=label(context.get("headCommit")),
            links={"repository": repository} if repository else {},
            copy="printed" if self.result else None,
        )


_Handler = Callable[[_Telling, Mapping[str, Any], str, datetime | None], None]
_HANDLERS: dict[str, _Handler] = {
    "session.start": _Telling.began,
    "system.message": _Telling.prompted,
    "user.message": _Telling.user,
    "assistant.message": _Telling.assistant,
    "assistant.usage": _Telling.usage,
    "tool.execution_start": _Telling.started,
    "tool.execution_complete": _Telling.completed,
    "subagent.started": _Telling.child,
    "abort": _Telling.aborted,
    "session.shutdown": _Telling.shutdown,
    "session.task_complete": _Telling.finished,
    "permission.completed": _Telling.decided,
}
