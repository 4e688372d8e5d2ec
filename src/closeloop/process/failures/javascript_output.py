"""What JavaScript's test runners print: Jest, Vitest, Mocha, Playwright, TAP and `node --test`."""

from __future__ import annotations

import re

from closeloop.process.failures.failure_collector import (
    FailureCollector,
    OutputParser,
    add_frames,
    first_text_line,
    parse_script_frames,
    split_by_headers,
)

_TIMING = re.compile(r" \(\d[\d.]* ?m?s\)\s*\Z")
_BUN_TOTAL = re.compile(r"^ *(\d+) (pass|fail)$", re.MULTILINE)
_BUN_TIMING = re.compile(r" \[[\d.]+m?s\]\s*\Z")


def read_jest_verdict(text: str) -> bool | None:
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


def collect_jest_failures(text: str, found: FailureCollector) -> None:
    file = ""
    blocks = ("\n" + text).split("\n  ● ")
    for number, block in enumerate(blocks):
        if number:
            _add_jest_failure(block, file, found)
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


def _add_jest_failure(block: str, file: str, found: FailureCollector) -> None:
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


JEST_OUTPUT = OutputParser(
    marks=("\n  ● ", "\nTest Suites: ", "\n(fail) ", " expect() calls"),
    read_verdict=read_jest_verdict,
    collect_failures=collect_jest_failures,
)


# What Vitest prints.

_VITEST_TOTALS = re.compile(r"^ *(?:Test Files|Tests|Errors) {2}([^\n]*)", re.MULTILINE)
_MARKED_FAILURE = re.compile(r"^ *[×✗] (.+?)(?: \d+(?:\.\d+)?m?s)?$", re.MULTILINE)


def read_vitest_verdict(text: str) -> bool | None:
    totals = _VITEST_TOTALS.findall(text[-3000:])
    if any("failed" in total or "error" in total for total in totals):
        return False
    return True if any("passed" in total for total in totals) else None


def collect_vitest_failures(text: str, found: FailureCollector) -> None:
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


VITEST_OUTPUT = OutputParser(
    marks=("\n FAIL  ", "\n Test Files  ", "\n      Tests  "),
    read_verdict=read_vitest_verdict,
    collect_failures=collect_vitest_failures,
)


# What Mocha prints, in any of its reporters that list the failures; Cypress too.

_FAILING_TOTAL = re.compile(r"^ *\d+ failing$", re.MULTILINE)
_PASSING_TOTAL = re.compile(r"^ *[1-9]\d* passing\b", re.MULTILINE)
_MOCHA_NUMBERED_FAILURE = re.compile(r"\n  \d+\) ")
_MOCHA_LISTED_FAILURE = re.compile(r"^ +\d+\) (.+)$", re.MULTILINE)


def read_mocha_verdict(text: str) -> bool | None:
    if " failing" in text and _FAILING_TOTAL.search(text):
        return False
    return True if _PASSING_TOTAL.search(text[-4000:]) else None


def collect_mocha_failures(text: str, found: FailureCollector) -> None:
    totals = _FAILING_TOTAL.search(text)
    for block in _MOCHA_NUMBERED_FAILURE.split(text[totals.end() :])[1:] if totals else ():
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
        for name in _MOCHA_LISTED_FAILURE.findall(text):
            found.add_test(name)


MOCHA_OUTPUT = OutputParser(
    marks=(" failing\n", " passing ("),
    read_verdict=read_mocha_verdict,
    collect_failures=collect_mocha_failures,
)


# What Playwright's test runner prints.

_TEST_TITLE = r"((?:\[[^\]\n]{1,80}\] › )?)([^\s:]+):\d+:\d+ › ([^\n─]+)"
_PLAYWRIGHT_NUMBERED_FAILURE = re.compile(rf"^ {{2}}\d+\) {_TEST_TITLE}", re.MULTILINE)
_PLAYWRIGHT_LISTED_FAILURE = re.compile(rf"^ {{4}}{_TEST_TITLE}", re.MULTILINE)
_PLAYWRIGHT_FAILED_TOTAL = re.compile(
    r"^ {2}[1-9]\d* (?:failed|interrupted|timed out)\b", re.MULTILINE
)
_PLAYWRIGHT_PASSED_TOTAL = re.compile(r"^ {2}[1-9]\d* passed \(", re.MULTILINE)


def read_playwright_verdict(text: str) -> bool | None:
    tail = text[-4000:]
    if _PLAYWRIGHT_FAILED_TOTAL.search(tail):
        return False
    return True if _PLAYWRIGHT_PASSED_TOTAL.search(tail) else None


def collect_playwright_failures(text: str, found: FailureCollector) -> None:
    for test, block in split_by_headers(_PLAYWRIGHT_NUMBERED_FAILURE, text):
        body = block.partition("\n\n    attachment #")[0]
        _add_playwright_failure(test, first_text_line(body.lstrip("─")), found)
        add_frames(parse_script_frames(body[:4000]), found)
    total = _PLAYWRIGHT_FAILED_TOTAL.search(text) if not found.errors else None
    for test in _PLAYWRIGHT_LISTED_FAILURE.finditer(text, total.end()) if total else ():
        _add_playwright_failure(test, "", found)


def _add_playwright_failure(test: re.Match[str], message: str, found: FailureCollector) -> None:
    project, path, title = test[1], test[2], test[3].strip()
    found.add_test(f"{project}{path} › {title}", message)
    found.add_path(path)
    found.add_test_name(title.rpartition(" › ")[2])


PLAYWRIGHT_OUTPUT = OutputParser(
    marks=("[chromium] › ", "[firefox] › ", "[webkit] › ", " did not run\n"),
    read_verdict=read_playwright_verdict,
    collect_failures=collect_playwright_failures,
)


# The Test Anything Protocol, and what `node --test` prints.

_NOT_OK_LINE = re.compile(r"^ *+not ok \d*+(?: -)? ?([^\n]*+)", re.MULTILINE)
_TAP_FAILED_TOTAL = re.compile(r"^[#ℹ] fail (\d+)", re.MULTILINE)
_TAP_PASSED_TOTAL = re.compile(r"^[#ℹ] pass [1-9]", re.MULTILINE)
_ERROR_MESSAGE = re.compile(r"^ *(?:error|message): *(?:\|-\n *)?([^\n]+)", re.MULTILINE)
_LOCATION = re.compile(r"(?:location|at): ['\"]?([^\s'\"]+?):\d+")
_TAP_STACK_FRAME = re.compile(r"\n +([\w.<>]+) \(([^\s:()]++):\d")
_SPEC_FAILURE = re.compile(
    r"^(?:test at (\S+?):\d+:\d+\n)? *✖ (.+?)(?: \([\d.]+ms\))?$", re.MULTILINE
)


def read_tap_verdict(text: str) -> bool | None:
    failed = _TAP_FAILED_TOTAL.findall(text[-4000:])
    if failed:
        return (
            False
            if any(count != "0" for count in failed)
            else bool(_TAP_PASSED_TOTAL.search(text)) or None
        )
    return None


def collect_tap_failures(text: str, found: FailureCollector) -> None:
    for test, body in split_by_headers(_NOT_OK_LINE, text):
        _add_tap_failure(test[1], body, found)
    if not found.errors and "✖ " in text:
        _add_listed_failures(text[max(text.find("✖ failing tests:"), 0) :], found)


def _add_tap_failure(title: str, body: str, found: FailureCollector) -> None:
    name, _, remark = title.partition(" # ")
    if remark[:4].upper() in ("TODO", "SKIP") or title.endswith("{"):
        return
    body = body.partition("\n# Subtest")[0][:4000]
    if "'subtestsFailed'" in body:
        return
    error = _ERROR_MESSAGE.search(body)
    found.add_test(name, error[1].strip("\"'") if error else "")
    add_frames([(path, function, "") for function, path in _TAP_STACK_FRAME.findall(body)], found)
    for path in _LOCATION.findall(body):
        found.add_path(path)
    found.add_test_name(name)


def _add_listed_failures(text: str, found: FailureCollector) -> None:
    for test, body in split_by_headers(_SPEC_FAILURE, text):
        path, name = test[1] or "", test[2]
        if name == "failing tests:" or name.endswith("# TODO"):
            continue
        found.add_test(f"{path} > {name}" if path else name, first_text_line(body))
        add_frames(parse_script_frames(body[:4000]), found)
        found.add_path(path)
        found.add_test_name(name)


TAP_OUTPUT = OutputParser(
    marks=("TAP version", "\nnot ok ", "# fail ", "ℹ fail ", "✖ failing tests:"),
    read_verdict=read_tap_verdict,
    collect_failures=collect_tap_failures,
)
