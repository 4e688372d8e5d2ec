"""Errors of plain scripts: Python's tracebacks, and the stacks of Node.js."""

from __future__ import annotations

import re

from closeloop.process.failures.found import Found, is_foreign
from closeloop.process.failures.frames import pointed, python_frames, script_frames
from closeloop.process.failures.unittest import error_in

marks = ("Traceback (most recent call last)", "SyntaxError", "IndentationError", "\n    at ")

_SCRIPT_ERROR = re.compile(r"\n((?:Uncaught )?(?:\w+\.)*\w*(?:Error|Exception)\b[^\n]*+)\n")


def verdict(text: str) -> bool | None:
    """A script may print an error and go on."""
    return None


def gather(text: str, found: Found) -> None:
    begin = text.rfind("Traceback (most recent call last)")
    if begin < 0 and "Error" in text:
        begin = text.rfind('  File "')
    if begin >= 0:
        _python(text[begin:], found)
    elif "\n    at " in text:
        _script(text, found)


def _python(body: str, found: Found) -> None:
    body = "\n" + (body.partition("Traceback (most recent call last):\n")[2] or body)
    frames = python_frames(body)
    error = error_in(body)
    if error:
        _failure(error, list(reversed(frames)), found)


def _script(text: str, found: Found) -> None:
    stack = text.find("\n    at ")
    begin = max(stack - 2000, 0)
    errors = _SCRIPT_ERROR.findall("\n" + text[begin : stack + 1])
    if errors:
        _failure(errors[-1], script_frames(text[stack : stack + 4000]), found)


def _failure(error: str, frames: list[tuple[str, str, str]], found: Found) -> None:
    kind = re.split(r"[:\s(]", error, maxsplit=1)[0]
    path, name, _ = next((frame for frame in frames if not is_foreign(frame[0])), ("", "", ""))
    place = f"{path}: " if path else ""
    inside = f" in {name}" if name and name[0] != "<" else ""
    found.test(f"{place}{kind}{inside}", error)
    pointed(frames, found)
