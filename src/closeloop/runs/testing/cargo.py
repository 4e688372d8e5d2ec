"""Results of `cargo test`, from the text of Rust's own test harness and of doc-tests."""

from __future__ import annotations

import re

from closeloop.runs.testing.sheet import Reading, Sheet, Status, lines_of

_TARGET = re.compile(r" +Running (?:unittests )?\S+ \((.+)\)")
_DOCTESTS = re.compile(r" +Doc-tests (\S+)")
_START = re.compile(r"running (\d{1,9}) tests?")
_TEST = re.compile(r"test (.+?)(?: - should panic| - compile(?: fail)?)? \.\.\. ?(.*)")
_END = re.compile(r"test result: \w+\. (\d{1,9}) passed; (\d{1,9}) failed; (\d{1,9}) ignored;.*")
_REASON = re.compile(r"---- (.+) stdout ----")
_UNBUILT = re.compile(r"error: could not compile `([^`]+)`.*")
_RESULT = re.compile(r"(?:.*?)(ok|FAILED|ignored(?:, .*)?|bench: .*)(?: <[\d.]+s>)?")
_STATUS: dict[str, Status] = {"o": "passed", "F": "failed", "i": "skipped", "b": "passed"}


class _Target:
    """One test program of the crate, while its lines come."""

    def __init__(self, sheet: Sheet, name: str) -> None:
        self.sheet = sheet
        self.name = name
        self.pending: str | None = None
        self.expected: int | None = None
        self.seen = 0

    def begin(self, test: str, text: str) -> None:
        self.pending = f"{self.name}::{test}"
        self.finish(text)

    def finish(self, text: str) -> None:
        """A result may follow what the test printed, on its line or on a later one."""
        result = _RESULT.fullmatch(text)
        if self.pending is not None and result is not None:
            self.sheet.add(self.pending, _STATUS[result[1][0]])
            self.pending, self.seen = None, self.seen + 1


def read_cargo(output: bytes) -> Reading:
    """Ids are `crate-or-target::module::test`."""
    sheet, lines = Sheet(), lines_of(output)
    target, ended, complete = _Target(sheet, "tests"), False, True
    for place, line in enumerate(lines):
        if named := _TARGET.fullmatch(line) or _DOCTESTS.fullmatch(line):
            complete = complete and target.expected is None
            target = _Target(sheet, _target_name(named[1]))
        elif start := _START.fullmatch(line):
            target.expected, target.seen = int(start[1]), 0
        elif end := _END.fullmatch(line):
            complete = complete and target.seen >= sum(map(int, end.groups()))
            ended, target.expected, target.pending = True, None, None
        elif test := _TEST.fullmatch(line):
            target.begin(test[1], test[2])
        elif reason := _REASON.fullmatch(line):
            sheet.explain(f"{target.name}::{reason[1]}", _reason(lines[place + 1 : place + 60]))
        elif unbuilt := _UNBUILT.fullmatch(line):
            sheet.add(unbuilt[1], "error", message=_errors(lines), begun=False)
        else:
            target.finish(line)
    if target.pending is not None:
        sheet.add(target.pending, "error", message="The test run ended inside this test.")
    return sheet.reading(ended and complete and target.expected is None)


def _target_name(text: str) -> str:
    """`target/debug/deps/shop-e98d7b2af9a95076` → `shop`."""
    return re.sub(r"-[0-9a-f]{16}(\.exe)?$", "", text.replace("\\", "/").rsplit("/", 1)[-1])


def _reason(lines: list[str]) -> str:
    end = next((i for i, line in enumerate(lines) if line.startswith(("----", "failures:"))), None)
    return "\n".join(line for line in lines[:end] if not line.startswith("stack backtrace"))


def _errors(lines: list[str]) -> str:
    return "\n".join(line for line in lines if line.startswith("error"))
