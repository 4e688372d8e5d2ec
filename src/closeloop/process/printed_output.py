"""What a run prints: whether it is the same as before, and whether it says that all is well."""

from __future__ import annotations

import re
from functools import lru_cache

from closeloop.process.failures.failure_collector import normalise_output
from closeloop.records.inspection import TraceStep
from closeloop.records.trace import Command

_OUTPUT_TAIL_CHARS = 2000
"""So much of the end of an output is compared."""
_MAX_OUTPUT_CHARS = 50_000
"""Longer outputs are not compared as a whole."""
_SUCCESS = re.compile(
    r"\b(?:all (?:\w+ )?(?:tests?|checks?|assertions?) pass|tests? pass(?:ed|es)?\b|passed\b"
    r"|success(?:ful(?:ly)?)?\b|succeeded\b|(?:is|was|has been|been) fixed\b|not reproduced\b"
    r"|works? (?:as expected|correctly|now|fine)|no (?:errors?|issues?|problems?)\b)"
    r"|^(?:ok|pass|correct|fixed|true|done)[.!]?$|[✓✔✅]",
    re.IGNORECASE | re.MULTILINE,
)
_COMPLAINT = re.compile(r"(?:[A-Z]\w*)?(?:Error|Exception|FAIL(?:ED|URE)?)\b *[:!]", re.IGNORECASE)
"""A last line that begins so takes back what the lines before it say."""
_CLIENT_LINE = re.compile(
    r"^\[(?:Python [Ii]nterpreter|Command finished|The command|Current working directory).*\]?$"
    r"|^\[\d+\][+-]? +(?:Exit|Done|Terminated).*$|^[\w.-]+@[\w.-]+:\S* [#$] ?$",
    re.MULTILINE,
)
"""Lines that a client adds to what a program prints."""
_PASSING = re.compile(
    r"\b0x[0-9a-f]{6,}|(?<=/tmp/)\w+|\b\d\d:\d\d:\d\d\b|\b\d+(?:\.\d+)? ?(?:ms|s|secs?|seconds?)\b"
)
"""Where something lies in memory, or for a while on the disk; the time of day, and how long."""


def prints_same(one: TraceStep, other: TraceStep) -> bool:
    """Nothing differs in what they print, but for times, addresses and the like."""
    before, after = _output_tail(one), _output_tail(other)
    return before == after or _normalise_tail(before) == _normalise_tail(after)


def prints_all_the_same(one: TraceStep, other: TraceStep) -> bool:
    """To the letter, but for addresses and the clock: a date or a blank may be what the change is
    about.
    """
    before, after = _whole_output(one), _whole_output(other)
    if before is None or after is None:
        return False
    return before == after or _PASSING.sub("", before) == _PASSING.sub("", after)


def _whole_output(step: TraceStep) -> str | None:
    output = step.event.output if isinstance(step.event, Command) else None
    return output if output is not None and len(output) <= _MAX_OUTPUT_CHARS else None


def states_success(step: TraceStep) -> bool:
    """What it prints says that all is well; nothing printed says so too, unless it failed."""
    text = _normalise_tail(_output_tail(step))
    if not text.strip():
        return step.failed is not True
    if step.failed is True or _COMPLAINT.match(text.rstrip().rpartition("\n")[2]):
        return False
    return _SUCCESS.search(text) is not None


def prints_nothing(step: TraceStep) -> bool:
    """It ran, and neither it nor what it started said a word."""
    if not isinstance(step.event, Command) or step.event.output is None:
        return False
    text = _CLIENT_LINE.sub("", step.event.output[-_OUTPUT_TAIL_CHARS:])
    return not text.replace(step.event.command, "").strip()


def last_line(step: TraceStep) -> str:
    """What it says last, without what is volatile."""
    return _normalise_tail(_output_tail(step)).rstrip().rpartition("\n")[2]


def _output_tail(step: TraceStep) -> str:
    output = step.event.output if isinstance(step.event, Command) else None
    return (output or "")[-_OUTPUT_TAIL_CHARS:]


@lru_cache(maxsize=256)
def _normalise_tail(tail: str) -> str:
    return normalise_output(_CLIENT_LINE.sub("", tail))
