"""Tool calls of Roo Code and Cline: written as XML inside text, their results told in words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from closeloop.model.trace import AnyEvent, Command, Edit, Handoff, Message, Read, ToolUse
from closeloop.traces.calls import Origin, event_of
from closeloop.traces.cline.operations import commands, files
from closeloop.traces.results import result_of
from closeloop.traces.texts import clean
from closeloop.traces.untrusted import decoded, items, mapping, text

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
_OPEN = re.compile(f"<({'|'.join(TOOLS)})>")
_NAMED = re.compile(r"\[(\w{1,60})")
_PARAMETER = re.compile(r"<([a-z_]{1,40}[0-9]?)>")
_GREEDY = frozenset({"content", "diff", "result", "message", "args", "arguments", "context"})
"""Parameters that may hold XML of their own: they end where their tag closes last."""
_NAMES = {"use_subagents": "subagent", "editor": "edit", "submit_and_exit": "attempt_completion"}
"""Tools under the names that other agents use for them."""
ROO = frozenset({
    "apply_diff", "codebase_search", "edit_file", "fetch_instructions", "generate_image",
    "insert_content", "read_command_output", "run_slash_command", "search_and_replace",
    "search_replace", "skill", "switch_mode", "update_todo_list", "subtask_result",
    "condense_context", "checkpoint_saved", "codebase_search_result", "user_edit_todos",
})  # fmt: skip
"""Tools and rows that only Roo Code has."""
REMINDER = re.compile(
    r"\s*(?:# (?:task_progress|TODO LIST)\b|\*\*All \d+ items have been completed"
    r"|\(The user did not provide a new message)"
)
"""How texts begin that the client adds in the user's name."""
_MODEL = re.compile(r"<model>([^<\n]{1,200})</model>")
_MODE = re.compile(r"# Current Mode\n(?:<slug>([^<\n]{1,100})</slug>|(\w+) MODE)")
_FOLDER = re.compile(r"# Current (?:Workspace|Working) Directory \((.{1,1000}?)\)")
_PATH = re.compile(r"<path>(.*?)</path>", re.DOTALL)
_RAN = re.compile(r"(?:Exit code: |exit code:? |exited with code )(-?\d{1,10})\b")
_WRITTEN = ("<file_write_result>", "successfully", "the user made the following updates to")
_FAILED = ("The tool execution failed", "Error", "<error>", "Missing value for required parameter",
           "The user denied this operation", "[ERROR]", "Failed to ")  # fmt: skip


class Call(NamedTuple):
    """A call found in text."""

    name: str
    parameters: dict[str, str]


def segments(said: str) -> Iterator[str | Call]:
    """What is said and what is called, in order."""
    position = 0
    while found := _OPEN.search(said, position):
        name = found[1]
        end = said.find(f"</{name}>", found.end())
        body = said[found.end() :] if end < 0 else said[found.end() : end]
        parameters = _parameters(body)
        if end < 0 and not parameters:
            break
        if before := said[position : found.start()].strip():
            yield before
        yield Call(name, parameters)
        position = len(said) if end < 0 else end + len(name) + 3
    if rest := said[position:].strip():
        yield rest


def _parameters(body: str) -> dict[str, str]:
    result: dict[str, str] = {}
    position = 0
    while found := _PARAMETER.search(body, position):
        close = f"</{found[1]}>"
        find = body.rfind if found[1] in _GREEDY else body.find
        end = find(close, found.end())
        if end < 0:
            result.setdefault(found[1], body[found.end() :].strip("\n"))
            break
        result.setdefault(found[1], body[found.end() : end].strip("\n"))
        position = end + len(close)
    return result


def events(name: str, given: Mapping[str, Any] | None, origin: Origin) -> list[AnyEvent]:
    """What a call starts: one event, or one for each file that is read together."""
    told = dict(given or {})
    if name == "read_file" and (paths := _paths(told)):
        return _each(name, "path", paths, origin)
    if name == "read_files" and (paths := files(told)):
        return _each("read_file", "path", paths, origin)
    if name == "run_commands" and (lines := commands(told)):
        return _each("execute_command", "command", lines, origin)
    if name == "use_mcp_tool":
        inner = told.get("arguments")
        inner = decoded(inner) if isinstance(inner, str) else inner
        return [_tool(f"{told.get('server_name')}/{told.get('tool_name')}", mapping(inner), origin)]
    if name == "plan_mode_respond" and (said := text(told.get("response"))):
        return [
            Message(
                number=origin.number, lane=origin.lane, turn=origin.turn, at=origin.at,
                call=origin.call, role="agent", text=said,
            )
        ]  # fmt: skip
    event = event_of(_NAMES.get(name, name), _plain(name, told), origin)
    silent = (isinstance(event, Message) and not event.text) or (
        isinstance(event, Handoff) and not event.brief
    )
    return [_tool(name, told, origin) if silent else event]


def _each(name: str, key: str, given: list[str], origin: Origin) -> list[AnyEvent]:
    return [
        event_of(name, {key: one}, msgspec.structs.replace(origin, number=number))
        for number, one in enumerate(given, origin.number)
    ]


def _plain(name: str, told: dict[str, Any]) -> dict[str, Any]:
    """Parameters under the names that other agents use for them."""
    match name:
        case "new_task" if not text(told.get("message")):
            return {**told, "message": text(told.get("context")) or ""}
        case "use_subagents":
            briefs = [str(value) for key, value in told.items() if key.startswith("prompt")]
            return {"prompt": "\n\n".join(briefs)}
        case "submit_and_exit":
            return {"result": told.get("summary")}
        case "insert_content":
            return {**told, "new_text": told.get("content")}
        case "apply_diff" if not text(told.get("path")) and isinstance(told.get("args"), str):
            found = _PATH.search(told["args"])
            return {"path": found[1] if found else None, "diff": told["args"]}
    return told


def _tool(name: str, given: dict[str, Any], origin: Origin) -> ToolUse:
    return ToolUse(
        number=origin.number, lane=origin.lane, turn=origin.turn, at=origin.at, call=origin.call,
        name=name, arguments=given,
    )  # fmt: skip


def _paths(told: Mapping[str, Any]) -> list[str]:
    if isinstance(told.get("args"), str):
        return [path.strip() for path in _PATH.findall(told["args"])]
    files = [mapping(file).get("path") for file in items(told.get("files"))]
    named = [path for path in files if isinstance(path, str)]
    return named or ([told["path"]] if text(told.get("path")) else [])


class Verdict(NamedTuple):
    """What a result says besides its words."""

    ok: bool | None
    denied: bool = False
    feedback: str | None = None


def verdict(output: str) -> Verdict:
    """Whether it worked, and what the user said to it."""
    told = mapping(decoded(output)) if output.startswith('{"') and len(output) < 1 << 16 else {}
    status, feedback = told.get("status"), text(told.get("feedback"))
    if status in ("denied", "approved", "error", "success"):
        return Verdict(status in ("approved", "success"), status == "denied", feedback)
    if output.startswith("The user denied this operation"):
        return Verdict(False, True)
    head = output[:400].lstrip()
    return Verdict(False if head.startswith(_FAILED) or "<error>" in head else None)


def result(event: AnyEvent, output: str, said: Verdict) -> dict[str, object]:
    """The fields that a result gives its event."""
    ok = said.ok
    if isinstance(event, Edit) and ok is None and output:
        head = output[:600].lower()
        ok = True if any(sign in head for sign in _WRITTEN) else None
    if isinstance(event, Read) and ok is None:
        ok = bool(output) or None
    more = result_of(event, output, ok)
    if isinstance(event, Command):
        # The words before the output say how it ended; the output may say anything.
        code = _ran(output[:500].partition("\nOutput:")[0])
        if code is None and output.rstrip().endswith("]"):
            code = _ran(output[-120:])
        more["exit_code"] = code
        more["exit_from"] = None if code is None else "parsed"
    if isinstance(event, Edit) and event.action == "create":
        head = output[:1000]
        if "<operation>modified</operation>" in head or "was modified" in head:
            more["action"] = "change"
    return more


def _ran(told: str) -> int | None:
    found = _RAN.search(told) if "xit" in told else None
    return int(found[1]) if found else None


def of_file(output: str, path: str) -> str:
    """The piece of a result over several files that is about one of them."""
    start = output.find(f"<path>{path}</path>")
    if start < 0:
        return output
    end = output.find("</file>", start)
    return output[start : end if end > 0 else len(output)]


class Surroundings(NamedTuple):
    """What the client says of itself beside each message."""

    model: str | None
    directory: str | None
    mode: str | None
    flavour: str


def surroundings(said: str) -> Surroundings:
    model, folder, mode = _MODEL.search(said), _FOLDER.search(said), _MODE.search(said)
    return Surroundings(
        model=clean(model[1]) if model else None,
        directory=clean(folder[1]) if folder else None,
        mode=clean(mode[1] or mode[2]) if mode else None,
        flavour="roo-code" if mode and mode[1] else "cline",
    )


def header_of(said: str) -> tuple[str, str] | None:
    """The tool a result is of, and what is said of it in the same breath."""
    named = _NAMED.match(said)
    end = said.find("] Result:") if named and not said.startswith("[new_task completed]") else -1
    return (named[1], said[end + 9 :]) if named and end > 0 else None


def blocks_of(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else items(content)


def plain_text(content: Any) -> str:
    return "\n".join(text(mapping(block).get("text")) or "" for block in blocks_of(content))
