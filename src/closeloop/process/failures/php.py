"""What PHPUnit and Pest print."""

from __future__ import annotations

import re

from closeloop.process.failures.found import Found, first_line, parts

marks = ("\nFAILURES!", "\nERRORS!", "\nOK (", "PHPUnit ", "  FAILED  ")

_NUMBERED = re.compile(r"^\d+\) ([\w\\]+::[^\n]+)\n", re.MULTILINE)
_PEST = re.compile(r"^ *(?:FAILED|•) +([^\n]+? > [^\n]+?)(?:  +\w+)?\n", re.MULTILINE)
_FRAME = re.compile(r"^(?:  at )?(/?[^\s:]+\.php):\d+", re.MULTILINE)
_PEST_TOTALS = re.compile(r"^ +Tests: +(.*)", re.MULTILINE)


def verdict(text: str) -> bool | None:
    tail = "\n" + text[-3000:]
    pest = _PEST_TOTALS.search(tail)
    if "\nFAILURES!" in tail or "\nERRORS!" in tail or (pest and " failed" in pest[1]):
        return False
    return True if "\nOK (" in tail or (pest and " passed" in pest[1]) else None


def gather(text: str, found: Found) -> None:
    for pattern in (_NUMBERED, _PEST):
        for header, body in parts(pattern, text):
            found.test(header[1], first_line(body))
            for path in reversed(_FRAME.findall(body[:8000])):
                found.path(path)
            found.tested(re.split(r"::| > ", header[1])[-1].partition(" ")[0])
