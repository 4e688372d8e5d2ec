"""What the results of Claude Code's tools say of its calls, and what its messages used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from closeloop.records.attempt import Usage
from closeloop.records.record import Record
from closeloop.records.trace import AnyEvent, Command, Edit, Handoff, Read, ToolUse
from closeloop.traces.provider_values import content_text, make_usage

_EXIT_CODE = re.compile(r"\A(?:Error: )?Exit code:? (-?\d{1,10})\b")
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
    # Commands whose 1 is an answer, not an error: the text stands for that 1 alone.
    "No matches found": 1,
    "Some directories were inaccessible": 1,
    "Files differ": 1,
    "Condition is false": 1,
}


class ClaudeToolResult(Record):
    """A tool's result as the files give it."""

    text: str
    """What the model saw."""
    failed: bool | None
    """None where the file leaves it open, which the format reads as: it did not fail."""
    detail: Any = None
    """The structured copy, or the text of an error, where the file has one."""

    @property
    def detail_fields(self) -> Mapping[str, Any]:
        return self.detail if isinstance(self.detail, dict) else {}

    @property
    def plain_text(self) -> str:
        """The text without the tags that mark an error."""
        return self.text.removeprefix("<tool_use_error>").removesuffix("</tool_use_error>")

    @property
    def rejection_text(self) -> str | None:
        """What the user said in refusing the call, or that they did."""
        if not self.failed and self.detail != "User rejected tool use":
            return None
        if not self.plain_text.startswith(_REJECTION_PREFIXES):
            return None
        said = _REJECTION_REASON.search(self.plain_text)
        return said[1].strip() if said else self.plain_text.partition(".")[0] + "."

    @property
    def background_task_id(self) -> str | None:
        """The id under which a command goes on in the background."""
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
    """The fields of an event that its result fills."""
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
        words = _EXIT_CODE.sub("", result.plain_text[:2000], count=1).lstrip()
        return next((why for text, why in _STOP_REASONS.items() if words.startswith(text)), None)
    return None


def _exit_code(result: ClaudeToolResult) -> int | None:
    if result.failed:
        match = _EXIT_CODE.match(result.plain_text)
        if match is None and isinstance(result.detail, str):
            match = _EXIT_CODE.match(result.detail)
        return int(match[1]) if match else None
    if result.background_task_id is not None:
        return None
    meaning = result.detail_fields.get("returnCodeInterpretation")
    if meaning is not None:
        return _SPECIAL_EXITS.get(meaning) if isinstance(meaning, str) else None
    # A command that fails is marked as an error: what says that it is none ended with 0.
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
    """A unified diff without file names, as the hunks of the file give it."""
    if not isinstance(hunks, list):
        return None
    lines: list[str] = []
    for hunk in hunks:
        if isinstance(hunk, dict) and isinstance(hunk.get("lines"), list):
            at = [hunk.get(name) for name in ("oldStart", "oldLines", "newStart", "newLines")]
            lines.append("@@ -{},{} +{},{} @@".format(*at))
            lines += [line for line in hunk["lines"] if isinstance(line, str)]
    return "\n".join(lines) or None


def with_line_range(event: AnyEvent, given: Mapping[str, Any] | None) -> AnyEvent:
    """A read with the lines that it asks for: all that is known of one that fails."""
    if not isinstance(event, Read) or not given:
        return event
    first, most = non_negative_int(given.get("offset")), non_negative_int(given.get("limit"))
    last = None if most is None else (first or 1) + most - 1
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
    """The text of a content; blocks without one are named by their type."""
    return content_text(content, lambda block: f"[{block.get('type')}]")


def patch_from_replacements(edits: list[Any]) -> str:
    """Several replacements of one call as a patch without places."""
    hunks = []
    for edit in edits:
        if isinstance(edit, dict):
            old, new = (str(edit.get(name) or "") for name in ("old_string", "new_string"))
            hunks += ["@@", *(f"-{line}" for line in old.splitlines())]
            hunks += [f"+{line}" for line in new.splitlines()]
    return "\n".join(hunks)


def format_user_answers(fields: Any) -> str | None:
    """The user's answers, each with its question where there are several."""
    answers = fields.get("answers")
    if not isinstance(answers, dict) or not answers:
        return None
    if len(answers) == 1:
        return str(next(iter(answers.values())))
    return "\n".join(f"{question}: {answer}" for question, answer in answers.items())


def usage_from_claude(
    given: dict[str, Any], output: int | None, cost: float | None = None
) -> Usage:
    """Tokens of one message. A provider that says 0 for everything has not counted."""
    fresh = non_negative_int(given.get("input_tokens"))
    read = non_negative_int(given.get("cache_read_input_tokens"))
    written = non_negative_int(given.get("cache_creation_input_tokens"))
    if not (fresh or read or written):
        fresh = read = written = None
    return make_usage(fresh, output or None, read=read, write=written, cost=cost or None)


def non_negative_int(value: Any) -> int | None:
    """A count that can be one."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53:
        return value
    return None
