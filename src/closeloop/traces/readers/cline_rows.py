"""The rows of a task's view: they hold tokens and costs, and what the conversation has lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

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
from closeloop.traces.provider_values import make_usage
from closeloop.traces.readers.cline_calls import EDIT_ROW
from closeloop.traces.untrusted_json import (
    as_amount,
    as_count,
    as_label,
    as_mapping,
    as_text,
    json_excerpt,
    storable_value,
    time_from_millis,
    try_decode_json,
)

if TYPE_CHECKING:
    from closeloop.traces.readers.cline_task import ClineTaskLane

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
    """What Cline notes beside an answer; its input includes what was cached."""
    tokens = as_mapping(metrics.get("tokens"))
    into = as_count(metrics.get("inputTokens", tokens.get("prompt")))
    out = as_count(metrics.get("outputTokens", tokens.get("completion")))
    read = as_count(metrics.get("cacheReadTokens", tokens.get("cached")))
    write, cost = as_count(metrics.get("cacheWriteTokens")), as_amount(metrics.get("cost")) or None
    if not any((into, out, cost)):
        return Usage()
    fresh = None if into is None else max(into - (read or 0) - (write or 0), 0)
    return make_usage(fresh, out, read=read, write=write, cost=cost)


def usage_from_cline_request(info: Mapping[str, Any]) -> Usage:
    """What a request used; nothing until it ends."""
    into, out = as_count(info.get("tokensIn")), as_count(info.get("tokensOut"))
    read, write = as_count(info.get("cacheReads")), as_count(info.get("cacheWrites"))
    cost = as_amount(info.get("cost")) or None
    if not any((into, out, read, write, cost)):
        return Usage()
    cached = (read or 0) + (write or 0)
    if into is not None and "apiProtocol" in info and into >= cached:
        # Versions that note the protocol count cached input in.
        into -= cached
    return make_usage(into, out, read=read, write=write, cost=cost)


class ClineViewRows:
    """The rows of one task, by the requests they belong to."""

    def __init__(self, rows: Sequence[Any], telling: ClineTaskLane) -> None:
        self.rows = [row for row in rows if isinstance(row, dict)]
        self.telling = telling
        for row in self.rows:
            telling.builder.record_time(time_from_millis(row.get("ts")))
        self.starts = [
            place for place, row in enumerate(self.rows) if row.get("say") == "api_req_started"
        ]
        self.of: dict[int, int] = {}
        """Which request a message of the conversation answers."""
        self.next = 0
        self.exact = False
        self.current: int | None = None
        self.command: int | None = None
        self.asked: int | None = None
        self.claimed = False
        """Whether the agent just said that it is done: what the user says next sets it right."""
        self.used: int | None = None

    def match_requests(self, messages: Sequence[Any]) -> None:
        """By time where messages have one: a message is kept when its request has ended."""
        answers = [
            (place, as_mapping(one))
            for place, one in enumerate(messages)
            if as_mapping(one).get("role") == "assistant"
            and as_mapping(one).get("isSummary") is not True
        ]
        begun = [as_count(self.rows[start].get("ts")) for start in self.starts]
        stamped = [as_count(one.get("ts")) for _, one in answers]
        self.exact = all(stamp is not None for stamp in [*begun, *stamped])
        if not self.exact:
            # The conversation may have lost its beginning, never its end.
            shift = max(len(self.starts) - len(answers), 0)
            pairs = zip(answers, range(shift, len(self.starts)), strict=False)
            self.of = {place: request for (place, _), request in pairs}
            return
        request = -1
        for (place, _), stamp in zip(answers, stamped, strict=True):
            before = request
            while request + 1 < len(begun) and begun[request + 1] <= stamp:  # type: ignore[operator]
                request += 1
            if request > before:
                self.of[place] = request

    def _request_rows(self, request: int) -> list[dict[str, Any]]:
        """A request's row and those up to the next one."""
        start = self.starts[request]
        end = self.starts[request + 1] if request + 1 < len(self.starts) else len(self.rows)
        return self.rows[start:end]

    def add_lost_before(self, place: int) -> None:
        """Tell what came of requests whose answers the conversation has lost."""
        request = self.of.get(place)
        if request is None or request < self.next:
            return
        if self.next == 0 and self.starts:
            self._add_rows(self.rows[: self.starts[0]], only_asides=True)
        for lost in range(self.next, request):
            self._add_rows(self._request_rows(lost), only_asides=not self.exact)
        self.next = request

    def add_lost_before_summary(self, place: int) -> None:
        """What a summary stands for comes before it."""
        following = min((after for after in self.of if after > place), default=None)
        if following is not None:
            self.add_lost_before(following)

    def add_remaining(self) -> None:
        """What came after the last answer."""
        for lost in range(self.next, len(self.starts)):
            self._add_rows(self._request_rows(lost), only_asides=not self.exact)

    def add_all_rows(self) -> None:
        """Without a conversation, the rows are all there is."""
        self._add_rows(self.rows, only_asides=False)

    def add_turn(self, place: int, turn: Turn) -> int:
        """Count an answer with what its request used."""
        request = self.of.get(place)
        if request is not None:
            self.next = request + 1
            row = self.rows[self.starts[request]]
            used = usage_from_cline_request(as_mapping(try_decode_json(row.get("text"))))
            if used != Usage():
                turn = msgspec.structs.replace(turn, usage=used)
            model = as_label(as_mapping(row.get("modelInfo")).get("modelId"))
            turn = msgspec.structs.replace(turn, model=turn.model or model)
        return self.telling.builder.add_turn(self.telling.lane, turn)

    def reasoning_text(self, place: int) -> str | None:
        request = self.of.get(place)
        rows = self._request_rows(request) if request is not None else []
        words = [as_text(row.get("text")) for row in rows if row.get("say") == "reasoning"]
        return "\n\n".join(word for word in words if word) or None

    def is_user_cancellation(self, place: int) -> bool:
        """Whether the user stopped an answer before it was whole."""
        request = self.of.get(place)
        row = self.rows[self.starts[request]] if request is not None else {}
        return as_mapping(try_decode_json(row.get("text"))).get("cancelReason") == "user_cancelled"

    def add_asides(self, place: int) -> None:
        """What happened beside the conversation after this answer."""
        request = self.of.get(place)
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
                self.telling.builder.count_skip("a draft")
            else:
                self._add_row(str(kind), row, time_from_millis(row.get("ts")))

    def _begin_request(self, row: Mapping[str, Any], at: datetime | None) -> None:
        info, task_builder = as_mapping(try_decode_json(row.get("text"))), self.telling
        task_builder.add_request_results(as_text(info.get("request")) or "", at)
        task_builder.drop_unanswered_calls()
        turn = Turn(usage=usage_from_cline_request(info), model=task_builder.model, at=at)
        self.current = task_builder.builder.add_turn(task_builder.lane, turn)
        if info.get("cancelReason") == "user_cancelled":
            task_builder.add_interrupt(at)
        elif words := as_text(info.get("streamingFailedMessage")):
            task_builder.add_note(words, "error", at)

    def _add_aside(self, kind: str, row: Mapping[str, Any], at: datetime | None) -> None:
        shortening = as_mapping(row.get("contextCondense"))
        words = as_text(shortening.get("summary")) or as_text(row.get("text")) or ""
        if cost := as_amount(shortening.get("cost")):
            # Making the summary was a request of its own, of which only the price is kept.
            usage = make_usage(None, None, cost=cost)
            self.telling.builder.add_turn(self.telling.lane, Turn(usage=usage, at=at))
        if shortening:
            self.telling.add_compaction(words, at)
        else:
            self.telling.add_note(words, _ASIDE_NOTES[kind], at)

    def _add_event(self, kind: Any, at: datetime | None, **more: Any) -> AnyEvent:
        task_builder = self.telling
        turn = None if more.get("role") == "user" else self.current
        fields = task_builder.builder.event_fields(lane=task_builder.lane, turn=turn, at=at)
        return task_builder.builder.add(kind(**fields, **more))

    def _add_row(self, kind: str, row: Mapping[str, Any], at: datetime | None) -> None:
        words = self.telling.builder.truncate_text(as_text(row.get("text")) or "")
        match kind:
            case "text" | "task" | "user_feedback" | "user_feedback_diff":
                self._add_message_row(kind, words, at)
            case "reasoning":
                if words:
                    self._add_event(Thought, at, text=words)
            case "command":
                if words:
                    event = self._add_event(Command, at, command=words)
                    self.command = event.number
                    self.telling.await_result("execute_command", event)
            case "command_output":
                self._append_output(words)
            case "tool":
                self._add_tool_row(as_mapping(try_decode_json(words)), at)
            case "use_mcp_server" | "mcp_server_response":
                self._add_mcp_row(kind, words, at)
            case "subtask_result":
                self._add_report(words)
            case _:
                self._add_agent_row(kind, words, row, at)

    def _add_agent_row(
        self, kind: str, words: str, row: Mapping[str, Any], at: datetime | None
    ) -> None:
        match kind:
            case "followup":
                words = as_text(as_mapping(try_decode_json(words)).get("question")) or words
                event = self._add_event(Message, at, role="agent", text=words, intent="question")
                self.asked = event.number
            case "completion_result" | "plan_completion_result":
                if words:
                    self.telling.claim = words
                    self.claimed = True
                    self._add_event(Message, at, role="agent", text=words, intent="claim")
            case "plan_mode_respond" | "act_mode_respond":
                words = as_text(as_mapping(try_decode_json(words)).get("response")) or words
                self._add_event(Message, at, role="agent", text=words)
            case "browser_action_launch" | "browser_action" | "browser_action_result":
                self._add_browser_row(kind, words, at)
            case _:
                self.telling.add_note(json_excerpt(row), f"unknown: {kind}"[:100], at)

    def _add_mcp_row(self, kind: str, words: str, at: datetime | None) -> None:
        """A call of a tool that a server gives, and its result."""
        task_builder = self.telling
        if kind == "use_mcp_server":
            call_fields = storable_value(
                as_mapping(try_decode_json(words)), task_builder.builder.skipped
            )
            name = (
                f"{as_label(call_fields.get('serverName'))}/{as_label(call_fields.get('toolName'))}"
            )
            call_arguments = storable_value(
                as_mapping(try_decode_json(call_fields.get("arguments"))),
                task_builder.builder.skipped,
            )
            self.used = self._add_event(ToolUse, at, name=name, arguments=call_arguments).number
        elif self.used:
            task_builder.builder.finish(task_builder.builder.events[self.used - 1], output=words)
            self.used = None

    def _add_browser_row(self, kind: str, words: str, at: datetime | None) -> None:
        """What the agent did in a browser, and what it saw of it."""
        action = as_mapping(try_decode_json(words))
        if kind != "browser_action_result":
            call_arguments = storable_value(action, self.telling.builder.skipped) or {"url": words}
            self.used = self._add_event(
                ToolUse, at, name="browser_action", arguments=call_arguments
            ).number
        elif self.used and words:
            observation = "\n".join(
                filter(None, (as_text(action.get("currentUrl")), as_text(action.get("logs"))))
            )
            event = self.telling.builder.events[self.used - 1]
            self.telling.builder.finish(event, output=observation)
            self.used = None

    def _add_message_row(self, kind: str, words: str, at: datetime | None) -> None:
        task_builder = self.telling
        if not words:
            return
        first = kind in ("text", "task") and not task_builder.asked
        if kind == "text" and not first:
            self._add_event(Message, at, role="agent", text=words)
            return
        intent = "correction" if self.claimed else None
        intent = "answer" if self.asked else "request" if first else intent
        self.asked, self.claimed, task_builder.asked = None, False, True
        self._add_event(Message, at, role="user", text=words, intent=intent)

    def _append_output(self, words: str) -> None:
        """Output comes in pieces, or as all of it again and again."""
        if not self.command or not words:
            return
        builder = self.telling.builder
        event = builder.events[self.command - 1]
        if isinstance(event, Command):
            known = event.output or ""
            joined = words if words.startswith(known) else f"{known}\n{words}"
            builder.finish(event, output=self.telling.builder.truncate_text(joined))

    def _add_tool_row(self, asked: Mapping[str, Any], at: datetime | None) -> None:
        task_builder, name = self.telling, as_label(asked.get("tool")) or "unnamed"
        path, tool_fields = (
            as_label(asked.get("path")),
            storable_value(dict(asked), self.telling.builder.skipped),
        )
        if name in _EDIT_ACTIONS and path:
            file_content = (
                as_text(tool_fields.get("content")) if _EDIT_ACTIONS[name] == "create" else None
            )
            patch = as_text(tool_fields.get("diff"))
            event = self._add_event(
                Edit, at, path=path, action=_EDIT_ACTIONS[name], after=file_content, patch=patch
            )
            task_builder.await_result(EDIT_ROW, event)
        elif name == "readFile" and path:
            task_builder.await_result("read_file", self._add_event(Read, at, path=path))
        elif name == "newTask" and (brief := as_text(tool_fields.get("content"))):
            event = self._add_event(Handoff, at, brief=brief)
            if isinstance(event, Handoff):
                task_builder.add_child_task(event)
        else:
            tool_fields.pop("tool", None)
            event = self._add_event(ToolUse, at, name=name, arguments=tool_fields)
            task_builder.await_result(_TOOL_BY_ROW.get(name, name), event)

    def _add_report(self, words: str) -> None:
        builder = self.telling.builder
        for event in reversed(builder.events):
            if isinstance(event, Handoff) and event.lane == self.telling.lane:
                if event.report is None:
                    builder.finish(event, report=words)
                return
