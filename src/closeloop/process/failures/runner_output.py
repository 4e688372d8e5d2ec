"""What test runners of other languages print: Go, Rust, Java, Ruby, PHP and C++."""

from __future__ import annotations

import re

import msgspec

from closeloop.process.failures import tool_output
from closeloop.process.failures.failure_collector import (
    FailureCollector,
    OutputParser,
    first_text_line,
    is_foreign_path,
    split_by_headers,
)

_TEST_TIMING = re.compile(r" \([\d.]+s\)\Z")
_LOG_LINE = re.compile(r"\s+(\S+\.go):\d+: ?(.*)")
_GLUED_LOG_LINE = re.compile(r" {4}(\S+_test\.go):\d+: (.+)")
"""After what the program printed without an end of line."""
_COMPILER_ERROR = re.compile(r"(?:vet: )?(\S+\.go):\d+(?::\d+)?: (.+)")
_GO_STACK_FRAME = re.compile(r"\t(\S+\.go):\d+")
_LONGEST, _UNTIL = 200, " … "


class _GoTestEvent(msgspec.Struct):
    """One line of `go test -json`."""

    Output: str = ""


_decode_event = msgspec.json.Decoder(_GoTestEvent).decode


def read_go_verdict(text: str) -> bool | None:
    """By the lines that packages end with."""
    text = "\n" + _unwrap_json(text)
    if "\nFAIL\n" in text or "\nFAIL\t" in text or "\n--- FAIL: " in text:
        return False
    return True if "\nok  \t" in text or text.rstrip().endswith("\nPASS") else None


def collect_go_failures(text: str, found: FailureCollector) -> None:
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
        elif (frame := _GO_STACK_FRAME.match(line)) and not is_foreign_path(frame[1]):
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


GO_OUTPUT = OutputParser(
    marks=("--- FAIL: ", "\nFAIL\t", "\nok  \t", "\n# ", '"Action":"'),
    read_verdict=read_go_verdict,
    collect_failures=collect_go_failures,
)


# What `cargo test` and cargo-nextest print; rustc's errors are read as places.

_OUTPUT_HEADER = re.compile(r"^---- (\S+)(?: - .*)? stdout ----\n", re.MULTILINE)
_FAILED_TEST = re.compile(
    r"^(?:test (\S+)(?: - [^\n]*?)? \.\.\. FAILED| +FAIL \[[^\]\n]*\] \S+ (\S+))", re.MULTILINE
)
_PANIC = re.compile(r"panicked at (?:'([^\n]{0,500}?)', )?([^\s:,]+):\d+:\d+:?(?:\n([^\n]+))?")
_CARGO_STACK_FRAME = re.compile(r"\n +\d+: ([^\n]+)\n +at ([^\s:]+):\d+")


def read_cargo_verdict(text: str) -> bool | None:
    if "test result: FAILED" in text or "error: could not compile" in text:
        return False
    return True if "test result: ok" in text else None


def collect_cargo_failures(text: str, found: FailureCollector) -> None:
    for match in _FAILED_TEST.finditer(text):
        name = match[1] or match[2]
        found.add_test(name)
        found.add_test_name(name.rpartition("::")[2])
    for header, body in _output_blocks(text):
        _add_cargo_failure(header, body, found)
    if not found.errors and "error" in text:
        tool_output.collect_source_place_failures(text, found)
    if not found.errors and (panic := _PANIC.search(text)):
        found.add_test(f"{panic[2]}: panic", panic[1] or panic[3] or "")
        found.add_path(panic[2])


def _output_blocks(text: str) -> list[tuple[str, str]]:
    pieces = _OUTPUT_HEADER.split(text)
    return list(zip(pieces[1::2], pieces[2::2], strict=False))


def _add_cargo_failure(name: str, body: str, found: FailureCollector) -> None:
    body = body.partition("\n\n\nfailures:")[0]
    panic = _PANIC.search(body)
    if panic is None:
        error = re.search(r"^Error: .*", body, re.MULTILINE)
        found.add_test(name, error[0] if error else "")
        return
    found.add_test(name, panic[1] or panic[3] or "")
    for function, path in _CARGO_STACK_FRAME.findall(body[:8000]):
        if not is_foreign_path(path):
            found.add_path(path.removeprefix("./"))
            found.add_symbol(function.replace("::{{closure}}", "").rpartition("::")[2])
    found.add_path(panic[2])
    found.add_test_name(name.rpartition("::")[2])


CARGO_OUTPUT = OutputParser(
    marks=("test result: ", "error: could not compile", "error[E", "panicked at "),
    read_verdict=read_cargo_verdict,
    collect_failures=collect_cargo_failures,
)


# What Maven's Surefire, Gradle and the JUnit console print, and `dotnet test`.

_SUREFIRE_FAILURE = re.compile(
    r"^(?:\[ERROR\] {1,4})?(\S[^\n]{0,300}?) {1,2}(?:-- )?Time elapsed: [\d.,]+ s(?:ec)? {0,2}"
    r"<<< (?:FAILURE|ERROR)![^\n]*\n",
    re.MULTILINE,
)
_JAVA_LISTED_FAILURE = re.compile(
    r"^\[ERROR\] {2,4}([\w.$]+\.[\w$]+)(?::\d+)?(?:->[\w.:]+)? (?:» )?([^\n]+)", re.MULTILINE
)
_GRADLE_FAILURE = re.compile(r"^(\S[^\n>]*(?: > [^\n>]+)+) FAILED\n", re.MULTILINE)
_JUNIT_FAILURE = re.compile(r"^\d+\) ([\w$\[\]]+\([\w.$]+\))\n", re.MULTILINE)
_DOTNET_FAILURE = re.compile(r"^ {2}Failed (\S[^\n]*?) \[[^\]\n]*\]\n", re.MULTILINE)
_CLASS_AND_TEST = re.compile(r"([\w$\[\]]+)\(([\w.$]+)\)\Z")
_JAVA_STACK_FRAME = re.compile(
    r"\n[ \t]+at (?:[\w.@]+/)?([\w.$]+)\((\w+\.(?:java|kt|scala|groovy)):\d+\)"
)
_LIBRARIES = (
    "java.", "jdk.", "sun.", "org.junit.", "org.opentest4j.", "org.apache.maven.", "org.gradle.",
)  # fmt: skip
_FAILED_COUNT = re.compile(r"Tests run: \d+, Failures: (\d+), Errors: (\d+)")


def read_java_verdict(text: str) -> bool | None:
    tail = "\n" + text[-6000:]
    if "BUILD FAIL" in tail or "<<< FAILURE!" in tail or "\nFailed!  - " in tail:
        return False
    counts = _FAILED_COUNT.findall(tail)
    if any(failures != "0" or errors != "0" for failures, errors in counts):
        return False
    passed = counts or "BUILD SUCCESS" in tail or "\nPassed!  - " in tail
    return True if passed else None


def collect_java_failures(text: str, found: FailureCollector) -> None:
    for pattern in (_SUREFIRE_FAILURE, _GRADLE_FAILURE, _JUNIT_FAILURE, _DOTNET_FAILURE):
        for header, body in split_by_headers(pattern, text):
            if not header[1].startswith(("Tests run:", "> Task")):
                _add_java_failure(_test_name(header[1]), body, found)
    if not found.errors:
        for name, message in _JAVA_LISTED_FAILURE.findall(text):
            found.add_test(name, message)
    if not found.errors:
        tool_output.collect_source_place_failures(text, found)


def _test_name(title: str) -> str:
    match = _CLASS_AND_TEST.match(title)
    return f"{match[2]}.{match[1]}" if match else title


def _add_java_failure(name: str, body: str, found: FailureCollector) -> None:
    body = body[:8000]
    message_text = body.partition("Error Message:\n")[2] or body
    found.add_test(name, message_text.lstrip().partition("\n")[0])
    for function, path in _JAVA_STACK_FRAME.findall("\n" + body):
        if not function.startswith(_LIBRARIES):
            found.add_path(path)
            found.add_symbol(function.rpartition(".")[2])
    found.add_test_name(re.split(r"[.>:]", name)[-1].strip().rstrip("()"))


JAVA_OUTPUT = OutputParser(
    marks=("<<< FAILURE!", "<<< ERROR!", "BUILD ", "\nTests run: ", "[ERROR] ", "Failed!  - "),
    read_verdict=read_java_verdict,
    collect_failures=collect_java_failures,
)


# What RSpec and Minitest print.

_RSPEC_FAILURE = re.compile(
    r"^rspec (?:'|\")?(\./[^\s:'\"\[]+)(?::\d+|\[[\d:]+\])(?:'|\")? # ([^\n]+)", re.MULTILINE
)
_RUBY_NUMBERED_FAILURE = re.compile(
    r"^ {2}\d+\) (?!Failure:|Error:|Skipped:)([^\n]+)\n", re.MULTILINE
)
_MINITEST_FAILURE = re.compile(
    r"^(?: *\d+\) )?(?:Failure|Error):\n(\S+#[^\s\[:]+)(?: \[([^\]:]+):\d+\])?:?\n", re.MULTILINE
)
_RUBY_TOTALS = re.compile(
    r"^(?:(\d+) examples?, (\d+) failures?(?:, \d+ pending)?(?:, (\d+) errors?)?"
    r"|(\d+) (?:runs|tests), \d+ assertions, (\d+) failures, (\d+) errors)", re.MULTILINE,
)  # fmt: skip
_RUBY_STACK_FRAME = re.compile(r"# (\./[^\s:]+):\d+:in [`'](?:[\w:#]*[#.])?([^']+)'")


def read_ruby_verdict(text: str) -> bool | None:
    results = _RUBY_TOTALS.findall(text[-4000:])
    if any(count not in ("", "0") for result in results for count in (*result[1:3], *result[4:])):
        return False
    return True if any(result[0] or result[3] for result in results) else None


def collect_ruby_failures(text: str, found: FailureCollector) -> None:
    bodies_by_name = {}
    for header, body in split_by_headers(_RUBY_NUMBERED_FAILURE, text):
        bodies_by_name[header[1].strip()] = body
    for path, name in _RSPEC_FAILURE.findall(text):
        body = bodies_by_name.pop(name.strip(), "")
        _add_example(f"{path} # {name.strip()}", body, found)
        found.add_path(path)
    for name, body in bodies_by_name.items():
        if "Failure/Error:" in body:
            _add_example(name, body, found)
    for header, body in split_by_headers(_MINITEST_FAILURE, text):
        found.add_test(header[1], first_text_line(body))
        found.add_path(header[2] or "")
        found.add_test_name(header[1].rpartition("#")[2])


def _add_example(name: str, body: str, found: FailureCollector) -> None:
    source, _, rest = body.partition("Failure/Error:")[2].partition("\n")
    found.add_test(name, first_text_line(rest), source)
    for path, function in _RUBY_STACK_FRAME.findall(body[:8000]):
        found.add_path(path)
        found.add_symbol(function.rpartition(" in ")[2])


RUBY_OUTPUT = OutputParser(
    marks=("\nrspec ./", " examples, ", " runs, ", "Failure/Error:", "\nFailure:\n", "\nError:\n"),
    read_verdict=read_ruby_verdict,
    collect_failures=collect_ruby_failures,
)


# What PHPUnit and Pest print.

_PHP_NUMBERED_FAILURE = re.compile(r"^\d+\) ([\w\\]+::[^\n]+)\n", re.MULTILINE)
_PEST_FAILURE = re.compile(r"^ *(?:FAILED|•) +([^\n]+? > [^\n]+?)(?:  +\w+)?\n", re.MULTILINE)
_PHP_STACK_FRAME = re.compile(r"^(?:  at )?(/?[^\s:]+\.php):\d+", re.MULTILINE)
_PEST_TOTALS = re.compile(r"^ +Tests: +(.*)", re.MULTILINE)


def read_php_verdict(text: str) -> bool | None:
    tail = "\n" + text[-3000:]
    pest = _PEST_TOTALS.search(tail)
    if "\nFAILURES!" in tail or "\nERRORS!" in tail or (pest and " failed" in pest[1]):
        return False
    return True if "\nOK (" in tail or (pest and " passed" in pest[1]) else None


def collect_php_failures(text: str, found: FailureCollector) -> None:
    for pattern in (_PHP_NUMBERED_FAILURE, _PEST_FAILURE):
        for header, body in split_by_headers(pattern, text):
            found.add_test(header[1], first_text_line(body))
            for path in reversed(_PHP_STACK_FRAME.findall(body[:8000])):
                found.add_path(path)
            found.add_test_name(re.split(r"::| > ", header[1])[-1].partition(" ")[0])


PHP_OUTPUT = OutputParser(
    marks=("\nFAILURES!", "\nERRORS!", "\nOK (", "PHPUnit ", "  FAILED  "),
    read_verdict=read_php_verdict,
    collect_failures=collect_php_failures,
)


# What CTest and GoogleTest print.

_CTEST_LISTED_FAILURE = re.compile(r"^[ \t]+\d+ - (\S+) \((\w[^)]*)\)", re.MULTILINE)
_FAILED_RUN = re.compile(r"^ *\d+/\d+ +Test +#\d+: (\S+) \.*\*\*\*(\w+)", re.MULTILINE)
_GOOGLE_FAILURE = re.compile(r"^\[  FAILED  \] (\S+\.\S+?)(?:,|\s|$)", re.MULTILINE)
_FAILURE = re.compile(r"^(\S+?):\d+: Failure\n([^\n]*)", re.MULTILINE)
_TOTAL = re.compile(r"\b\d{1,3}% tests passed, (\d++) tests? failed out of (\d++)")


def read_ctest_verdict(text: str) -> bool | None:
    total = _TOTAL.search(text[-4000:])
    if total:
        return None if total[2] == "0" else total[1] == "0"
    if "[  FAILED  ] " in text:
        return False
    return True if "[  PASSED  ] " in text else None


def collect_ctest_failures(text: str, found: FailureCollector) -> None:
    begin = text.find("The following tests FAILED:")
    for name, cause in (
        _CTEST_LISTED_FAILURE.findall(text[begin:]) if begin >= 0 else _FAILED_RUN.findall(text)
    ):
        found.add_test(name, cause)
        found.add_test_name(name)
    failures = _FAILURE.findall(text)
    for name in _GOOGLE_FAILURE.findall(text):
        found.add_test(name)
        found.add_test_name(name.rpartition(".")[2])
    for path, message in failures:
        found.add_path(path)
        found.add_quoted_names(message)


CTEST_OUTPUT = OutputParser(
    marks=("The following tests FAILED:", "% tests passed", "[  FAILED  ] ", "***Failed"),
    read_verdict=read_ctest_verdict,
    collect_failures=collect_ctest_failures,
)
