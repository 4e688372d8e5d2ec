"""What Playwright's test runner prints."""

from __future__ import annotations

import re

from closeloop.process.failures.found import Found, first_line, parts
from closeloop.process.failures.frames import pointed, script_frames

marks = ("[chromium] › ", "[firefox] › ", "[webkit] › ", " did not run\n")

_TEST = r"((?:\[[^\]\n]{1,80}\] › )?)([^\s:]+):\d+:\d+ › ([^\n─]+)"
_NUMBERED = re.compile(rf"^ {{2}}\d+\) {_TEST}", re.MULTILINE)
_LISTED = re.compile(rf"^ {{4}}{_TEST}", re.MULTILINE)
_FAILED = re.compile(r"^ {2}[1-9]\d* (?:failed|interrupted|timed out)\b", re.MULTILINE)
_PASSED = re.compile(r"^ {2}[1-9]\d* passed \(", re.MULTILINE)


def verdict(text: str) -> bool | None:
    tail = text[-4000:]
    if _FAILED.search(tail):
        return False
    return True if _PASSED.search(tail) else None


def gather(text: str, found: Found) -> None:
    for test, block in parts(_NUMBERED, text):
        body = block.partition("\n\n    attachment #")[0]
        _failure(test, first_line(body.lstrip("─")), found)
        pointed(script_frames(body[:4000]), found)
    total = _FAILED.search(text) if not found.errors else None
    for test in _LISTED.finditer(text, total.end()) if total else ():
        _failure(test, "", found)


def _failure(test: re.Match[str], message: str, found: Found) -> None:
    project, path, title = test[1], test[2], test[3].strip()
    found.test(f"{project}{path} › {title}", message)
    found.path(path)
    found.tested(title.rpartition(" › ")[2])
