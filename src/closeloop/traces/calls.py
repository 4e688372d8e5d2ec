"""What a tool call of any agent is: a command, an edit, a read, a handoff, a question, or other."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from operator import attrgetter
from shlex import join
from typing import Any, Literal

import msgspec

from closeloop.model.record import Record
from closeloop.model.trace import AnyEvent, Command, Edit, Handoff, Message, Read, ToolUse
from closeloop.traces.untrusted import exit_code

Kind = Literal["command", "create", "change", "read", "handoff", "question", "claim", "other"]

NAMES: dict[Kind, str] = {
    "command": """bash bash_command container.exec exec_command execute_bash execute_command
        local_shell powershell run run_command run_command_in_terminal run_in_terminal
        run_shell_command run_terminal_cmd shell shell_command terminal""",
    "create": "create create_file save_file write write_file write_to_file",
    "change": """apply_diff apply_patch edit edit_file file_editor insert_content multi_edit
        multiedit notebookedit patch replace replace_in_file search_and_replace search_replace
        str_replace str_replace_based_edit_tool str_replace_editor text_editor""",
    "read": "cat notebookread open_file read read_file read_many_files view view_file",
    "handoff": "agent delegate delegate_to_agent invoke_agent new_task spawn_agent subagent task",
    "question": """ask ask_followup_question ask_question ask_user ask_user_question askuserquestion
        question request_user_input""",
    "claim": "attempt_completion complete finish submit task_complete",
}
KINDS: dict[str, Kind] = {name: kind for kind, names in NAMES.items() for name in names.split()}

_COMMANDS = ("command", "cmd", "script", "input", "code")
_PATHS = ("file_path", "path", "filePath", "absolute_path", "notebook_path", "filename", "file",
          "target_file", "AbsolutePath", "absolutePath")  # fmt: skip
_OLD = ("old_string", "old_str", "oldString", "old_text", "search", "oldText")
_NEW = ("new_string", "new_str", "newString", "new_text", "replace", "newText",
        "new_source")  # fmt: skip
_WHOLE = ("content", "contents", "text", "file_text", "code")
_BRIEFS = ("prompt", "brief", "message", "task", "description", "instructions", "objective")
_QUESTIONS = ("question", "text", "prompt", "message", "query")
_SHELL_FLAG = re.compile(r"-[a-z]*c")
_CLAIMS = ("result", "summary", "message", "output", "answer")


class Origin(Record):
    """Where a call stands: all that events share."""

    number: int
    lane: str
    turn: int | None = None
    at: datetime | None = None
    call: str | None = None


def kind_of(name: str) -> Kind:
    """By the tool's name alone; names behind an MCP server's are looked at by their last part."""
    if (kind := KINDS.get(name)) is not None:
        return kind
    plain = name.lower().rpartition("/")[2]
    return KINDS.get(plain) or KINDS.get(plain.rpartition("__")[2]) or "other"


def event_of(name: str, arguments: Mapping[str, Any] | None, origin: Origin) -> AnyEvent:
    """The event that a call starts; its result is still to come."""
    given = arguments if isinstance(arguments, dict) else {}
    base: dict[str, Any] = msgspec.structs.asdict(origin)
    kind = kind_of(name)
    if name == "exec" and isinstance(given.get("command"), str):
        # Others have a tool of this name that takes a script.
        kind = "command"
    path = text_in(given, _PATHS) if kind in ("create", "change", "read") else None
    if kind == "change" and given.get("command") in ("view", "create"):
        # One editor tool for all: it says in `command` what it does.
        kind = "read" if given["command"] == "view" else "create"
    if kind == "command" and (command := command_in(given)) is not None:
        directory = text_in(given, ("workdir", "cwd", "directory", "dir_path"))
        return Command(**base, command=command, directory=directory)
    if kind == "create" and path is not None:
        return Edit(**base, path=path, action="create", after=text_in(given, _WHOLE))
    if kind == "change" and path is not None:
        edits = given.get("edits")
        first = edits[0] if isinstance(edits, list) and edits else None
        one = first if isinstance(first, Mapping) else given
        patch = text_in(given, ("patch", "diff", "input"))
        return Edit(
            **base, path=path, before=text_in(one, _OLD), after=text_in(one, _NEW), patch=patch
        )
    if kind == "read" and path is not None:
        return Read(**base, path=path)
    if kind == "handoff" and (brief := text_in(given, _BRIEFS)) is not None:
        return Handoff(**base, brief=brief)
    if kind == "question" and (asked := question_in(given)) is not None:
        return Message(**base, role="agent", text=asked, intent="question")
    if kind == "claim" and (claimed := text_in(given, _CLAIMS)) is not None:
        return Message(**base, role="agent", text=claimed, intent="claim")
    return ToolUse(**base, name=name, arguments=dict(given) if arguments is not None else None)


_FACTS: dict[type[AnyEvent], Callable[[AnyEvent], tuple[object, ...]]] = {
    Command: attrgetter("output", "exit_code", "stopped"),
    Edit: attrgetter("ok", "error"),
    Read: attrgetter("ok", "text", "error"),
    ToolUse: attrgetter("ok", "output"),
    Handoff: attrgetter("ok", "report"),
}
"""What only a result tells."""


def is_done(event: AnyEvent) -> bool | None:
    """Whether the result of a call is known; None for what is no call."""
    facts_of = _FACTS.get(type(event))
    if facts_of is None:
        return None
    facts = facts_of(event)
    return facts.count(None) < len(facts)


def text_in(arguments: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """The first of these arguments that is text."""
    for name in names:
        value = arguments.get(name)
        if isinstance(value, str):
            return value
    return None


def command_in(arguments: Mapping[str, Any]) -> str | None:
    """A command line, whether given as one or as a list of words."""
    for name in _COMMANDS:
        value = arguments.get(name)
        if isinstance(value, str):
            return value
        if isinstance(value, list) and all(isinstance(word, str) for word in value):
            # `bash -lc LINE` is how many agents wrap the line they mean.
            shell = len(value) == 3 and value[0].rpartition("/")[2] in ("bash", "sh", "zsh")
            return str(value[2]) if shell and _SHELL_FLAG.fullmatch(value[1]) else join(value)
    return None


def question_in(arguments: Mapping[str, Any]) -> str | None:
    """What the user is asked: a text, or the questions of a list."""
    several = arguments.get("questions")
    if isinstance(several, list):
        texts = [text_in(one, _QUESTIONS) for one in several if isinstance(one, Mapping)]
        return "\n".join(text for text in texts if text) or None
    return text_in(arguments, _QUESTIONS)


_SAID = ("exit code", "exited with code", "[exit_code]", "<returncode>")
_OPENING = re.compile(r"(?:Error: )?Exit code:? (-?\d+)")
_EXITS = (
    re.compile(r"^Process exited with code (-?\d+)", re.MULTILINE),
    re.compile(r"^<returncode>(-?\d+)</returncode>", re.MULTILINE),
    re.compile(r"\A(?s:.*)(?:completed|exited) with exit code (-?\d+)>"),
    re.compile(r"^\[exit_code\] (-?\d+)", re.MULTILINE),
    re.compile(r"^Exit Code: (-?\d+)", re.MULTILINE),
    re.compile(
        r"^\[(?:The command completed|Command finished) with exit code (-?\d+)\.?\]", re.MULTILINE
    ),
    re.compile(r"^exit code:? (-?\d+)$", re.MULTILINE | re.IGNORECASE),
)


def exit_code_in(text: str | None) -> int | None:
    """The exit code that an output states in words an agent's tools are known to use."""
    if not text:
        return None
    edges = text if len(text) < 4000 else text[:2000] + "\n" + text[-2000:]
    lowered = edges.lower()
    if "exit" not in lowered and "<returncode>" not in lowered:
        return None
    told = _telling(edges, lowered)
    if not told:
        return None
    if found := _OPENING.match(edges):
        return exit_code(int(found[1]))
    for pattern in _EXITS:
        if found := pattern.search(told):
            return exit_code(int(found[1]))
    return None


def _telling(text: str, lowered: str) -> str:
    """The lines that may say it: outputs are long, and there are many."""
    if len(lowered) != len(text):
        return text  # a letter became two: places in one are not those in the other
    found: set[tuple[int, str]] = set()
    for words in _SAID:
        place = lowered.find(words)
        while place >= 0:
            start, end = text.rfind("\n", 0, place) + 1, text.find("\n", place)
            end = end if end >= 0 else len(text)
            found.add((start, text[start:end]))
            place = lowered.find(words, end)
    return "\n".join(line for _, line in sorted(found))
