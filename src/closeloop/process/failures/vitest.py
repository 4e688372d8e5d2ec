"""What Vitest prints."""

from __future__ import annotations

import re

from closeloop.process.failures.found import Found, first_line
from closeloop.process.failures.frames import pointed, script_frames

marks = ("\n FAIL  ", "\n Test Files  ", "\n      Tests  ")

_TOTALS = re.compile(r"^ *(?:Test Files|Tests|Errors) {2}([^\n]*)", re.MULTILINE)
_MARKED = re.compile(r"^ *[×✗] (.+?)(?: \d+(?:\.\d+)?m?s)?$", re.MULTILINE)


def verdict(text: str) -> bool | None:
    totals = _TOTALS.findall(text[-3000:])
    if any("failed" in total or "error" in total for total in totals):
        return False
    return True if any("passed" in total for total in totals) else None


def gather(text: str, found: Found) -> None:
    for block in ("\n" + text).split("\n FAIL  ")[1:]:
        title, _, body = block.partition("\n")
        if body.startswith(" FAIL  "):
            body = body.partition("\n")[2]
        body = body[: max(body.find("\n⎯⎯⎯"), 0) or 4000]
        title = title.partition(" [ ")[0].strip()
        found.test(title, first_line(body))
        pointed(script_frames(body), found)
        found.path(title.partition(" > ")[0].rpartition("| ")[2])
        found.tested(title.rpartition(" > ")[2])
    if not found.errors:
        for name in _MARKED.findall(text):
            found.test(name)
