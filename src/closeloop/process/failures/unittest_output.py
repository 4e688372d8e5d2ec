"""What unittest prints, and Django's test runner with it."""

from __future__ import annotations

import re

from closeloop.process.failures.failure_collector import FailureCollector, split_by_headers
from closeloop.process.failures.stack_frames import add_frames, find_origin, parse_python_frames

marks = ("\nFAIL: ", "\nERROR: ", "\nFAILED (", "\nRan ")

_FAILURE_HEADER = re.compile(r"\n(?:FAIL|ERROR): (\S++) \(([^)\n]*+)\)([^\n]*+)")
_VERBOSE_FAILURE = re.compile(
    r"\n *+(\S++) \(([^)\n]++)\)((?: \([^)\n]*+\))?)(?:\n[^\n]*?)? \.\.\. (?:FAIL|ERROR)\b"
)
_BLOCK_ENDS = ("\n======", "\n------")


def read_verdict(text: str) -> bool | None:
    """By the line under `Ran … tests`."""
    tail = text[-4000:]
    if "\nFAILED (" in tail or tail.startswith("FAILED ("):
        return False
    ran = tail.rfind("Ran ")
    if ran >= 0 and tail.find("\nOK", ran) > 0 and not tail.startswith("Ran 0 ", ran):
        return True
    return None


def collect_failures(text: str, found: FailureCollector) -> None:
    text = "\n" + text
    for header, block in split_by_headers(_FAILURE_HEADER, text):
        _add_failure(header, block, found)
    if not found.errors and ("... FAIL" in text or "... ERROR" in text):
        for verbose in _VERBOSE_FAILURE.finditer(text):
            found.add_test(_test_id(verbose))
            found.add_test_name(verbose[1])


def _add_failure(header: re.Match[str], block: str, found: FailureCollector) -> None:
    begin = block.find("\n------")
    begin = block.find("\n", begin + 1) if begin >= 0 else 0
    ends = [at for mark in _BLOCK_ENDS if (at := block.find(mark, begin + 1)) >= 0]
    body = block[begin : min(ends, default=None)]
    frames = parse_python_frames(body)
    found.add_test(_test_id(header), find_error_line(body), find_origin(frames))
    add_frames(reversed(frames), found)
    found.add_test_name(header[1])


def _test_id(match: re.Match[str]) -> str:
    name, place = match[1], match[2]
    whole = place if place.endswith("." + name) or place == name else f"{place}.{name}"
    return f"{whole} {match[3].strip()}".strip()


def find_error_line(body: str) -> str:
    """The first line after the last frame that is not indented: the error."""
    lines = body[max(body.rfind('\n  File "'), 0) :].split("\n")
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line and line[0] not in " \t":
            # Some messages begin on a line of their own.
            return f"{line} {following}" if line.rstrip().endswith(":") else line
    return ""
