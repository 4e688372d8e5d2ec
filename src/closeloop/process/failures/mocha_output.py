"""What Mocha prints, in any of its reporters that list the failures; Cypress too."""

from __future__ import annotations

import re

from closeloop.process.failures.failure_collector import FailureCollector, first_text_line
from closeloop.process.failures.stack_frames import add_frames, parse_script_frames

marks = (" failing\n", " passing (")

_FAILING_TOTAL = re.compile(r"^ *\d+ failing$", re.MULTILINE)
_PASSING_TOTAL = re.compile(r"^ *[1-9]\d* passing\b", re.MULTILINE)
_NUMBERED_FAILURE = re.compile(r"\n  \d+\) ")
_LISTED_FAILURE = re.compile(r"^ +\d+\) (.+)$", re.MULTILINE)


def read_verdict(text: str) -> bool | None:
    if " failing" in text and _FAILING_TOTAL.search(text):
        return False
    return True if _PASSING_TOTAL.search(text[-4000:]) else None


def collect_failures(text: str, found: FailureCollector) -> None:
    totals = _FAILING_TOTAL.search(text)
    for block in _NUMBERED_FAILURE.split(text[totals.end() :])[1:] if totals else ():
        lines = block.split("\n")
        last = next((at for at, line in enumerate(lines[:10]) if line.endswith(":")), 0)
        title = " ".join(line.strip() for line in lines[: last + 1]).rstrip(":")
        body = "\n".join(lines[last + 1 :])
        found.add_test(title, first_text_line(body))
        add_frames(parse_script_frames(body[:8000]), found)
        found.add_test_name(lines[last].strip().rstrip(":"))
    if (
        not found.errors
        and _FAILING_TOTAL.search(text) is None
        and _PASSING_TOTAL.search(text) is None
    ):
        for name in _LISTED_FAILURE.findall(text):
            found.add_test(name)
