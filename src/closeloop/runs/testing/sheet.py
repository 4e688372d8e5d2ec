"""Results as they are gathered from a report: each test once, whatever the report repeats."""

from __future__ import annotations

import re
from typing import Literal

from closeloop.model.attempt import TestResult
from closeloop.model.record import Record, digest

Status = Literal["passed", "failed", "error", "skipped"]

TEST_LIMIT = 200_000
ID_LIMIT = 4_000
MESSAGE_LIMIT = 2_000
LINE_LIMIT = 8_000
_BADNESS: dict[Status, int] = {"skipped": 0, "passed": 1, "failed": 2, "error": 3}
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class Reading(Record):
    """What a report says."""

    tests: tuple[TestResult, ...] = ()
    ran: bool = False
    """At least one test was really begun: skipped ones and broken test files are none."""
    complete: bool = False
    """The report reaches its end and agrees with its own counts."""
    unread: int = 0
    """Records that made no sense."""


class Sheet:
    """A reading in the making."""

    def __init__(self) -> None:
        self.found: dict[str, TestResult] = {}
        self.ran = False
        self.unread = 0

    def add(
        self,
        name: str,
        status: Status,
        *,
        seconds: float | None = None,
        message: str | None = None,
        begun: bool = True,
    ) -> None:
        """Note a result; of several results of one test the worst counts."""
        name = _bearable(name)
        known = self.found.get(name)
        if not name or (known is None and len(self.found) >= TEST_LIMIT):
            self.unread += 1
            return
        self.ran = self.ran or (begun and status != "skipped")
        if known is None or _BADNESS[status] > _BADNESS[known.status]:
            text = shortened(message) if status != "passed" else None
            self.found[name] = TestResult(id=name, status=status, seconds=seconds, message=text)

    def explain(self, name: str, message: str) -> None:
        """Add why a test failed, where its result came before its reason."""
        name = _bearable(name)
        known = self.found.get(name)
        if known is not None and known.message is None and known.status in ("failed", "error"):
            self.found[name] = TestResult(
                id=name, status=known.status, seconds=known.seconds, message=shortened(message)
            )

    def reading(self, complete: bool) -> Reading:
        return Reading(
            tests=tuple(self.found.values()), ran=self.ran, complete=complete, unread=self.unread
        )


def _bearable(name: str) -> str:
    """A name of a length to live with: a test's parameter may be a whole document."""
    if len(name) <= ID_LIMIT:
        return name
    return f"{name[: ID_LIMIT - 40]}…{digest(name.encode('utf-8', 'replace'))[:32]}"


def joined(readings: list[Reading]) -> Reading:
    """Several reports of one command as one."""
    sheet = Sheet()
    for reading in readings:
        for test in reading.tests:
            sheet.add(test.id, test.status, seconds=test.seconds, message=test.message)
    sheet.ran = any(reading.ran for reading in readings)
    sheet.unread += sum(reading.unread for reading in readings)
    return sheet.reading(bool(readings) and all(reading.complete for reading in readings))


def shortened(text: str | None, limit: int = MESSAGE_LIMIT) -> str | None:
    """A text's head and tail; None for one that says nothing."""
    text = (text or "").strip()
    if len(text) > limit:
        text = f"{text[: limit // 4]}\n…\n{text[-limit * 3 // 4 :]}"
    return text or None


def lines_of(report: bytes) -> list[str]:
    """The lines of a terminal's output, without colours; none so long that matching gets slow."""
    text = _COLOUR.sub("", report.decode("utf-8", "replace")).replace("\r\n", "\n")
    return [line[:LINE_LIMIT] for line in text.split("\n")]


def number(value: object) -> float | None:
    """A sensible number of seconds, or None."""
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if 0 <= seconds < 1e7 else None
