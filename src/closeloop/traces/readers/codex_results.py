"""Results of Codex's calls: outputs in all shapes, ends from events, scripts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from closeloop.records.trace import Command, Edit, Handoff, Message, Read, ToolUse
from closeloop.text.untrusted import clean_unicode
from closeloop.traces import tool_calls
from closeloop.traces.readers.codex_lane import CodexLane
from closeloop.traces.session_builder import UNPAIRED_RESULT
from closeloop.traces.tool_calls import command_argument, find_exit_code
from closeloop.traces.untrusted_json import (
    as_amount,
    as_exit_code,
    as_list,
    as_mapping,
    content_text,
    json_excerpt,
    try_decode_json,
)

# Scripts of Codex's code mode: one that only runs a command is that command.


_MAX_SCRIPT_EVENTS = 50
"""Events back in which the script of a command is sought."""
MAX_SCRIPT_CHARS = 100_000
_CALL = re.compile(r"\btools\.(?:exec_command|shell_command)\(\s*\{")
_FIELD = re.compile(
    r"""\b(cmd|command|workdir)["']?\s*:\s*"""
    r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`)""",
    re.DOTALL,
)
_OUTPUT = re.compile(r"Script (?:completed|failed)\n(?:Wall time [\d.]+ seconds\n)?Output:\n+")


def add_script_command(lane: CodexLane, event: ToolUse, text: str) -> None:
    """Add the command of a script, in versions without an event of its end."""
    script_command = parse_script_command((event.arguments or {}).get("input"))
    if script_command is None or strip_script_header(text) is None:
        return
    command = _script_as_command(lane, event, script_command)
    finish_script_command(lane, command, text)


def _script_as_command(lane: CodexLane, event: ToolUse, fields: Mapping[str, str]) -> Command:
    """A script that only runs a command is that command: one event."""
    command = Command(
        number=event.number,
        lane=event.lane,
        turn=event.turn,
        at=event.at,
        call=event.call,
        command=lane.builder.truncate_text(fields["cmd"]),
        directory=fields.get("workdir"),
    )
    lane.builder.replace_event(command)
    lane.script_commands.add(event.number)
    return command


def finish_script_command(lane: CodexLane, event: Command, text: str) -> None:
    """A script's output is its command's, unless an event reported it before."""
    printed = strip_script_header(text)
    if event.output is not None or printed is None:
        return
    fields = as_mapping(try_decode_json(printed)) if printed.startswith("{") else {}
    output, code = fields.get("output"), as_exit_code(fields.get("exit_code"))
    event_fields: dict[str, Any] = {"output": output if isinstance(output, str) else printed}
    if event.exit_from is None and code is not None:
        event_fields |= {"exit_code": code, "exit_from": "parsed"}
    lane.builder.finish(event, **event_fields)


def find_script(lane: CodexLane, command: str) -> list[int] | None:
    """Return the script that only runs a command whose end is reported."""
    for event in reversed(lane.builder.events[-_MAX_SCRIPT_EVENTS:]):
        if event.lane != lane.name:
            continue
        if isinstance(event, Command) and event.number in lane.script_commands:
            if event.command == command and event.exit_from != "stated":
                return [event.number]
        elif isinstance(event, ToolUse) and event.name == "exec":
            fields = parse_script_command((event.arguments or {}).get("input"))
            if fields is not None and fields["cmd"] == command:
                return [_script_as_command(lane, event, fields).number]
    return None


def parse_script_command(script: object) -> dict[str, str] | None:
    """Return the command of a script that does nothing else."""
    if not isinstance(script, str) or len(script) > MAX_SCRIPT_CHARS or script.count("tools.") != 1:
        return None
    call = _CALL.search(script)
    if call is None:
        return None
    fields: dict[str, str] = {}
    for name, literal in _FIELD.findall(script, call.end()):
        value = _parse_js_string(literal)
        if value is not None:
            fields.setdefault("cmd" if name == "command" else name, value)
    return fields if "cmd" in fields else None


def _parse_js_string(literal: str) -> str | None:
    """Parse a JavaScript string; None for one that is composed at run time."""
    quote, body = literal[0], literal[1:-1]
    if quote == "`" and "${" in body:
        return None
    if quote != '"':
        body = re.sub(r'\\(.)|"', _escape_for_json, body, flags=re.DOTALL)
    try:
        value = json.loads(f'"{body}"', strict=False)
    except ValueError:
        return None
    return clean_unicode(value) if isinstance(value, str) else None


def _escape_for_json(match: re.Match[str]) -> str:
    if match[1] is None:
        return '\\"'
    return match[1] if match[1] in "'`" else match[0]


def strip_script_header(output: str) -> str | None:
    """Return a script's output; None if it is not one's."""
    header = _OUTPUT.match(output)
    return output[header.end() :] if header else None


_PATCH_SUCCESS_MARKER = "Success. Updated the following files"
_HEADER_PREFIXES = ("Chunk ID: ", "Command: ", "Exit code: ", "Wall time: ")
_HEADER = re.compile(
    r"(?:Chunk ID: \w*\n)?(?:Exit code: (?P<early>-?\d{1,10})\n)?"
    r"Wall time: (?P<seconds>[\d.]{1,20}) seconds\n"
    r"(?:Process exited with code (?P<late>-?\d{1,10})\n)?"
    r"(?:Process running with session ID (?P<session>\d{1,20})\n)?"
    r"(?:Original token count: \d+\n)?(?:Total output lines: \d+\n)?(?:Output:\n|\Z)"
)
_SANDBOX_DENIAL = re.compile(r"failed in sandbox \w{1,40} with execution error: [^,\n]{1,80}, "
                     r"exit code: (-?\d{1,10}),")  # fmt: skip
_TIMED_OUT = "command timed out after "
_ABORTED = "aborted by user after "
_REJECTED = ("exec command rejected by user", "patch rejected by user", "rejected by user")


def apply_output(lane: CodexLane, call: Any, content: Any) -> None:
    """Add a result to the oldest call with this id that has none."""
    lane.end_turn()
    output = parse_codex_output(content)
    group, is_repeated = lane.close_call(call)
    if not group:
        lane.add_note(output.text, UNPAIRED_RESULT)
        return
    text = lane.builder.truncate_text(output.text)
    if output.stop_reason == "rejected":
        lane.add_incoming_message(text, "user", "correction")
    for number in group:
        if is_repeated:
            _append_output(lane, number, text)
        else:
            _finish_call(lane, number, output, text)


def _append_output(lane: CodexLane, number: int, text: str) -> None:
    """Append output of a script before it ends."""
    event = lane.event_at(number)
    if isinstance(event, ToolUse | Command):
        before = f"{event.output}\n" if event.output else ""
        lane.builder.finish(event, output=lane.builder.truncate_text(before + text))


def _finish_call(lane: CodexLane, number: int, output: CodexOutput, text: str) -> None:
    event = lane.event_at(number)
    finish = lane.builder.finish
    match event:
        case Command() if number in lane.script_commands:
            finish_script_command(lane, event, text)
        case Command():
            _finish_command(lane, event, output, text)
        case Edit():
            ok = _patch_success(output) if event.ok is None else event.ok
            finish(event, ok=ok, error=text if ok is False else None)
        case Read():
            failed = output.ok is False
            read_fields = {"error": text} if failed else {"text": text}
            finish(event, ok=output.ok, **read_fields)
        case Handoff():
            _finish_handoff(lane, number, text)
        case Message():
            finish(event)
            _add_answer(lane, text)
        case ToolUse():
            finish(event, output=text, ok=_script_success(output) if event.ok is None else event.ok)
            _apply_tool_use(lane, event, output, text)


def _apply_tool_use(lane: CodexLane, event: ToolUse, output: CodexOutput, text: str) -> None:
    """Apply what a tool's result says about other calls."""
    if event.name == "exec":
        add_script_command(lane, event, text)
    elif event.name == "write_stdin":
        _continue_process(lane, (event.arguments or {}).get("session_id"), output)
    elif text.startswith("{") and event.name.endswith(("wait_agent", "wait")):
        for agent, status in as_mapping(as_mapping(try_decode_json(text)).get("status")).items():
            lane.handoffs.add_status(agent, status)


def _script_success(output: CodexOutput) -> bool | None:
    if output.ok is None and output.text.startswith(("Script completed\n", "Script failed\n")):
        return output.text.startswith("Script completed")
    return output.ok


def _finish_command(lane: CodexLane, event: Command, output: CodexOutput, text: str) -> None:
    event_fields: dict[str, Any] = {"output": text}
    if event.exit_from is None:
        event_fields |= {"exit_code": output.exit_code, "exit_from": output.exit_from}
    if event.seconds is None and output.session is None:
        event_fields["seconds"] = output.seconds
    if stopped := output.stop_reason:
        event_fields["stopped"] = stopped
    lane.builder.finish(event, **event_fields)
    if output.session is not None and event.exit_from is None:
        lane.add_process(event.number, output.session, output.text)


def _continue_process(lane: CodexLane, session: Any, output: CodexOutput) -> None:
    """Append the output of a process that its command left running."""
    number = lane.process_command(session)
    command = None if number is None else lane.event_at(number)
    if number is None or not isinstance(command, Command):
        return
    lane.add_process_output(number, output.text)
    if output.exit_code is not None:
        if command.exit_from is None:
            exit_fields = {"exit_code": output.exit_code, "exit_from": output.exit_from}
            lane.builder.finish(command, **exit_fields)
        lane.end_process(number)


def _patch_success(output: CodexOutput) -> bool | None:
    if output.exit_code is not None:
        return output.exit_code == 0
    if output.ok is not None:
        return output.ok
    if _PATCH_SUCCESS_MARKER in output.text[:2000]:
        return True
    start = output.text[:200].lower()
    return False if "fail" in start or "error" in start or "rejected" in start else None


def _finish_handoff(lane: CodexLane, number: int, text: str) -> None:
    reply = try_decode_json(text) if text.startswith("{") else None
    agent, path = as_mapping(reply).get("agent_id"), as_mapping(reply).get("task_name")
    if isinstance(agent, str):
        lane.handoffs.assign_thread(number, agent, path)
    elif isinstance(path, str):
        lane.handoffs.assign_path(number, path)
    elif not isinstance(reply, dict):
        lane.handoffs.mark_refusal(number, text)
    lane.builder.finish(lane.event_at(number))


def _add_answer(lane: CodexLane, text: str) -> None:
    reply = as_mapping(try_decode_json(text)) if text.startswith("{") else {}
    answers = as_mapping(reply.get("answers"))
    if not answers:
        lane.add_note(text, "a question without an answer")
        return
    choices = [
        choice
        for answer in answers.values()
        for choice in as_list(
            as_mapping(answer).get("answers") if isinstance(answer, dict) else answer
        )
    ]
    lane.add_incoming_message(
        "\n".join(choice for choice in choices if isinstance(choice, str)), "user", "answer"
    )


def apply_command_end(lane: CodexLane, call: Any, record: Mapping[str, Any]) -> None:
    """Apply the end of a process from an event: for a call, or for a script's command."""
    group = lane.call_events(call)
    raw_output = record.get("aggregated_output") or record.get("stdout") or ""
    output = raw_output if isinstance(raw_output, str) else ""
    if record.get("source") == "user_shell":
        lane.add_note(f"{command_argument(record)}\n{output}", "the user's own command")
        return
    if group is None:
        directory = record.get("cwd")
        folder = directory.removeprefix("file://") if isinstance(directory, str) else None
        command = command_argument(record)
        if command is None:
            lane.add_note(json_excerpt(record), "unknown: command")
            return
        group = find_script(lane, command)
        if group is None:
            group = lane.add_script_call("exec_command", {"cmd": command, "workdir": folder}, call)
            lane.close_call(call)
    code = as_exit_code(record.get("exit_code"))
    for number in group:
        event = lane.event_at(number)
        if isinstance(event, Command):
            event_fields: dict[str, Any] = {"seconds": seconds_from_rust(record.get("duration"))}
            if code is not None:
                event_fields |= {"exit_code": code, "exit_from": "stated"}
            if event.output is None:
                event_fields["output"] = lane.builder.truncate_text(output)
            lane.builder.finish(event, **event_fields)
            if output:
                lane.end_process(number, output if event.output is not None else None)


def apply_patch_end(lane: CodexLane, call: Any, record: Mapping[str, Any]) -> None:
    """Apply the result of a patch from an event."""
    group = lane.call_events(call)
    if group is None:
        group = lane.add_script_edits(tool_calls.files_in_changes(record.get("changes")), call)
    ok = record.get("success")
    if not isinstance(ok, bool):
        ok = {"completed": True, "failed": False, "declined": False}.get(str(record.get("status")))
    error = record.get("stderr") if ok is False else None
    for number in group:
        event = lane.event_at(number)
        if isinstance(event, Edit):
            text = lane.builder.truncate_text(error) if isinstance(error, str) and error else None
            lane.builder.finish(event, ok=ok, error=text)


def apply_tool_end(lane: CodexLane, call: Any, record: Mapping[str, Any]) -> None:
    """Apply the end of an MCP call from an event."""
    group = lane.call_events(call)
    result = record.get("result") or record.get("error")
    if group is None:
        server, tool = record.get("server"), str(record.get("tool") or "tool")
        arguments = record.get("arguments")
        name = f"mcp__{server}__{tool}" if isinstance(server, str) else tool
        call_arguments = arguments if isinstance(arguments, dict) else None
        group = lane.add_script_call(name, call_arguments, call)
        lane.close_call(call)
    for number in group:
        event = lane.event_at(number)
        if isinstance(event, ToolUse):
            event_fields: dict[str, Any] = {"ok": _tool_success(record, result)}
            if event.output is None and (reply := mcp_reply_text(result)) is not None:
                event_fields["output"] = lane.builder.truncate_text(reply)
            if event.seconds is None:
                event_fields["seconds"] = seconds_from_rust(record.get("duration"))
            lane.builder.finish(event, **event_fields)


def _tool_success(record: Mapping[str, Any], result: Any) -> bool | None:
    if record.get("error"):
        return False
    if isinstance(success := record.get("success"), bool):
        return success
    outcome = as_mapping(result)
    if "Err" in outcome:
        return False
    inner = as_mapping(outcome.get("Ok")) or outcome
    failed = inner.get("isError", inner.get("is_error"))
    if isinstance(failed, bool):
        return not failed
    status = record.get("status")
    return {"completed": True, "failed": False}.get(status) if isinstance(status, str) else None


class CodexOutput(NamedTuple):
    """A result without the lines that Codex puts above it."""

    text: str
    ok: bool | None = None
    exit_code: int | None = None
    exit_from: Literal["stated", "parsed"] | None = None
    seconds: float | None = None
    session: str | None = None
    """The number under which the process still runs."""

    @property
    def stop_reason(self) -> str | None:
        """What stopped the call early, in Codex's words."""
        if self.text.strip() in _REJECTED:
            return "rejected"
        if self.text.startswith(_ABORTED):
            return "interrupted"
        return "out of time" if self.text.startswith(_TIMED_OUT) else None


def parse_codex_output(content: Any) -> CodexOutput:
    """Parse a tool's output in any of Codex's shapes."""
    ok = None
    if isinstance(content, dict):
        success = content.get("success")
        ok = success if isinstance(success, bool) else None
        content = content.get("content")
    text = content_text(content)
    if text.startswith('{"') and '"metadata"' in text:
        envelope = as_mapping(try_decode_json(text))
        metadata, inner = as_mapping(envelope.get("metadata")), envelope.get("output")
        if isinstance(inner, str) and (code := as_exit_code(metadata.get("exit_code"))) is not None:
            seconds = as_amount(metadata.get("duration_seconds"))
            return CodexOutput(inner, ok, code, "stated", seconds)
    if text.startswith(_HEADER_PREFIXES) and (head := _match_header(text)) is not None:
        code = _parse_exit_code(head["early"] or head["late"])
        exit_from: Literal["parsed"] | None = None if code is None else "parsed"
        seconds = _parse_seconds(head["seconds"])
        return CodexOutput(text[head.end() :], ok, code, exit_from, seconds, head["session"])
    denied = _SANDBOX_DENIAL.match(text)
    code = _parse_exit_code(denied[1]) if denied else find_exit_code(text)
    return CodexOutput(text, ok, code, None if code is None else "parsed")


def _match_header(text: str) -> re.Match[str] | None:
    start = 0
    if text.startswith("Command: "):
        # The command may have any number of lines.
        start = text.find("\nChunk ID: ") + 1 or text.find("\nWall time: ") + 1
    return _HEADER.match(text, start)


def _parse_exit_code(text: str | None) -> int | None:
    return as_exit_code(int(text)) if text else None


def _parse_seconds(text: str) -> float | None:
    try:
        return _plausible_seconds(as_amount(float(text)))
    except ValueError:
        return None


def seconds_from_rust(value: Any) -> float | None:
    """Parse seconds and nanoseconds as written by Rust."""
    fields = as_mapping(value)
    seconds, nanos = as_amount(fields.get("secs")), as_amount(fields.get("nanos"))
    return None if seconds is None else _plausible_seconds(seconds + (nanos or 0.0) / 1e9)


def _plausible_seconds(seconds: float | None) -> float | None:
    """Drop durations of a few microseconds, of processes that ended before Codex first looked."""
    return seconds if seconds is not None and seconds >= 0.001 else None


def mcp_reply_text(content: Any) -> str | None:
    """Return the texts or the error of an MCP tool's reply."""
    reply = as_mapping(content)
    for name in ("Ok", "ok"):
        reply = as_mapping(reply.get(name)) or reply
    failure = reply.get("Err") or reply.get("message")
    return content_text(reply.get("content")) or (failure if isinstance(failure, str) else None)
