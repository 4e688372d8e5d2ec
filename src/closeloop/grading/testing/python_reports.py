"""Results of pytest and of unittest."""

from __future__ import annotations

import re
from typing import Any
from xml.parsers import expat

from closeloop.grading.testing.suite_report import (
    MAX_MESSAGE_CHARS,
    MAX_TESTS,
    ResultCollector,
    Status,
    SuiteReport,
    parse_seconds,
    split_terminal_lines,
)
from closeloop.records.record import Record

# JUnit XML, as pytest and most build tools write it. No tree is built, no entity is expanded.

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
    """All that could be read, and whether that was all there is."""

    found: tuple[JunitCase, ...]
    complete: bool


class _DeclarationRefused(Exception):
    """The document declares types or entities: no test tool does."""


class _JunitHandler:
    """Collects test cases while the parser goes through the elements."""

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
            # A test may both fail and break its teardown: the first word is the telling one.
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
    """The test cases of a report; of one that breaks off, those before the break."""
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
    """Test ids are `classname::name`."""
    sheet, complete = ResultCollector(), bool(reports)
    for report in reports:
        cases = read_junit_cases(report)
        complete = complete and cases.complete
        for case in cases.found:
            name = f"{case.classname}::{case.name}" if case.classname else case.name
            sheet.add_result(name, case.status, seconds=case.seconds, message=case.message)
    return sheet.build_report(complete)


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
_VERBOSE_LINE = re.compile(rf" ({_STATUS_WORDS})(?: \(.*\))?\s*(?:\[ *\d+%\])?$")
_XDIST_LINE = re.compile(rf"\[gw\d+\] \[ *\d+%\] ({_STATUS_WORDS}) (.+)")
_SUMMARY_LINE = re.compile(rf"({_STATUS_WORDS}) (\S*(?:::|\.py).*)")
_BEGUN_LINE = re.compile(r"(\S+\.py::\S.*?) *")
_TOTALS_LINE = re.compile(r"=* ?((?:\d+ [a-z ]+(?:, )?)+|no tests ran) in [\d.]+s.*")

_UNITTEST_STATUSES: tuple[tuple[str, Status], ...] = (
    ("unexpected success", "failed"),
    ("expected failure", "skipped"),
    ("FAIL", "failed"),
    ("ERROR", "error"),
    ("ok", "passed"),
)
_HEAD_LINE = re.compile(r" *(?P<name>[^\s()]+) \((?P<dotted>[^\s()=]+)\)(?P<rest>.*)")
_GLUED_HEADS = re.compile(rb" \.\.\. (?=[^\s()]+ \([^\s()]+\)(?: \.\.\. |\n))")
_SECTION_LINE = re.compile(
    r"(?P<word>FAIL|ERROR|UNEXPECTED SUCCESS): (?P<name>[^\s()]+) \((?P<dotted>[^\s()=]+)\)"
)
_DASHED_LINE = "-" * 70
_RULE_LINES = (_DASHED_LINE, "=" * 70)
_LOADER_CLASS = "unittest.loader._FailedTest"
_RAN_LINE = re.compile(r"Ran (\d{1,9}) tests? in ")


def read_pytest_report(report: bytes, output: bytes) -> SuiteReport:
    """Node ids, rebuilt from XML that keeps file, class and name apart."""
    sheet, cases = ResultCollector(), read_junit_cases(report)
    files = {case.file for case in cases.found if case.file}
    files |= set(re.findall(r"^(\S+\.py)::", "\n".join(split_terminal_lines(output)), re.MULTILINE))
    modules = {_module_name(file): file for file in files}
    for case in cases.found:
        broken_file = not case.classname and case.file is not None
        name = str(case.file) if broken_file else _build_node_id(case, modules)
        sheet.add_result(
            name,
            case.status,
            seconds=case.seconds,
            message=case.message,
            begun=not broken_file,
        )
    return sheet.build_report(cases.complete)


def _module_name(file: str) -> str:
    return re.sub(r"\.py$", "", file.replace("/", "."))


def _build_node_id(case: JunitCase, modules: dict[str, str]) -> str:
    """`tests.test_x.TestA` and `test_b` → `tests/test_x.py::TestA::test_b`.

    The file that pytest states is where the test is written, which for an inherited test is not
    the file it belongs to: so the longest known module that starts the class name is taken.
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
    """What the terminal shows, for runs that could not write their report."""
    sheet, lines, totals = ResultCollector(), split_terminal_lines(output), ""
    for line in lines:
        if line_match := _XDIST_LINE.fullmatch(line):
            sheet.add_result(line_match[2].strip(), _PYTEST_STATUSES[line_match[1]])
        elif line_match := _SUMMARY_LINE.fullmatch(line):
            _add_summary(sheet, line_match[1], line_match[2])
        elif "::" in line and (line_match := _VERBOSE_LINE.search(line)):
            sheet.add_result(line[: line_match.start()], _PYTEST_STATUSES[line_match[1]])
        elif line_match := _TOTALS_LINE.fullmatch(line):
            totals = line_match[1]
    if (begun_test := _BEGUN_LINE.fullmatch(lines[-1])) and begun_test[1] not in sheet.found:
        sheet.add_result(begun_test[1], "error", message="The test run ended inside this test.")
    sheet.ran = sheet.ran or re.search(r"\d (passed|failed)", totals) is not None
    return sheet.build_report(bool(totals))


def count_printed_passes(output: bytes) -> int | None:
    """How many passed tests the last lines of pytest count, of all its runs in one command."""
    totals = [
        found[1] for line in split_terminal_lines(output) if (found := _TOTALS_LINE.fullmatch(line))
    ]
    if not totals:
        return None
    counts = re.findall(r"(\d{1,9}) x?passed\b", ", ".join(totals))
    return sum(map(int, counts))


def _add_summary(sheet: ResultCollector, word: str, text: str) -> None:
    """`FAILED id - message`, where the id itself may hold ` - ` in its brackets."""
    if word == "SKIPPED":
        return
    name, message = text, ""
    while name not in sheet.found and " - " in name:
        name = name.rpartition(" - ")[0]
    if name not in sheet.found:
        name = re.split(r" - (?![^\[]{0,200}\])", text, maxsplit=1)[0]
    message = text[len(name) :].removeprefix(" - ")
    if word in ("ERROR", "FAILED") or "::" in name:
        sheet.add_result(name, _PYTEST_STATUSES[word], message=message, begun="::" in name)
        sheet.explain_failure(name, message)


def read_unittest(output: bytes) -> SuiteReport:
    """Ids are `tests.test_x.TestA.test_b`; the results are those that `-v` shows."""
    # Older versions end a test with failing subtests without a word or a line's end.
    sheet, lines = ResultCollector(), split_terminal_lines(_GLUED_HEADS.sub(rb" ... \n", output))
    pending: re.Match[str] | None = None
    head_count, total = 0, None
    for place, line in enumerate(lines):
        if section := _SECTION_LINE.match(line):
            _add_section(sheet, section, lines[place + 1 : place + 500])
            pending = None
        elif ran := _RAN_LINE.match(line):
            total = (total or 0) + int(ran[1])
        elif head := _HEAD_LINE.fullmatch(line):
            head_count += not line.startswith(" ")
            pending = None if _add_status(sheet, head, head["rest"]) else head
        elif pending is not None and _add_status(sheet, pending, line):
            pending = None
    if pending is not None and _build_unittest_id(pending) not in sheet.found:
        sheet.add_result(
            _build_unittest_id(pending), "error", message="The test run ended inside this test."
        )
    sheet.ran = sheet.ran or (not head_count and bool(total))
    return sheet.build_report(total is not None and (not head_count or head_count >= total))


def _build_unittest_id(head: re.Match[str]) -> str:
    name, dotted = head["name"], head["dotted"]
    if _LOADER_CLASS in dotted:
        return name
    return dotted if dotted.endswith(f".{name}") else f"{dotted}.{name}"


def _add_status(sheet: ResultCollector, head: re.Match[str], text: str) -> bool:
    """Whether the text ends in a result; what a test prints may stand right before it."""
    status: Status | None = None
    if re.search(r"(?:^|\.\.\. )skipped ['\"]", text):
        status = "skipped"
    else:
        status = next((status for word, status in _UNITTEST_STATUSES if text.endswith(word)), None)
    if status is not None:
        sheet.add_result(
            _build_unittest_id(head), status, begun=_LOADER_CLASS not in head["dotted"]
        )
    return status is not None


def _add_section(sheet: ResultCollector, head: re.Match[str], below: list[str]) -> None:
    """`FAIL: test_b (tests.test_x.TestA.test_b)`, perhaps a docstring, a rule, a traceback."""
    start = next(
        (i + 1 for i, line in enumerate(below) if line.startswith(_DASHED_LINE)), len(below)
    )
    end = next((i for i, line in enumerate(below) if i >= start and line[:70] in _RULE_LINES), None)
    message = "" if head["word"].startswith("UNEXPECTED") else "\n".join(below[start:end])
    name = _build_unittest_id(head)
    begun = _LOADER_CLASS not in head["dotted"] and not head["name"].startswith(
        ("setUp", "tearDown")
    )
    sheet.add_result(
        name, "error" if head["word"] == "ERROR" else "failed", message=message, begun=begun
    )
    sheet.explain_failure(name, message)
