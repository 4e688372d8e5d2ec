"""JUnit XML, as pytest and most build tools write it. No tree is built, no entity is expanded."""

from __future__ import annotations

from typing import Any
from xml.parsers import expat

from closeloop.model.record import Record
from closeloop.runs.testing.sheet import MESSAGE_LIMIT, TEST_LIMIT, Reading, Sheet, Status, number

_STATUS: dict[str, Status] = {"failure": "failed", "error": "error", "skipped": "skipped"}


class Case(Record):
    """One `testcase` element."""

    name: str
    classname: str
    file: str | None
    seconds: float | None
    status: Status
    message: str | None


class Cases(Record):
    """All that could be read, and whether that was all there is."""

    found: tuple[Case, ...]
    complete: bool


class _Refused(Exception):
    """The document declares types or entities: no test tool does."""


class _Handler:
    """Collects test cases while the parser goes through the elements."""

    def __init__(self) -> None:
        self.cases: list[Case] = []
        self.attributes: dict[str, str] | None = None
        self.status: Status = "passed"
        self.message: str | None = None
        self.collecting: str | None = None
        self.text: list[str] = []
        self.room = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "testcase":
            self.attributes, self.status, self.message = attributes, "passed", None
        elif self.attributes is not None and self.collecting is None and tag in _STATUS:
            self.collecting, self.text, self.room = tag, [], MESSAGE_LIMIT
            if said := attributes.get("message"):
                self.characters(said + "\n")

    def characters(self, text: str) -> None:
        if self.collecting is not None and self.room > 0:
            self.text.append(text[: self.room])
            self.room -= len(text)

    def end(self, tag: str) -> None:
        if tag == self.collecting and self.collecting is not None:
            # A test may both fail and break its teardown: the first word is the telling one.
            if self.status in ("passed", "skipped"):
                self.status, self.message = _STATUS[tag], "".join(self.text)
            self.collecting = None
        elif tag == "testcase" and self.attributes is not None:
            if len(self.cases) < TEST_LIMIT:
                self.cases.append(self._case(self.attributes))
            self.attributes = None

    def _case(self, attributes: dict[str, str]) -> Case:
        return Case(
            name=attributes.get("name", ""),
            classname=attributes.get("classname", ""),
            file=attributes.get("file"),
            seconds=number(attributes.get("time")),
            status=self.status,
            message=self.message,
        )


def read_cases(report: bytes) -> Cases:
    """The test cases of a report; of one that breaks off, those before the break."""
    handler, parser = _Handler(), expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = handler.start
    parser.EndElementHandler = handler.end
    parser.CharacterDataHandler = handler.characters
    parser.StartDoctypeDeclHandler = _refuse
    parser.EntityDeclHandler = _refuse
    try:
        parser.Parse(report, True)
    except (expat.ExpatError, _Refused, LookupError, ValueError):
        return Cases(found=tuple(handler.cases), complete=False)
    return Cases(found=tuple(handler.cases), complete=True)


def read_junit(reports: list[bytes]) -> Reading:
    """Test ids are `classname::name`."""
    sheet, complete = Sheet(), bool(reports)
    for report in reports:
        cases = read_cases(report)
        complete = complete and cases.complete
        for case in cases.found:
            name = f"{case.classname}::{case.name}" if case.classname else case.name
            sheet.add(name, case.status, seconds=case.seconds, message=case.message)
    return sheet.reading(complete)


def _refuse(*_: Any) -> None:
    raise _Refused
