"""The rows of a task's view: they hold tokens and costs, and what the conversation has lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from closeloop.model.attempt import Usage
from closeloop.model.trace import (
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
from closeloop.traces.untrusted import (
    amount,
    count,
    decoded,
    label,
    mapping,
    millis,
    raw,
    safe,
    text,
)

if TYPE_CHECKING:
    from closeloop.traces.cline.tasks import Telling

_ASIDES = {
    "condense_context": "compaction", "sliding_window_truncation": "compaction",
    "compaction": "compaction", "error": "error", "diff_error": "error", "api_req_failed": "error",
    "rooignore_error": "error", "clineignore_error": "error", "condense_context_error": "error",
    "error_retry": "error", "mistake_limit_reached": "error", "mcp_notification": "notification",
    "condense": "compaction", "summarize_task": "compaction",
    "command_permission_denied": "permission",
    "resume_task": "resumed", "resume_completed_task": "resumed",
    "auto_approval_max_req_reached": "limit",
}  # fmt: skip
_ECHOES = frozenset({
    "api_req_finished", "api_req_retried", "api_req_retry_delayed", "checkpoint_created",
    "checkpoint_saved", "mcp_server_request_started", "shell_integration_warning",
    "task_progress", "image", "api_req_rate_limit_wait", "user_edit_todos",
    "too_many_tools_warning", "hook_status", "hook_output_stream", "conditional_rules_applied",
    "info", "deleted_api_reqs", "api_req_deleted", "load_mcp_documentation", "subagent",
    "shell_integration_warning_with_suggestion", "subagent_usage",
})  # fmt: skip
_EDITS = {
    "newFileCreated": "create", "editedExistingFile": "change", "appliedDiff": "change",
    "searchAndReplace": "change", "insertContent": "change", "fileDeleted": "delete",
}  # fmt: skip


def usage_of_metrics(metrics: Mapping[str, Any]) -> Usage:
    """What Cline notes beside an answer; its input includes what was cached."""
    tokens = mapping(metrics.get("tokens"))
    into = count(metrics.get("inputTokens", tokens.get("prompt")))
    out = count(metrics.get("outputTokens", tokens.get("completion")))
    read = count(metrics.get("cacheReadTokens", tokens.get("cached")))
    write, cost = count(metrics.get("cacheWriteTokens")), amount(metrics.get("cost")) or None
    if not any((into, out, cost)):
        return Usage()
    return Usage(
        input_tokens=None if into is None else max(into - (read or 0) - (write or 0), 0),
        output_tokens=out,
        cache_read_tokens=read,
        cache_write_tokens=write,
        cost=cost,
        cost_from="reported" if cost else None,
    )


def usage_of_request(info: Mapping[str, Any]) -> Usage:
    """What a request used; nothing until it ends."""
    into, out = count(info.get("tokensIn")), count(info.get("tokensOut"))
    read, write = count(info.get("cacheReads")), count(info.get("cacheWrites"))
    cost = amount(info.get("cost")) or None
    if not any((into, out, read, write, cost)):
        return Usage()
    cached = (read or 0) + (write or 0)
    if into is not None and "apiProtocol" in info and into >= cached:
        # Versions that note the protocol count cached input in.
        into -= cached
    return Usage(
        input_tokens=into,
        output_tokens=out,
        cache_read_tokens=read,
        cache_write_tokens=write,
        cost=cost,
        cost_from="reported" if cost else None,
    )


class Rows:
    """The rows of one task, by the requests they belong to."""

    def __init__(self, rows: Sequence[Any], telling: Telling) -> None:
        self.rows = [row for row in rows if isinstance(row, dict)]
        self.telling = telling
        self.times = [at for row in self.rows if (at := millis(row.get("ts")))]
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

    def match(self, messages: Sequence[Any]) -> None:
        """By time where messages have one: a message is kept when its request has ended."""
        answers = [
            (place, mapping(one))
            for place, one in enumerate(messages)
            if mapping(one).get("role") == "assistant" and mapping(one).get("isSummary") is not True
        ]
        begun = [count(self.rows[start].get("ts")) for start in self.starts]
        stamped = [count(one.get("ts")) for _, one in answers]
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

    def _span(self, request: int) -> list[dict[str, Any]]:
        """A request's row and those up to the next one."""
        start = self.starts[request]
        end = self.starts[request + 1] if request + 1 < len(self.starts) else len(self.rows)
        return self.rows[start:end]

    def before(self, place: int) -> None:
        """Tell what came of requests whose answers the conversation has lost."""
        request = self.of.get(place)
        if request is None or request < self.next:
            return
        if self.next == 0 and self.starts:
            self._tell(self.rows[: self.starts[0]], only_asides=True)
        for lost in range(self.next, request):
            self._tell(self._span(lost), only_asides=not self.exact)
        self.next = request

    def before_summary(self, place: int) -> None:
        """What a summary stands for comes before it."""
        following = min((after for after in self.of if after > place), default=None)
        if following is not None:
            self.before(following)

    def rest(self) -> None:
        """What came after the last answer."""
        for lost in range(self.next, len(self.starts)):
            self._tell(self._span(lost), only_asides=not self.exact)

    def all(self) -> None:
        """Without a conversation, the rows are all there is."""
        self._tell(self.rows, only_asides=False)

    def turn(self, place: int, turn: Turn) -> int:
        """Count an answer with what its request used."""
        request = self.of.get(place)
        if request is not None:
            self.next = request + 1
            row = self.rows[self.starts[request]]
            used = usage_of_request(mapping(decoded(row.get("text"))))
            if used != Usage():
                turn = msgspec.structs.replace(turn, usage=used)
            model = label(mapping(row.get("modelInfo")).get("modelId"))
            turn = msgspec.structs.replace(turn, model=turn.model or model)
        return self.telling.builder.turn(self.telling.lane, turn)

    def thoughts(self, place: int) -> str | None:
        request = self.of.get(place)
        rows = self._span(request) if request is not None else []
        words = [text(row.get("text")) for row in rows if row.get("say") == "reasoning"]
        return "\n\n".join(word for word in words if word) or None

    def was_cancelled(self, place: int) -> bool:
        """Whether the user stopped an answer before it was whole."""
        request = self.of.get(place)
        row = self.rows[self.starts[request]] if request is not None else {}
        return mapping(decoded(row.get("text"))).get("cancelReason") == "user_cancelled"

    def asides(self, place: int) -> None:
        """What happened beside the conversation after this answer."""
        request = self.of.get(place)
        if request is not None:
            self._tell(self._span(request)[1:], only_asides=True)

    def _tell(self, rows: Sequence[dict[str, Any]], *, only_asides: bool) -> None:
        for row in rows:
            kind = row.get("say") if row.get("type") == "say" else row.get("ask")
            if kind == "api_req_started":
                self._request(row, millis(row.get("ts")))
            elif isinstance(kind, str) and kind in _ASIDES:
                self._aside(kind, row, millis(row.get("ts")))
            elif only_asides or (isinstance(kind, str) and kind in _ECHOES):
                continue
            elif row.get("partial") is True and kind != "reasoning":
                self.telling.skip("a draft")
            else:
                self._row(str(kind), row, millis(row.get("ts")))

    def _request(self, row: Mapping[str, Any], at: datetime | None) -> None:
        info, told = mapping(decoded(row.get("text"))), self.telling
        told.forget()
        turn = Turn(usage=usage_of_request(info), model=told.model, at=at)
        self.current = told.builder.turn(told.lane, turn)
        if info.get("cancelReason") == "user_cancelled":
            told.interrupted(at)
        elif words := text(info.get("streamingFailedMessage")):
            told.note(words, "error", at)

    def _aside(self, kind: str, row: Mapping[str, Any], at: datetime | None) -> None:
        shortening = mapping(row.get("contextCondense"))
        words = text(shortening.get("summary")) or text(row.get("text")) or ""
        if cost := amount(shortening.get("cost")):
            # Making the summary was a request of its own, of which only the price is kept.
            usage = Usage(cost=cost, cost_from="reported")
            self.telling.builder.turn(self.telling.lane, Turn(usage=usage, at=at))
        if shortening:
            self.telling.shortening(words, at)
        else:
            self.telling.note(words, _ASIDES[kind], at)

    def _add(self, kind: Any, at: datetime | None, **more: Any) -> AnyEvent:
        told = self.telling
        turn = None if more.get("role") == "user" else self.current
        return told.builder.add(
            kind(number=told.builder.number, lane=told.lane, turn=turn, at=at, **more)
        )

    def _row(self, kind: str, row: Mapping[str, Any], at: datetime | None) -> None:
        words = self.telling.clean(text(row.get("text")) or "")
        match kind:
            case "text" | "task" | "user_feedback" | "user_feedback_diff":
                self._spoken(kind, words, at)
            case "reasoning":
                if words:
                    self._add(Thought, at, text=words)
            case "command":
                if words:
                    event = self._add(Command, at, command=words)
                    self.command = event.number
                    self.telling.await_result("execute_command", event)
            case "command_output":
                self._output(words)
            case "tool":
                self._tool(mapping(decoded(words)), at)
            case "use_mcp_server" | "mcp_server_response":
                self._server(kind, words, at)
            case "subtask_result":
                self._reported(words)
            case _:
                self._agent(kind, words, row, at)

    def _agent(self, kind: str, words: str, row: Mapping[str, Any], at: datetime | None) -> None:
        match kind:
            case "followup":
                words = text(mapping(decoded(words)).get("question")) or words
                event = self._add(Message, at, role="agent", text=words, intent="question")
                self.asked = event.number
            case "completion_result" | "plan_completion_result":
                if words:
                    self.telling.claim = words
                    self.claimed = True
                    self._add(Message, at, role="agent", text=words, intent="claim")
            case "plan_mode_respond" | "act_mode_respond":
                words = text(mapping(decoded(words)).get("response")) or words
                self._add(Message, at, role="agent", text=words)
            case "browser_action_launch" | "browser_action" | "browser_action_result":
                self._browser(kind, words, at)
            case _:
                self.telling.note(raw(row), f"unknown: {kind}"[:100], at)

    def _server(self, kind: str, words: str, at: datetime | None) -> None:
        """A call of a tool that a server gives, and its result."""
        told = self.telling
        if kind == "use_mcp_server":
            asked = safe(mapping(decoded(words)), told.skipped)
            name = f"{label(asked.get('serverName'))}/{label(asked.get('toolName'))}"
            given = safe(mapping(decoded(asked.get("arguments"))), told.skipped)
            self.used = self._add(ToolUse, at, name=name, arguments=given).number
        elif self.used:
            told.builder.finish(told.builder.events[self.used - 1], output=words)
            self.used = None

    def _browser(self, kind: str, words: str, at: datetime | None) -> None:
        """What the agent did in a browser, and what it saw of it."""
        told = mapping(decoded(words))
        if kind != "browser_action_result":
            given = safe(told, self.telling.skipped) or {"url": words}
            self.used = self._add(ToolUse, at, name="browser_action", arguments=given).number
        elif self.used and words:
            seen = "\n".join(filter(None, (text(told.get("currentUrl")), text(told.get("logs")))))
            event = self.telling.builder.events[self.used - 1]
            self.telling.builder.finish(event, output=seen)
            self.used = None

    def _spoken(self, kind: str, words: str, at: datetime | None) -> None:
        told = self.telling
        if not words:
            return
        first = kind in ("text", "task") and not told.asked
        if kind == "text" and not first:
            self._add(Message, at, role="agent", text=words)
            return
        intent = "correction" if self.claimed else None
        intent = "answer" if self.asked else "request" if first else intent
        self.asked, self.claimed, told.asked = None, False, True
        self._add(Message, at, role="user", text=words, intent=intent)

    def _output(self, words: str) -> None:
        """Output comes in pieces, or as all of it again and again."""
        if not self.command or not words:
            return
        builder = self.telling.builder
        event = builder.events[self.command - 1]
        if isinstance(event, Command):
            known = event.output or ""
            joined = words if words.startswith(known) else f"{known}\n{words}"
            builder.finish(event, output=self.telling.clean(joined))

    def _tool(self, asked: Mapping[str, Any], at: datetime | None) -> None:
        told, name = self.telling, label(asked.get("tool")) or "unnamed"
        path, given = label(asked.get("path")), safe(dict(asked), self.telling.skipped)
        if name in _EDITS and path:
            whole = text(given.get("content")) if _EDITS[name] == "create" else None
            patch = text(given.get("diff"))
            self._add(Edit, at, path=path, action=_EDITS[name], after=whole, patch=patch)
        elif name == "readFile" and path:
            self._add(Read, at, path=path)
        elif name == "newTask" and (brief := text(given.get("content"))):
            event = self._add(Handoff, at, brief=brief)
            if isinstance(event, Handoff):
                told.handoff(event)
        else:
            given.pop("tool", None)
            self._add(ToolUse, at, name=name, arguments=given)

    def _reported(self, words: str) -> None:
        builder = self.telling.builder
        for event in reversed(builder.events):
            if isinstance(event, Handoff) and event.lane == self.telling.lane:
                if event.report is None:
                    builder.finish(event, report=words)
                return
