"""Errors of plain scripts: Python's tracebacks, and the stacks of Node.js."""

from __future__ import annotations

import re

from closeloop.process.failures.failure_collector import FailureCollector, is_foreign_path
from closeloop.process.failures.stack_frames import (
    add_frames,
    parse_python_frames,
    parse_script_frames,
)
from closeloop.process.failures.unittest_output import find_error_line

marks = ("Traceback (most recent call last)", "SyntaxError", "IndentationError", "\n    at ")

_SCRIPT_ERROR = re.compile(r"\n((?:Uncaught )?(?:\w+\.)*\w*(?:Error|Exception)\b[^\n]*+)\n")


def read_verdict(text: str) -> bool | None:
    """A script may print an error and go on."""
    return None


def collect_failures(text: str, found: FailureCollector) -> None:
    begin = text.rfind("Traceback (most recent call last)")
    if begin < 0 and "Error" in text:
        begin = text.rfind('  File "')
    if begin >= 0:
        _add_python_error(text[begin:], found)
    elif "\n    at " in text:
        _add_script_error(text, found)


def _add_python_error(body: str, found: FailureCollector) -> None:
    body = "\n" + (body.partition("Traceback (most recent call last):\n")[2] or body)
    frames = parse_python_frames(body)
    error = find_error_line(body)
    if error:
        _add_failure(error, list(reversed(frames)), found)


def _add_script_error(text: str, found: FailureCollector) -> None:
    stack = text.find("\n    at ")
    begin = max(stack - 2000, 0)
    errors = _SCRIPT_ERROR.findall("\n" + text[begin : stack + 1])
    if errors:
        _add_failure(errors[-1], parse_script_frames(text[stack : stack + 4000]), found)


def _add_failure(error: str, frames: list[tuple[str, str, str]], found: FailureCollector) -> None:
    kind = re.split(r"[:\s(]", error, maxsplit=1)[0]
    path, name, _ = next((frame for frame in frames if not is_foreign_path(frame[0])), ("", "", ""))
    place = f"{path}: " if path else ""
    inside = f" in {name}" if name and name[0] != "<" else ""
    found.add_test(f"{place}{kind}{inside}", error)
    add_frames(frames, found)
