"""What unittest prints, and Django's test runner with it."""

from __future__ import annotations

import re

from closeloop.process.failures.found import Found, parts
from closeloop.process.failures.frames import origin_of, pointed, python_frames

marks = ("\nFAIL: ", "\nERROR: ", "\nFAILED (", "\nRan ")

_HEADER = re.compile(r"\n(?:FAIL|ERROR): (\S++) \(([^)\n]*+)\)([^\n]*+)")
_VERBOSE = re.compile(
    r"\n *+(\S++) \(([^)\n]++)\)((?: \([^)\n]*+\))?)(?:\n[^\n]*?)? \.\.\. (?:FAIL|ERROR)\b"
)
_ENDS = ("\n======", "\n------")


def verdict(text: str) -> bool | None:
    """By the line under `Ran … tests`."""
    tail = text[-4000:]
    if "\nFAILED (" in tail or tail.startswith("FAILED ("):
        return False
    ran = tail.rfind("Ran ")
    if ran >= 0 and tail.find("\nOK", ran) > 0 and not tail.startswith("Ran 0 ", ran):
        return True
    return None


def gather(text: str, found: Found) -> None:
    text = "\n" + text
    for header, block in parts(_HEADER, text):
        _failure(header, block, found)
    if not found.errors and ("... FAIL" in text or "... ERROR" in text):
        for verbose in _VERBOSE.finditer(text):
            found.test(_id(verbose))
            found.tested(verbose[1])


def _failure(header: re.Match[str], block: str, found: Found) -> None:
    begin = block.find("\n------")
    begin = block.find("\n", begin + 1) if begin >= 0 else 0
    ends = [at for mark in _ENDS if (at := block.find(mark, begin + 1)) >= 0]
    body = block[begin : min(ends, default=None)]
    frames = python_frames(body)
    found.test(_id(header), error_in(body), origin_of(frames))
    pointed(reversed(frames), found)
    found.tested(header[1])


def _id(match: re.Match[str]) -> str:
    name, place = match[1], match[2]
    whole = place if place.endswith("." + name) or place == name else f"{place}.{name}"
    return f"{whole} {match[3].strip()}".strip()


def error_in(body: str) -> str:
    """The first line after the last frame that is not indented: the error."""
    lines = body[max(body.rfind('\n  File "'), 0) :].split("\n")
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line and line[0] not in " \t":
            # Some messages begin on a line of their own.
            return f"{line} {following}" if line.rstrip().endswith(":") else line
    return ""
