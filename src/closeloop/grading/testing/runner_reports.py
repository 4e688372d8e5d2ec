"""Results of test runners of other languages: cargo, go, Node, jest, vitest and mocha."""

from __future__ import annotations

import re
import urllib.parse
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

_TARGET_LINE = re.compile(r" +Running (?:unittests )?\S+ \((.+)\)")
_DOCTESTS = re.compile(r" +Doc-tests (\S+)")
_START_LINE = re.compile(r"running (\d{1,9}) tests?")
_CARGO_TEST_LINE = re.compile(r"test (.+?)(?: - should panic| - compile(?: fail)?)? \.\.\. ?(.*)")
_END_LINE = re.compile(
    r"test result: \w+\. (\d{1,9}) passed; (\d{1,9}) failed; (\d{1,9}) ignored;.*"
)
_REASON_LINE = re.compile(r"---- (.+) stdout ----")
_UNBUILT_LINE = re.compile(r"error: could not compile `([^`]+)`.*")
_RESULT_TEXT = re.compile(r"(?:.*?)(ok|FAILED|ignored(?:, .*)?|bench: .*)(?: <[\d.]+s>)?")
_CARGO_STATUS: dict[str, Status] = {"o": "passed", "F": "failed", "i": "skipped", "b": "passed"}


class _CargoTargetResults:
    """One test program of the crate, while its lines come."""

    def __init__(self, sheet: ResultCollector, name: str) -> None:
        self.sheet = sheet
        self.name = name
        self.pending: str | None = None
        self.expected: int | None = None
        self.seen = 0

    def begin_test(self, test: str, text: str) -> None:
        self.pending = f"{self.name}::{test}"
        self.finish_test(text)

    def finish_test(self, text: str) -> None:
        """A result may follow what the test printed, on its line or on a later one."""
        result = _RESULT_TEXT.fullmatch(text)
        if self.pending is not None and result is not None:
            self.sheet.add_result(self.pending, _CARGO_STATUS[result[1][0]])
            self.pending, self.seen = None, self.seen + 1


def read_cargo(output: bytes) -> SuiteReport:
    """Ids are `crate-or-target::module::test`."""
    sheet, lines = ResultCollector(), split_terminal_lines(output)
    target, has_ended, is_complete = _CargoTargetResults(sheet, "tests"), False, True
    for place, line in enumerate(lines):
        if target_match := _TARGET_LINE.fullmatch(line) or _DOCTESTS.fullmatch(line):
            is_complete = is_complete and target.expected is None
            target = _CargoTargetResults(sheet, _target_name(target_match[1]))
        elif start := _START_LINE.fullmatch(line):
            target.expected, target.seen = int(start[1]), 0
        elif end := _END_LINE.fullmatch(line):
            is_complete = is_complete and target.seen >= sum(map(int, end.groups()))
            has_ended, target.expected, target.pending = True, None, None
        elif test := _CARGO_TEST_LINE.fullmatch(line):
            target.begin_test(test[1], test[2])
        elif reason := _REASON_LINE.fullmatch(line):
            sheet.explain_failure(
                f"{target.name}::{reason[1]}", _failure_reason(lines[place + 1 : place + 60])
            )
        elif build_error := _UNBUILT_LINE.fullmatch(line):
            sheet.add_result(build_error[1], "error", message=_compile_errors(lines), begun=False)
        else:
            target.finish_test(line)
    if target.pending is not None:
        sheet.add_result(target.pending, "error", message="The test run ended inside this test.")
    return sheet.build_report(has_ended and is_complete and target.expected is None)


def _target_name(text: str) -> str:
    """`target/debug/deps/shop-e98d7b2af9a95076` → `shop`."""
    return re.sub(r"-[0-9a-f]{16}(\.exe)?$", "", text.replace("\\", "/").rsplit("/", 1)[-1])


def _failure_reason(lines: list[str]) -> str:
    end = next((i for i, line in enumerate(lines) if line.startswith(("----", "failures:"))), None)
    return "\n".join(line for line in lines[:end] if not line.startswith("stack backtrace"))


def _compile_errors(lines: list[str]) -> str:
    return "\n".join(line for line in lines if line.startswith("error"))


# Results of `go test`, as JSON events or as the text that `-v` shows.

_GO_STATUS: dict[str, Status] = {"pass": "passed", "fail": "failed", "skip": "skipped"}
_PACKAGE_LINE = re.compile(r"(ok  |FAIL|\?   |---)\t(\S+)(?:\t| \[(build|setup) failed\])?.*")
_GO_TEST_LINE = re.compile(r" *--- (PASS|FAIL|SKIP): (\S+) \(([\d.]+)s\)")


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
    elif action in _GO_STATUS and not test:
        package.result = _GO_STATUS[action]
    elif action in _GO_STATUS and test in package.output:
        # A result without its `run` is text that a test printed to look like one.
        package.ended.setdefault(test, (_GO_STATUS[action], parse_seconds(event.get("Elapsed"))))
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
        if test := _GO_TEST_LINE.fullmatch(line):
            pending_tests.append(test)
        elif package := _PACKAGE_LINE.fullmatch(line):
            for test in pending_tests:
                status = _GO_STATUS[test[1].lower()]
                sheet.add_result(f"{package[2]}/{test[2]}", status, seconds=parse_seconds(test[3]))
            if package[3] or (package[1] == "FAIL" and not pending_tests):
                sheet.add_result(package[2], "error", message=line, begun=False)
            sheet.ran = sheet.ran or (package[1] == "ok  " and "[no test" not in line)
            pending_tests, complete = [], True
    return sheet.build_report(complete and not pending_tests)


# Results of Node's own runner: the reporter that it is handed, and what that writes.

# Its own reports do not say which file a test is in. A line for each event, and one at the end.
# A file whose failed test leaves a server behind would never end: files are told to, where they
# understand it. Node itself must not be: then it forgets the end of its report.
_REPORTER_SOURCE = """\
const [major, minor] = process.versions.node.split(".").map(Number)
if (major > 20 || (major === 20 && minor > 13)) process.execArgv.push("--test-force-exit")
export default async function* (events) {
  for await (const { type, data } of events) {
    if (!["test:start", "test:pass", "test:fail"].includes(type)) continue
    const { name, nesting, file, skip, todo, details } = data
    const { duration_ms, error, type: kind } = details ?? {}
    const told = [error?.cause?.stack, error?.cause?.message, error?.cause, error?.message]
    yield JSON.stringify({
      type, name, nesting, file, kind, skipped: (skip ?? todo) !== undefined,
      milliseconds: duration_ms, failure: error?.failureType,
      message: told.find((text) => typeof text === "string")?.slice(0, 8000),
    }) + "\\n"
  }
  yield JSON.stringify({ type: "end" }) + "\\n"
}
"""
REPORTER_URL = f"data:text/javascript,{urllib.parse.quote(_REPORTER_SOURCE, safe='')}"
"""As Node imports it: no file is needed, and no shell sees anything in it."""
_MAX_NESTING = 100


def read_node(report: bytes, root: str) -> SuiteReport:
    """Ids are `path/to/file.js > describe > name`; of a file that does not load, its path."""
    sheet, complete = ResultCollector(), False
    titles: list[str] = []
    for line in report.splitlines():
        try:
            event = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            event = None
        if isinstance(event, dict) and event.get("type") == "end":
            complete = True
        elif not _is_test_event(event):
            sheet.unread += 1
        else:
            titles = [*titles[: event["nesting"]], event["name"]]
            if event["type"] != "test:start":
                _add_event(sheet, event, titles, root)
    return sheet.build_report(complete)


def _is_test_event(event: Any) -> bool:
    return (
        isinstance(event, dict)
        and event.get("type") in ("test:start", "test:pass", "test:fail")
        and isinstance(event.get("name"), str)
        and isinstance(event.get("nesting"), int)
        and 0 <= event["nesting"] < _MAX_NESTING
    )


def _add_event(sheet: ResultCollector, event: dict[str, Any], titles: list[str], root: str) -> None:
    """A suite counts only where it broke by itself, as when a hook fails."""
    is_suite, is_failed = event.get("kind") == "suite", event["type"] == "test:fail"
    if is_suite and (not is_failed or event.get("failure") == "subtestsFailed"):
        return
    file, message = event.get("file"), event.get("message")
    path = _node_test_path(file, root) if isinstance(file, str) else ""
    milliseconds = parse_seconds(event.get("milliseconds"))
    is_whole_file = len(titles) == 1 and _node_test_path(titles[0], root) == path
    status: Status = (
        "error"
        if is_failed and (is_suite or is_whole_file)
        else "failed"
        if is_failed
        else "passed"
    )
    sheet.add_result(
        path if is_whole_file else " > ".join(filter(None, (path, *titles))),
        "skipped" if event.get("skipped") is True else status,
        seconds=None if milliseconds is None else milliseconds / 1000,
        message=message if isinstance(message, str) else None,
        begun=status != "error",
    )


def _node_test_path(file: str, root: str) -> str:
    return file.removeprefix("file://").replace("\\", "/").removeprefix(root.rstrip("/") + "/")


# Results of jest, of vitest, which writes jest's format, and of mocha.

_JEST_STATUS: dict[str, Status] = {
    "passed": "passed",
    "failed": "failed",
    "pending": "skipped",
    "skipped": "skipped",
    "todo": "skipped",
    "disabled": "skipped",
}
_MOCHA_START = b'{\n  "stats": {'
_MOCHA_STATUS: dict[str, Status] = {"passes": "passed", "failures": "failed", "pending": "skipped"}


def read_jest(report: bytes, root: str) -> SuiteReport:
    """Ids are `path/to/file.test.ts > describe > name`."""
    sheet = ResultCollector()
    try:
        document = msgspec.json.decode(report)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return sheet.build_report(False)
    files = document.get("testResults") if isinstance(document, dict) else None
    if not isinstance(files, list):
        return sheet.build_report(False)
    for file in files:
        if isinstance(file, dict) and isinstance(file.get("name"), str):
            _add_jest_file(sheet, file, root)
        else:
            sheet.unread += 1
    return sheet.build_report(True)


def read_mocha(report: bytes, root: str) -> SuiteReport:
    """Ids are `path/to/file.js > describe name`. Printed, it may come after other output."""
    sheet = ResultCollector()
    start = report.rfind(_MOCHA_START)
    try:
        document = msgspec.json.Decoder(strict=False).decode(report[max(start, 0) :].rstrip())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return sheet.build_report(False)
    if not isinstance(document, dict) or not isinstance(document.get("stats"), dict):
        return sheet.build_report(False)
    for kind, status in _MOCHA_STATUS.items():
        tests = document.get(kind)
        for test in tests if isinstance(tests, list) else ():
            if isinstance(test, dict) and isinstance(test.get("fullTitle"), str):
                _add_mocha(sheet, test, status, root)
            else:
                sheet.unread += 1
    return sheet.build_report(True)


def _add_mocha(sheet: ResultCollector, test: dict[str, Any], status: Status, root: str) -> None:
    file, error = test.get("file"), test.get("err")
    path = _relative_path(file, root) if isinstance(file, str) else ""
    milliseconds = parse_seconds(test.get("duration"))
    sheet.add_result(
        " > ".join(filter(None, (path, test["fullTitle"]))),
        status,
        seconds=None if milliseconds is None else milliseconds / 1000,
        message=_join_text(error.get("stack") or error.get("message"))
        if isinstance(error, dict)
        else None,
    )


def _relative_path(file: str, root: str) -> str:
    return file.replace("\\", "/").removeprefix(root.rstrip("/") + "/")


def _add_jest_file(sheet: ResultCollector, file: dict[str, Any], root: str) -> None:
    path = _relative_path(file["name"], root)
    tests = file.get("assertionResults")
    if not isinstance(tests, list):
        tests = []
        sheet.unread += 1
    failed = False
    for test in tests:
        titles = _test_titles(test)
        if titles is None:
            sheet.unread += 1
            continue
        status = _JEST_STATUS[test["status"]]
        failed = failed or status == "failed"
        milliseconds = parse_seconds(test.get("duration"))
        sheet.add_result(
            " > ".join((path, *titles)),
            status,
            seconds=None if milliseconds is None else milliseconds / 1000,
            message=_join_text(test.get("failureMessages")),
        )
    if file.get("status") == "failed" and not failed:
        sheet.add_result(path, "error", message=_join_text(file.get("message")), begun=False)


def _test_titles(test: Any) -> tuple[str, ...] | None:
    """Describes and name of a test; None where this is no test."""
    if not isinstance(test, dict) or test.get("status") not in _JEST_STATUS:
        return None
    above, title = test.get("ancestorTitles"), test.get("title")
    if not isinstance(above, list) or not isinstance(title, str):
        return None
    return (*map(str, above), title)


def _join_text(value: Any) -> str | None:
    if isinstance(value, list):
        return "\n".join(item for item in value if isinstance(item, str))
    return value if isinstance(value, str) else None
