"""Read the reports of test runners: pytest, unittest, go, cargo, Node, jest, vitest and mocha."""

from __future__ import annotations

import re
import urllib.parse
from typing import Any, Literal
from xml.parsers import expat

import msgspec

from closeloop.records.attempt import TestResult
from closeloop.records.record import Record, content_digest
from closeloop.text.wording import compile_lazily

# Collect results from a report: each test once, even if the report repeats it.


Status = Literal["passed", "failed", "error", "skipped"]

MAX_TESTS = 200_000
MAX_ID_CHARS = 4_000
MAX_MESSAGE_CHARS = 2_000
MAX_LINE_CHARS = 8_000
_STATUS_SEVERITY: dict[Status, int] = {"skipped": 0, "passed": 1, "failed": 2, "error": 3}
_COLOUR_CODE = compile_lazily(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class SuiteReport(Record):
    """The contents of a test report."""

    tests: tuple[TestResult, ...] = ()
    ran: bool = False
    """Whether at least one test began; skipped tests and broken test files do not count."""
    complete: bool = False
    """Whether the report reaches its end and agrees with its own counts."""
    unread: int = 0
    """Number of unreadable records."""


class ResultCollector:
    """Collects the results of a report."""

    def __init__(self) -> None:
        self.found: dict[str, TestResult] = {}
        self.ran = False
        self.unread = 0

    def add_result(
        self,
        name: str,
        status: Status,
        *,
        seconds: float | None = None,
        message: str | None = None,
        started: bool = True,
    ) -> None:
        """Record a result; of several results of one test the worst counts."""
        name = _shorten_id(name)
        known_result = self.found.get(name)
        if not name or (known_result is None and len(self.found) >= MAX_TESTS):
            self.unread += 1
            return
        self.ran = self.ran or (started and status != "skipped")
        if known_result is None or _STATUS_SEVERITY[status] > _STATUS_SEVERITY[known_result.status]:
            text = shorten_message(message) if status != "passed" else None
            self.found[name] = TestResult(id=name, status=status, seconds=seconds, message=text)

    def explain_failure(self, name: str, message: str) -> None:
        """Add the reason of a failure whose result came first."""
        name = _shorten_id(name)
        known_result = self.found.get(name)
        if (
            known_result is not None
            and known_result.message is None
            and known_result.status in ("failed", "error")
        ):
            self.found[name] = TestResult(
                id=name,
                status=known_result.status,
                seconds=known_result.seconds,
                message=shorten_message(message),
            )

    def build_report(self, complete: bool) -> SuiteReport:
        return SuiteReport(
            tests=tuple(self.found.values()), ran=self.ran, complete=complete, unread=self.unread
        )


def _shorten_id(name: str) -> str:
    """Truncate a test id to `MAX_ID_CHARS`, with a digest: a parameter may be a whole document."""
    if len(name) <= MAX_ID_CHARS:
        return name
    return f"{name[: MAX_ID_CHARS - 40]}…{content_digest(name.encode('utf-8', 'replace'))[:32]}"


def merge_suite_reports(reports: list[SuiteReport]) -> SuiteReport:
    """Merge several reports of one command."""
    collector = ResultCollector()
    for report in reports:
        for test in report.tests:
            collector.add_result(test.id, test.status, seconds=test.seconds, message=test.message)
    collector.ran = any(report.ran for report in reports)
    collector.unread += sum(report.unread for report in reports)
    return collector.build_report(bool(reports) and all(report.complete for report in reports))


def shorten_message(text: str | None, limit: int = MAX_MESSAGE_CHARS) -> str | None:
    """Truncate a text to its head and tail; None for an empty one."""
    text = (text or "").strip()
    if len(text) > limit:
        text = f"{text[: limit // 4]}\n…\n{text[-limit * 3 // 4 :]}"
    return text or None


def split_terminal_lines(report: bytes) -> list[str]:
    """Return the lines of terminal output without colours, truncated so that matching stays
    fast."""
    text = _COLOUR_CODE.sub("", report.decode("utf-8", "replace")).replace("\r\n", "\n")
    return [line[:MAX_LINE_CHARS] for line in text.split("\n")]


def parse_seconds(value: object) -> float | None:
    """Return a plausible number of seconds, or None."""
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if 0 <= seconds < 1e7 else None


# Results of test runners of other languages: cargo, go, Node, jest, vitest and mocha.


_TARGET_LINE = compile_lazily(r" +Running (?:unittests )?\S+ \((.+)\)")
_DOCTESTS = compile_lazily(r" +Doc-tests (\S+)")
_START_LINE = compile_lazily(r"running (\d{1,9}) tests?")
_CARGO_TEST_LINE = compile_lazily(
    r"test (.+?)(?: - should panic| - compile(?: fail)?)? \.\.\. ?(.*)"
)
_END_LINE = compile_lazily(
    r"test result: \w+\. (\d{1,9}) passed; (\d{1,9}) failed; (\d{1,9}) ignored;.*"
)
_REASON_LINE = compile_lazily(r"---- (.+) stdout ----")
_UNBUILT_LINE = compile_lazily(r"error: could not compile `([^`]+)`.*")
_RESULT_TEXT = compile_lazily(r"(?:.*?)(ok|FAILED|ignored(?:, .*)?|bench: .*)(?: <[\d.]+s>)?")
_CARGO_STATUS: dict[str, Status] = {"o": "passed", "F": "failed", "i": "skipped", "b": "passed"}


class _CargoTargetResults:
    """Collects the results of one test program of the crate, line by line."""

    def __init__(self, collector: ResultCollector, name: str) -> None:
        self.sheet = collector
        self.name = name
        self.pending: str | None = None
        self.expected: int | None = None
        self.seen = 0

    def begin_test(self, test: str, text: str) -> None:
        self.pending = f"{self.name}::{test}"
        self.finish_test(text)

    def finish_test(self, text: str) -> None:
        """Record a result, which may follow the test's output on its line or on a later one."""
        result = _RESULT_TEXT.fullmatch(text)
        if self.pending is not None and result is not None:
            self.sheet.add_result(self.pending, _CARGO_STATUS[result[1][0]])
            self.pending, self.seen = None, self.seen + 1


def read_cargo(output: bytes) -> SuiteReport:
    """Read the output of cargo; ids are `crate-or-target::module::test`."""
    collector, lines = ResultCollector(), split_terminal_lines(output)
    target, has_ended, is_complete = _CargoTargetResults(collector, "tests"), False, True
    for number, line in enumerate(lines):
        if target_match := _TARGET_LINE.fullmatch(line) or _DOCTESTS.fullmatch(line):
            is_complete = is_complete and target.expected is None
            target = _CargoTargetResults(collector, _target_name(target_match[1]))
        elif start := _START_LINE.fullmatch(line):
            target.expected, target.seen = int(start[1]), 0
        elif end := _END_LINE.fullmatch(line):
            is_complete = is_complete and target.seen >= sum(map(int, end.groups()))
            has_ended, target.expected, target.pending = True, None, None
        elif test := _CARGO_TEST_LINE.fullmatch(line):
            target.begin_test(test[1], test[2])
        elif reason := _REASON_LINE.fullmatch(line):
            collector.explain_failure(
                f"{target.name}::{reason[1]}", _failure_reason(lines[number + 1 : number + 60])
            )
        elif build_error := _UNBUILT_LINE.fullmatch(line):
            collector.add_result(
                build_error[1], "error", message=_compile_errors(lines), started=False
            )
        else:
            target.finish_test(line)
    if target.pending is not None:
        collector.add_result(
            target.pending, "error", message="The test run ended inside this test."
        )
    return collector.build_report(has_ended and is_complete and target.expected is None)


def _target_name(text: str) -> str:
    """Return the target's name: `target/debug/deps/shop-e98d7b2af9a95076` → `shop`."""
    return re.sub(r"-[0-9a-f]{16}(\.exe)?$", "", text.replace("\\", "/").rsplit("/", 1)[-1])


def _failure_reason(lines: list[str]) -> str:
    end = next((i for i, line in enumerate(lines) if line.startswith(("----", "failures:"))), None)
    return "\n".join(line for line in lines[:end] if not line.startswith("stack backtrace"))


def _compile_errors(lines: list[str]) -> str:
    return "\n".join(line for line in lines if line.startswith("error"))


# Results of `go test`, as JSON events or as the text that `-v` shows.

_GO_STATUS: dict[str, Status] = {"pass": "passed", "fail": "failed", "skip": "skipped"}
_PACKAGE_LINE = compile_lazily(r"(ok  |FAIL|\?   |---)\t(\S+)(?:\t| \[(build|setup) failed\])?.*")
_GO_TEST_LINE = compile_lazily(r" *--- (PASS|FAIL|SKIP): (\S+) \(([\d.]+)s\)")


class _GoPackageResults:
    """Collects the results of one package, event by event."""

    def __init__(self) -> None:
        self.output: dict[str, str] = {}
        """Output of each test that began; '' is the package's own."""
        self.ended: dict[str, tuple[Status, float | None]] = {}
        self.result: Status | None = None


def read_go(output: bytes) -> SuiteReport:
    """Read the output of `go test`; ids are `package/TestName/Sub`."""
    packages: dict[str, _GoPackageResults] = {}
    collector, events, finished = ResultCollector(), 0, True
    for line in split_terminal_lines(output):
        event = _parse_event(line) if line.startswith("{") else None
        if event is not None:
            events += 1
            _follow_event(packages.setdefault(event["Package"], _GoPackageResults()), event)
        elif (failed := _PACKAGE_LINE.fullmatch(line)) and failed[3]:
            collector.add_result(
                failed[2], "error", message=f"The {failed[3]} failed.", started=False
            )
    if not events:
        return _read_go_text(output)
    for name, package in packages.items():
        _add_package(collector, name, package)
        finished = finished and package.result is not None
    return collector.build_report(finished)


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


def _add_package(collector: ResultCollector, name: str, package: _GoPackageResults) -> None:
    for test, output in package.output.items():
        if not test:
            continue
        # Output without a final newline hides a test's end from older versions of go.
        default_status: Status = "passed" if package.result == "passed" else "error"
        status, seconds = package.ended.get(test, (default_status, None))
        collector.add_result(f"{name}/{test}", status, seconds=seconds, message=output)
    failed = any(status == "failed" for status, _ in package.ended.values())
    if package.result == "failed" and not failed:
        collector.add_result(name, "error", message=package.output.get(""), started=False)


def _read_go_text(output: bytes) -> SuiteReport:
    """Read plain text.

    A package is named only after its tests; without `-v` only failures are shown.
    """
    collector, pending_tests, complete = ResultCollector(), list[re.Match[str]](), False
    for line in split_terminal_lines(output):
        if test := _GO_TEST_LINE.fullmatch(line):
            pending_tests.append(test)
        elif package := _PACKAGE_LINE.fullmatch(line):
            for test in pending_tests:
                status = _GO_STATUS[test[1].lower()]
                collector.add_result(
                    f"{package[2]}/{test[2]}", status, seconds=parse_seconds(test[3])
                )
            if package[3] or (package[1] == "FAIL" and not pending_tests):
                collector.add_result(package[2], "error", message=line, started=False)
            collector.ran = collector.ran or (package[1] == "ok  " and "[no test" not in line)
            pending_tests, complete = [], True
    return collector.build_report(complete and not pending_tests)


# Results of Node's own runner: the reporter that we pass to it, and its output.

# Its own reports do not name the file of a test. Ours has a line per event, and one at the end.
# A file whose failed test leaves a server running would never end: files get the option to exit,
# if the version has it. Node itself must not get it: it would omit the end of its report.
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
"""The reporter as Node imports it: no file is needed, and nothing in it is special to a shell."""
_MAX_NESTING = 100


def read_node(report: bytes, root: str) -> SuiteReport:
    """Read a report of Node.

    Ids are `path/to/file.js > describe > name`, or the path if a file does not load.
    """
    collector, complete = ResultCollector(), False
    titles: list[str] = []
    for line in report.splitlines():
        try:
            event = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            event = None
        if isinstance(event, dict) and event.get("type") == "end":
            complete = True
        elif not _is_test_event(event):
            collector.unread += 1
        else:
            titles = [*titles[: event["nesting"]], event["name"]]
            if event["type"] != "test:start":
                _add_event(collector, event, titles, root)
    return collector.build_report(complete)


def _is_test_event(event: Any) -> bool:
    return (
        isinstance(event, dict)
        and event.get("type") in ("test:start", "test:pass", "test:fail")
        and isinstance(event.get("name"), str)
        and isinstance(event.get("nesting"), int)
        and 0 <= event["nesting"] < _MAX_NESTING
    )


def _add_event(
    collector: ResultCollector, event: dict[str, Any], titles: list[str], root: str
) -> None:
    """Add one event; a suite counts only if it failed by itself, as when a hook fails."""
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
    collector.add_result(
        path if is_whole_file else " > ".join(filter(None, (path, *titles))),
        "skipped" if event.get("skipped") is True else status,
        seconds=None if milliseconds is None else milliseconds / 1000,
        message=message if isinstance(message, str) else None,
        started=status != "error",
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
    """Read a report of jest or vitest; ids are `path/to/file.test.ts > describe > name`."""
    collector = ResultCollector()
    try:
        document = msgspec.json.decode(report)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return collector.build_report(False)
    files = document.get("testResults") if isinstance(document, dict) else None
    if not isinstance(files, list):
        return collector.build_report(False)
    for file in files:
        if isinstance(file, dict) and isinstance(file.get("name"), str):
            _add_jest_file(collector, file, root)
        else:
            collector.unread += 1
    return collector.build_report(True)


def read_mocha(report: bytes, root: str) -> SuiteReport:
    """Read a report of mocha.

    Ids are `path/to/file.js > describe name`. A printed report may follow other output.
    """
    collector = ResultCollector()
    start = report.rfind(_MOCHA_START)
    try:
        document = msgspec.json.Decoder(strict=False).decode(report[max(start, 0) :].rstrip())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return collector.build_report(False)
    if not isinstance(document, dict) or not isinstance(document.get("stats"), dict):
        return collector.build_report(False)
    for kind, status in _MOCHA_STATUS.items():
        tests = document.get(kind)
        for test in tests if isinstance(tests, list) else ():
            if isinstance(test, dict) and isinstance(test.get("fullTitle"), str):
                _add_mocha(collector, test, status, root)
            else:
                collector.unread += 1
    return collector.build_report(True)


def _add_mocha(collector: ResultCollector, test: dict[str, Any], status: Status, root: str) -> None:
    file, error = test.get("file"), test.get("err")
    path = _relative_path(file, root) if isinstance(file, str) else ""
    milliseconds = parse_seconds(test.get("duration"))
    collector.add_result(
        " > ".join(filter(None, (path, test["fullTitle"]))),
        status,
        seconds=None if milliseconds is None else milliseconds / 1000,
        message=_join_text(error.get("stack") or error.get("message"))
        if isinstance(error, dict)
        else None,
    )


def _relative_path(file: str, root: str) -> str:
    return file.replace("\\", "/").removeprefix(root.rstrip("/") + "/")


def _add_jest_file(collector: ResultCollector, file: dict[str, Any], root: str) -> None:
    path = _relative_path(file["name"], root)
    tests = file.get("assertionResults")
    if not isinstance(tests, list):
        tests = []
        collector.unread += 1
    failed = False
    for test in tests:
        titles = _test_titles(test)
        if titles is None:
            collector.unread += 1
            continue
        status = _JEST_STATUS[test["status"]]
        failed = failed or status == "failed"
        milliseconds = parse_seconds(test.get("duration"))
        collector.add_result(
            " > ".join((path, *titles)),
            status,
            seconds=None if milliseconds is None else milliseconds / 1000,
            message=_join_text(test.get("failureMessages")),
        )
    if file.get("status") == "failed" and not failed:
        collector.add_result(path, "error", message=_join_text(file.get("message")), started=False)


def _test_titles(test: Any) -> tuple[str, ...] | None:
    """Return describes and name of a test; None if this is not a test."""
    if not isinstance(test, dict) or test.get("status") not in _JEST_STATUS:
        return None
    suites, title = test.get("ancestorTitles"), test.get("title")
    if not isinstance(suites, list) or not isinstance(title, str):
        return None
    return (*map(str, suites), title)


def _join_text(value: Any) -> str | None:
    if isinstance(value, list):
        return "\n".join(item for item in value if isinstance(item, str))
    return value if isinstance(value, str) else None


# Results of pytest and of unittest.
#
# JUnit XML, as written by pytest and most build tools. No tree is built, no entity is expanded.

_STATUS: dict[str, Status] = {"failure": "failed", "error": "error", "skipped": "skipped"}


class JunitCase(Record):
    """One `testcase` element."""

    name: str
    classname: str
    file: str | None
    seconds: float | None
    status: Status
    message: str | None


class JunitCases(Record):
    """The test cases that could be read, and whether the report was complete."""

    found: tuple[JunitCase, ...]
    complete: bool


class _DeclarationRefused(Exception):
    """The document declares types or entities, which no test tool does."""


class _JunitHandler:
    """Collects test cases while the parser visits the elements."""

    def __init__(self) -> None:
        self.cases: list[JunitCase] = []
        self.attributes: dict[str, str] | None = None
        self.status: Status = "passed"
        self.message: str | None = None
        self.collecting: str | None = None
        self.text: list[str] = []
        self.room = 0

    def start_element(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "testcase":
            self.attributes, self.status, self.message = attributes, "passed", None
        elif self.attributes is not None and self.collecting is None and tag in _STATUS:
            self.collecting, self.text, self.room = tag, [], MAX_MESSAGE_CHARS
            if message := attributes.get("message"):
                self.add_characters(message + "\n")

    def add_characters(self, text: str) -> None:
        if self.collecting is not None and self.room > 0:
            self.text.append(text[: self.room])
            self.room -= len(text)

    def end_element(self, tag: str) -> None:
        if tag == self.collecting and self.collecting is not None:
            # A test may both fail and break its teardown: the first element decides.
            if self.status in ("passed", "skipped"):
                self.status, self.message = _STATUS[tag], "".join(self.text)
            self.collecting = None
        elif tag == "testcase" and self.attributes is not None:
            if len(self.cases) < MAX_TESTS:
                self.cases.append(self._build_case(self.attributes))
            self.attributes = None

    def _build_case(self, attributes: dict[str, str]) -> JunitCase:
        return JunitCase(
            name=attributes.get("name", ""),
            classname=attributes.get("classname", ""),
            file=attributes.get("file"),
            seconds=parse_seconds(attributes.get("time")),
            status=self.status,
            message=self.message,
        )


def read_junit_cases(report: bytes) -> JunitCases:
    """Return the test cases of a report; of a truncated one, those before the break."""
    handler, parser = _JunitHandler(), expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = handler.start_element
    parser.EndElementHandler = handler.end_element
    parser.CharacterDataHandler = handler.add_characters
    parser.StartDoctypeDeclHandler = _refuse_declaration
    parser.EntityDeclHandler = _refuse_declaration
    try:
        parser.Parse(report, True)
    except (expat.ExpatError, _DeclarationRefused, LookupError, ValueError):
        return JunitCases(found=tuple(handler.cases), complete=False)
    return JunitCases(found=tuple(handler.cases), complete=True)


def read_junit(reports: list[bytes]) -> SuiteReport:
    """Read JUnit reports; test ids are `classname::name`."""
    collector, complete = ResultCollector(), bool(reports)
    for report in reports:
        cases = read_junit_cases(report)
        complete = complete and cases.complete
        for case in cases.found:
            name = f"{case.classname}::{case.name}" if case.classname else case.name
            collector.add_result(name, case.status, seconds=case.seconds, message=case.message)
    return collector.build_report(complete)


def _refuse_declaration(*_: Any) -> None:
    raise _DeclarationRefused


_PYTEST_STATUSES: dict[str, Status] = {
    "PASSED": "passed",
    "XPASS": "passed",
    "FAILED": "failed",
    "ERROR": "error",
    "SKIPPED": "skipped",
    "XFAIL": "skipped",
}
_STATUS_WORDS = "|".join(_PYTEST_STATUSES)
_VERBOSE_LINE = compile_lazily(rf" ({_STATUS_WORDS})(?: \(.*\))?\s*(?:\[ *\d+%\])?$")
_XDIST_LINE = compile_lazily(rf"\[gw\d+\] \[ *\d+%\] ({_STATUS_WORDS}) (.+)")
_SUMMARY_LINE = compile_lazily(rf"({_STATUS_WORDS}) (\S*(?:::|\.py).*)")
_BEGUN_LINE = compile_lazily(r"(\S+\.py::\S.*?) *")
_TOTALS_LINE = compile_lazily(r"=* ?((?:\d+ [a-z ]+(?:, )?)+|no tests ran) in [\d.]+s.*")

_UNITTEST_STATUSES: tuple[tuple[str, Status], ...] = (
    ("unexpected success", "failed"),
    ("expected failure", "skipped"),
    ("FAIL", "failed"),
    ("ERROR", "error"),
    ("ok", "passed"),
)
_HEAD_LINE = compile_lazily(r" *(?P<name>[^\s()]+) \((?P<dotted>[^\s()=]+)\)(?P<rest>.*)")
_GLUED_HEADS = compile_lazily(rb" \.\.\. (?=[^\s()]+ \([^\s()]+\)(?: \.\.\. |\n))")
_SECTION_LINE = compile_lazily(
    r"(?P<word>FAIL|ERROR|UNEXPECTED SUCCESS): (?P<name>[^\s()]+) \((?P<dotted>[^\s()=]+)\)"
)
_DASHED_LINE = "-" * 70
_RULE_LINES = (_DASHED_LINE, "=" * 70)
_LOADER_CLASS = "unittest.loader._FailedTest"
_RAN_LINE = compile_lazily(r"Ran (\d{1,9}) tests? in ")


def read_pytest_report(report: bytes, output: bytes) -> SuiteReport:
    """Rebuild pytest's node ids from XML that separates file, class and name."""
    collector, cases = ResultCollector(), read_junit_cases(report)
    files = {case.file for case in cases.found if case.file}
    files |= set(re.findall(r"^(\S+\.py)::", "\n".join(split_terminal_lines(output)), re.MULTILINE))
    modules = {_module_name(file): file for file in files}
    for case in cases.found:
        broken_file = not case.classname and case.file is not None
        name = str(case.file) if broken_file else _build_node_id(case, modules)
        collector.add_result(
            name, case.status, seconds=case.seconds, message=case.message, started=not broken_file
        )
    return collector.build_report(cases.complete)


def _module_name(file: str) -> str:
    return re.sub(r"\.py$", "", file.replace("/", "."))


def _build_node_id(case: JunitCase, modules: dict[str, str]) -> str:
    """Turn `tests.test_x.TestA` and `test_b` into `tests/test_x.py::TestA::test_b`.

    The file that pytest states is where the test is written, which for an inherited test is not
    the file it belongs to: so the longest known module that starts the class name is used.
    """
    if not case.classname:
        return case.name
    parts = case.classname.split(".")
    for length in range(len(parts), 0, -1):
        file = modules.get(".".join(parts[:length]))
        if file is not None:
            return "::".join((file, *parts[length:], case.name))
    length = next((i for i, part in enumerate(parts) if i and part[:1].isupper()), len(parts))
    return "::".join(("/".join(parts[:length]) + ".py", *parts[length:], case.name))


def read_pytest_text(output: bytes) -> SuiteReport:
    """Read the terminal output of pytest, for runs that could not write their report."""
    collector, lines, totals = ResultCollector(), split_terminal_lines(output), ""
    for line in lines:
        if line_match := _XDIST_LINE.fullmatch(line):
            collector.add_result(line_match[2].strip(), _PYTEST_STATUSES[line_match[1]])
        elif line_match := _SUMMARY_LINE.fullmatch(line):
            _add_summary(collector, line_match[1], line_match[2])
        elif "::" in line and (line_match := _VERBOSE_LINE.search(line)):
            collector.add_result(line[: line_match.start()], _PYTEST_STATUSES[line_match[1]])
        elif line_match := _TOTALS_LINE.fullmatch(line):
            totals = line_match[1]
    if (begun_test := _BEGUN_LINE.fullmatch(lines[-1])) and begun_test[1] not in collector.found:
        collector.add_result(begun_test[1], "error", message="The test run ended inside this test.")
    collector.ran = collector.ran or re.search(r"\d (passed|failed)", totals) is not None
    return collector.build_report(bool(totals))


def count_printed_passes(output: bytes) -> int | None:
    """Sum the passed tests in pytest's summary lines, over all its runs in one command."""
    totals = [
        match[1] for line in split_terminal_lines(output) if (match := _TOTALS_LINE.fullmatch(line))
    ]
    if not totals:
        return None
    counts = re.findall(r"(\d{1,9}) x?passed\b", ", ".join(totals))
    return sum(map(int, counts))


def _add_summary(collector: ResultCollector, status_word: str, text: str) -> None:
    """Add the line `FAILED id - message`; the id itself may contain ` - ` in its brackets."""
    if status_word == "SKIPPED":
        return
    name, message = text, ""
    while name not in collector.found and " - " in name:
        name = name.rpartition(" - ")[0]
    if name not in collector.found:
        name = re.split(r" - (?![^\[]{0,200}\])", text, maxsplit=1)[0]
    message = text[len(name) :].removeprefix(" - ")
    if status_word in ("ERROR", "FAILED") or "::" in name:
        collector.add_result(
            name, _PYTEST_STATUSES[status_word], message=message, started="::" in name
        )
        collector.explain_failure(name, message)


def read_unittest(output: bytes) -> SuiteReport:
    """Read the output of `unittest -v`; ids are `tests.test_x.TestA.test_b`."""
    # Older versions end a test with failing subtests without a status or a line break.
    collector, lines = (
        ResultCollector(),
        split_terminal_lines(_GLUED_HEADS.sub(rb" ... \n", output)),
    )
    pending: re.Match[str] | None = None
    head_count, total = 0, None
    for number, line in enumerate(lines):
        if section := _SECTION_LINE.match(line):
            _add_section(collector, section, lines[number + 1 : number + 500])
            pending = None
        elif count_match := _RAN_LINE.match(line):
            total = (total or 0) + int(count_match[1])
        elif head := _HEAD_LINE.fullmatch(line):
            head_count += not line.startswith(" ")
            pending = None if _add_status(collector, head, head["rest"]) else head
        elif pending is not None and _add_status(collector, pending, line):
            pending = None
    if pending is not None and _build_unittest_id(pending) not in collector.found:
        collector.add_result(
            _build_unittest_id(pending), "error", message="The test run ended inside this test."
        )
    collector.ran = collector.ran or (not head_count and bool(total))
    return collector.build_report(total is not None and (not head_count or head_count >= total))


def _build_unittest_id(head: re.Match[str]) -> str:
    name, dotted = head["name"], head["dotted"]
    if _LOADER_CLASS in dotted:
        return name
    return dotted if dotted.endswith(f".{name}") else f"{dotted}.{name}"


def _add_status(collector: ResultCollector, head: re.Match[str], text: str) -> bool:
    """Return whether the text ends in a result; a test's output may come right before it."""
    status: Status | None = None
    if re.search(r"(?:^|\.\.\. )skipped ['\"]", text):
        status = "skipped"
    else:
        status = next(
            (status for ending, status in _UNITTEST_STATUSES if text.endswith(ending)), None
        )
    if status is not None:
        collector.add_result(
            _build_unittest_id(head), status, started=_LOADER_CLASS not in head["dotted"]
        )
    return status is not None


def _add_section(
    collector: ResultCollector, head: re.Match[str], following_lines: list[str]
) -> None:
    """Add a section: `FAIL: test_b (tests.test_x.TestA.test_b)`, docstring, rule, traceback."""
    start = next(
        (i + 1 for i, line in enumerate(following_lines) if line.startswith(_DASHED_LINE)),
        len(following_lines),
    )
    end = next(
        (i for i, line in enumerate(following_lines) if i >= start and line[:70] in _RULE_LINES),
        None,
    )
    message = "" if head["word"].startswith("UNEXPECTED") else "\n".join(following_lines[start:end])
    name = _build_unittest_id(head)
    started = _LOADER_CLASS not in head["dotted"] and not head["name"].startswith(
        ("setUp", "tearDown")
    )
    collector.add_result(
        name, "error" if head["word"] == "ERROR" else "failed", message=message, started=started
    )
    collector.explain_failure(name, message)
