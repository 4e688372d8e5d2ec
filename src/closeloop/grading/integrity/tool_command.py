"""Take apart a shell line that calls `go test` or `cargo test`, to call it with other arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator

from closeloop.grading.testing.runner_instrumentation import ShellWord, simple_commands
from closeloop.records.record import Record

_STATE = frozenset({"cd", "export", "source", ".", "set", "unset", "ulimit", "umask", "shopt"})
_ASSIGNMENT = re.compile(r"\w+=.*", re.DOTALL)
_REDIRECTION = re.compile(r"(\d*|&)(>>?|<)(&?[^<>]*)", re.DOTALL)


class ToolCall(Record):
    """A call of a program as its shell line has it."""

    setup: tuple[str, ...] = ()
    """Commands before it that change the shell it runs in, such as `cd backend`."""
    start: str
    """Variables, launchers, program and subcommand: `CGO_ENABLED=0 go test`."""
    arguments: tuple[str, ...] = ()
    """As they are quoted in the line; no redirections."""


def find_tool_call(command: str, program: str) -> ToolCall:
    """Return the line's first call of the program's tests; a bare call where none is seen."""
    setup = list[str]()
    for words in simple_commands(command):
        at = _find_subcommand(words, program)
        if at is not None:
            return ToolCall(
                setup=tuple(setup),
                start=command[words[0].start : words[at].end],
                arguments=tuple(_list_arguments(command, words[at + 1 :])),
            )
        if words[0].text in _STATE or all(_ASSIGNMENT.fullmatch(word.text) for word in words):
            setup.append(command[words[0].start : words[-1].end])
    return ToolCall(setup=tuple(setup), start=f"{program} test")


def _find_subcommand(words: list[ShellWord], program: str) -> int | None:
    """Where `test` stands: behind the program and a toolchain such as `+nightly`."""
    for at, word in enumerate(words):
        if word.text.rpartition("/")[2] == program:
            following = at + 1
            while following < len(words) and words[following].text.startswith("+"):
                following += 1
            is_test = following < len(words) and words[following].text in ("test", "t")
            return following if is_test else None
    return None


def _list_arguments(command: str, words: list[ShellWord]) -> Iterator[str]:
    target_follows = False
    for word in words:
        text = command[word.start : word.end]
        redirection = _REDIRECTION.fullmatch(text)
        if redirection is not None:
            target_follows = not redirection[3]
        elif target_follows:
            target_follows = False
        else:
            yield text


def split_option(argument: str) -> tuple[str, bool]:
    """Return an option's name without dashes, and whether its value is part of the argument."""
    name, equals, _ = argument.partition("=")
    return name.lstrip("-"), bool(equals)
