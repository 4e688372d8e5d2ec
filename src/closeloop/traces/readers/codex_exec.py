"""Output of `codex exec --json`: items as they begin and end, without times or a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from closeloop.records.attempt import Exit
from closeloop.records.protocols import RecordingSource
from closeloop.records.record import content_digest
from closeloop.records.trace import (
    AnyEvent,
    Command,
    Edit,
    Handoff,
    Message,
    Session,
    Thought,
    ToolUse,
    Turn,
)
from closeloop.text.untrusted import truncate_middle
from closeloop.traces.readers.codex_lane import CodexTokenMeter
from closeloop.traces.readers.codex_results import mcp_reply_text
from closeloop.traces.session_builder import ROOT_LANE, SessionBuilder
from closeloop.traces.tool_calls import CallOrigin, event_from_call, split_shell_words
from closeloop.traces.untrusted_json import (
    as_exit_code,
    as_label,
    as_list,
    as_mapping,
    json_excerpt,
    storable_value,
)

name = "codex-exec"
version = 2

Item = Mapping[str, Any]
_START_TYPES = ("thread.started", "session.created")
_RECORD_TYPES = frozenset({
    *_START_TYPES, "turn.started", "turn.completed", "turn.failed",
    "item.started", "item.updated", "item.completed", "error",
})  # fmt: skip
_SHELL_PREFIX = re.compile(r"(?:/\S*/)?(?:ba|z|da)?sh -l?c ", re.ASCII)
_ESCAPED = re.compile(r'["\\]')
_MAX_PARSED_CHARS = 10_000
_SUCCESS_BY_STATUS = {"completed": True, "failed": False, "declined": False}


def recognises(source: RecordingSource) -> bool:
    lines = source.lines
    if not lines:
        # A warning may come before the first line.
        return b'\n{"type":"thread.started","thread_id":' in source.head
    return any(_is_start_line(line) for line in lines[:3]) or (
        len(lines) > 1 and all(_is_later_line(line) for line in lines[:4])
    )


def _is_start_line(line: Any) -> bool:
    if not isinstance(line, dict) or line.get("type") not in _START_TYPES:
        return False
    return isinstance(line.get("thread_id") or line.get("session_id"), str)


def _is_later_line(line: Any) -> bool:
    """Whether it is a later line: the file's beginning may be lost."""
    if not isinstance(line, dict) or not isinstance(line.get("type"), str):
        return False
    if line["type"] not in _RECORD_TYPES or line["type"] == "error":
        return False
    item = as_mapping(line.get("item"))
    if line["type"].startswith("item."):
        return isinstance(item.get("id"), str) and "type" in item
    return line.keys() <= {"type", "usage", "error"}


def read(source: RecordingSource) -> Iterator[Session]:
    builder: _CodexExecThread | None = None
    for record in source.records():
        fields = as_mapping(record)
        kind = fields.get("type")
        if kind in _START_TYPES:
            thread = as_label(fields.get("thread_id")) or as_label(fields.get("session_id"))
            if builder is not None and builder.thread != thread:
                yield builder.build_session(source)
                builder = None
            builder = builder or _CodexExecThread(source.skipped, thread)
            continue
        builder = builder or _CodexExecThread(source.skipped, None)
        builder.add_record(kind, fields, record)
    if builder is not None:
        yield builder.build_session(source)


class _CodexExecThread:
    """One printed thread."""

    def __init__(self, skipped: dict[str, int], thread: str | None) -> None:
        self.thread = thread
        self.builder = SessionBuilder(name, version, skipped)
        self._meter = CodexTokenMeter()
        self._turn = 0
        self._running = False
        self._failure: str | None = None
        self._last_words: int | None = None
        self._plan: Any = None
        self._agents: dict[str, int] = {}

    def add_record(self, kind: Any, fields: Item, record: Any) -> None:
        item = as_mapping(fields.get("item"))
        if isinstance(kind, str) and kind.startswith("item."):
            self._add_item(item, ended=kind == "item.completed")
        elif kind == "turn.started":
            self._running, self._failure = True, None
            self._begin_turn()
        elif kind == "turn.completed":
            self._running = False
            self._mark_claim()
            usage = self._meter.usage_since_last(fields.get("usage"), fields.get("usage"))
            if usage is not None:
                self._ensure_turn()
                self.builder.add_turn(ROOT_LANE, Turn(usage=usage), str(self._turn))
        elif kind == "turn.failed":
            self._running = False
            failure = self._message_text(as_mapping(fields.get("error")), fields)
            self._failure = truncate_middle(failure)
            self.builder.add_note(failure, "turn failed")
        elif kind == "error":
            # Often only a connection that is retried.
            self.builder.add_note(self._message_text(fields, fields), "error")
        else:
            self.builder.add_note(json_excerpt(record), f"unknown: {as_label(kind) or 'record'}")

    def _mark_claim(self) -> None:
        """A turn ended: the agent's last message claims to be done."""
        last_event = None if self._last_words is None else self.builder.events[self._last_words - 1]
        if isinstance(last_event, Message):
            self.builder.finish(last_event, intent="claim")

    def _begin_turn(self) -> None:
        self._turn = self.builder.count_turns() + 1
        self.builder.add_turn(ROOT_LANE, Turn(), str(self._turn))

    def _ensure_turn(self) -> None:
        if not self._turn:
            self._begin_turn()

    def _add_item(self, item: Item, *, ended: bool) -> None:
        kind = item.get("type") or item.get("item_type")
        handler = _ITEM_HANDLERS.get(kind) if isinstance(kind, str) else None
        self._ensure_turn()
        if handler is None:
            if ended:
                self.builder.add_note(json_excerpt(item), f"unknown: {as_label(kind) or 'item'}")
            return
        handler(self, item, ended)

    # Messages

    def _add_message(self, item: Item, ended: bool) -> None:
        text = item.get("text")
        if ended and isinstance(text, str):
            event_fields = self._event_fields(None)
            message = Message(**event_fields, role="agent", text=self.builder.truncate_text(text))
            self._last_words = self.builder.add(message).number

    def _add_thought(self, item: Item, ended: bool) -> None:
        text = item.get("text")
        if ended and isinstance(text, str):
            self.builder.add(
                Thought(**self._event_fields(None), text=self.builder.truncate_text(text))
            )

    def _add_error(self, item: Item, ended: bool) -> None:
        if ended:
            self.builder.add_note(self._message_text(item, item), "error")

    def _add_plan(self, item: Item, ended: bool) -> None:
        """Add a plan that is repeated with every finished step and at the end."""
        plan = item.get("items")
        if plan != self._plan:
            self._plan = plan
            plan_arguments = storable_value({"items": plan}, self.builder.skipped)
            self.builder.add(
                ToolUse(**self._event_fields(None), name="todo_list", arguments=plan_arguments)
            )

    # Actions

    def _add_command(self, item: Item, ended: bool) -> None:
        raw_command = item.get("command")
        line = (
            _unwrap_shell(raw_command)
            if isinstance(raw_command, str)
            else json_excerpt(raw_command)
        )
        event = self._find_open_call(item) or self.builder.add(
            Command(**self._event_fields(item), command=self.builder.truncate_text(line))
        )
        if ended:
            code, output = as_exit_code(item.get("exit_code")), item.get("aggregated_output")
            self.builder.finish(
                event,
                output=self.builder.truncate_text(output) if isinstance(output, str) else None,
                exit_code=code,
                exit_from=None if code is None else "stated",
                stopped="rejected" if item.get("status") == "declined" else None,
            )

    def _add_edits(self, item: Item, ended: bool) -> None:
        if self._find_open_call(item) is None:
            for change in as_list(item.get("changes")):
                path, kind = as_mapping(change).get("path"), as_mapping(change).get("kind")
                if isinstance(path, str):
                    action: Any = {"add": "create", "delete": "delete"}.get(str(kind), "change")
                    fields = self._event_fields(item)
                    edit = Edit(**fields, path=self.builder.truncate_text(path), action=action)
                    self.builder.add(edit)
        while ended and (event := self._find_open_call(item)) is not None:
            self.builder.finish(event, ok=_SUCCESS_BY_STATUS.get(str(item.get("status"))))

    def _add_tool_call(self, item: Item, ended: bool) -> None:
        tool, server = as_label(item.get("tool")) or "tool", as_label(item.get("server")) or ""
        event = self._find_open_call(item)
        if event is None:
            raw_arguments = item.get("arguments")
            arguments = (
                storable_value(raw_arguments, self.builder.skipped)
                if isinstance(raw_arguments, dict)
                else None
            )
            event = self.builder.add(
                event_from_call(
                    f"mcp__{server}__{tool}", arguments, CallOrigin(**self._event_fields(item))
                )
            )
        if not ended:
            return
        reply = mcp_reply_text(item.get("result")) or mcp_reply_text(item.get("error"))
        if isinstance(event, Message):
            self.builder.finish(event)
            if reply:
                self.builder.add_incoming_message(
                    self.builder.truncate_text(reply), lane=ROOT_LANE, time=None, intent="answer"
                )
            return
        self._finish_tool_call(event, reply, _SUCCESS_BY_STATUS.get(str(item.get("status"))))

    def _finish_tool_call(self, event: AnyEvent, reply: str | None, ok: bool | None) -> None:
        output = None if reply is None else self.builder.truncate_text(reply)
        fields = event.__struct_fields__
        result_fields: dict[str, Any] = {"ok": ok} if "ok" in fields else {}
        for field in ("output", "report", "text"):
            if field in fields:
                result_fields[field] = output
                break
        if ok is False and "error" in fields:
            result_fields["error"] = output
        self.builder.finish(event, **result_fields)

    def _add_agent_call(self, item: Item, ended: bool) -> None:
        """Add work for another agent, or its reply; its own thread is not printed."""
        event, tool = self._find_open_call(item), as_label(item.get("tool")) or "agent"
        if event is None and tool in ("spawn_agent", "send_input"):
            brief = item.get("prompt")
            text = self.builder.truncate_text(brief) if isinstance(brief, str) else ""
            event = self.builder.add(Handoff(**self._event_fields(item), brief=text))
        elif event is None:
            raw_arguments = {"receiver_thread_ids": item.get("receiver_thread_ids")}
            arguments = storable_value(raw_arguments, self.builder.skipped)
            event = self.builder.add(
                ToolUse(**self._event_fields(item), name=tool, arguments=arguments)
            )
        if not ended:
            return
        ok = _SUCCESS_BY_STATUS.get(str(item.get("status")))
        states = as_mapping(item.get("agents_states"))
        if isinstance(event, Handoff):
            self.builder.finish(event, ok=False if ok is False else None)
            for thread in as_list(item.get("receiver_thread_ids")):
                self._agents[str(thread)] = event.number
        else:
            self.builder.finish(
                event,
                ok=ok,
                output=self.builder.truncate_text(json_excerpt(states)) if states else None,
            )
        for thread, state in states.items():
            self._add_report(thread, as_mapping(state))

    def _add_report(self, thread: str, state: Item) -> None:
        report, status = state.get("message"), state.get("status")
        number = self._agents.get(thread)
        if number is not None and isinstance(report, str) and status in ("completed", "errored"):
            handoff = self.builder.events[number - 1]
            self.builder.finish(
                handoff, report=self.builder.truncate_text(report), ok=status == "completed"
            )

    def _add_search(self, item: Item, ended: bool) -> None:
        event = self._find_open_call(item)
        if event is None:
            event = self.builder.add(ToolUse(**self._event_fields(item), name="web_search"))
        if ended:
            search_arguments = {key: item.get(key) for key in ("query", "action") if key in item}
            self.builder.finish(
                event, arguments=storable_value(search_arguments, self.builder.skipped)
            )

    # State

    def _event_fields(self, item: Item | None) -> dict[str, Any]:
        call = None if item is None else as_label(item.get("id"))
        return {
            "number": self.builder.next_number,
            "lane": ROOT_LANE,
            "turn": self._turn,
            "call": call,
        }

    def _find_open_call(self, item: Item) -> AnyEvent | None:
        return self.builder.find_open_call(ROOT_LANE, as_label(item.get("id")))

    def _message_text(self, fields: Item, record: Any) -> str:
        message = fields.get("message")
        return message if isinstance(message, str) else json_excerpt(record)

    def build_session(self, source: RecordingSource) -> Session:
        ending, cause = self._session_exit()
        last_event = None if self._last_words is None else self.builder.events[self._last_words - 1]
        return self.builder.build_session(
            id=self.thread or content_digest(source.head),
            agent="codex",
            exit=ending,
            cause=cause,
            summary=last_event.text if isinstance(last_event, Message) else None,
            copy="printed",
        )

    def _session_exit(self) -> tuple[Exit, str | None]:
        if self._failure is not None:
            return "crashed", self._failure
        if self._running:
            return "gave_up", "The recording ends within a turn."
        return "finished", None


def _unwrap_shell(command: str) -> str:
    """Return the command without the quoted shell around it."""
    prefix = _SHELL_PREFIX.match(command)
    if prefix is None:
        return command
    line = command[prefix.end() :]
    if line[:1] == line[-1:] == "'" and len(line) > 1 and "'" not in line[1:-1]:
        return line[1:-1]
    if (
        line[:1] == line[-1:] == '"'
        and len(line) > 1
        and not _ESCAPED.search(line, 1, len(line) - 1)
    ):
        return line[1:-1]
    if len(command) > _MAX_PARSED_CHARS:
        return command
    try:
        words = split_shell_words(command)
    except ValueError:
        return command
    return words[2] if len(words) == 3 else command


_ITEM_HANDLERS: dict[str, Callable[[_CodexExecThread, Item, bool], None]] = {
    "agent_message": _CodexExecThread._add_message,
    "assistant_message": _CodexExecThread._add_message,
    "reasoning": _CodexExecThread._add_thought,
    "command_execution": _CodexExecThread._add_command,
    "file_change": _CodexExecThread._add_edits,
    "mcp_tool_call": _CodexExecThread._add_tool_call,
    "collab_tool_call": _CodexExecThread._add_agent_call,
    "web_search": _CodexExecThread._add_search,
    "todo_list": _CodexExecThread._add_plan,
    "error": _CodexExecThread._add_error,
}
