"""What PHPUnit and Pest print."""

from __future__ import annotations

import re

from closeloop.process.failures.failure_collector import (
    FailureCollector,
    first_text_line,
    split_by_headers,
)

marks = ("\nFAILURES!", "\nERRORS!", "\nOK (", "PHPUnit ", "  FAILED  ")

_NUMBERED_FAILURE = re.compile(r"^\d+\) ([\w\\]+::[^\n]+)\n", re.MULTILINE)
_PEST_FAILURE = re.compile(r"^ *(?:FAILED|•) +([^\n]+? > [^\n]+?)(?:  +\w+)?\n", re.MULTILINE)
_STACK_FRAME = re.compile(r"^(?:  at )?(/?[^\s:]+\.php):\d+", re.MULTILINE)
_PEST_TOTALS = re.compile(r"^ +Tests: +(.*)", re.MULTILINE)


def read_verdict(text: str) -> bool | None:
    tail = "\n" + text[-3000:]
    pest = _PEST_TOTALS.search(tail)
    if "\nFAILURES!" in tail or "\nERRORS!" in tail or (pest and " failed" in pest[1]):
        return False
    return True if "\nOK (" in tail or (pest and " passed" in pest[1]) else None


def collect_failures(text: str, found: FailureCollector) -> None:
    for pattern in (_NUMBERED_FAILURE, _PEST_FAILURE):
        for header, body in split_by_headers(pattern, text):
            found.add_test(header[1], first_text_line(body))
            for path in reversed(_STACK_FRAME.findall(body[:8000])):
                found.add_path(path)
            found.add_test_name(re.split(r"::| > ", header[1])[-1].partition(" ")[0])
