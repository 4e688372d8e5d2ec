"""Results of `go test`, as JSON events or as the text that `-v` shows."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from closeloop.grading.testing.suite_report import (
    MAX_MESSAGE_CHARS,
    ResultCollector,
    Status,
    SuiteReport,
    parse_seconds,
    split_terminal_lines,
)

_STATUS: dict[str, Status] = {"pass": "passed", "fail": "failed", "skip": "skipped"}
_PACKAGE_LINE = re.compile(r"(ok  |FAIL|\?   |---)\t(\S+)(?:\t| \[(build|setup) failed\])?.*")
_TEST_LINE = re.compile(r" *--- (PASS|FAIL|SKIP): (\S+) \(([\d.]+)s\)")


class _GoPackageResults:
    """What is known of one package while its events come."""

    def __init__(self) -> None:
        self.output: dict[str, str] = {}
        """The output of each test that was begun; '' is the package's own."""
        self.ended: dict[str, tuple[Status, float | None]] = {}
        self.result: Status | None = None


def read_go(output: bytes) -> SuiteReport:
    """Ids are `package/TestName/Sub`."""
    packages: dict[str, _GoPackageResults] = {}
    sheet, events, finished = ResultCollector(), 0, True
    for line in split_terminal_lines(output):
        event = _parse_event(line) if line.startswith("{") else None
        if event is not None:
            events += 1
            _follow_event(packages.setdefault(event["Package"], _GoPackageResults()), event)
        elif (failed := _PACKAGE_LINE.fullmatch(line)) and failed[3]:
            sheet.add_result(failed[2], "error", message=f"The {failed[3]} failed.", begun=False)
    if not events:
        return _read_go_text(output)
    for name, package in packages.items():
        _add_package(sheet, name, package)
        finished = finished and package.result is not None
    return sheet.build_report(finished)


def _parse_event(line: str) -> dict[str, Any] | None:
    try:
        event = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    if not isinstance(event, dict):
        return None
    texts = (event.get("Action"), event.get("Package"), event.get("Test", ""))
    return event if texts[1] and all(isinstance(text, str) for text in texts) else None


def _follow_event(package: _GoPackageResults, event: dict[str, Any]) -> None:
    action, test = event["Action"], event.get("Test", "")
    if action == "run" or not test:
        package.output.setdefault(test, "")
    if action == "output" and test in package.output:
        text = package.output[test] + str(event.get("Output"))
        package.output[test] = text[-2 * MAX_MESSAGE_CHARS :]
    elif action in _STATUS and not test:
        package.result = _STATUS[action]
    elif action in _STATUS and test in package.output:
        # A result without its `run` is text that a test printed to look like one.
        package.ended.setdefault(test, (_STATUS[action], parse_seconds(event.get("Elapsed"))))
        if action == "fail":
            package.ended[test] = ("failed", parse_seconds(event.get("Elapsed")))


def _add_package(sheet: ResultCollector, name: str, package: _GoPackageResults) -> None:
    for test, output in package.output.items():
        if not test:
            continue
        # Output without a final newline hides a test's end from older versions of go.
        default_status: Status = "passed" if package.result == "passed" else "error"
        status, seconds = package.ended.get(test, (default_status, None))
        sheet.add_result(f"{name}/{test}", status, seconds=seconds, message=output)
    failed = any(status == "failed" for status, _ in package.ended.values())
    if package.result == "failed" and not failed:
        sheet.add_result(name, "error", message=package.output.get(""), begun=False)


def _read_go_text(output: bytes) -> SuiteReport:
    """A package is named only after its tests; without `-v` only failures are shown."""
    sheet, pending_tests, complete = ResultCollector(), list[re.Match[str]](), False
    for line in split_terminal_lines(output):
        if test := _TEST_LINE.fullmatch(line):
            pending_tests.append(test)
        elif package := _PACKAGE_LINE.fullmatch(line):
            for test in pending_tests:
                status = _STATUS[test[1].lower()]
                sheet.add_result(f"{package[2]}/{test[2]}", status, seconds=parse_seconds(test[3]))
            if package[3] or (package[1] == "FAIL" and not pending_tests):
                sheet.add_result(package[2], "error", message=line, begun=False)
            sheet.ran = sheet.ran or (package[1] == "ok  " and "[no test" not in line)
            pending_tests, complete = [], True
    return sheet.build_report(complete and not pending_tests)
