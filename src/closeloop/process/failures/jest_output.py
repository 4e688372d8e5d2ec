"""What Jest prints; Bun's test runner too."""

from __future__ import annotations

import re

from closeloop.process.failures.failure_collector import FailureCollector, first_text_line
from closeloop.process.failures.stack_frames import add_frames, parse_script_frames

marks = ("\n  ● ", "\nTest Suites: ", "\n(fail) ", " expect() calls")

_TIMING = re.compile(r" \(\d[\d.]* ?m?s\)\s*\Z")
_BUN_TOTAL = re.compile(r"^ *(\d+) (pass|fail)$", re.MULTILINE)
_BUN_TIMING = re.compile(r" \[[\d.]+m?s\]\s*\Z")


def read_verdict(text: str) -> bool | None:
    for line in text[-3000:].split("\n"):
        if line.startswith(("Tests: ", "Test Suites: ")):
            if " failed" in line:
                return False
            if line.startswith("Tests: ") and " passed" in line:
                return True
    totals = {sort: count != "0" for count, sort in _BUN_TOTAL.findall(text[-1000:])}
    if totals.get("fail") or "\n(fail) " in text:
        return False
    return True if totals.get("pass") and "\nRan " in text[-1000:] else None


def collect_failures(text: str, found: FailureCollector) -> None:
    file = ""
    blocks = ("\n" + text).split("\n  ● ")
    for number, block in enumerate(blocks):
        if number:
            _add_failure(block, file, found)
        begin = block.rfind("\nFAIL ")
        if begin >= 0:
            file = _TIMING.sub("", block[begin + 6 :].partition("\n")[0]).strip().rpartition(" ")[2]
    for line in text.split("\n") if not found.errors else ():
        if line.startswith("(fail) "):
            found.add_test(_BUN_TIMING.sub("", line[7:]))
        elif line.lstrip()[:2] == "✕ ":
            found.add_test(_TIMING.sub("", line.strip()[2:]))
        elif line.startswith("FAIL ") and "." in line:
            found.add_test(_TIMING.sub("", line[5:]))


def _add_failure(block: str, file: str, found: FailureCollector) -> None:
    title, _, body = block.partition("\n")
    if title.strip() in ("Console", "Deprecation Warning:"):
        return
    body = body.partition("\nFAIL ")[0].partition("\nTest Suites: ")[0]
    message = first_text_line(body)
    origin = ""
    if message.startswith("expect("):
        # The frame that Jest shows of a failed expectation lies in the test.
        origin = body.partition("\n    > ")[2].partition("\n")[0].partition("|")[2]
    found.add_test(f"{file} › {title}" if file else title, message, origin)
    add_frames(parse_script_frames(body[:8000]), found)
    found.add_path(file)
    found.add_test_name(title.rpartition(" › ")[2])
