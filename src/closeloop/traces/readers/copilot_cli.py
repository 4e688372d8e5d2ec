"""Copilot CLI's `events.jsonl`: a session as the events sent to its own clients."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from closeloop.records.attempt import Exit, Usage, sum_usage
from closeloop.records.protocols import RecordingSource
from closeloop.records.trace import (
    AnyEvent,
    Command,
    Edit,
    Handoff,
    Message,
    Read,
    Session,
    ToolUse,
    Turn,
)
from closeloop.traces.session_builder import ROOT_LANE, UNPAIRED_RESULT, SessionBuilder, count_skip
from closeloop.traces.tool_calls import (
    CallOrigin,
    event_from_call,
    files_in_patch,
    find_exit_code,
    result_fields,
)
from closeloop.traces.untrusted_json import (
    as_count,
    as_exit_code,
    as_label,
    as_list,
    as_mapping,
    as_text,
    json_excerpt,
    make_usage,
    seconds_between,
    storable_arguments,
    time_from_text,
)

name = "copilot-cli"
version = 2

_EVENT_FAMILIES = frozenset({"session", "user", "assistant", "tool", "system", "hook", "permission",
                       "subagent", "skill", "abort", "model", "user_input", "mcp", "commands",
                       "capabilities"})  # fmt: skip
_ECHO_EVENTS = frozenset({"hook.start", "hook.end", "hook.progress", "assistant.turn_start",
                     "assistant.turn_end", "assistant.message_start", "assistant.message_delta",
                     "assistant.reasoning_delta", "assistant.streaming_delta",
                     "assistant.tool_call_delta", "tool.execution_partial_result",
                     "tool.execution_progress", "permission.requested", "user_input.requested",
                     "user_input.completed", "session.idle", "session.usage_info",
                     "session.usage_checkpoint", "model.call_start", "assistant.idle",
                     "session.compaction_start", "subagent.completed"})  # fmt: skip
"""Events that repeat others, or only say that something continues."""
_ASIDE_NOTES = {
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
_TEXT_KEYS = ("summaryContent", "message", "reason", "content", "newModel", "newMode", "intent",
          "title", "name", "errorMessage", "error", "agentName")  # fmt: skip
_NO_USER_PREFIX = "The user is not available to respond"
_ANSWER = re.compile(r"\AUser (?:responded|selected|answered): ")
_RUNNING_SHELL = re.compile(
    r"<command (?:with|started in background with) shellId: ([^\s>]{1,100})(?: is still running|>)"
)
_PATCH_FILE = re.compile(r"^\*\*\* (Add|Update|Delete) File: (.+)$", re.MULTILINE)


def recognises(source: RecordingSource) -> bool:
    lines = source.lines
    if not lines or not all(_is_event(line) for line in lines[:4]):
        return False
    return lines[0]["type"] == "session.start" or all("parentId" in line for line in lines[:4])


def _is_event(line: Any) -> bool:
    return (
        isinstance(line, dict)
        and isinstance(line.get("type"), str)
        and line["type"].partition(".")[0] in _EVENT_FAMILIES
        and ("." in line["type"] or line["type"] == "abort")
        and isinstance(line.get("data"), dict)
        and isinstance(line.get("id"), str)
        and isinstance(line.get("timestamp"), str)
    )


def read(source: RecordingSource) -> Iterator[Session]:
    builder = _CopilotSession(source.skipped)
    for record in source.records():
        if isinstance(record, dict):
            builder.add_record(record)
        else:
            count_skip(source.skipped, "a line that is not an event")
    if builder.builder.events or builder.start:
        yield builder.build_session(source.path)


class _CopilotSession:
    """The state while a session's events are read."""

    def __init__(self, skipped: dict[str, int]) -> None:
        self.builder = SessionBuilder(name, version, skipped)
        self.start: dict[str, Any] = {}
        self.result: dict[str, Any] = {}
        """The last line of printed output; the agent's own files have none."""
        self.system: str | None = None
        self.model: str | None = None
        self.lanes: dict[str, str] = {}
        self.calls: dict[str, int] = {}
        self.running: set[int] = set()
        self.shells: dict[str, int] = {}
        """Commands that continue after their result, by shell."""
        self.totals: list[Usage] = []
        self.usages: dict[str, list[Usage]] = {}
        self.last: int | None = None
        self.ending: tuple[Exit, str | None] = ("finished", None)
        self.open = False
        """Whether the agent is inside a turn."""

    def add_record(self, record: Mapping[str, Any]) -> None:
        kind, data = record.get("type"), as_mapping(record.get("data"))
        time = self.builder.record_time(time_from_text(record.get("timestamp")))
        self._update_state(kind, data)
        if isinstance(kind, str) and kind in _ECHO_EVENTS:
            return
        lane = self._lane_of_record(record, data)
        handler = _HANDLERS.get(kind) if isinstance(kind, str) else None
        if handler is not None:
            handler(self, data, lane, time)
        elif isinstance(kind, str) and kind in _ASIDE_NOTES:
            text = next(
                (w for n in _TEXT_KEYS if (w := as_text(data.get(n)))), None
            ) or json_excerpt(data)
            self.add_note(text, _ASIDE_NOTES[kind], lane, time)
        elif kind == "result" and "data" not in record:
            self.result = dict(record)
        elif record.get("ephemeral") is not True:
            # Transient events only report progress.
            self.add_note(json_excerpt(record), f"unknown: {kind}"[:100], lane, time)

    def _update_state(self, kind: Any, data: Mapping[str, Any]) -> None:
        if kind in ("assistant.turn_start", "assistant.turn_end"):
            self.open = kind == "assistant.turn_start"
        elif kind == "abort":
            self.open = False
            self.ending = ("gave_up", f"interrupted: {as_text(data.get('reason')) or 'no reason'}")
        elif kind == "user.message":
            self.ending = ("finished", None)
        elif kind == "session.error":
            self.ending = (exit_from_error(data), as_text(data.get("message")))

    def _lane_of_record(self, record: Mapping[str, Any], data: Mapping[str, Any]) -> str:
        key = as_label(record.get("agentId")) or as_label(data.get("parentToolCallId"))
        if key is None or record.get("type") == "subagent.started":
            return ROOT_LANE
        if key not in self.lanes:
            self.lanes[key] = self.builder.open_lane(f"agent {key}", ROOT_LANE)
            self._join_handoff(key, self.lanes[key])
        return self.lanes[key]

    def _join_handoff(self, call: str | None, lane: str) -> None:
        number = self.calls.get(call or "")
        event = self.builder.events[number - 1] if number else None
        if isinstance(event, Handoff) and event.lane != lane:
            self.builder.update_event(event, child=lane)

    def add_note(self, text: str, about: str, lane: str, at: datetime | None) -> None:
        self.builder.add_note(text, about, lane=lane, at=at)

    def begin_session(self, data: Mapping[str, Any], lane: str, time: datetime | None) -> None:
        if self.start:
            self.add_note(json_excerpt(data), "resumed", lane, time)
        self.start = self.start or dict(data)
        self.model = as_label(data.get("selectedModel")) or self.model

    def add_system_prompt(self, data: Mapping[str, Any], lane: str, time: datetime | None) -> None:
        text = as_text(data.get("content"))
        if text is None:
            return
        text = self.builder.truncate_text(text)
        if self.system is None:
            self.system = text
        elif self.system != text:
            self.add_note(text, "system prompt", lane, time)

    def add_user_message(self, data: Mapping[str, Any], lane: str, time: datetime | None) -> None:
        text, origin = as_text(data.get("content")), as_text(data.get("source"))
        if text is not None and origin not in (None, "user"):
            self.add_note(text, f"added by {origin}"[:100], lane, time)
        elif text is not None:
            self.builder.add_incoming_message(
                self.builder.truncate_text(text), lane=lane, time=time
            )
        for attached in as_list(data.get("attachments")):
            self.add_note(json_excerpt(attached), "attachment", lane, time)

    def add_assistant_message(
        self, data: Mapping[str, Any], lane: str, time: datetime | None
    ) -> None:
        builder, model = self.builder, as_label(data.get("model"))
        output_tokens = as_count(data.get("outputTokens")) or None
        call = as_label(data.get("apiCallId")) or as_label(data.get("messageId"))
        turn = builder.add_turn(
            lane, Turn(usage=Usage(output_tokens=output_tokens), model=model, at=time), call
        )
        thought, text = as_text(data.get("reasoningText")), as_text(data.get("content"))
        builder.add_thought(thought or "", lane=lane, turn=turn, at=time)
        if text and text.strip():
            if model:
                builder.models[model] += len(text)
            if lane == ROOT_LANE:
                self.last = builder.next_number
            builder.add_agent_message(text, lane=lane, turn=turn, at=time)
        for request in as_list(data.get("toolRequests")):
            request_fields = as_mapping(request)
            self.add_call(
                request_fields.get("toolCallId"),
                request_fields.get("name"),
                request_fields,
                (lane, turn, time),
            )

    def add_call(
        self,
        identity: Any,
        tool: Any,
        data: Mapping[str, Any],
        origin_fields: tuple[str, int | None, Any],
    ) -> int:
        lane, turn, time = origin_fields
        call, call_arguments = (
            as_label(identity),
            storable_arguments(data.get("arguments"), self.builder.skipped),
        )
        raw_arguments = data.get("arguments")
        if call_arguments is None and isinstance(raw_arguments, str):
            call_arguments = {"input": self.builder.truncate_text(raw_arguments)}
        origin = CallOrigin(
            number=self.builder.next_number, lane=lane, turn=turn, at=time, call=call
        )
        first, *_ = map(
            self.builder.add,
            events_from_copilot_call(as_label(tool) or "unnamed", call_arguments, origin),
        )
        if call is not None:
            self.calls[call] = first.number
        return first.number

    def find_open_call(self, identity: Any, lane: str) -> AnyEvent | None:
        """Return a call without a result, in its lane or wherever it was requested."""
        call = as_label(identity)
        number = self.calls.get(call or "")
        event = self.builder.find_open_call(lane, call)
        if event is None and number is not None:
            event = self.builder.find_open_call(self.builder.events[number - 1].lane, call)
        return event

    def start_call(self, data: Mapping[str, Any], lane: str, time: datetime | None) -> None:
        event = self.find_open_call(data.get("toolCallId"), lane)
        if event is None or event.number in self.running:
            origin_fields = (lane, None, time)
            self.running.add(
                self.add_call(data.get("toolCallId"), data.get("toolName"), data, origin_fields)
            )
        else:
            self.running.add(event.number)
            self.builder.update_event(event, at=time)

    def finish_call(self, data: Mapping[str, Any], lane: str, time: datetime | None) -> None:
        event = self.find_open_call(data.get("toolCallId"), lane)
        if event is None:
            self.add_note(json_excerpt(data), UNPAIRED_RESULT, lane, time)
            return
        ok = data.get("success") if isinstance(data.get("success"), bool) else None
        result, error = as_mapping(data.get("result")), as_mapping(data.get("error"))
        text = as_text(result.get("content")) or as_text(error.get("message"))
        output = self.builder.truncate_text(text) if text else "" if ok is not None else None
        # `success` means that the tool worked, not the command: its text says that.
        event_fields = result_fields(event, output, ok)
        refused = ok is False and error.get("code") in ("rejected", "denied", "user_rejected")
        if refused and isinstance(event, Command):
            event_fields["stopped"] = "rejected"
        event = self.builder.finish(event, **event_fields, seconds=seconds_between(event.at, time))
        while (
            isinstance(event, Edit)
            and (other_edit := self.find_open_call(event.call, lane)) is not None
        ):
            self.builder.finish(other_edit, **result_fields(other_edit, output, ok))
        if isinstance(event, Command) and (shell := running_shell_id(output)):
            self.shells[shell] = event.number
        elif isinstance(event, ToolUse) and self.shells and output:
            self._continue_command(as_label((event.arguments or {}).get("shellId")), output)
        if isinstance(event, Message) and event.intent == "question" and output:
            answer = _ANSWER.sub("", output)
            if answer.startswith(_NO_USER_PREFIX):
                self.add_note(answer, "question unanswered", lane, time)
            else:
                self._add_message(answer, lane, time, role="user", intent="answer" if ok else None)
        if refused:
            feedback = (output or "").partition("User feedback: ")[2] or output or ""
            self._add_message(feedback, lane, time, role="user", intent="correction")

    def _continue_command(self, shell: str | None, output: str) -> None:
        """Add what another call reports about a running command, or its end."""
        code, number = find_exit_code(output), self.shells.get(shell or "")
        event = self.builder.events[number - 1] if number else None
        if isinstance(event, Command) and code is not None:
            del self.shells[shell or ""]
            full_output = self.builder.truncate_text(f"{event.output or ''}\n{output}")
            self.builder.finish(event, output=full_output, exit_code=code, exit_from="parsed")

    def _add_message(self, text: str, lane: str, time: datetime | None, **more: Any) -> None:
        self.builder.add(
            Message(**self.builder.event_fields(lane=lane, at=time), text=text, **more)
        )

    def add_interrupt(self, data: Mapping[str, Any], lane: str, time: datetime | None) -> None:
        reason = self.builder.truncate_text(as_text(data.get("reason")) or "aborted")
        self._add_message(reason, lane, time, role="user", intent="interrupt")

    def open_child_lane(self, data: Mapping[str, Any], lane: str, time: datetime | None) -> None:
        """Open a sub-agent's lane, and join the call that started it."""
        call = as_label(data.get("toolCallId"))
        if call is None:
            return
        number = self.calls.get(call)
        parent = self.builder.events[number - 1].lane if number else ROOT_LANE
        key = self.lanes.get(call) or f"agent {call}"
        self.lanes[call] = self.builder.open_lane(
            key, parent if parent != key else None, as_label(data.get("agentName"))
        )
        self._join_handoff(call, key)

    def add_usage(self, data: Mapping[str, Any], lane: str, time: datetime | None) -> None:
        self.usages.setdefault(lane, []).append(usage_from_copilot(data))

    def end_session(self, data: Mapping[str, Any], lane: str, time: datetime | None) -> None:
        metrics = as_mapping(data.get("modelMetrics"))
        self.totals = [
            usage_from_copilot(as_mapping(as_mapping(metric).get("usage")))
            for metric in metrics.values()
        ]
        if metrics and not self.builder.models:
            self.model = self.model or as_label(next(iter(metrics)))
        if data.get("shutdownType") == "error":
            self.ending = ("crashed", as_text(data.get("errorReason")))

    def add_claim(self, data: Mapping[str, Any], lane: str, time: datetime | None) -> None:
        if text := as_text(data.get("summary")):
            self.builder.add_agent_message(text, "claim", lane=lane, at=time)

    def add_permission_decision(
        self, data: Mapping[str, Any], lane: str, time: datetime | None
    ) -> None:
        kind = as_text(as_mapping(data.get("result")).get("kind"))
        if kind and kind.startswith("denied"):
            self.add_note(kind, "permission", lane, time)

    def build_session(self, path: Path) -> Session:
        self.builder.mark_corrections()
        events, context = self.builder.events, as_mapping(self.start.get("context"))
        last_message = events[self.last - 1] if self.last is not None else None
        exit_, cause = self.ending
        if exit_ == "finished" and self.open:
            exit_, cause = "crashed", "the recording ends in the middle of a turn"
        claimed = any(isinstance(event, Message) and event.intent == "claim" for event in events)
        if last_message is not None and exit_ == "finished" and not claimed:
            self.builder.update_event(last_message, intent="claim")
        all_usages = [usage for usages in self.usages.values() for usage in usages]
        known_usages = [usage for usage in self.totals or all_usages if usage != Usage()]
        if exit_ == "finished" and as_exit_code(self.result.get("exitCode")):
            exit_, cause = "crashed", f"Copilot ended with exit code {self.result['exitCode']}."
        repository = as_label(context.get("repository"))
        session_id = as_label(self.start.get("sessionId")) or as_label(self.result.get("sessionId"))
        return self.builder.build_session(
            id=session_id or (path.parent.name if path.name == "events.jsonl" else path.stem),
            agent="copilot-cli",
            agent_version=as_label(self.start.get("copilotVersion")),
            model=self.builder.most_used_model() or self.model,
            system=self.system,
            started=time_from_text(self.start.get("startTime")) or self.builder.started,
            ended=self.builder.ended,
            exit=exit_,
            cause=self.builder.truncate_text(cause) if cause else None,
            usage=sum_usage(known_usages) if known_usages else self.builder.total_usage(),
            summary=last_message.text if isinstance(last_message, Message) else None,
            directory=as_label(context.get("cwd")),
            branch=as_label(context.get("branch")),
            commit=as_label(context.get("headCommit")),
            links={"repository": repository} if repository else {},
            copy="printed" if self.result else None,
        )


_Handler = Callable[[_CopilotSession, Mapping[str, Any], str, datetime | None], None]
_HANDLERS: dict[str, _Handler] = {
    "session.start": _CopilotSession.begin_session,
    "system.message": _CopilotSession.add_system_prompt,
    "user.message": _CopilotSession.add_user_message,
    "assistant.message": _CopilotSession.add_assistant_message,
    "assistant.usage": _CopilotSession.add_usage,
    "tool.execution_start": _CopilotSession.start_call,
    "tool.execution_complete": _CopilotSession.finish_call,
    "subagent.started": _CopilotSession.open_child_lane,
    "abort": _CopilotSession.add_interrupt,
    "session.shutdown": _CopilotSession.end_session,
    "session.task_complete": _CopilotSession.add_claim,
    "permission.completed": _CopilotSession.add_permission_decision,
}


def events_from_copilot_call(
    tool: str, arguments: dict[str, Any] | None, origin: CallOrigin
) -> list[AnyEvent]:
    """Return the events of a call; a patch may be bare text, over several files."""
    event = _event_from_call(tool, arguments, origin)
    files = []
    if tool == "apply_patch" and isinstance(event, ToolUse):
        files = files_in_patch(as_text(as_mapping(arguments).get("input")) or "")
    origin_fields = msgspec.structs.asdict(origin)
    edits = [
        Edit(**origin_fields | {"number": number}, **file._asdict())
        for number, file in enumerate(files, origin.number)
    ]
    return [*edits] or [event]


def _event_from_call(tool: str, arguments: dict[str, Any] | None, origin: CallOrigin) -> AnyEvent:
    event = event_from_call(tool, arguments, origin)
    if tool == "apply_patch" and isinstance(event, ToolUse):
        patch = (
            as_text(as_mapping(arguments).get("input"))
            or as_text(as_mapping(arguments).get("patch"))
            or ""
        )
        files = _PATCH_FILE.findall(patch)
        if len(files) == 1:
            actions = {"Add": "create", "Delete": "delete"}
            return Edit(
                number=origin.number, lane=origin.lane, turn=origin.turn, at=origin.at,
                call=origin.call, path=files[0][1].strip(),
                action=actions.get(files[0][0], "change"), patch=patch,  # type: ignore[arg-type]
            )  # fmt: skip
    lines = as_mapping(arguments).get("view_range")
    if isinstance(event, Read) and isinstance(lines, list) and len(lines) == 2:
        first, last = as_count(lines[0]), as_count(lines[1])
        return msgspec.structs.replace(event, first_line=first, last_line=last)
    return event


def exit_from_error(error: Mapping[str, Any]) -> Exit:
    """Return the exit that an error means: the provider's errors are not the agent's."""
    if error.get("errorType") == "context_limit":
        return "out_of_budget"
    return "machine" if as_count(error.get("statusCode")) else "crashed"


def running_shell_id(output: str | None) -> str | None:
    """Return the shell in which a command continues, from the end of its result."""
    match = _RUNNING_SHELL.search((output or "")[-1000:])
    return match[1] if match else None


def usage_from_copilot(data: Mapping[str, Any]) -> Usage:
    """Return a model's usage; only zeros is unknown. Input includes cached tokens."""
    input_tokens, output_tokens = (
        as_count(data.get("inputTokens")),
        as_count(data.get("outputTokens")),
    )
    read, write = as_count(data.get("cacheReadTokens")), as_count(data.get("cacheWriteTokens"))
    if not any((input_tokens, output_tokens, read, write)):
        return Usage()
    uncached_tokens = None if input_tokens is None else input_tokens - (read or 0) - (write or 0)
    uncached_tokens = (
        uncached_tokens if uncached_tokens is None or uncached_tokens >= 0 else input_tokens
    )
    reasoning = as_count(data.get("reasoningTokens")) or None
    return make_usage(uncached_tokens, output_tokens, read=read, write=write, reasoning=reasoning)
