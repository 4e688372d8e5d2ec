"""What the built-in agent can do: every tool is a function that records what it does."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from closeloop.agents.trace_recorder import (
    LaneRecorder,
    RecordedAction,
    replace_surrogates,
    shorten_middle,
)
from closeloop.records.attempt import Exit
from closeloop.records.chat import ModelToolCall, ToolSpec
from closeloop.records.errors import MachineFailed, unknown_name_error
from closeloop.records.protocols import Assignment
from closeloop.records.record import Record
from closeloop.records.trace import Command, Edit, Handoff, Read, ToolUse

# The tools as the model is told of them, and what a call of one must look like.

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


MAX_FILE_BYTES = 1_000_000
"""Bytes of a file that is read or edited."""
SHORTAGE_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""What the machine lacks is no fault of the agent."""
MAX_MATCHES = 200
MAX_MATCH_CHARS = 300
NO_ANSWER = "No answer is available; decide yourself and say what you assumed."


class LaneEnding(Record):
    """How a lane ended."""

    exit: Exit
    cause: str | None = None
    summary: str | None = None


class ToolInvocation(Record):
    """One use of a tool: by which lane, for which call, on what."""

    assignment: Assignment
    lane: LaneRecorder
    call: str
    converse: Callable[[LaneRecorder, str], Awaitable[LaneEnding]]
    """Let a sub-agent work in its lane on a brief."""

    @contextmanager
    def record_action(self, kind: type[RecordedAction], **known: Any) -> Iterator[dict[str, Any]]:
        """Record what is done to the workspace; what the system refuses is the agent's to mend."""
        with self.lane.record_action(kind, call=self.call, **known) as result:
            try:
                yield result
            except OSError as error:
                why = error.strerror or str(error)
                if error.errno in SHORTAGE_ERRNOS:
                    raise MachineFailed(
                        f"{why}: make room, or run fewer attempts at once."
                    ) from error
                raise ToolFailed(why) from error


async def run(use: ToolInvocation, command: str, seconds: float | None = None) -> str:
    if seconds is not None:
        seconds = min(seconds, use.assignment.limits.command_seconds)
    with use.record_action(Command, command=command) as result:
        ran = await use.assignment.cage.run(command, seconds=seconds)
        output = replace_surrogates(ran.output)
        result.update(output=shorten_middle(output), stopped=ran.stopped)
        if ran.exit_code is not None:
            result.update(exit_code=ran.exit_code, exit_from="stated")
    if ran.exit_code is None:
        raise ToolFailed(f"no exit code: stopped, {ran.stopped or 'by the machine'}\n{output}")
    return f"exit code {ran.exit_code}\n{output}"


async def read(
    use: ToolInvocation, path: str, first_line: int | None = None, last_line: int | None = None
) -> str:
    with use.record_action(Read, path=path, first_line=first_line, last_line=last_line) as result:
        content = await use.assignment.cage.read(path, MAX_FILE_BYTES)
        if b"\0" in content:
            raise ToolFailed(f"{path} is not text: {len(content)} bytes.")
        text = content.decode("utf-8", "replace")
        if first_line is not None or last_line is not None:
            text = _select_lines(path, text, first_line or 1, last_line)
        result.update(text=shorten_middle(text), ok=True)
    return text or "(the file is empty)"


async def write(use: ToolInvocation, path: str, text: str) -> str:
    before, action = await _read_before_write(use, path)
    with use.record_action(Edit, path=path, action=action, before=before, after=text) as result:
        await use.assignment.cage.write(path, text.encode())
        result.update(ok=True)
    return f"{path} {'created' if action == 'create' else 'replaced'}."


async def edit(use: ToolInvocation, path: str, old: str, new: str) -> str:
    cage = use.assignment.cage
    with use.record_action(Edit, path=path, before=old, after=new) as result:
        try:
            text = (await cage.read(path, MAX_FILE_BYTES)).decode()
        except UnicodeDecodeError as error:
            raise ToolFailed(f"{path} is not UTF-8 text: change it with a command.") from error
        if not old or old == new:
            raise ToolFailed("old must not be empty, and new must differ from it.")
        if (count := text.count(old)) != 1:
            raise ToolFailed(
                f"old occurs {count} times in {path}, not once: read the file again and give the "
                f"passage exactly as it stands, with enough around it to be unique."
            )
        await cage.write(path, text.replace(old, new).encode())
        result.update(ok=True)
    return f"{path} changed."


async def search(use: ToolInvocation, pattern: str, path: str = ".") -> str:
    arguments = {"pattern": pattern, "path": path}
    grep = ["grep", "-rnIE", "--null", "--exclude-dir=.git", "-e", pattern, "--", path]
    with use.record_action(ToolUse, name="search", arguments=arguments) as result:
        ran = await use.assignment.cage.run(grep)
        output = shorten_middle(_format_matches(replace_surrogates(ran.output)))
        if ran.exit_code not in (0, 1):
            raise ToolFailed(f"The search failed: {ran.stopped or output}")
        result.update(output=output, ok=True)
    return output


async def ask(use: ToolInvocation, question: str) -> str:
    use.lane.add_message("agent", question, "question", use.call)
    answer = use.assignment.answer(question)
    if answer:
        use.lane.add_message("user", answer, "answer", use.call)
    else:
        use.lane.add_message("system", NO_ANSWER, "answer", use.call)
    return answer or NO_ANSWER


async def delegate(use: ToolInvocation, brief: str) -> str:
    child = use.lane.recorder.open_lane(use.lane.id)
    with use.lane.record_action(Handoff, call=use.call, brief=brief, child=child.id) as result:
        ending = await use.converse(child, brief)
        result.update(report=ending.summary, ok=ending.exit == "finished")
    if ending.cause is not None:
        child.add_note(ending.cause, about=ending.exit)
        raise ToolFailed(f"The sub-agent gave up. {ending.summary or ending.cause}")
    return ending.summary or "(the sub-agent finished without a report)"


async def finish(use: ToolInvocation, summary: str, done: bool = True) -> LaneEnding:
    use.lane.add_message("agent", summary, "claim" if done else None, use.call)
    if done:
        return LaneEnding(exit="finished", summary=summary)
    return LaneEnding(
        exit="gave_up", cause="the agent said that it could not do it", summary=summary
    )


TOOL_FUNCTIONS: Mapping[str, Callable[..., Awaitable[str | LaneEnding]]] = {
    tool.__name__: tool for tool in (run, read, write, edit, search, ask, delegate, finish)
}


def _select_lines(path: str, text: str, first: int, last: int | None) -> str:
    lines = text.removesuffix("\n").split("\n")
    if first > len(lines) or (last is not None and last < first):
        raise ToolFailed(f"{path} has {len(lines)} lines: there are none from {first} to {last}.")
    return "\n".join(lines[first - 1 : last])


async def _read_before_write(use: ToolInvocation, path: str) -> tuple[str | None, str]:
    """What a file holds before it is written, where that is text, and what writing it is."""
    try:
        return (await use.assignment.cage.read(path, MAX_FILE_BYTES)).decode(), "change"
    except FileNotFoundError:
        return None, "create"
    except (OSError, UnicodeDecodeError):
        return None, "change"


def _format_matches(output: str) -> str:
    """grep's `path NUL line:text` as `path:line: text`, the first of them."""
    lines = output.removesuffix("\n").split("\n")
    shown_lines = []
    for line in lines[:MAX_MATCHES]:
        path, separator, rest = line.partition("\0")
        number, _, text = rest.partition(":")
        match_line = f"{path.removeprefix('./')}:{number}: {text}" if separator else line
        shown_lines.append(match_line[:MAX_MATCH_CHARS])
    if len(lines) > MAX_MATCHES:
        shown_lines.append(
            f"[… {len(lines) - MAX_MATCHES} more lines left out: narrow the search …]"
        )
    return "\n".join(shown_lines) or "No match."
