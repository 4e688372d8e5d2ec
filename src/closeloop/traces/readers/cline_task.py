"""The files of a Roo Code or Cline task: the conversation, and the rows of its view."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from closeloop.records.attempt import Usage
from closeloop.records.trace import (
    AnyEvent,
    Command,
    Edit,
    Handoff,
    Message,
    Read,
    Thought,
    ToolUse,
    Turn,
)
from closeloop.traces.readers import cline_calls
from closeloop.traces.readers.cline_calls import (
    EDIT_ROW,
    ClineOperationResult,
    operation_fields,
    parse_operation_results,
)
from closeloop.traces.session_builder import UNPAIRED_RESULT, SessionBuilder
from closeloop.traces.tool_calls import CallOrigin, find_exit_code, has_result
from closeloop.traces.untrusted_json import (
    as_amount,
    as_count,
    as_label,
    as_mapping,
    as_text,
    json_excerpt,
    make_usage,
    storable_arguments,
    storable_value,
    time_from_millis,
    try_decode_json,
)

# The rows of a task's view: tokens and costs, and what the conversation lacks.


_ASIDE_NOTES = {
    "condense_context": "compaction", "sliding_window_truncation": "compaction",
    "compaction": "compaction", "error": "error", "diff_error": "error", "api_req_failed": "error",
    "rooignore_error": "error", "clineignore_error": "error", "condense_context_error": "error",
    "error_retry": "error", "mistake_limit_reached": "error", "mcp_notification": "notification",
    "condense": "compaction", "summarize_task": "compaction",
    "command_permission_denied": "permission",
    "resume_task": "resumed", "resume_completed_task": "resumed",
    "auto_approval_max_req_reached": "limit",
}  # fmt: skip
_ECHO_ROWS = frozenset({
    "api_req_finished", "api_req_retried", "api_req_retry_delayed", "checkpoint_created",
    "checkpoint_saved", "mcp_server_request_started", "shell_integration_warning",
    "task_progress", "image", "api_req_rate_limit_wait", "user_edit_todos",
    "too_many_tools_warning", "hook_status", "hook_output_stream", "conditional_rules_applied",
    "info", "deleted_api_reqs", "api_req_deleted", "load_mcp_documentation", "subagent",
    "shell_integration_warning_with_suggestion", "subagent_usage",
})  # fmt: skip
_TOOL_BY_ROW = {
    "listFilesTopLevel": "list_files", "listFilesRecursive": "list_files",
    "listCodeDefinitionNames": "list_code_definition_names", "searchFiles": "search_files",
}  # fmt: skip
_EDIT_ACTIONS = {
    "newFileCreated": "create", "editedExistingFile": "change", "appliedDiff": "change",
    "searchAndReplace": "change", "insertContent": "change", "fileDeleted": "delete",
}  # fmt: skip


def usage_from_cline_metrics(metrics: Mapping[str, Any]) -> Usage:
    """Return the usage Cline adds to an answer; its input includes cached tokens."""
    tokens = as_mapping(metrics.get("tokens"))
    input_tokens = as_count(metrics.get("inputTokens", tokens.get("prompt")))
    output_tokens = as_count(metrics.get("outputTokens", tokens.get("completion")))
    read = as_count(metrics.get("cacheReadTokens", tokens.get("cached")))
    write, cost = as_count(metrics.get("cacheWriteTokens")), as_amount(metrics.get("cost")) or None
    if not any((input_tokens, output_tokens, cost)):
        return Usage()
    uncached_tokens = (
        None if input_tokens is None else max(input_tokens - (read or 0) - (write or 0), 0)
    )
    return make_usage(uncached_tokens, output_tokens, read=read, write=write, cost=cost)


def usage_from_cline_request(info: Mapping[str, Any]) -> Usage:
    """Return the usage of a request; empty until it ends."""
    input_tokens, output_tokens = as_count(info.get("tokensIn")), as_count(info.get("tokensOut"))
    read, write = as_count(info.get("cacheReads")), as_count(info.get("cacheWrites"))
    cost = as_amount(info.get("cost")) or None
    if not any((input_tokens, output_tokens, read, write, cost)):
        return Usage()
    cached = (read or 0) + (write or 0)
    if input_tokens is not None and "apiProtocol" in info and input_tokens >= cached:
        # Versions that record the protocol include cached input.
        input_tokens -= cached
    return make_usage(input_tokens, output_tokens, read=read, write=write, cost=cost)


class ClineViewRows:
    """The rows of one task, by their request."""

    def __init__(self, rows: Sequence[Any], task_lane: ClineTaskLane) -> None:
        self.rows = [row for row in rows if isinstance(row, dict)]
        self.task_lane = task_lane
        for row in self.rows:
            task_lane.builder.record_time(time_from_millis(row.get("ts")))
        self.starts = [
            index for index, row in enumerate(self.rows) if row.get("say") == "api_req_started"
        ]
        self.request_by_message: dict[int, int] = {}
        """Request that a message of the conversation answers."""
        self.next = 0
        self.exact = False
        self.current: int | None = None
        self.command: int | None = None
        self.asked: int | None = None
        self.claimed = False
        """Whether the agent just claimed to be done, so that the user's next message corrects it.
        """
        self.used: int | None = None

    def match_requests(self, messages: Sequence[Any]) -> None:
        """Match requests by time if messages have one: a message is stored when its request has
        ended."""
        answers = [
            (index, as_mapping(message))
            for index, message in enumerate(messages)
            if as_mapping(message).get("role") == "assistant"
            and as_mapping(message).get("isSummary") is not True
        ]
        request_times = [as_count(self.rows[start].get("ts")) for start in self.starts]
        answer_times = [as_count(message.get("ts")) for _, message in answers]
        self.exact = all(stamp is not None for stamp in [*request_times, *answer_times])
        if not self.exact:
            # The conversation may have lost its beginning, never its end.
            shift = max(len(self.starts) - len(answers), 0)
            pairs = zip(answers, range(shift, len(self.starts)), strict=False)
            self.request_by_message = {index: request for (index, _), request in pairs}
            return
        request = -1
        for (answer_index, _), stamp in zip(answers, answer_times, strict=True):
            before = request
            while request + 1 < len(request_times) and request_times[request + 1] <= stamp:  # type: ignore[operator]
                request += 1
            if request > before:
                self.request_by_message[answer_index] = request

    def _request_rows(self, request: int) -> list[dict[str, Any]]:
        """Return a request's row and those up to the next one."""
        start = self.starts[request]
        end = self.starts[request + 1] if request + 1 < len(self.starts) else len(self.rows)
        return self.rows[start:end]

    def add_lost_before(self, index: int) -> None:
        """Add the results of requests whose answers are missing in the conversation."""
        request = self.request_by_message.get(index)
        if request is None or request < self.next:
            return
        if self.next == 0 and self.starts:
            self._add_rows(self.rows[: self.starts[0]], only_asides=True)
        for lost in range(self.next, request):
            self._add_rows(self._request_rows(lost), only_asides=not self.exact)
        self.next = request

    def add_lost_before_summary(self, index: int) -> None:
        """Add what a summary replaces before it."""
        following = min((after for after in self.request_by_message if after > index), default=None)
        if following is not None:
            self.add_lost_before(following)

    def add_remaining(self) -> None:
        """Add what followed the last answer."""
        for lost in range(self.next, len(self.starts)):
            self._add_rows(self._request_rows(lost), only_asides=not self.exact)

    def add_all_rows(self) -> None:
        """Without a conversation, add all rows."""
        self._add_rows(self.rows, only_asides=False)

    def add_turn(self, index: int, turn: Turn) -> int:
        """Count an answer with the usage of its request."""
        request = self.request_by_message.get(index)
        if request is not None:
            self.next = request + 1
            row = self.rows[self.starts[request]]
            usage = usage_from_cline_request(as_mapping(try_decode_json(row.get("text"))))
            if usage != Usage():
                turn = msgspec.structs.replace(turn, usage=usage)
            model = as_label(as_mapping(row.get("modelInfo")).get("modelId"))
            turn = msgspec.structs.replace(turn, model=turn.model or model)
        return self.task_lane.builder.add_turn(self.task_lane.lane, turn)

    def reasoning_text(self, index: int) -> str | None:
        request = self.request_by_message.get(index)
        rows = self._request_rows(request) if request is not None else []
        texts = [as_text(row.get("text")) for row in rows if row.get("say") == "reasoning"]
        return "\n\n".join(text for text in texts if text) or None

    def is_user_cancellation(self, index: int) -> bool:
        """Whether the user stopped an answer."""
        request = self.request_by_message.get(index)
        row = self.rows[self.starts[request]] if request is not None else {}
        return as_mapping(try_decode_json(row.get("text"))).get("cancelReason") == "user_cancelled"

    def add_asides(self, index: int) -> None:
        """Add what happened beside the conversation after this answer."""
        request = self.request_by_message.get(index)
        if request is not None:
            self._add_rows(self._request_rows(request)[1:], only_asides=True)

    def _add_rows(self, rows: Sequence[dict[str, Any]], *, only_asides: bool) -> None:
        for row in rows:
            kind = row.get("say") if row.get("type") == "say" else row.get("ask")
            if kind == "api_req_started":
                self._begin_request(row, time_from_millis(row.get("ts")))
            elif isinstance(kind, str) and kind in _ASIDE_NOTES:
                self._add_aside(kind, row, time_from_millis(row.get("ts")))
            elif only_asides or (isinstance(kind, str) and kind in _ECHO_ROWS):
                continue
            elif row.get("partial") is True and kind != "reasoning":
                self.task_lane.builder.count_skip("a draft")
            else:
                self._add_row(str(kind), row, time_from_millis(row.get("ts")))

    def _begin_request(self, row: Mapping[str, Any], time: datetime | None) -> None:
        info, task_lane = as_mapping(try_decode_json(row.get("text"))), self.task_lane
        task_lane.add_request_results(as_text(info.get("request")) or "", time)
        task_lane.drop_unanswered_calls()
        turn = Turn(usage=usage_from_cline_request(info), model=task_lane.model, at=time)
        self.current = task_lane.builder.add_turn(task_lane.lane, turn)
        if info.get("cancelReason") == "user_cancelled":
            task_lane.add_interrupt(time)
        elif failure_text := as_text(info.get("streamingFailedMessage")):
            task_lane.add_note(failure_text, "error", time)

    def _add_aside(self, kind: str, row: Mapping[str, Any], time: datetime | None) -> None:
        shortening = as_mapping(row.get("contextCondense"))
        text = as_text(shortening.get("summary")) or as_text(row.get("text")) or ""
        if cost := as_amount(shortening.get("cost")):
            # The summary was a separate request, of which only the cost is recorded.
            usage = make_usage(None, None, cost=cost)
            self.task_lane.builder.add_turn(self.task_lane.lane, Turn(usage=usage, at=time))
        if shortening:
            self.task_lane.add_compaction(text, time)
        else:
            self.task_lane.add_note(text, _ASIDE_NOTES[kind], time)

    def _add_event(self, kind: Any, time: datetime | None, **more: Any) -> AnyEvent:
        task_lane = self.task_lane
        turn = None if more.get("role") == "user" else self.current
        fields = task_lane.builder.event_fields(lane=task_lane.lane, turn=turn, at=time)
        return task_lane.builder.add(kind(**fields, **more))

    def _add_row(self, kind: str, row: Mapping[str, Any], time: datetime | None) -> None:
        text = self.task_lane.builder.truncate_text(as_text(row.get("text")) or "")
        match kind:
            case "text" | "task" | "user_feedback" | "user_feedback_diff":
                self._add_message_row(kind, text, time)
            case "reasoning":
                if text:
                    self._add_event(Thought, time, text=text)
            case "command":
                if text:
                    event = self._add_event(Command, time, command=text)
                    self.command = event.number
                    self.task_lane.await_result("execute_command", event)
            case "command_output":
                self._append_output(text)
            case "tool":
                self._add_tool_row(as_mapping(try_decode_json(text)), time)
            case "use_mcp_server" | "mcp_server_response":
                self._add_mcp_row(kind, text, time)
            case "subtask_result":
                self._add_report(text)
            case _:
                self._add_agent_row(kind, text, row, time)

    def _add_agent_row(
        self, kind: str, text: str, row: Mapping[str, Any], time: datetime | None
    ) -> None:
        match kind:
            case "followup":
                text = as_text(as_mapping(try_decode_json(text)).get("question")) or text
                event = self._add_event(Message, time, role="agent", text=text, intent="question")
                self.asked = event.number
            case "completion_result" | "plan_completion_result":
                if text:
                    self.task_lane.claim = text
                    self.claimed = True
                    self._add_event(Message, time, role="agent", text=text, intent="claim")
            case "plan_mode_respond" | "act_mode_respond":
                text = as_text(as_mapping(try_decode_json(text)).get("response")) or text
                self._add_event(Message, time, role="agent", text=text)
            case "browser_action_launch" | "browser_action" | "browser_action_result":
                self._add_browser_row(kind, text, time)
            case _:
                self.task_lane.add_note(json_excerpt(row), f"unknown: {kind}"[:100], time)

    def _add_mcp_row(self, kind: str, text: str, time: datetime | None) -> None:
        """Add a call of an MCP tool, and its result."""
        task_lane = self.task_lane
        if kind == "use_mcp_server":
            call_fields = storable_value(
                as_mapping(try_decode_json(text)), task_lane.builder.skipped
            )
            name = (
                f"{as_label(call_fields.get('serverName'))}/{as_label(call_fields.get('toolName'))}"
            )
            call_arguments = storable_value(
                as_mapping(try_decode_json(call_fields.get("arguments"))), task_lane.builder.skipped
            )
            self.used = self._add_event(ToolUse, time, name=name, arguments=call_arguments).number
        elif self.used:
            task_lane.builder.finish(task_lane.builder.events[self.used - 1], output=text)
            self.used = None

    def _add_browser_row(self, kind: str, text: str, time: datetime | None) -> None:
        """Add a browser action, and its result."""
        action = as_mapping(try_decode_json(text))
        if kind != "browser_action_result":
            call_arguments = storable_value(action, self.task_lane.builder.skipped) or {"url": text}
            self.used = self._add_event(
                ToolUse, time, name="browser_action", arguments=call_arguments
            ).number
        elif self.used and text:
            observation = "\n".join(
                filter(None, (as_text(action.get("currentUrl")), as_text(action.get("logs"))))
            )
            event = self.task_lane.builder.events[self.used - 1]
            self.task_lane.builder.finish(event, output=observation)
            self.used = None

    def _add_message_row(self, kind: str, text: str, time: datetime | None) -> None:
        task_lane = self.task_lane
        if not text:
            return
        first = kind in ("text", "task") and not task_lane.asked
        if kind == "text" and not first:
            self._add_event(Message, time, role="agent", text=text)
            return
        intent = "correction" if self.claimed else None
        intent = "answer" if self.asked else "request" if first else intent
        self.asked, self.claimed, task_lane.asked = None, False, True
        self._add_event(Message, time, role="user", text=text, intent=intent)

    def _append_output(self, text: str) -> None:
        """Output arrives in pieces, or repeatedly as a whole."""
        if not self.command or not text:
            return
        builder = self.task_lane.builder
        event = builder.events[self.command - 1]
        if isinstance(event, Command):
            earlier_output = event.output or ""
            joined = text if text.startswith(earlier_output) else f"{earlier_output}\n{text}"
            builder.finish(event, output=self.task_lane.builder.truncate_text(joined))

    def _add_tool_row(self, call_fields: Mapping[str, Any], time: datetime | None) -> None:
        task_lane, name = self.task_lane, as_label(call_fields.get("tool")) or "unnamed"
        path, tool_fields = (
            as_label(call_fields.get("path")),
            storable_value(dict(call_fields), self.task_lane.builder.skipped),
        )
        if name in _EDIT_ACTIONS and path:
            file_content = (
                as_text(tool_fields.get("content")) if _EDIT_ACTIONS[name] == "create" else None
            )
            patch = as_text(tool_fields.get("diff"))
            event = self._add_event(
                Edit, time, path=path, action=_EDIT_ACTIONS[name], after=file_content, patch=patch
            )
            task_lane.await_result(EDIT_ROW, event)
        elif name == "readFile" and path:
            task_lane.await_result("read_file", self._add_event(Read, time, path=path))
        elif name == "newTask" and (brief := as_text(tool_fields.get("content"))):
            event = self._add_event(Handoff, time, brief=brief)
            if isinstance(event, Handoff):
                task_lane.add_child_task(event)
        else:
            tool_fields.pop("tool", None)
            event = self._add_event(ToolUse, time, name=name, arguments=tool_fields)
            task_lane.await_result(_TOOL_BY_ROW.get(name, name), event)

    def _add_report(self, text: str) -> None:
        builder = self.task_lane.builder
        for event in reversed(builder.events):
            if isinstance(event, Handoff) and event.lane == self.task_lane.lane:
                if event.report is None:
                    builder.finish(event, report=text)
                return


MAX_TASK_DEPTH = 20
_NOT_EXECUTED = re.compile(r"Tool \[(\w{1,60})\] was not executed")
_USER_TAGS = re.compile(
    r"<(user_message|feedback|answer|user_input)(?: mode=\"\w{1,20}\")?>\n?(.*?)\n?</\1>", re.DOTALL
)
_THINKING = re.compile(r"<thinking>(.*?)(?:</thinking>|\Z)", re.DOTALL)
_INTERRUPTED_SUFFIX = "[Response interrupted by user]"


class ClineTask(NamedTuple):
    """The existing files of one task."""

    id: str
    messages: Sequence[Any]
    rows: Sequence[Any]
    children: Sequence[tuple[str, str]]
    """Brief and id of each task it started, in order."""


class _PendingCall(NamedTuple):
    name: str
    numbers: tuple[int, ...]
    call: str | None


class ClineTaskLane:
    """One task as a lane, while its conversation is read."""

    def __init__(self, builder: SessionBuilder, lane: str, tasks: Mapping[str, ClineTask]) -> None:
        self.builder = builder
        self.lane = lane
        self.tasks = tasks
        self.read_ids: set[str] = set()
        self.depth = 0
        self.pending: list[_PendingCall] = []
        self.current: _PendingCall | None = None
        self.words: list[str] = []
        """A result without an id, while its pieces arrive."""
        self.asked = False
        self.model: str | None = None
        self.mode: str | None = None
        self.directory: str | None = None
        self.claim: str | None = None
        self.summaries: set[str] = set()
        self.flavour: str | None = None
        self.tools: set[str] = set()
        self.children: list[tuple[str, str]] = []

    def add_note(self, text: str, about: str, at: datetime | None) -> None:
        self.builder.add_note(text, about, lane=self.lane, at=at)

    def add_task(self, task: ClineTask) -> None:
        self.read_ids.add(task.id)
        self.children = list(task.children)
        rows = ClineViewRows(task.rows, self)
        rows.match_requests(task.messages)
        if not task.messages:
            rows.add_all_rows()
        for index, raw_message in enumerate(task.messages):
            message = as_mapping(raw_message)
            time = self.builder.record_time(time_from_millis(message.get("ts")))
            if message.get("role") == "assistant" and message.get("isSummary") is True:
                rows.add_lost_before_summary(index)
                self.add_compaction(cline_calls.join_block_texts(message.get("content")), time)
            elif message.get("role") == "assistant":
                rows.add_lost_before(index)
                self._add_assistant_message(
                    message,
                    time,
                    rows.add_turn(index, self._turn_from_message(message)),
                    rows,
                    index,
                )
            elif message.get("role") == "user":
                self._add_user_message(message, time)
            else:
                self.add_note(json_excerpt(message), "unknown: message", time)
        if task.messages:
            rows.add_remaining()

    def _turn_from_message(self, message: Mapping[str, Any]) -> Turn:
        info, metrics = as_mapping(message.get("modelInfo")), as_mapping(message.get("metrics"))
        if info or metrics:
            self.flavour = self.flavour or "cline"
        self.model = as_label(info.get("modelId")) or as_label(info.get("id")) or self.model
        time = time_from_millis(message.get("ts"))
        return Turn(usage=usage_from_cline_metrics(metrics), model=self.model, at=time)

    def _add_assistant_message(
        self,
        message: Mapping[str, Any],
        time: datetime | None,
        turn: int,
        rows: ClineViewRows,
        index: int,
    ) -> None:
        self.drop_unanswered_calls()
        thoughts = as_text(message.get("reasoning_content"))
        blocks = cline_calls.content_blocks(message.get("content"))
        if not any(as_mapping(block).get("type") in ("thinking", "reasoning") for block in blocks):
            thoughts = thoughts or rows.reasoning_text(index)
        if thoughts:
            self._add_event(Thought, turn, time, text=self.builder.truncate_text(thoughts))
        stopped = rows.is_user_cancellation(index)
        for block in blocks:
            block_fields = as_mapping(block)
            match block_fields.get("type"):
                case "text":
                    text = as_text(block_fields.get("text")) or ""
                    stopped = stopped or text.endswith(_INTERRUPTED_SUFFIX)
                    self._add_agent_text(text.removesuffix(_INTERRUPTED_SUFFIX), turn, time)
                case "tool_use":
                    call_arguments = storable_arguments(
                        block_fields.get("input"), self.builder.skipped
                    )
                    self._add_call(
                        as_label(block_fields.get("name")) or "unnamed",
                        call_arguments,
                        turn,
                        (time, block_fields),
                    )
                case "thinking" | "reasoning":
                    thought = as_text(block_fields.get("thinking")) or as_text(
                        block_fields.get("text")
                    )
                    if thought:
                        self._add_event(
                            Thought, turn, time, text=self.builder.truncate_text(thought)
                        )
                case _:
                    self.add_note(
                        json_excerpt(block), f"unknown: {block_fields.get('type')}"[:100], time
                    )
        rows.add_asides(index)
        if stopped:
            self.add_interrupt(time)

    def add_interrupt(self, time: datetime | None) -> None:
        """Add that the user stopped the agent during an answer."""
        self.builder.add_incoming_message(
            "The request was cancelled.", lane=self.lane, time=time, intent="interrupt"
        )

    def drop_unanswered_calls(self) -> None:
        """Drop calls without an answer; only sub-tasks answer after the next message."""
        self.pending = [
            call for call in self.pending if isinstance(self._pending_event(call), Handoff)
        ]

    def add_request_results(self, request: str, time: datetime | None) -> None:
        """Add results that only the row of the next request contains."""
        for tool, text in cline_calls.split_request_results(request) if self.pending else ():
            call = self._pop_pending_call(tool)
            event = self._pending_event(call) if call is not None else None
            if call is not None and event is not None and has_result(event) is False:
                self._finish_call(call, text, time, None)
            elif isinstance(event, Command) and event.exit_code is None:
                code = find_exit_code(text)
                exit_from = None if code is None else "parsed"
                self.builder.finish(event, exit_code=code, exit_from=exit_from)

    def await_result(self, name: str, event: AnyEvent) -> None:
        """Expect a result without an id for this call."""
        self.pending.append(_PendingCall(name, (event.number,), None))

    def add_compaction(self, summary: str, time: datetime | None) -> None:
        """Add the summary of a compaction, which both files may contain."""
        if summary[:1000] not in self.summaries:
            self.summaries.add(summary[:1000])
            self.add_note(summary, "compaction", time)

    def _add_event(
        self, kind: Any, turn: int | None, time: datetime | None, **more: Any
    ) -> AnyEvent:
        fields = self.builder.event_fields(lane=self.lane, turn=turn, at=time)
        return self.builder.add(kind(**fields, **more))

    def _add_agent_text(self, text: str, turn: int, time: datetime | None) -> None:
        for segment in cline_calls.split_segments(text):
            if isinstance(segment, cline_calls.ClineCall):
                call_arguments = storable_arguments(segment.parameters, self.builder.skipped)
                self._add_call(segment.name, call_arguments, turn, (time, {}))
                continue
            if self.model:
                self.builder.models[self.model] += len(segment)
            for index, piece in enumerate(_THINKING.split(segment)):
                if piece.strip() and index % 2:
                    self._add_event(
                        Thought, turn, time, text=self.builder.truncate_text(piece.strip())
                    )
                elif piece.strip():
                    self._add_event(
                        Message,
                        turn,
                        time,
                        role="agent",
                        text=self.builder.truncate_text(piece.strip()),
                    )

    def _add_call(
        self, name: str, arguments: Any, turn: int, origin_fields: tuple[Any, Mapping[str, Any]]
    ) -> None:
        time, block = origin_fields
        self.tools.add(name)
        call = as_label(block.get("id"))
        origin = CallOrigin(
            number=self.builder.next_number, lane=self.lane, turn=turn, at=time, call=call
        )
        events = cline_calls.events_from_cline_call(name, arguments, origin)
        for event in events:
            self.builder.add(event)
            if isinstance(event, Message) and event.intent == "claim":
                self.claim = event.text
        self.pending.append(_PendingCall(name, tuple(event.number for event in events), call))
        if isinstance(events[0], Handoff):
            self.add_child_task(events[0])

    def add_child_task(self, event: Handoff) -> None:
        """Read the task that received the work, if its folder exists."""
        brief = event.brief.strip()
        same_brief = [child for child in self.children if child[0].strip() == brief]
        child = next(iter(same_brief or [child for child in self.children if not child[0]]), None)
        if child is None:
            return
        self.children.remove(child)
        task = self.tasks.get(child[1])
        if task is None or task.id in self.read_ids or self.depth >= MAX_TASK_DEPTH:
            return
        lane = self.builder.open_lane(self.builder.truncate_text(task.id), self.lane)
        inner = ClineTaskLane(self.builder, lane, self.tasks)
        inner.read_ids, inner.depth = self.read_ids, self.depth + 1
        self.builder.finish(event, child=lane)
        inner.add_task(task)
        if inner.mode:
            self.builder.open_lane(lane, agent=inner.mode)

    def _pending_event(self, call: _PendingCall) -> AnyEvent:
        return self.builder.events[call.numbers[0] - 1]

    def _add_user_message(self, message: Mapping[str, Any], time: datetime | None) -> None:
        self.current, self.words = None, []
        for block in cline_calls.content_blocks(message.get("content")):
            block_fields = as_mapping(block)
            kind = block_fields.get("type")
            if kind == "text":
                self._add_user_text(as_text(block_fields.get("text")) or "", time)
            elif kind == "tool_result":
                self._add_result(block_fields, time)
            elif kind == "image":
                self.add_note(
                    as_label(as_mapping(block_fields.get("source")).get("media_type")) or "",
                    "image",
                    time,
                )
            elif kind == "file":
                self.add_note(as_label(block_fields.get("path")) or "", "attachment", time)
            else:
                self.add_note(json_excerpt(block), f"unknown: {kind}"[:100], time)
        self._end_result(time)

    def _add_user_text(self, text: str, time: datetime | None) -> None:
        """Add one text of a message: part of a result, or somebody's words."""
        if text.startswith("<environment_details>"):
            self._add_environment(text, time)
        elif cline_calls.REMINDER.match(text):
            self.builder.count_skip("a reminder of the client")
        elif text.startswith("Files attached by the user:\n"):
            self.add_note(text, "attachment", time)
        elif (header := cline_calls.parse_result_header(text)) is not None:
            self._end_result(time)
            self.current = self._pop_pending_call(header[0]) or _PendingCall(header[0], (), None)
            self.words = [header[1] if self.current.numbers else text]
        elif self.current is not None and not (
            _NOT_EXECUTED.match(text) or _USER_TAGS.search(text[:2000])
        ):
            self.words.append(text)
        else:
            if self.current is not None and "denied this operation" in text[:200]:
                self.words.append(text)
            self._add_tagged_text(text, time, self.current.name if self.current else None)

    def _end_result(self, time: datetime | None) -> None:
        """Finish a result that arrived in pieces."""
        if self.current is not None and not self.current.numbers:
            self.add_note("\n".join(self.words), UNPAIRED_RESULT, time)
        elif self.current is not None:
            self._finish_call(self.current, "\n".join(self.words).strip("\n"), time, None)
        self.current = None

    def _pop_pending_call(self, name: str) -> _PendingCall | None:
        """Return the oldest call of this tool without a result, for a result without an id."""
        for index, call in enumerate(self.pending):
            if call.name in (name, f"use_{name}"):
                return self.pending.pop(index)
        return None

    def _add_result(self, record: Mapping[str, Any], time: datetime | None) -> None:
        call = as_label(record.get("tool_use_id"))
        for index, pending_call in enumerate(self.pending):
            if pending_call.call == call:
                self.pending.pop(index)
                if results := parse_operation_results(record.get("content")):
                    self._finish_operations(pending_call, results)
                    return
                error = record.get("is_error")
                output = cline_calls.join_block_texts(record.get("content"))
                self._finish_call(
                    pending_call, output, time, not error if isinstance(error, bool) else None
                )
                return
        self.add_note(json_excerpt(record), UNPAIRED_RESULT, time)

    def _finish_operations(
        self, call: _PendingCall, results: Sequence[ClineOperationResult]
    ) -> None:
        """Add the result of each operation of one call."""
        for number, operation in zip(call.numbers, results, strict=False):
            event = self.builder.events[number - 1]
            result = ClineOperationResult(operation.ok, self.builder.truncate_text(operation.text))
            self.builder.finish(event, **operation_fields(event, result))

    def _finish_call(
        self, call: _PendingCall, output: str, time: datetime | None, stated_ok: bool | None
    ) -> None:
        verdict = cline_calls.parse_cline_verdict(output)
        if stated_ok is not None and verdict.ok is None:
            verdict = cline_calls.ClineVerdict(stated_ok)
        output = self.builder.truncate_text(output)
        for number in call.numbers:
            event = self.builder.events[number - 1]
            if isinstance(event, Handoff):
                self._add_report(event, output)
                continue
            if len(call.numbers) > 1 and isinstance(event, Read):
                section = cline_calls.file_section(output, event.path)
                self.builder.finish(
                    event,
                    **cline_calls.cline_result_fields(
                        event, section, cline_calls.parse_cline_verdict(section)
                    ),
                )
            else:
                self.builder.finish(
                    event, **cline_calls.cline_result_fields(event, output, verdict)
                )
        event = self._pending_event(call)
        if isinstance(event, Message) and verdict.ok is False and event.intent == "claim":
            # The client rejected it.
            self.builder.finish(event, intent=None)
            self.claim = None
        elif isinstance(event, Message) and call.name == "ask_question":
            self._add_message(output, time, "answer")
        elif isinstance(event, Message):
            self._add_tagged_text(output, time, call.name)
        elif verdict.feedback:
            self._add_tagged_text(verdict.feedback, time, "denied" if verdict.denied else None)
        elif verdict.denied and not _USER_TAGS.search(output):
            self.builder.add_incoming_message(
                output, lane=self.lane, time=time, intent="correction"
            )

    def _add_report(self, event: Handoff, output: str) -> None:
        if event.report is not None or output.startswith("Successfully created new task"):
            return
        report = output.partition("\n\nResult:\n")[2] or output
        self.builder.finish(event, report=report, ok=cline_calls.parse_cline_verdict(output).ok)

    def _add_environment(self, text: str, time: datetime | None) -> None:
        """Read what the client adds to each message; only changes of model and mode are kept."""
        self.builder.count_skip("environment details")
        environment = cline_calls.parse_environment(text)
        self.model = environment.model or self.model
        self.directory = self.directory or environment.directory
        if environment.mode:
            self.flavour = self.flavour or environment.flavour
            if self.mode is not None and self.mode != environment.mode:
                self.add_note(environment.mode, "mode change", time)
            self.mode = environment.mode

    def _add_tagged_text(self, text: str, time: datetime | None, context: str | None) -> None:
        """Add a text of the user, a sub-task, or the client in the user's name."""
        if self._add_client_text(text, time):
            return
        tagged_texts = list(_USER_TAGS.finditer(text))
        if not tagged_texts:
            if context in (None, "denied") and text.strip():
                self._add_message(text.strip("\n"), time, "correction" if context else None)
            return
        resumed = "New instructions for task continuation" in text[:200]
        handoff = self._find_open_handoff() if resumed else None
        if handoff is not None and self._is_report(handoff, tagged_texts[0][2]):
            self._add_report(handoff, self.builder.truncate_text(tagged_texts[0][2]))
            return
        for inner in tagged_texts:
            answer = inner[1] == "answer" or context == "ask_followup_question"
            denied = "denied this operation" in text[:200]
            refused = denied or context in ("denied", "attempt_completion")
            self._add_message(
                inner[2], time, "answer" if answer else "correction" if refused else None
            )

    def _add_client_text(self, text: str, time: datetime | None) -> bool:
        """Return whether the text is not the user's; its meaning is added."""
        if text.startswith("[new_task completed] Result:") and (open_ := self._find_open_handoff()):
            self._add_report(
                open_, self.builder.truncate_text(text.partition("Result:")[2].strip())
            )
            return True
        if text.startswith("<task>"):
            request = text.removeprefix("<task>").partition("</task>")[0]
            self._add_message(request.strip("\n"), time, None)
            return True
        if (match := _NOT_EXECUTED.match(text)) and (call := self._pop_pending_call(match[1])):
            self._finish_call(call, text, time, False)
            return True
        if text.startswith(("[ERROR]", "The tool execution failed")):
            self.add_note(text, "error", time)
            return True
        if text.startswith("[TASK RESUMPTION]"):
            self.add_note(text.partition("\n")[0], "resumed", time)
            return not _USER_TAGS.search(text)
        return False

    def _find_open_handoff(self) -> Handoff | None:
        for call in self.pending:
            event = self._pending_event(call)
            if isinstance(event, Handoff) and event.report is None:
                return event
        return None

    def _is_report(self, event: Handoff, text: str) -> bool:
        """Whether these are the last words of the started task."""
        claims = [
            claim_event.text
            for claim_event in self.builder.events
            if isinstance(claim_event, Message)
            and claim_event.lane == event.child
            and claim_event.intent == "claim"
        ]
        return any(claim.strip()[:200] == text.strip()[:200] for claim in claims[-1:])

    def _add_message(self, text: str, time: datetime | None, intent: Any) -> None:
        intent = intent or (None if self.asked else "request")
        self.asked = True
        self._add_event(
            Message, None, time, role="user", text=self.builder.truncate_text(text), intent=intent
        )
