"""What the tools of Cline's own runtime do: several files or commands in one call."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from shlex import join
from typing import Any, NamedTuple

from closeloop.records.trace import AnyEvent, Command
from closeloop.traces.tool_calls import result_fields
from closeloop.traces.untrusted_json import (
    as_list,
    as_mapping,
    as_text,
    json_excerpt,
    try_decode_json,
)

_EXIT = re.compile(r"\[?Command exited with code (-?\d{1,9})\]?")
_FILES_KEYS = ("files", "file_paths", "paths")


class ClineOperationResult(NamedTuple):
    """What came of one file or command."""

    ok: bool
    text: str


def parse_commands(told: Mapping[str, Any]) -> list[str]:
    """The lines of a `run_commands`."""
    listed_commands = told.get("commands", told.get("command", told.get("cmd")))
    lines = []
    for one in listed_commands if isinstance(listed_commands, list) else [listed_commands]:
        command_fields = as_mapping(one)
        if isinstance(one, str):
            lines.append(one)
        elif program := as_text(command_fields.get("command")):
            rest = [word for word in as_list(command_fields.get("args")) if isinstance(word, str)]
            lines.append(" ".join([program, join(rest)]).strip())
    return lines


def parse_file_paths(told: Mapping[str, Any]) -> list[str]:
    """The paths of a `read_files`."""
    listed_files = next((told[name] for name in _FILES_KEYS if name in told), told)
    each = listed_files if isinstance(listed_files, list) else [listed_files]
    named = [as_mapping(one).get("path", one) for one in each]
    return [path for path in named if isinstance(path, str)]


def parse_operation_results(content: Any) -> Sequence[ClineOperationResult]:
    """The results that a call brings, in the order of what was asked; none for other results."""
    entries = (
        try_decode_json(content) if isinstance(content, str) and content[:1] in "[{" else content
    )
    each = [as_mapping(one) for one in (entries if isinstance(entries, list) else [entries])]
    if not each or not all(isinstance(one.get("success"), bool) for one in each):
        return ()
    return [ClineOperationResult(one["success"], _operation_text(one)) for one in each]


def _operation_text(one: Mapping[str, Any]) -> str:
    result_value = one.get("result")
    parts = [as_mapping(part).get("text") for part in as_list(result_value)]
    said = "\n".join(part for part in parts if isinstance(part, str))
    said = (
        result_value
        if isinstance(result_value, str)
        else said or (json_excerpt(result_value) if result_value else "")
    )
    return said or as_text(one.get("error")) or ""


def operation_fields(event: AnyEvent, done: ClineOperationResult) -> dict[str, object]:
    """The fields that a result gives its event."""
    event_fields = result_fields(event, done.text, done.ok)
    if isinstance(event, Command):
        # What went well is the command's own output; else the exit code stands before it.
        stated = None if done.ok else _EXIT.match(done.text)
        code = 0 if done.ok else int(stated[1]) if stated else None
        event_fields |= {"exit_code": code, "exit_from": None if code is None else "parsed"}
    return event_fields
