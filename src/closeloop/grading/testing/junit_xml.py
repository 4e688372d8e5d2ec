"""JUnit XML, as pytest and most build tools write it. No tree is built, no entity is expanded."""

from __future__ import annotations

from typing import Any
from xml.parsers import expat

from closeloop.grading.testing.suite_report import (
    MAX_MESSAGE_CHARS,
    MAX_TESTS,
    ResultCollector,
    Status,
    SuiteReport,
    parse_seconds,
)
from closeloop.records.record import Record

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
