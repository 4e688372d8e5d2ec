"""What Playwright's test runner prints."""

from __future__ import annotations

import re

from closeloop.process.failures.failure_collector import (
    FailureCollector,
    first_text_line,
    split_by_headers,
)
from closeloop.process.failures.stack_frames import add_frames, parse_script_frames

marks = ("[chromium] › ", "[firefox] › ", "[webkit] › ", " did not run\n")

_TEST_TITLE = r"((?:\[[^\]\n]{1,80}\] › )?)([^\s:]+):\d+:\d+ › ([^\n─]+)"
_NUMBERED_FAILURE = re.compile(rf"^ {{2}}\d+\) {_TEST_TITLE}", re.MULTILINE)
_LISTED_FAILURE = re.compile(rf"^ {{4}}{_TEST_TITLE}", re.MULTILINE)
_FAILED_TOTAL = re.compile(r"^ {2}[1-9]\d* (?:failed|interrupted|timed out)\b", re.MULTILINE)
_PASSED_TOTAL = re.compile(r"^ {2}[1-9]\d* passed \(", re.MULTILINE)


def read_verdict(text: str) -> bool | None:
    tail = text[-4000:]
    if _FAILED_TOTAL.search(tail):
        return False
    return True if _PASSED_TOTAL.search(tail) else None


def collect_failures(text: str, found: FailureCollector) -> None:
    for test, block in split_by_headers(_NUMBERED_FAILURE, text):
        body = block.partition("\n\n    attachment #")[0]
        _add_failure(test, first_text_line(body.lstrip("─")), found)
        add_frames(parse_script_frames(body[:4000]), found)
    total = _FAILED_TOTAL.search(text) if not found.errors else None
    for test in _LISTED_FAILURE.finditer(text, total.end()) if total else ():
        _add_failure(test, "", found)


def _add_failure(test: re.Match[str], message: str, found: FailureCollector) -> None:
    project, path, title = test[1], test[2], test[3].strip()
    found.add_test(f"{project}{path} › {title}", message)
    found.add_path(path)
    found.add_test_name(title.rpartition(" › ")[2])
