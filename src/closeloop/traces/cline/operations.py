"""What the tools of Cline's own runtime do: several files or commands in one call."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from shlex import join
from typing import Any, NamedTuple

from closeloop.model.trace import AnyEvent, Command
from closeloop.traces.results import result_of
from closeloop.traces.untrusted import decoded, items, mapping, raw, text

_EXIT = re.compile(r"\[?Command exited with code (-?\d{1,9})\]?")
_FILES = ("files", "file_paths", "paths")


class Operation(NamedTuple):
    """What came of one file or command."""

    ok: bool
    text: str


def commands(told: Mapping[str, Any]) -> list[str]:
    """The lines of a `run_commands`."""
    given = told.get("commands", told.get("command", told.get("cmd")))
    lines = []
    for one in given if isinstance(given, list) else [given]:
        words = mapping(one)
        if isinstance(one, str):
            lines.append(one)
        elif program := text(words.get("command")):
            rest = [word for word in items(words.get("args")) if isinstance(word, str)]
            lines.append(" ".join([program, join(rest)]).strip())
    return lines


def files(told: Mapping[str, Any]) -> list[str]:
    """The paths of a `read_files`."""
    given = next((told[name] for name in _FILES if name in told), told)
    each = given if isinstance(given, list) else [given]
    named = [mapping(one).get("path", one) for one in each]
    return [path for path in named if isinstance(path, str)]


def operations(content: Any) -> Sequence[Operation]:
    """The results that a call brings, in the order of what was asked; none for other results."""
    told = decoded(content) if isinstance(content, str) and content[:1] in "[{" else content
    each = [mapping(one) for one in (told if isinstance(told, list) else [told])]
    if not each or not all(isinstance(one.get("success"), bool) for one in each):
        return ()
    return [Operation(one["success"], _words(one)) for one in each]


def _words(one: Mapping[str, Any]) -> str:
    given = one.get("result")
    parts = [mapping(part).get("text") for part in items(given)]
    said = "\n".join(part for part in parts if isinstance(part, str))
    said = given if isinstance(given, str) else said or (raw(given) if given else "")
    return said or text(one.get("error")) or ""


def finished(event: AnyEvent, done: Operation) -> dict[str, object]:
    """The fields that a result gives its event."""
    more = result_of(event, done.text, done.ok)
    if isinstance(event, Command):
        # What went well is the command's own output; else the exit code stands before it.
        stated = None if done.ok else _EXIT.match(done.text)
        code = 0 if done.ok else int(stated[1]) if stated else None
        more |= {"exit_code": code, "exit_from": None if code is None else "parsed"}
    return more
