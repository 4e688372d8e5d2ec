"""What Mocha prints, in any of its reporters that list the failures; Cypress too."""

from __future__ import annotations

import re

from closeloop.process.failures.found import Found, first_line
from closeloop.process.failures.frames import pointed, script_frames

marks = (" failing\n", " passing (")

_FAILING = re.compile(r"^ *\d+ failing$", re.MULTILINE)
_PASSING = re.compile(r"^ *[1-9]\d* passing\b", re.MULTILINE)
_NUMBERED = re.compile(r"\n  \d+\) ")
_LISTED = re.compile(r"^ +\d+\) (.+)$", re.MULTILINE)


def verdict(text: str) -> bool | None:
    if " failing" in text and _FAILING.search(text):
        return False
    return True if _PASSING.search(text[-4000:]) else None


def gather(text: str, found: Found) -> None:
    totals = _FAILING.search(text)
    for block in _NUMBERED.split(text[totals.end() :])[1:] if totals else ():
        lines = block.split("\n")
        last = next((at for at, line in enumerate(lines[:10]) if line.endswith(":")), 0)
        title = " ".join(line.strip() for line in lines[: last + 1]).rstrip(":")
        body = "\n".join(lines[last + 1 :])
        found.test(title, first_line(body))
        pointed(script_frames(body[:8000]), found)
        found.tested(lines[last].strip().rstrip(":"))
    if not found.errors and _FAILING.search(text) is None and _PASSING.search(text) is None:
        for name in _LISTED.findall(text):
            found.test(name)
