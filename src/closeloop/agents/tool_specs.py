"""The tools as the model is told of them, and what a call of one must look like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from closeloop.records.chat import ModelToolCall, ToolSpec
from closeloop.records.errors import unknown_name_error

JSON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
SYSTEM_PARAMETERS = ("command", "path", "pattern")
"""Parameters that reach the operating system, where NUL ends a text."""


class ToolFailed(Exception):
    """A tool could not do what the agent asked: the agent's to mend, so the agent is told."""


def _build_tool_spec(
    name: str, description: str, *, optional: str = "", **parameters: str
) -> ToolSpec:
    """Parameters are `name="type: description"`."""
    properties = {}
    for parameter, text in parameters.items():
        kind, _, meaning = text.partition(": ")
        properties[parameter] = {"type": kind, "description": meaning}
    return ToolSpec(
        name=name,
        description=description,
        parameters={
            "type": "object",
            "properties": properties,
            "required": [name for name in parameters if name not in optional.split()],
            "additionalProperties": False,
        },
    )


TOOL_SPECS = (
    _build_tool_spec(
        "run",
        "Run a shell command at the root of the repository. Gives its exit code, then what it "
        "printed, standard output and error together. Every command starts in a fresh shell.",
        optional="seconds",
        command="string: The command line.",
        seconds="number: Stop it after this many seconds.",
    ),
    _build_tool_spec(
        "read",
        "Read a text file, or some lines of it.",
        optional="first_line last_line",
        path="string: The file, relative to the root of the repository.",
        first_line="integer: The first line to show, from 1.",
        last_line="integer: The last line to show.",
    ),
    _build_tool_spec(
        "write",
        "Create a file, or replace all of it. Folders above it are made.",
        path="string: The file, relative to the root of the repository.",
        text="string: The whole content.",
    ),
    _build_tool_spec(
        "edit",
        "Replace one passage of a file.",
        path="string: The file, relative to the root of the repository.",
        old="string: The passage, exactly as it stands in the file; it must occur exactly once.",
        new="string: What takes its place.",
    ),
    _build_tool_spec(
        "search",
        "Find lines in files by an extended regular expression. Gives `path:line: text`.",
        optional="path",
        pattern="string: The regular expression, as for `grep -E`.",
        path="string: A file or folder to search; the whole repository when left out.",
    ),
    _build_tool_spec(
        "ask",
        "Ask the user a question, when the request lacks a decision that only they can make.",
        question="string: One clear question.",
    ),
    _build_tool_spec(
        "delegate",
        "Hand a part of the work to a sub-agent and get its report. It works in the same "
        "files but knows nothing of this conversation.",
        brief="string: All that it must know: the goal, the facts and limits that hold, the files, "
        "how to check the work, what to report.",
    ),
    _build_tool_spec(
        "finish",
        "End the work.",
        optional="done",
        summary="string: What was done, how it was checked, and what remains open.",
        done="boolean: False when the request could not be fulfilled.",
    ),
)
TOOLS: Mapping[str, ToolSpec] = {spec.name: spec for spec in TOOL_SPECS}
CHILD_TOOLS: Mapping[str, ToolSpec] = {
    name: spec for name, spec in TOOLS.items() if name != "delegate"
}


def check_call_arguments(call: ModelToolCall, tools: Mapping[str, ToolSpec]) -> dict[str, Any]:
    """The call's arguments; ToolFailed says what is wrong with them and what is expected."""
    if call.name not in tools:
        raise ToolFailed(str(unknown_name_error("tool", call.name, tools)))
    spec = tools[call.name]
    arguments = {name: value for name, value in call.arguments.items() if value is not None}
    if call.malformed is not None:
        trouble: str | None = f"its arguments were not a JSON object: {call.malformed}"
    else:
        trouble = _find_argument_fault(arguments, spec)
    if trouble:
        raise ToolFailed(f"This call was not run: {trouble}.\n{_describe_tool_usage(spec)}")
    return arguments


def _find_argument_fault(arguments: dict[str, Any], spec: ToolSpec) -> str | None:
    properties = spec.parameters["properties"]
    for name in spec.parameters["required"]:
        if name not in arguments:
            return f"{name!r} is missing"
    for name, value in arguments.items():
        if name not in properties:
            return f"it has no parameter {str(name)[:100]!r}"
        kind = properties[name]["type"]
        if not _is_of_type(kind, value):
            return f"{name!r} must be of type {kind}"
        if kind in ("integer", "number") and not 0 < value < 1e9:
            return f"{name!r} must be more than 0 and less than a billion"
        if name in SYSTEM_PARAMETERS and "\0" in value:
            return f"{name!r} must not contain a NUL character"
    return None


def _is_of_type(kind: str, value: object) -> bool:
    """JSON's types, where true is no number."""
    return isinstance(value, JSON_TYPES[kind]) and isinstance(value, bool) == (kind == "boolean")


def _describe_tool_usage(spec: ToolSpec) -> str:
    """`read takes path (string), first_line (integer, optional).`"""
    required = spec.parameters["required"]
    parameters = (
        f"{name} ({value['type']}{'' if name in required else ', optional'})"
        for name, value in spec.parameters["properties"].items()
    )
    return f"{spec.name} takes {', '.join(parameters)}."
