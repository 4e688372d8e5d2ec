"""Frames of a stack as Python and JavaScript print them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from closeloop.process.failures.found import Found, is_foreign

_PYTHON = re.compile(r'File "([^"\n]++)", line \d++(?:, in ([^\n]++))?(?:\n {4}([^\n]++))?')
_SCRIPT = re.compile(
    r"\n *+(?:at|❯) (?:async |new )?(?:([^\s(:]++)(?: \[[^\]\n]*+\])? )?"
    r"\(?((?:node:|file:)?[^\s():]++):\d++"
)

Frame = tuple[str, str, str]
"""File, function and source line, `""` where they are not told."""


def python_frames(text: str) -> list[Frame]:
    """As they are printed: the deepest last."""
    return _PYTHON.findall(text)


def script_frames(text: str) -> list[Frame]:
    """As they are printed: the deepest first."""
    return [(path, name, "") for name, path in _SCRIPT.findall(text)]


def pointed(frames: Iterable[Frame], found: Found) -> None:
    """What frames tell, when the deepest comes first: files, and functions of the project."""
    for path, name, _ in frames:
        found.path(path.removeprefix("file://"))
        if name and not is_foreign(path):
            found.symbol(name.rpartition(".")[2])


def origin_of(frames: Iterable[Frame]) -> str:
    """The first line of the project's own, when the outermost frame comes first."""
    return next((source for path, _, source in frames if source and not is_foreign(path)), "")
