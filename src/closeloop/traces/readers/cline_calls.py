"""Tool calls of Roo Code and Cline: XML inside text, with results in prose."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from shlex import join
from typing import Any, NamedTuple

import msgspec

from closeloop.records.trace import AnyEvent, Command, Edit, Handoff, Message, Read, ToolUse
from closeloop.text.untrusted import clean_unicode
from closeloop.text.wording import compile_lazily
from closeloop.traces.tool_calls import CallOrigin, event_from_call, result_fields
from closeloop.traces.untrusted_json import (
    as_list,
    as_mapping,
    as_text,
    json_excerpt,
    try_decode_json,
)

TOOLS = (
    "access_mcp_resource", "apply_diff", "apply_patch", "ask_followup_question",
    "attempt_completion", "browser_action", "codebase_search", "condense", "edit", "edit_file",
    "execute_command", "fetch_instructions", "generate_image", "insert_content",
    "list_code_definition_names", "list_files", "load_mcp_documentation", "new_rule", "new_task",
    "plan_mode_respond", "read_command_output", "read_file", "replace_in_file", "report_bug",
    "run_slash_command", "search_and_replace", "search_files", "search_replace", "skill",
    "summarize_task", "switch_mode", "update_todo_list", "use_mcp_tool", "use_skill",
    "use_subagents", "web_fetch", "web_search", "write_to_file",
)  # fmt: skip
_OPENING_TAG = compile_lazily(f"<({'|'.join(TOOLS)})>")
_RESULT_TOOL_NAME = compile_lazily(r"\[(\w{1,60})")
_RESULT_HEADER = compile_lazily(r"^\[\w{1,60}[^\n]*\] Result:", re.MULTILINE)
_EDIT_TOOLS = frozenset(
    {"apply_diff", "insert_content", "replace_in_file", "search_and_replace", "write_to_file"}
)
EDIT_ROW = "edit"
"""Name of edits in a view, whichever tool makes them."""
_PARAMETER = compile_lazily(r"<([a-z_]{1,40}[0-9]?)>")
_GREEDY_PARAMETERS = frozenset(
    {"content", "diff", "result", "message", "args", "arguments", "context"}
)
"""Parameters that may contain XML: they end at their last closing tag."""
_COMMON_TOOL_NAMES = {
    "use_subagents": "subagent",
    "editor": "edit",
    "submit_and_exit": "attempt_completion",
}
"""Tool names mapped to the common ones."""
ROO_ONLY_NAMES = frozenset({
    "apply_diff", "codebase_search", "edit_file", "fetch_instructions", "generate_image",
    "insert_content", "read_command_output", "run_slash_command", "search_and_replace",
    "search_replace", "skill", "switch_mode", "update_todo_list", "subtask_result",
    "condense_context", "checkpoint_saved", "codebase_search_result", "user_edit_todos",
})  # fmt: skip
"""Tools and rows that only Roo Code has."""
REMINDER = compile_lazily(
    r"\s*(?:# (?:task_progress|TODO LIST)\b|\*\*All \d+ items have been completed"
    r"|\(The user did not provide a new message)"
)
"""Beginnings of texts that the client adds in the user's name."""
_MODEL = compile_lazily(r"<model>([^<\n]{1,200})</model>")
_MODE = compile_lazily(r"# Current Mode\n(?:<slug>([^<\n]{1,100})</slug>|(\w+) MODE)")
_FOLDER = compile_lazily(r"# Current (?:Workspace|Working) Directory \((.{1,1000}?)\)")
_PATH = compile_lazily(r"<path>(.*?)</path>", re.DOTALL)
_EXIT_CODE = compile_lazily(r"(?:Exit code: |exit code:? |exited with code )(-?\d{1,10})\b")
_EDIT_SUCCESS_MARKERS = (
    "<file_write_result>",
    "successfully",
    "the user made the following updates to",
)
_FAILURE_PREFIXES = (
    "The tool execution failed",
    "Error",
    "<error>",
    "Missing value for required parameter",
    "The user denied this operation",
    "[ERROR]",
    "Failed to ",
)
_EXIT = compile_lazily(r"\[?Command exited with code (-?\d{1,9})\]?")
_FILES_KEYS = ("files", "file_paths", "paths")


class ClineCall(NamedTuple):
    """A call found in text."""

    name: str
    parameters: dict[str, str]


def split_segments(text: str) -> Iterator[str | ClineCall]:
    """Yield text and calls in order."""
    position = 0
    while tag := _OPENING_TAG.search(text, position):
        name = tag[1]
        end = text.find(f"</{name}>", tag.end())
        body = text[tag.end() :] if end < 0 else text[tag.end() : end]
        parameters = _parse_parameters(body)
        if end < 0 and not parameters:
            break
        if before := text[position : tag.start()].strip():
            yield before
        yield ClineCall(name, parameters)
        position = len(text) if end < 0 else end + len(name) + 3
    if remaining_text := text[position:].strip():
        yield remaining_text


def _parse_parameters(body: str) -> dict[str, str]:
    result: dict[str, str] = {}
    position = 0
    while tag := _PARAMETER.search(body, position):
        close = f"</{tag[1]}>"
        find = body.rfind if tag[1] in _GREEDY_PARAMETERS else body.find
        end = find(close, tag.end())
        if end < 0:
            result.setdefault(tag[1], body[tag.end() :].strip("\n"))
            break
        result.setdefault(tag[1], body[tag.end() : end].strip("\n"))
        position = end + len(close)
    return result


def events_from_cline_call(
    name: str, arguments: Mapping[str, Any] | None, origin: CallOrigin
) -> list[AnyEvent]:
    """Return the events of a call: one, or one for each file that is read together."""
    fields = dict(arguments or {})
    if name == "read_file" and (paths := _paths_to_read(fields)):
        return _events_for_values(name, "path", paths, origin)
    if name == "read_files" and (paths := parse_file_paths(fields)):
        return _events_for_values("read_file", "path", paths, origin)
    if name == "run_commands" and (lines := parse_commands(fields)):
        return _events_for_values("execute_command", "command", lines, origin)
    if name == "use_mcp_tool":
        inner = fields.get("arguments")
        inner = try_decode_json(inner) if isinstance(inner, str) else inner
        return [
            _make_tool_use(
                f"{fields.get('server_name')}/{fields.get('tool_name')}", as_mapping(inner), origin
            )
        ]
    if name == "plan_mode_respond" and (text := as_text(fields.get("response"))):
        return [
            Message(
                number=origin.number, lane=origin.lane, turn=origin.turn, at=origin.at,
                call=origin.call, role="agent", text=text,
            )
        ]  # fmt: skip
    event = event_from_call(
        _COMMON_TOOL_NAMES.get(name, name), _common_arguments(name, fields), origin
    )
    silent = (isinstance(event, Message) and not event.text) or (
        isinstance(event, Handoff) and not event.brief
    )
    return [_make_tool_use(name, fields, origin) if silent else event]


def _events_for_values(
    name: str, key: str, values: list[str], origin: CallOrigin
) -> list[AnyEvent]:
    return [
        event_from_call(name, {key: value}, msgspec.structs.replace(origin, number=number))
        for number, value in enumerate(values, origin.number)
    ]


def _common_arguments(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Rename parameters to the common names."""
    match name:
        case "new_task" if not as_text(arguments.get("message")):
            return {**arguments, "message": as_text(arguments.get("context")) or ""}
        case "use_subagents":
            briefs = [str(value) for key, value in arguments.items() if key.startswith("prompt")]
            return {"prompt": "\n\n".join(briefs)}
        case "submit_and_exit":
            return {"result": arguments.get("summary")}
        case "insert_content":
            return {**arguments, "new_text": arguments.get("content")}
        case "apply_diff" if not as_text(arguments.get("path")) and isinstance(
            arguments.get("args"), str
        ):
            path_tag = _PATH.search(arguments["args"])
            return {"path": path_tag[1] if path_tag else None, "diff": arguments["args"]}
    return arguments


def _make_tool_use(name: str, arguments: dict[str, Any], origin: CallOrigin) -> ToolUse:
    return ToolUse(
        number=origin.number, lane=origin.lane, turn=origin.turn, at=origin.at, call=origin.call,
        name=name, arguments=arguments,
    )  # fmt: skip


def _paths_to_read(arguments: Mapping[str, Any]) -> list[str]:
    if isinstance(arguments.get("args"), str):
        return [path.strip() for path in _PATH.findall(arguments["args"])]
    files = [as_mapping(file).get("path") for file in as_list(arguments.get("files"))]
    paths = [path for path in files if isinstance(path, str)]
    return paths or ([arguments["path"]] if as_text(arguments.get("path")) else [])


class ClineVerdict(NamedTuple):
    """What a result says besides its text."""

    ok: bool | None
    denied: bool = False
    feedback: str | None = None


def parse_cline_verdict(output: str) -> ClineVerdict:
    """Parse whether it succeeded, and the user's remark."""
    status_fields = (
        as_mapping(try_decode_json(output))
        if output.startswith('{"') and len(output) < 1 << 16
        else {}
    )
    status, feedback = status_fields.get("status"), as_text(status_fields.get("feedback"))
    if status in ("denied", "approved", "error", "success"):
        return ClineVerdict(status in ("approved", "success"), status == "denied", feedback)
    if output.startswith("The user denied this operation"):
        return ClineVerdict(False, True)
    head = output[:400].lstrip()
    return ClineVerdict(False if head.startswith(_FAILURE_PREFIXES) or "<error>" in head else None)


def cline_result_fields(event: AnyEvent, output: str, verdict: ClineVerdict) -> dict[str, object]:
    """Return the fields that a result fills."""
    ok = verdict.ok
    if isinstance(event, Edit) and ok is None and output:
        head = output[:600].lower()
        ok = True if any(sign in head for sign in _EDIT_SUCCESS_MARKERS) else None
    if isinstance(event, Read) and ok is None:
        ok = bool(output) or None
    event_fields = result_fields(event, output, ok)
    if isinstance(event, Command):
        # The words before the output say how it ended; the output may say anything.
        code = _parse_exit_code(output[:500].partition("\nOutput:")[0])
        if code is None and output.rstrip().endswith("]"):
            code = _parse_exit_code(output[-120:])
        event_fields["exit_code"] = code
        event_fields["exit_from"] = None if code is None else "parsed"
    if isinstance(event, Edit) and event.action == "create":
        head = output[:1000]
        if "<operation>modified</operation>" in head or "was modified" in head:
            event_fields["action"] = "change"
    return event_fields


def _parse_exit_code(text: str) -> int | None:
    match = _EXIT_CODE.search(text) if "xit" in text else None
    return int(match[1]) if match else None


def file_section(output: str, path: str) -> str:
    """Return the part of a result over several files that belongs to one of them."""
    start = output.find(f"<path>{path}</path>")
    if start < 0:
        return output
    end = output.find("</file>", start)
    return output[start : end if end > 0 else len(output)]


class ClineEnvironment(NamedTuple):
    """What the client adds about itself to each message."""

    model: str | None
    directory: str | None
    mode: str | None
    flavour: str


def parse_environment(text: str) -> ClineEnvironment:
    model, folder, mode = _MODEL.search(text), _FOLDER.search(text), _MODE.search(text)
    return ClineEnvironment(
        model=clean_unicode(model[1]) if model else None,
        directory=clean_unicode(folder[1]) if folder else None,
        mode=clean_unicode(mode[1] or mode[2]) if mode else None,
        flavour="roo-code" if mode and mode[1] else "cline",
    )


def parse_result_header(text: str) -> tuple[str, str] | None:
    """Return the tool of a result, and what is said about it on the same line."""
    match = _RESULT_TOOL_NAME.match(text)
    end = text.find("] Result:") if match and not text.startswith("[new_task completed]") else -1
    return (match[1], text[end + 9 :]) if match and end > 0 else None


def split_request_results(request: str) -> Iterator[tuple[str, str]]:
    """Yield the results of a request with their tool; kinds of edits are one tool."""
    body = request.partition("<environment_details>")[0]
    starts = [match.start() for match in _RESULT_HEADER.finditer(body)]
    for start, end in zip(starts, [*starts[1:], len(body)], strict=False):
        if (header := parse_result_header(body[start:end])) is not None:
            tool = EDIT_ROW if header[0] in _EDIT_TOOLS else header[0]
            yield tool, header[1].strip("\n")


def content_blocks(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else as_list(content)


def join_block_texts(content: Any) -> str:
    return "\n".join(
        as_text(as_mapping(block).get("text")) or "" for block in content_blocks(content)
    )


class ClineOperationResult(NamedTuple):
    """The result of one file or command."""

    ok: bool
    text: str


def parse_commands(arguments: Mapping[str, Any]) -> list[str]:
    """Return the lines of a `run_commands` call."""
    listed_commands = arguments.get("commands", arguments.get("command", arguments.get("cmd")))
    lines = []
    for command in listed_commands if isinstance(listed_commands, list) else [listed_commands]:
        command_fields = as_mapping(command)
        if isinstance(command, str):
            lines.append(command)
        elif program := as_text(command_fields.get("command")):
            command_args = [
                argument
                for argument in as_list(command_fields.get("args"))
                if isinstance(argument, str)
            ]
            lines.append(" ".join([program, join(command_args)]).strip())
    return lines


def parse_file_paths(arguments: Mapping[str, Any]) -> list[str]:
    """Return the paths of a `read_files` call."""
    listed_files = next((arguments[name] for name in _FILES_KEYS if name in arguments), arguments)
    entries = listed_files if isinstance(listed_files, list) else [listed_files]
    paths = [as_mapping(entry).get("path", entry) for entry in entries]
    return [path for path in paths if isinstance(path, str)]


def parse_operation_results(content: Any) -> Sequence[ClineOperationResult]:
    """Return the results of a call in the order of its arguments; empty for other results."""
    entries = (
        try_decode_json(content) if isinstance(content, str) and content[:1] in "[{" else content
    )
    operations = [
        as_mapping(entry) for entry in (entries if isinstance(entries, list) else [entries])
    ]
    if not operations or not all(
        isinstance(operation.get("success"), bool) for operation in operations
    ):
        return ()
    return [
        ClineOperationResult(operation["success"], _operation_text(operation))
        for operation in operations
    ]


def _operation_text(operation: Mapping[str, Any]) -> str:
    result_value = operation.get("result")
    parts = [as_mapping(part).get("text") for part in as_list(result_value)]
    text = "\n".join(part for part in parts if isinstance(part, str))
    text = (
        result_value
        if isinstance(result_value, str)
        else text or (json_excerpt(result_value) if result_value else "")
    )
    return text or as_text(operation.get("error")) or ""


def operation_fields(event: AnyEvent, result: ClineOperationResult) -> dict[str, object]:
    """Return the fields that a result fills."""
    event_fields = result_fields(event, result.text, result.ok)
    if isinstance(event, Command):
        # On success there is only the command's output; otherwise the exit code precedes it.
        exit_match = None if result.ok else _EXIT.match(result.text)
        code = 0 if result.ok else int(exit_match[1]) if exit_match else None
        event_fields |= {"exit_code": code, "exit_from": None if code is None else "parsed"}
    return event_fields
