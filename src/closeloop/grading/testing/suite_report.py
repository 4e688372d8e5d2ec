"""Results as they are gathered from a report: each test once, whatever the report repeats."""

from __future__ import annotations

import re
from typing import Literal

from closeloop.records.attempt import TestResult
from closeloop.records.record import Record, content_digest

Status = Literal["passed", "failed", "error", "skipped"]

MAX_TESTS = 200_000
MAX_ID_CHARS = 4_000
MAX_MESSAGE_CHARS = 2_000
MAX_LINE_CHARS = 8_000
_STATUS_SEVERITY: dict[Status, int] = {"skipped": 0, "passed": 1, "failed": 2, "error": 3}
_COLOUR_CODE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class SuiteReport(Record):
    """What a report says."""

    tests: tuple[TestResult, ...] = ()
    ran: bool = False
    """At least one test was really begun: skipped ones and broken test files are none."""
    complete: bool = False
    """The report reaches its end and agrees with its own counts."""
    unread: int = 0
    """Records that made no sense."""


class ResultCollector:
    """A reading in the making."""

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
        begun: bool = True,
    ) -> None:
        """Note a result; of several results of one test the worst counts."""
        name = _shorten_id(name)
        known_result = self.found.get(name)
        if not name or (known_result is None and len(self.found) >= MAX_TESTS):
            self.unread += 1
            return
        self.ran = self.ran or (begun and status != "skipped")
        if known_result is None or _STATUS_SEVERITY[status] > _STATUS_SEVERITY[known_result.status]:
            text = shorten_message(message) if status != "passed" else None
            self.found[name] = TestResult(id=name, status=status, seconds=seconds, message=text)

    def explain_failure(self, name: str, message: str) -> None:
        """Add why a test failed, where its result came before its reason."""
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
    """A name of a length to live with: a test's parameter may be a whole document."""
    if len(name) <= MAX_ID_CHARS:
        return name
    return f"{name[: MAX_ID_CHARS - 40]}…{content_digest(name.encode('utf-8', 'replace'))[:32]}"


def merge_suite_reports(readings: list[SuiteReport]) -> SuiteReport:
    """Several reports of one command as one."""
    sheet = ResultCollector()
    for reading in readings:
        for test in reading.tests:
            sheet.add_result(test.id, test.status, seconds=test.seconds, message=test.message)
    sheet.ran = any(reading.ran for reading in readings)
    sheet.unread += sum(reading.unread for reading in readings)
    return sheet.build_report(bool(readings) and all(reading.complete for reading in readings))


def shorten_message(text: str | None, limit: int = MAX_MESSAGE_CHARS) -> str | None:
    """A text's head and tail; None for one that says nothing."""
    text = (text or "").strip()
    if len(text) > limit:
        text = f"{text[: limit // 4]}\n…\n{text[-limit * 3 // 4 :]}"
    return text or None


def split_terminal_lines(report: bytes) -> list[str]:
    """The lines of a terminal's output, without colours; none so long that matching gets slow."""
    text = _COLOUR_CODE.sub("", report.decode("utf-8", "replace")).replace("\r\n", "\n")
    return [line[:MAX_LINE_CHARS] for line in text.split("\n")]


def parse_seconds(value: object) -> float | None:
    """A sensible number of seconds, or None."""
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if 0 <= seconds < 1e7 else None
