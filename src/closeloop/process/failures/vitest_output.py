"""What Vitest prints."""

from __future__ import annotations

import re

from closeloop.process.failures.failure_collector import FailureCollector, first_text_line
from closeloop.process.failures.stack_frames import add_frames, parse_script_frames

marks = ("\n FAIL  ", "\n Test Files  ", "\n      Tests  ")

_TOTALS = re.compile(r"^ *(?:Test Files|Tests|Errors) {2}([^\n]*)", re.MULTILINE)
_MARKED_FAILURE = re.compile(r"^ *[×✗] (.+?)(?: \d+(?:\.\d+)?m?s)?$", re.MULTILINE)


def read_verdict(text: str) -> bool | None:
    totals = _TOTALS.findall(text[-3000:])
    if any("failed" in total or "error" in total for total in totals):
        return False
    return True if any("passed" in total for total in totals) else None


def collect_failures(text: str, found: FailureCollector) -> None:
    for block in ("\n" + text).split("\n FAIL  ")[1:]:
        title, _, body = block.partition("\n")
        if body.startswith(" FAIL  "):
            body = body.partition("\n")[2]
        body = body[: max(body.find("\n⎯⎯⎯"), 0) or 4000]
        title = title.partition(" [ ")[0].strip()
        found.add_test(title, first_text_line(body))
        add_frames(parse_script_frames(body), found)
        found.add_path(title.partition(" > ")[0].rpartition("| ")[2])
        found.add_test_name(title.rpartition(" > ")[2])
    if not found.errors:
        for name in _MARKED_FAILURE.findall(text):
            found.add_test(name)
