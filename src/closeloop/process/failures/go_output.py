"""What `go test`, `go build` and `go vet` print."""

from __future__ import annotations

import re

import msgspec

from closeloop.process.failures.failure_collector import FailureCollector, is_foreign_path

marks = ("--- FAIL: ", "\nFAIL\t", "\nok  \t", "\n# ", '"Action":"')

_TEST_TIMING = re.compile(r" \([\d.]+s\)\Z")
_LOG_LINE = re.compile(r"\s+(\S+\.go):\d+: ?(.*)")
_GLUED_LOG_LINE = re.compile(r" {4}(\S+_test\.go):\d+: (.+)")
"""After what the program printed without an end of line."""
_COMPILER_ERROR = re.compile(r"(?:vet: )?(\S+\.go):\d+(?::\d+)?: (.+)")
_STACK_FRAME = re.compile(r"\t(\S+\.go):\d+")
_LONGEST, _UNTIL = 200, " … "


class _GoTestEvent(msgspec.Struct):
    """One line of `go test -json`."""

    Output: str = ""


_decode_event = msgspec.json.Decoder(_GoTestEvent).decode


def read_verdict(text: str) -> bool | None:
    """By the lines that packages end with."""
    text = "\n" + _unwrap_json(text)
    if "\nFAIL\n" in text or "\nFAIL\t" in text or "\n--- FAIL: " in text:
        return False
    return True if "\nok  \t" in text or text.rstrip().endswith("\nPASS") else None


def collect_failures(text: str, found: FailureCollector) -> None:
    run = _GoPackageRun()
    for line in _unwrap_json(text).split("\n"):
        run.read_line(line, found)
    run.end_package("", found)


class _GoPackageRun:
    """The tests of the package that is being told."""

    def __init__(self) -> None:
        self.reset_package()

    def reset_package(self) -> None:
        self.current = self.last = ""
        self.failed: dict[str, None] = {}
        self.messages: dict[str, str] = {}
        self.paths: dict[str, None] = {}

    def read_line(self, line: str, found: FailureCollector) -> None:
        head = line[:1]
        if head in " \t" and head:
            self.read_indented_line(line)
        elif line.startswith("FAIL\t"):
            self.end_package(line[5:], found)
        elif line.startswith("ok  \t"):
            self.reset_package()
        elif line.startswith("=== "):
            self.current = line[10:].strip()
        elif line.startswith("--- FAIL: "):
            self.record_failure(line)
        elif line.startswith("panic: "):
            self.messages[self.current] = line.partition(" [recovered]")[0]
        elif ".go:" in line and (match := _COMPILER_ERROR.match(line)):
            found.add_place(match[1], match[2])
        elif "_test.go:" in line and (match := _GLUED_LOG_LINE.search(line)):
            self.record_log(match)
        elif line and line != "FAIL":
            self.last = line

    def read_indented_line(self, line: str) -> None:
        if "--- FAIL: " in line:
            self.record_failure(line)
        elif match := _LOG_LINE.match(line):
            self.record_log(match)
        elif "Error:" in line and (message := line.partition("Error:")[2].strip()):
            self.messages[self.current] = message
        elif (frame := _STACK_FRAME.match(line)) and not is_foreign_path(frame[1]):
            self.paths[frame[1]] = None
        elif message := line.strip():
            self.last = message

    def record_log(self, match: re.Match[str]) -> None:
        """Any line that a test logs may be what it fails with: the first and the last are kept."""
        self.paths[match[1]] = None
        if match[2]:
            first = self.messages.get(self.current, "").partition(_UNTIL)[0]
            last = match[2][:_LONGEST]
            self.messages[self.current] = f"{first}{_UNTIL}{last}" if first else last

    def record_failure(self, line: str) -> None:
        self.current = _TEST_TIMING.sub("", line.partition("--- FAIL: ")[2])
        self.failed[self.current] = None

    def end_package(self, package: str, found: FailureCollector) -> None:
        """A test that fails only because of its subtests says nothing of its own."""
        name = package.partition("\t")[0].partition(" ")[0]
        parents = {test[:at] for test in self.failed for at, sign in enumerate(test) if sign == "/"}
        for test in self.failed:
            if test not in parents:
                found.add_test(f"{name}.{test}" if name else test, self.messages.get(test, ""))
                found.add_test_name(test.partition("/")[0])
        if name and not self.failed and not (found.errors and " failed]" in package):
            # It ended before any test did; why it did not build is told by its errors.
            found.add_test(package.partition("\t")[0], self.messages.get(self.current, self.last))
        for path in self.paths:
            found.add_path(path)
        self.reset_package()


def _unwrap_json(text: str) -> str:
    """What `-json` wraps, unwrapped."""
    if '"Action":"' not in text:
        return text
    lines = []
    for line in text.split("\n"):
        if line.startswith('{"') and '"Output":"' in line:
            try:
                lines.append(_decode_event(line).Output)
            except (ValueError, RecursionError):
                continue
        elif not line.startswith("{"):
            lines.append(line + "\n")
    return "".join(lines)
