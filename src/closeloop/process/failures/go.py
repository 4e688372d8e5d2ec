"""What `go test`, `go build` and `go vet` print."""

from __future__ import annotations

import re

import msgspec

from closeloop.process.failures.found import Found, is_foreign

marks = ("--- FAIL: ", "\nFAIL\t", "\nok  \t", "\n# ", '"Action":"')

_TIMING = re.compile(r" \([\d.]+s\)\Z")
_LOGGED = re.compile(r"\s+(\S+\.go):\d+: ?(.*)")
_GLUED = re.compile(r" {4}(\S+_test\.go):\d+: (.+)")
"""After what the program printed without an end of line."""
_ERROR = re.compile(r"(?:vet: )?(\S+\.go):\d+(?::\d+)?: (.+)")
_FRAME = re.compile(r"\t(\S+\.go):\d+")
_LONGEST, _UNTIL = 200, " … "


class _Line(msgspec.Struct):
    """One line of `go test -json`."""

    Output: str = ""


_read_line = msgspec.json.Decoder(_Line).decode


def verdict(text: str) -> bool | None:
    """By the lines that packages end with."""
    text = "\n" + _text(text)
    if "\nFAIL\n" in text or "\nFAIL\t" in text or "\n--- FAIL: " in text:
        return False
    return True if "\nok  \t" in text or text.rstrip().endswith("\nPASS") else None


def gather(text: str, found: Found) -> None:
    run = _Run()
    for line in _text(text).split("\n"):
        run.read(line, found)
    run.ended("", found)


class _Run:
    """The tests of the package that is being told."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.current = self.last = ""
        self.failed: dict[str, None] = {}
        self.messages: dict[str, str] = {}
        self.paths: dict[str, None] = {}

    def read(self, line: str, found: Found) -> None:
        head = line[:1]
        if head in " \t" and head:
            self.indented(line)
        elif line.startswith("FAIL\t"):
            self.ended(line[5:], found)
        elif line.startswith("ok  \t"):
            self.begin()
        elif line.startswith("=== "):
            self.current = line[10:].strip()
        elif line.startswith("--- FAIL: "):
            self.fails(line)
        elif line.startswith("panic: "):
            self.messages[self.current] = line.partition(" [recovered]")[0]
        elif ".go:" in line and (match := _ERROR.match(line)):
            found.place(match[1], match[2])
        elif "_test.go:" in line and (match := _GLUED.search(line)):
            self.logged(match)
        elif line and line != "FAIL":
            self.last = line

    def indented(self, line: str) -> None:
        if "--- FAIL: " in line:
            self.fails(line)
        elif match := _LOGGED.match(line):
            self.logged(match)
        elif "Error:" in line and (told := line.partition("Error:")[2].strip()):
            self.messages[self.current] = told
        elif (frame := _FRAME.match(line)) and not is_foreign(frame[1]):
            self.paths[frame[1]] = None
        elif told := line.strip():
            self.last = told

    def logged(self, match: re.Match[str]) -> None:
        """Any line that a test logs may be what it fails with: the first and the last are kept."""
        self.paths[match[1]] = None
        if match[2]:
            first = self.messages.get(self.current, "").partition(_UNTIL)[0]
            last = match[2][:_LONGEST]
            self.messages[self.current] = f"{first}{_UNTIL}{last}" if first else last

    def fails(self, line: str) -> None:
        self.current = _TIMING.sub("", line.partition("--- FAIL: ")[2])
        self.failed[self.current] = None

    def ended(self, package: str, found: Found) -> None:
        """A test that fails only because of its subtests says nothing of its own."""
        name = package.partition("\t")[0].partition(" ")[0]
        parents = {test[:at] for test in self.failed for at, sign in enumerate(test) if sign == "/"}
        for test in self.failed:
            if test not in parents:
                found.test(f"{name}.{test}" if name else test, self.messages.get(test, ""))
                found.tested(test.partition("/")[0])
        if name and not self.failed and not (found.errors and " failed]" in package):
            # It ended before any test did; why it did not build is told by its errors.
            found.test(package.partition("\t")[0], self.messages.get(self.current, self.last))
        for path in self.paths:
            found.path(path)
        self.begin()


def _text(text: str) -> str:
    """What `-json` wraps, unwrapped."""
    if '"Action":"' not in text:
        return text
    told = []
    for line in text.split("\n"):
        if line.startswith('{"') and '"Output":"' in line:
            try:
                told.append(_read_line(line).Output)
            except (ValueError, RecursionError):
                continue
        elif not line.startswith("{"):
            told.append(line + "\n")
    return "".join(told)
