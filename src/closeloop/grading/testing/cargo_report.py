"""Results of `cargo test`, from the text of Rust's own test harness and of doc-tests."""

from __future__ import annotations

import re

from closeloop.grading.testing.suite_report import (
    ResultCollector,
    Status,
    SuiteReport,
    split_terminal_lines,
)

_TARGET_LINE = re.compile(r" +Running (?:unittests )?\S+ \((.+)\)")
_DOCTESTS = re.compile(r" +Doc-tests (\S+)")
_START_LINE = re.compile(r"running (\d{1,9}) tests?")
_TEST_LINE = re.compile(r"test (.+?)(?: - should panic| - compile(?: fail)?)? \.\.\. ?(.*)")
_END_LINE = re.compile(
    r"test result: \w+\. (\d{1,9}) passed; (\d{1,9}) failed; (\d{1,9}) ignored;.*"
)
_REASON_LINE = re.compile(r"---- (.+) stdout ----")
_UNBUILT_LINE = re.compile(r"error: could not compile `([^`]+)`.*")
_RESULT_TEXT = re.compile(r"(?:.*?)(ok|FAILED|ignored(?:, .*)?|bench: .*)(?: <[\d.]+s>)?")
_STATUS: dict[str, Status] = {"o": "passed", "F": "failed", "i": "skipped", "b": "passed"}


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
            self.sheet.add_result(self.pending, _STATUS[result[1][0]])
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
        elif test := _TEST_LINE.fullmatch(line):
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
