"""A conversation of Claude Code, as in its session files and its stream."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from closeloop.records.attempt import Exit, Usage
from closeloop.records.record import Record
from closeloop.records.trace import (
    AnyEvent,
    Command,
    Edit,
    Handoff,
    Message,
    Note,
    Read,
    Thought,
    ToolUse,
    Turn,
)
from closeloop.text.client_markup import is_client_text
from closeloop.text.untrusted import truncate_middle
from closeloop.traces.session_builder import CUT_OFF, ROOT_LANE, UNPAIRED_RESULT, SessionBuilder
from closeloop.traces.tool_calls import CallOrigin, event_from_call
from closeloop.traces.untrusted_json import (
    as_amount,
    content_text,
    json_excerpt,
    make_usage,
    storable_arguments,
)

# What the results of Claude Code's tools show of its calls, and the usage of its messages.


_RESULT_EXIT_CODE = re.compile(r"\A(?:Error: )?Exit code:? (-?\d{1,10})\b")
_REJECTION_REASON = re.compile(
    r"(?:the user said|the following reason for the rejection):\s*(.+)", re.DOTALL | re.IGNORECASE
)
_BACKGROUND_TASK_ID = re.compile(r"Command [^\n]{0,60}background[^\n]{0,20} with ID: ([\w-]+)")
_CHILD_AGENT_ID = re.compile(r"^agentId: ([\w-]+)", re.MULTILINE)
_REJECTION_PREFIXES = (
    "The user doesn't want to proceed with this tool use",
    "The user doesn't want to take this action right now",
    "User rejected tool use",
    "User declined",
)
_STOP_REASONS = {
    "Sibling tool call errored": "another call failed",
    "Cancelled: parallel tool call": "another call failed",
    "Command timed out": "out of time",
    "Permission to use": "not permitted",
    "Claude requested permissions": "not permitted",
    "This command requires approval": "not permitted",
    "[Request interrupted by user": "interrupted",
}
_SPECIAL_EXITS = {
    # Commands for which exit code 1 is an answer, not an error: the text stands for that 1.
    "No matches found": 1,
    "Some directories were inaccessible": 1,
    "Files differ": 1,
    "Condition is false": 1,
}


class ClaudeToolResult(Record):
    """A tool's result in the files."""

    text: str
    """What the model received."""
    failed: bool | None
    """None if not stated, which in this format means success."""
    detail: Any = None
    """The structured copy, or the text of an error, if the file has one."""

    @property
    def detail_fields(self) -> Mapping[str, Any]:
        return self.detail if isinstance(self.detail, dict) else {}

    @property
    def plain_text(self) -> str:
        """The text without the tags that mark an error."""
        return self.text.removeprefix("<tool_use_error>").removesuffix("</tool_use_error>")

    @property
    def rejection_text(self) -> str | None:
        """The user's reason for refusing the call, or that it was refused."""
        if not self.failed and self.detail != "User rejected tool use":
            return None
        if not self.plain_text.startswith(_REJECTION_PREFIXES):
            return None
        match = _REJECTION_REASON.search(self.plain_text)
        return match[1].strip() if match else self.plain_text.partition(".")[0] + "."

    @property
    def background_task_id(self) -> str | None:
        """The id of a command that continues in the background."""
        task_id = self.detail_fields.get("backgroundTaskId")
        if isinstance(task_id, str):
            return task_id
        match = _BACKGROUND_TASK_ID.match(self.text)
        return match[1] if match else None

    @property
    def child_agent_id(self) -> str | None:
        """The id of the sub-agent that did the work."""
        agent_id = self.detail_fields.get("agentId")
        if isinstance(agent_id, str):
            return agent_id
        match = _CHILD_AGENT_ID.search(self.text[-2000:])
        return match[1] if match else None


def claude_result_fields(event: AnyEvent, result: ClaudeToolResult) -> dict[str, Any]:
    """Return the fields of an event that its result fills."""
    if isinstance(event, Command):
        return _command_fields(result)
    ok = not result.failed
    error = None if ok else result.plain_text
    if isinstance(event, Edit):
        return {"ok": ok, "error": error, **(_edit_fields(event, result) if ok else {})}
    if isinstance(event, Read):
        return {"ok": ok, "error": error, **(_read_fields(result) if ok else {})}
    if isinstance(event, Handoff):
        return _handoff_fields(result, ok)
    if isinstance(event, ToolUse):
        return {"output": result.text, "ok": ok, "seconds": _duration_seconds(result.detail_fields)}
    return {}


def _command_fields(result: ClaudeToolResult) -> dict[str, Any]:
    stdout = result.detail_fields.get("stdout")
    output = result.text
    if isinstance(stdout, str) and output.startswith("<persisted-output>"):
        output = max(stdout, output, key=len)
    stopped = _stop_reason(result)
    code = _exit_code(result) if result.failed or not stopped else None
    return {
        "output": output,
        "exit_code": code,
        "exit_from": None if code is None else "parsed",
        "stopped": stopped,
    }


def _stop_reason(result: ClaudeToolResult) -> str | None:
    if result.rejection_text:
        return "rejected"
    if result.detail_fields.get("interrupted") is True:
        return "interrupted"
    if result.failed:
        result_text = _RESULT_EXIT_CODE.sub("", result.plain_text[:2000], count=1).lstrip()
        return next(
            (reason for text, reason in _STOP_REASONS.items() if result_text.startswith(text)), None
        )
    return None


def _exit_code(result: ClaudeToolResult) -> int | None:
    if result.failed:
        match = _RESULT_EXIT_CODE.match(result.plain_text)
        if match is None and isinstance(result.detail, str):
            match = _RESULT_EXIT_CODE.match(result.detail)
        return int(match[1]) if match else None
    if result.background_task_id is not None:
        return None
    meaning = result.detail_fields.get("returnCodeInterpretation")
    if meaning is not None:
        return _SPECIAL_EXITS.get(meaning) if isinstance(meaning, str) else None
    # A failing command is marked as an error: without the mark it ended with 0.
    return 0 if result.failed is False or "stdout" in result.detail_fields else None


def _edit_fields(event: Edit, result: ClaudeToolResult) -> dict[str, Any]:
    fields = result.detail_fields
    event_fields: dict[str, Any] = {}
    if patch := patch_from_hunks(fields.get("structuredPatch")):
        event_fields["patch"] = patch
    if fields.get("type") == "update" or "has been updated" in result.text[:2000]:
        event_fields["action"] = "change"
        if isinstance(fields.get("originalFile"), str) and event.before is None:
            event_fields["before"] = fields["originalFile"]
    if fields.get("userModified") is True and isinstance(fields.get("newString"), str):
        event_fields["after"] = fields["newString"]
    return event_fields


def patch_from_hunks(hunks: Any) -> str | None:
    """Build a unified diff without file names from the file's hunks."""
    if not isinstance(hunks, list):
        return None
    lines: list[str] = []
    for hunk in hunks:
        if isinstance(hunk, dict) and isinstance(hunk.get("lines"), list):
            line_range = [
                hunk.get(name) for name in ("oldStart", "oldLines", "newStart", "newLines")
            ]
            lines.append("@@ -{},{} +{},{} @@".format(*line_range))
            lines += [line for line in hunk["lines"] if isinstance(line, str)]
    return "\n".join(lines) or None


def with_line_range(event: AnyEvent, arguments: Mapping[str, Any] | None) -> AnyEvent:
    """Add the requested lines to a read, which are all that is known if it fails."""
    if not isinstance(event, Read) or not arguments:
        return event
    first, line_count = (
        non_negative_int(arguments.get("offset")),
        non_negative_int(arguments.get("limit")),
    )
    last = None if line_count is None else (first or 1) + line_count - 1
    return replace(event, first_line=first, last_line=last)


def _read_fields(result: ClaudeToolResult) -> dict[str, Any]:
    file = result.detail_fields.get("file")
    if not isinstance(file, dict):
        return {"text": result.text}
    content = file.get("content")
    event_fields: dict[str, Any] = {"text": content if isinstance(content, str) else result.text}
    first, count = non_negative_int(file.get("startLine")), non_negative_int(file.get("numLines"))
    if first and count:
        event_fields |= {"first_line": first, "last_line": first + count - 1}
    return event_fields


def _handoff_fields(result: ClaudeToolResult, ok: bool) -> dict[str, Any]:
    fields = result.detail_fields
    event_fields: dict[str, Any] = {"seconds": _duration_seconds(fields)}
    if (child := result.child_agent_id) is not None:
        event_fields["child"] = child
    if fields.get("isAsync") is True or "launched successfully" in result.text[:200]:
        return event_fields
    report = claude_content_text(fields.get("content")) or result.plain_text
    if (trailer := _CHILD_AGENT_ID.search(report, max(0, len(report) - 2000))) is not None:
        report = report[: trailer.start()].rstrip()
    return {**event_fields, "report": report, "ok": ok}


def _duration_seconds(fields: Mapping[str, Any]) -> float | None:
    for name in ("totalDurationMs", "durationMs"):
        value = fields.get(name)
        if (count := non_negative_int(value)) is not None:
            return count / 1000
    return None


def is_tool_result(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "tool_result"


def claude_content_text(content: Any) -> str:
    """Return the text of a content; blocks without text are named by type."""
    return content_text(content, lambda block: f"[{block.get('type')}]")


def patch_from_replacements(edits: list[Any]) -> str:
    """Build a patch without positions from several replacements of one call."""
    hunks = []
    for edit in edits:
        if isinstance(edit, dict):
            old, new = (str(edit.get(name) or "") for name in ("old_string", "new_string"))
            hunks += ["@@", *(f"-{line}" for line in old.splitlines())]
            hunks += [f"+{line}" for line in new.splitlines()]
    return "\n".join(hunks)


def format_user_answers(fields: Any) -> str | None:
    """Format the user's answers, each with its question if there are several."""
    answers = fields.get("answers")
    if not isinstance(answers, dict) or not answers:
        return None
    if len(answers) == 1:
        return str(next(iter(answers.values())))
    return "\n".join(f"{question}: {answer}" for question, answer in answers.items())


def usage_from_claude(
    usage_fields: dict[str, Any], output: int | None, cost: float | None = None
) -> Usage:
    """Return the tokens of one message. A provider that reports only zeros has not counted."""
    uncached_tokens = non_negative_int(usage_fields.get("input_tokens"))
    read = non_negative_int(usage_fields.get("cache_read_input_tokens"))
    write = non_negative_int(usage_fields.get("cache_creation_input_tokens"))
    if not (uncached_tokens or read or write):
        uncached_tokens = read = write = None
    return make_usage(uncached_tokens, output or None, read=read, write=write, cost=cost or None)


def non_negative_int(value: Any) -> int | None:
    """Return a valid count."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53:
        return value
    return None


MAX_PLACEHOLDER_TOKENS = 50
"""Largest placeholder count of a message that is not counted yet; observed: 1 to 49."""
_INTERRUPTED_PREFIX = "[Request interrupted by user"
_STOPPED_BY_HOOK_PREFIX = "Operation stopped by hook"
_COMPACTED_PREFIX = "This session is being continued from a previous conversation"
_NOTE_KIND_BY_TAG = {
    # Text that the client inserts into the user's messages, by its tag.
    "agent-notification": "agent notification",
    "bash-input": "user command",
    "bash-stderr": "user command",
    "bash-stdout": "user command",
    "ide_diagnostics": "ide",
    "ide_opened_file": "ide",
    "ide_selection": "ide",
    "local-command-caveat": "local command",
    "local-command-stderr": "local command",
    "local-command-stdout": "local command",
    "system-reminder": "reminder",
    "task-notification": "task notification",
    "user-memory-input": "memory",
    "user-prompt-submit-hook": "hook",
}
CLIENT_COMMANDS = frozenset({"local command", "slash command", "user command"})
"""Notes of what the user did in the client, without the agent."""
_LOCAL_COMMANDS = """
add-dir agents branch bug clear color compact config context copy cost diff doctor effort exit
export fast feedback help hooks ide keybindings login logout mcp memory model output-style
permissions plugin quit release-notes remote-control rename resume rewind sandbox skills stats
status statusline tasks terminal-setup theme todos upgrade usage vim voice
"""
_TAG = re.compile(r"<([a-z_-]+)")
_COMMAND_NAME = re.compile(r"<command-name>/?([^<]*)</command-name>")
_BARE_COMMAND = re.compile(r"<command-name>[^<]*</command-name>\s+<command-message>[^<]*"
                           r"</command-message>\s+<command-args></command-args>")  # fmt: skip
"""The client's own commands, by name; without words they ask the model nothing."""
_TASK_ID = re.compile(r"<task-id>([^<]*)</task-id>")
_STATUS = re.compile(r"<status>(\w+)</status>")
_EXIT_CODE = re.compile(r"(?:<exit_code>|[ (]exit code )(-?\d{1,10})[<)]")
_RESULT = re.compile(r"<result>(.*)</result>", re.DOTALL)


class ClaudeConversation:
    """Collects records in order and relates them to each other."""

    def __init__(self, reader: str, version: int, skipped: dict[str, int]) -> None:
        self.builder = SessionBuilder(reader, version, skipped)
        self.trouble: str | None = None
        """The client's own error message, while it is the last message."""
        self.asked: dict[str, str] = {}
        """The first message to each lane."""
        self.running: dict[str, int] = {}
        """Background work by id: the number of the event that began it."""
        self.lanes: dict[str, str | None] = {ROOT_LANE: None}
        """Each lane's parent."""
        self.kinds: dict[int, str] = {}
        """The kind of agent that a handoff requests, by event number."""
        self._marked: dict[str, int] = {}
        """Lanes that were compacted and whose summary has not arrived yet."""
        self._counted: dict[tuple[str, str], tuple[int, bool, int, datetime | None]] = {}
        self._requests: dict[str, str] = {}
        self._copied: set[str] = set()

    def open_lane(self, lane: str, parent: str = ROOT_LANE) -> str:
        """Open a lane."""
        if lane not in self.lanes:
            self.lanes[lane] = parent
            self.builder.open_lane(lane, parent)
        return lane

    def record_time(self, value: Any) -> datetime | None:
        """Parse a time; the first and last are those of the session."""
        if not isinstance(value, str):
            return None
        try:
            time = datetime.fromisoformat(value)
            if time.tzinfo is None:
                return None
            if time.tzinfo is not UTC:
                time = time.astimezone(UTC)
        except (ValueError, OverflowError):
            return None
        return self.builder.record_time(time)

    def add_note(
        self, text: str, about: str, lane: str = ROOT_LANE, at: datetime | None = None
    ) -> None:
        self.builder.add_note(text, about, lane=lane, at=at)

    def add_compaction(self, text: str, lane: str, time: datetime | None, *, summary: bool) -> None:
        """Add a compaction: its mark and its summary are one event."""
        event_number = self._marked.pop(lane, None) if summary else None
        if event_number is None:
            if not summary:
                self._marked[lane] = self.builder.next_number
            self.add_note(text, "compaction", lane, time)
        else:
            event = self.builder.events[event_number - 1]
            self.builder.finish(event, text=self.builder.truncate_text(text))

    def add_unknown(self, record_kind: Any, value: Any, lane: str, time: datetime | None) -> None:
        """Keep a record of unknown kind."""
        kind = (
            truncate_middle(record_kind, max_chars=100)
            if isinstance(record_kind, str)
            else "record"
        )
        self.builder.add_note(json_excerpt(value), about=f"unknown: {kind}", lane=lane, at=time)

    def add_agent_message(self, lane: str, record: dict[str, Any], at: datetime | None) -> None:
        """Add a model message, or a part of one."""
        message = record.get("message")
        if not isinstance(message, dict):
            self.add_unknown(record.get("type"), record, lane, at)
            return
        content = message.get("content")
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        failed = record.get("isApiErrorMessage") is True or bool(record.get("error"))
        if failed or message.get("model") == "<synthetic>":
            text = self.builder.truncate_text(claude_content_text(content))
            note_kind = "api error" if failed or text.startswith("API Error") else "synthetic"
            self.trouble = text if note_kind == "api error" and lane == ROOT_LANE else self.trouble
            self.add_note(text, note_kind, lane, at)
            return
        if lane == ROOT_LANE:
            self.trouble = None
        if self.is_copied_reply(lane, record.get("requestId"), blocks):
            return
        # The first versions recorded the cost of each message.
        if "costUSD" in record:
            message = {**message, "costUSD": record["costUSD"]}
        turn = self.add_turn(lane, message, record.get("requestId"), at)
        for block in blocks:
            if isinstance(block, dict):
                self.add_block(lane, turn, block, at)
            else:
                self.add_unknown("block", block, lane, at)

    def is_copied_reply(self, lane: str, request: Any, blocks: list[Any]) -> bool:
        """Whether another lane had this answer: some sub-agents begin with a copy of the
        conversation."""
        if not isinstance(request, str) or self._requests.setdefault(request, lane) == lane:
            return False
        self._copied.update(
            block["id"]
            for block in blocks
            if isinstance(block, dict) and isinstance(block.get("id"), str)
        )
        return True

    def add_turn(
        self, lane: str, message: dict[str, Any], request: Any, time: datetime | None
    ) -> int:
        """Return the turn of a message. Its parts repeat its usage, and the last counts."""
        model, name, usage = message.get("model"), message.get("id"), message.get("usage")
        usage_fields = usage if isinstance(usage, dict) else {}
        output = non_negative_int(usage_fields.get("output_tokens")) or 0
        trusted = message.get("stop_reason") is not None or output > MAX_PLACEHOLDER_TOKENS
        key = (lane, f"{name} {request}") if isinstance(name, str) else None
        counted_turn = self._counted.get(key) if key is not None else None
        if counted_turn is not None:
            before, was_trusted, turn, time = counted_turn
            if output == before and was_trusted >= trusted:
                return turn
            # Numbers that differ between parts are cumulative: the largest is the final one.
            trusted = trusted or was_trusted or before != output
            output = max(before, output)
        elif isinstance(model, str):
            self.builder.models[model] += 1
        new_turn = Turn(
            usage=usage_from_claude(
                usage_fields, output if trusted else None, as_amount(message.get("costUSD"))
            ),
            model=model if isinstance(model, str) else None,
            at=time,
        )
        turn = self.builder.add_turn(lane, new_turn, key[1] if key is not None else None)
        if key is not None:
            self._counted[key] = (output, trusted, turn, time)
        return turn

    def add_block(self, lane: str, turn: int | None, block: dict[str, Any], time: Any) -> None:
        """Add one block of a model message."""
        kind = block.get("type")
        if kind in ("text", "thinking"):
            text = block.get(kind)
            if isinstance(text, str):
                thinks = kind == "thinking"
                add = self.builder.add_thought if thinks else self.builder.add_agent_message
                add(text, lane=lane, turn=turn, at=time)
        elif kind == "redacted_thinking":
            self.builder.count_skip(kind)
        elif kind in ("tool_use", "server_tool_use", "mcp_tool_use"):
            self.add_call(lane, turn, block, time)
        elif isinstance(kind, str) and kind.endswith("tool_result"):
            self.add_result(lane, block, None, time)
        else:
            self.add_unknown(kind, block, lane, time)

    def add_call(self, lane: str, turn: int | None, block: dict[str, Any], time: Any) -> AnyEvent:
        """Add a tool call whose result follows."""
        name, tool_input, call = block.get("name"), block.get("input"), block.get("id")
        name = truncate_middle(name, max_chars=200) if isinstance(name, str) else "unknown"
        arguments = storable_arguments(tool_input, self.builder.skipped)
        origin = CallOrigin(
            number=self.builder.next_number,
            lane=lane,
            turn=turn,
            at=time,
            call=truncate_middle(call, max_chars=200) if isinstance(call, str) else "",
        )
        if name == "ExitPlanMode":
            plan = (arguments or {}).get("plan")
            return self.builder.add(
                Message(
                    number=origin.number, lane=lane, turn=turn, at=time, call=origin.call,
                    role="agent", text=plan if isinstance(plan, str) else "", intent="question",
                )
            )  # fmt: skip
        event = with_line_range(event_from_call(name, arguments, origin), arguments)
        if isinstance(event, Handoff) and isinstance(arguments, dict):
            kind = arguments.get("subagent_type")
            self.kinds[event.number] = kind if isinstance(kind, str) else ""
        edits = (arguments or {}).get("edits")
        if isinstance(event, Edit) and isinstance(edits, list) and len(edits) > 1:
            event = Edit(
                number=origin.number, lane=lane, turn=turn, at=time, call=origin.call,
                path=event.path, patch=patch_from_replacements(edits),
            )  # fmt: skip
        elif isinstance(event, Edit) and event.before == "":
            event = Edit(
                number=origin.number, lane=lane, turn=turn, at=time, call=origin.call,
                path=event.path, action="create", after=event.after,
            )  # fmt: skip
        return self.builder.add(event)

    def add_user_record(
        self, lane: str, record: dict[str, Any], detail: Any, time: datetime | None
    ) -> None:
        """Add a message to the model: results, the user's text, or the client's."""
        message = record.get("message")
        content = message.get("content") if isinstance(message, dict) else None
        if record.get("isCompactSummary") is True:
            self.add_compaction(claude_content_text(content), lane, time, summary=True)
            return
        if isinstance(content, str):
            self.add_user_text(lane, content, record, time)
            return
        if not isinstance(content, list):
            self.add_unknown(record.get("type"), record, lane, time)
            return
        # The structured copy belongs to one result; with several, it is unknown to which.
        if len(content) > 1 and sum(map(is_tool_result, content)) > 1:
            detail = None
        for block in content:
            kind = block.get("type") if isinstance(block, dict) else None
            if kind == "tool_result":
                self.add_result(lane, block, detail, time)
            elif kind == "text" and isinstance(block.get("text"), str):
                self.add_user_text(lane, block["text"], record, time)
            elif kind in ("image", "document"):
                self.add_user_text(lane, f"[{kind}]", record, time)
            else:
                self.add_unknown(kind or "block", block, lane, time)

    def add_user_text(
        self, lane: str, text: str, record: dict[str, Any], time: datetime | None
    ) -> None:
        """Add a text among the user's messages, whoever wrote it."""
        text = self.builder.truncate_text(text)
        stripped = text.lstrip()
        if not stripped:
            return
        meta = record.get("isMeta") is True or record.get("isSynthetic") is True
        note_kind = _client_text_kind(stripped) or ("meta" if meta else None)
        if stripped.startswith(_INTERRUPTED_PREFIX):
            self.add_user_message(lane, text, "interrupt", time)
            return
        if note_kind == "task notification":
            self.handle_notification(stripped)
        if note_kind == "compaction":
            self.add_compaction(text, lane, time, summary=True)
        elif note_kind is not None:
            self.add_note(text, note_kind, lane, time)
        else:
            self.add_user_message(lane, text, None, time)

    def add_user_message(self, lane: str, text: str, intent: Any, time: datetime | None) -> None:
        """Add a user message to a lane; the first is the request."""
        if intent is None and lane not in self.asked:
            self.asked[lane] = text
            intent = "request"
        number = self.builder.next_number
        self.builder.add(
            Message(number=number, lane=lane, at=time, role="user", text=text, intent=intent)
        )

    def add_result(self, lane: str, block: dict[str, Any], detail: Any, time: Any) -> None:
        """Add a tool's result."""
        call = block.get("tool_use_id")
        call = truncate_middle(call, max_chars=200) if isinstance(call, str) else ""
        failed = block.get("is_error")
        result = ClaudeToolResult(
            text=self.builder.truncate_text(claude_content_text(block.get("content"))),
            failed=failed if isinstance(failed, bool) else None,
            detail=detail,
        )
        event = self.builder.find_open_call(lane, call)
        if event is None:
            if call not in self._copied:
                self.add_note(result.text, UNPAIRED_RESULT, lane, time)
            return
        event_fields = claude_result_fields(event, result)
        for name, value in event_fields.items():
            if value is not result.text and isinstance(value, str):
                event_fields[name] = self.builder.truncate_text(value)
        event = self.builder.finish(event, **event_fields)
        self.add_result_effects(event, result, time)

    def add_result_effects(
        self, event: AnyEvent, result: ClaudeToolResult, time: datetime | None
    ) -> None:
        """Add what else a result shows: the user's answer or refusal, background work."""
        lane, fields = event.lane, result.detail_fields
        refused = result.rejection_text
        if refused is not None:
            self.add_user_message(lane, refused, "correction", time)
        elif isinstance(event, Message):
            plan = fields.get("plan")
            if not event.text and isinstance(plan, str):
                self.builder.finish(event, text=self.builder.truncate_text(plan))
            self.add_user_message(
                lane, format_user_answers(fields) or result.plain_text, "answer", time
            )
        elif isinstance(event, Edit) and fields.get("userModified") is True:
            self.add_user_message(lane, "[The user changed the proposed edit.]", "correction", time)
        elif isinstance(event, Command) and (task := result.background_task_id):
            self.running[task] = event.number
        elif isinstance(event, Handoff) and event.child:
            if event.report is None:
                self.running[event.child] = event.number
        elif isinstance(event, ToolUse) and self.running:
            call_arguments = event.arguments or {}
            for name in ("bash_id", "task_id", "agentId"):
                self.finish_background_task(call_arguments.get(name), result.text)

    def handle_notification(self, text: str) -> None:
        """Handle the client's notice that background work has ended."""
        if (task := _TASK_ID.search(text[:4000])) is not None:
            self.finish_background_task(task[1], text)

    def finish_background_task(self, task: Any, text: str) -> None:
        """Add the end and the output of background work."""
        status = _STATUS.search(text[:4000])
        is_running = isinstance(task, str) and task in self.running
        if not is_running or status is None or status[1] in ("running", "in_progress", "pending"):
            return
        event = self.builder.events[self.running.pop(task) - 1]
        if isinstance(event, Command):
            exit_code_match = _EXIT_CODE.search(text[:4000])
            output = f"{event.output or ''}\n{text}"
            event_fields: dict[str, Any] = {"output": self.builder.truncate_text(output)}
            if exit_code_match is not None:
                event_fields |= {"exit_code": int(exit_code_match[1]), "exit_from": "parsed"}
            self.builder.finish(event, **event_fields)
        elif isinstance(event, Handoff):
            report = _RESULT.search(text)
            self.builder.finish(
                event, report=report[1] if report else text, ok=status[1] == "completed"
            )


def join_child_lanes(conversation: ClaudeConversation) -> None:
    """Join every lane to the call that started it: by id, or by the same first words."""
    taken_lanes: set[str] = set()
    unmatched = []
    for number in conversation.kinds:
        event = conversation.builder.events[number - 1]
        if isinstance(event, Handoff):
            child = next(
                (lane_id for lane_id in (event.child, event.call) if lane_id in conversation.lanes),
                None,
            )
            if (
                child is None
                or child in taken_lanes
                or not _assign_lane(conversation, event, child)
            ):
                unmatched.append(event)
            else:
                taken_lanes.add(child)
    by_words: dict[str, deque[str]] = {}
    for lane, text in conversation.asked.items():
        if lane not in taken_lanes:
            by_words.setdefault(text.strip(), deque()).append(lane)
    for event in unmatched:
        lanes = by_words.get(event.brief.strip())
        if not lanes or not _assign_lane(conversation, event, lanes.popleft()):
            conversation.builder.finish(event, child=None)


def _assign_lane(conversation: ClaudeConversation, event: Handoff, child: str) -> bool:
    ancestor: str | None = event.lane
    while ancestor is not None:
        if ancestor == child:
            return False
        ancestor = conversation.lanes[ancestor]
    conversation.lanes[child] = event.lane
    conversation.builder.open_lane(child, event.lane, conversation.kinds[event.number] or None)
    conversation.builder.finish(event, child=child)
    return True


def mark_final_claim(conversation: ClaudeConversation, *, finished: bool) -> str | None:
    """Return the agent's last message; at the end of a finished session it is the claim."""
    ends = finished
    for event in reversed(conversation.builder.events):
        if event.lane != ROOT_LANE or isinstance(event, Note | Thought):
            continue
        if isinstance(event, Message) and event.role == "agent":
            if ends and event.intent is None:
                conversation.builder.update_event(event, intent="claim")
            return event.text
        ends = False
    return None


def session_outcome(conversation: ClaudeConversation) -> tuple[Exit, str | None]:
    """Return how it ended, as far as the last events show."""
    if conversation.trouble is not None:
        return "machine", conversation.trouble.strip().partition("\n")[0][:300]
    last = next(
        (event for event in reversed(conversation.builder.events) if _is_root_event(event)), None
    )
    if isinstance(last, Message) and last.intent == "interrupt":
        return "gave_up", "The user interrupted it."
    if last is None or isinstance(last, Message) or last.call is None:
        return "finished", None
    if isinstance(last, Command) and last.stopped == "rejected":
        return "gave_up", "The user rejected a command."
    if conversation.builder.find_open_call(ROOT_LANE, last.call) is not None:
        return "crashed", CUT_OFF
    return "finished", None


def _is_root_event(event: AnyEvent) -> bool:
    return event.lane == ROOT_LANE and not isinstance(event, Note | Thought)


def _client_text_kind(text: str) -> str | None:
    """Return the kind of a client text among the user's; None for the user's own."""
    if text.startswith(_COMPACTED_PREFIX):
        return "compaction"
    if text.startswith("Caveat: The messages below were generated"):
        return "local command"
    command = _COMMAND_NAME.search(text[:2000]) if text.startswith("<") else None
    if command is not None:
        local = command[1].strip() in _LOCAL_COMMANDS.split()
        return "slash command" if local or _BARE_COMMAND.match(text) else None
    if not is_client_text(text):
        return None
    if text.startswith(_STOPPED_BY_HOOK_PREFIX):
        return "hook"
    tag = _TAG.match(text)
    return _NOTE_KIND_BY_TAG.get(tag[1], "client") if tag else "client"
