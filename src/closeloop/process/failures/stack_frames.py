"""Frames of a stack as Python and JavaScript print them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from closeloop.process.failures.failure_collector import FailureCollector, is_foreign_path

_PYTHON_FRAME = re.compile(r'File "([^"\n]++)", line \d++(?:, in ([^\n]++))?(?:\n {4}([^\n]++))?')
_SCRIPT_FRAME = re.compile(
    r"\n *+(?:at|❯) (?:async |new )?(?:([^\s(:]++)(?: \[[^\]\n]*+\])? )?"
    r"\(?((?:node:|file:)?[^\s():]++):\d++"
)

StackFrame = tuple[str, str, str]
"""File, function and source line, `""` where they are not told."""


def parse_python_frames(text: str) -> list[StackFrame]:
    """As they are printed: the deepest last."""
    return _PYTHON_FRAME.findall(text)


def parse_script_frames(text: str) -> list[StackFrame]:
    """As they are printed: the deepest first."""
    return [(path, name, "") for name, path in _SCRIPT_FRAME.findall(text)]


def add_frames(frames: Iterable[StackFrame], found: FailureCollector) -> None:
    """What frames tell, when the deepest comes first: files, and functions of the project."""
    for path, name, _ in frames:
        found.add_path(path.removeprefix("file://"))
        if name and not is_foreign_path(path):
            found.add_symbol(name.rpartition(".")[2])


def find_origin(frames: Iterable[StackFrame]) -> str:
    """The first line of the project's own, when the outermost frame comes first."""
    return next((source for path, _, source in frames if source and not is_foreign_path(path)), "")
