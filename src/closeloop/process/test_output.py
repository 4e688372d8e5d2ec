"""Failures in the output of test runners."""

from __future__ import annotations

import re

import msgspec

from closeloop.process import failure_collector
from closeloop.process.failure_collector import (
    FailureCollector,
    OutputParser,
    add_frames,
    find_origin,
    first_text_line,
    is_foreign_path,
    parse_python_frames,
    parse_script_frames,
    split_by_headers,
)
from closeloop.text.wording import compile_lazily

# Output of Python's test runners, and tracebacks of plain scripts.


_SOURCE_PLACE = compile_lazily(r"(\S+?):\d+:(?: in (\S+)| |$)")
_TELLING_STARTS = frozenset(("  def ", 'File "'))
_TEST_FILE = compile_lazily(r"(?:^|/)(?:tests?_[^/]*|[^/]*_tests?|tests?)\.py\Z")
_VERBOSE_STATUS = compile_lazily(r" (?:FAILED|ERROR)\b")
_OUTCOME_TOTAL = compile_lazily(
    r"(?:^|[ =])\d+ (passed|failed|errors?|skipped|deselected|xfailed)\b"
)
_CONFTEST_ERROR = compile_lazily(r"^\w*Error while loading conftest '([^'\n]+)'", re.MULTILINE)
_PASSING_DOTS = compile_lazily(r"[.sxX]+ +\[100%\]\Z")
_PROGRESS_DOTS = compile_lazily(r"[.sxXFE]+ +\[ *\d+%\]\Z")


class _PytestSection:
    """One failure, shown in full."""

    __slots__ = ("error", "functions", "in_error", "origin", "paths", "wants_origin")

    def __init__(self) -> None:
        self.error = self.origin = ""
        self.paths: list[str] = []
        self.functions: list[str] = []
        self.in_error = self.wants_origin = False


def read_pytest_verdict(text: str) -> bool | None:
    """Parse the last line with totals, or dots alone if there is none."""
    totals = None
    dots: bool | None = None
    for line in text[-4000:].split("\n"):
        if " in " in line and (outcomes := _OUTCOME_TOTAL.findall(line)):
            failed = "failed" in outcomes or "error" in outcomes or "errors" in outcomes
            totals = False if failed or totals is False else ("passed" in outcomes or totals)
        elif line.endswith("%]") and _PROGRESS_DOTS.match(line):
            dots = False if "F" in line or "E" in line else dots
            if dots is None and _PASSING_DOTS.match(line):
                dots = True
    if totals is not None:
        return totals
    if _CONFTEST_ERROR.search(text):
        return False
    return dots if " FAILURES =" not in text and " ERRORS =" not in text else False


def collect_pytest_failures(text: str, collector: FailureCollector) -> None:
    ids: dict[str, str] = {}
    sections: dict[str, _PytestSection] = {}
    section: _PytestSection | None = None
    for line in text.split("\n"):
        if not line:
            continue
        head = line[0]
        if head == " ":
            if section is not None and (section.wants_origin or line[2:8] in _TELLING_STARTS):
                _read_indented_line(line, section)
        elif head in "EF" and line.startswith(("FAILED ", "ERROR")):
            _read_summary_line(line, ids, collector)
        elif head == "_" and line[-1] == "_" and line[1:2] != " " and " " in line:
            section = _begin_section(line, sections)
        elif head == "=" or (head == "-" and line.startswith("-----")):
            section = None
        elif section is not None:
            _read_section_line(line, head, section)
        elif "FAILED" in line or "ERROR" in line:
            _read_verbose_line(line, ids, collector)
    _merge_sections(ids, sections, collector)
    _add_conftest_error(text, collector)


def _add_conftest_error(text: str, collector: FailureCollector) -> None:
    """Add what prevents every test from being collected."""
    conftest = _CONFTEST_ERROR.search(text) if not collector.errors else None
    if conftest:
        error_line = re.search(r"^E +(\S[^\n]*)", text[conftest.end() :], re.MULTILINE)
        collector.add_test(conftest[1], error_line[1] if error_line else "")


def _read_verbose_line(line: str, ids: dict[str, str], collector: FailureCollector) -> None:
    """Read a line of `-v`, or of xdist's workers."""
    if line[0] == "[":
        _read_summary_line(
            line[line.rindex("] ", 0, 30) + 2 if "] " in line[:30] else 0 :], ids, collector
        )
    elif "::" in line:
        ids.setdefault(_VERBOSE_STATUS.split(line, maxsplit=1)[0].strip(), "")


def _begin_section(line: str, sections: dict[str, _PytestSection]) -> _PytestSection | None:
    title = line[line.index(" ") + 1 : line.rindex(" ")].strip()
    if title.startswith("ERROR "):
        title = title.partition(" of " if " of " in title else " collecting ")[2]
    if not title or title[:2] in ("_ ", "summary"):
        return None
    return sections.setdefault(title, _PytestSection())


def _read_error_line(line: str, section: _PytestSection) -> None:
    message = line[1:].strip()
    # The last of chained errors counts; for a syntax error, the line after the source.
    first = not section.in_error or section.error.startswith("File ")
    if message and (first or message.startswith(("SyntaxError", "IndentationError", "TabError"))):
        section.error = message
    section.in_error = True


def _read_indented_line(line: str, section: _PytestSection) -> None:
    if section.wants_origin:
        section.origin, section.wants_origin = line.strip(), False
    elif line.startswith("    def "):
        section.functions.append(line[8:].partition("(")[0])
    elif line.startswith('  File "'):
        path, _, location = line[8:].partition('"')
        section.paths.append(path)
        section.functions.append(location.rpartition(" in ")[2])
        section.wants_origin = not section.origin and not is_foreign_path(path)


def _read_section_line(line: str, head: str, section: _PytestSection) -> None:
    if head == "E" and line[1:3] == "  ":
        _read_error_line(line, section)
        return
    section.in_error = False
    if head == ">":
        section.origin = section.origin or line[1:].strip()
    elif match := _SOURCE_PLACE.match(line):
        section.paths.append(match[1])
        if match[2]:
            section.functions.append(match[2])
            section.wants_origin = not section.origin and not is_foreign_path(match[1])
    elif section.paths and not section.error and ": " in line:
        section.error = line


def _read_summary_line(line: str, ids: dict[str, str], collector: FailureCollector) -> None:
    if line.startswith("ERROR: "):
        if not line.startswith("ERROR: usage"):
            collector.add_test(line)
            collector.add_symbol(line.rpartition("::")[2] if "::" in line else "")
        return
    summary = line.partition(" ")[2]
    if summary[:1] in ("", " ", "(") or ".py" not in summary:
        return
    node, _, message = summary.partition(" - ")
    if "[" in node and "]" not in node:
        # A parameter with ` - ` in it.
        node_prefix, bracket, rest_message = summary.partition("] - ")
        node, message = (node_prefix + bracket[:1], rest_message) if bracket else (summary, "")
    if " " in node.partition("[")[0].partition("::")[0]:
        return
    ids[node.strip()] = message or ids.get(node.strip(), "")


def _merge_sections(
    ids: dict[str, str], sections: dict[str, _PytestSection], collector: FailureCollector
) -> None:
    for node, message in ids.items():
        section = sections.pop(_section_title(node), None)
        path, _, test = node.partition("::")
        name = test.partition("[")[0].rpartition("::")[2]
        if section is None:
            collector.add_test(node, message)
        else:
            collector.add_test(node, section.error or message, section.origin)
            _add_section_names(section, name, collector)
        collector.add_path(path)
        collector.add_test_name(name)
    for title, section in sections.items():
        if section.error or section.paths:
            test, bracket, parameters = title.partition("[")
            name = "" if title.endswith(".py") else test.rpartition(".")[2]
            path = next(filter(_TEST_FILE.search, section.paths), "")
            node = f"{path}::{test.replace('.', '::')}{bracket}{parameters}"
            collector.add_test(node if path and name else title, section.error, section.origin)
            _add_section_names(section, name, collector)
            collector.add_test_name(name)


def _section_title(node: str) -> str:
    path, _, test = node.partition("::")
    name, bracket, parameters = test.partition("[")
    return name.replace("::", ".") + bracket + parameters if test else path


def _add_section_names(section: _PytestSection, test: str, collector: FailureCollector) -> None:
    for path in reversed(section.paths):
        collector.add_path(path)
    for path, name in zip(reversed(section.paths), reversed(section.functions), strict=False):
        if name != test and not is_foreign_path(path):
            collector.add_symbol(name)


PYTEST_OUTPUT = OutputParser(
    marks=(
        "= test session starts", "short test summary info", "= FAILURES =", "= ERRORS =",
        " passed in ", " failed in ", " error in ", " errors in ", " warnings in ", "\nFAILED ",
        "while loading conftest '",
    ),
    read_verdict=read_pytest_verdict,
    collect_failures=collect_pytest_failures,
)  # fmt: skip


# Output of unittest, and of Django's test runner.

_FAILURE_HEADER = compile_lazily(r"\n(?:FAIL|ERROR): (\S++) \(([^)\n]*+)\)([^\n]*+)")
_VERBOSE_FAILURE = compile_lazily(
    r"\n *+(\S++) \(([^)\n]++)\)((?: \([^)\n]*+\))?)(?:\n[^\n]*?)? \.\.\. (?:FAIL|ERROR)\b"
)
_BLOCK_ENDS = ("\n======", "\n------")


def read_unittest_verdict(text: str) -> bool | None:
    """Parse the line below `Ran … tests`."""
    tail = text[-4000:]
    if "\nFAILED (" in tail or tail.startswith("FAILED ("):
        return False
    total_start = tail.rfind("Ran ")
    if (
        total_start >= 0
        and tail.find("\nOK", total_start) > 0
        and not tail.startswith("Ran 0 ", total_start)
    ):
        return True
    return None


def collect_unittest_failures(text: str, collector: FailureCollector) -> None:
    text = "\n" + text
    for header, block in split_by_headers(_FAILURE_HEADER, text):
        _add_unittest_failure(header, block, collector)
    if not collector.errors and ("... FAIL" in text or "... ERROR" in text):
        for verbose in _VERBOSE_FAILURE.finditer(text):
            collector.add_test(_test_id(verbose))
            collector.add_test_name(verbose[1])


def _add_unittest_failure(header: re.Match[str], block: str, collector: FailureCollector) -> None:
    begin = block.find("\n------")
    begin = block.find("\n", begin + 1) if begin >= 0 else 0
    end_indexes = [
        index for end_mark in _BLOCK_ENDS if (index := block.find(end_mark, begin + 1)) >= 0
    ]
    body = block[begin : min(end_indexes, default=None)]
    frames = parse_python_frames(body)
    collector.add_test(_test_id(header), find_error_line(body), find_origin(frames))
    add_frames(reversed(frames), collector)
    collector.add_test_name(header[1])


def _test_id(match: re.Match[str]) -> str:
    name, owner = match[1], match[2]
    full_name = owner if owner.endswith("." + name) or owner == name else f"{owner}.{name}"
    return f"{full_name} {match[3].strip()}".strip()


def find_error_line(body: str) -> str:
    """Return the first unindented line after the last frame: the error."""
    lines = body[max(body.rfind('\n  File "'), 0) :].split("\n")
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line and line[0] not in " \t":
            # Some messages begin on a line of their own.
            return f"{line} {following}" if line.rstrip().endswith(":") else line
    return ""


UNITTEST_OUTPUT = OutputParser(
    marks=("\nFAIL: ", "\nERROR: ", "\nFAILED (", "\nRan "),
    read_verdict=read_unittest_verdict,
    collect_failures=collect_unittest_failures,
)


# Output of SymPy's own runner (`bin/test`).

_SYMPY_HEADER = compile_lazily(r"\n_{2,80} (\S{1,300}\.py):(\w{1,200}) _{2,80}\n")
_SYMPY_TOTALS = compile_lazily(r"= tests finished: [^\n]{0,200}")


def read_sympy_verdict(text: str) -> bool | None:
    """Parse the line of totals."""
    totals = _SYMPY_TOTALS.findall(text)
    if not totals:
        return None
    return "failed" not in totals[-1] and "exceptions" not in totals[-1]


def collect_sympy_failures(text: str, collector: FailureCollector) -> None:
    for header, block in split_by_headers(_SYMPY_HEADER, "\n" + text):
        body = block.partition("\n====")[0]
        frames = parse_python_frames(body)
        collector.add_test(f"{header[1]}::{header[2]}", find_error_line(body), find_origin(frames))
        add_frames(reversed(frames), collector)
        collector.add_test_name(header[2])


SYMPY_OUTPUT = OutputParser(
    marks=("= test process starts", "= tests finished: "),
    read_verdict=read_sympy_verdict,
    collect_failures=collect_sympy_failures,
)


# Errors of plain scripts: Python's tracebacks, and the stacks of Node.js.

_SCRIPT_ERROR = compile_lazily(r"\n((?:Uncaught )?(?:\w+\.)*\w*(?:Error|Exception)\b[^\n]*+)\n")


def read_traceback_verdict(text: str) -> bool | None:
    """Return None: a script may print an error and continue."""
    return None


def collect_traceback_failures(text: str, collector: FailureCollector) -> None:
    begin = text.rfind("Traceback (most recent call last)")
    if begin < 0 and "Error" in text:
        begin = text.rfind('  File "')
    if begin >= 0:
        _add_python_error(text[begin:], collector)
    elif "\n    at " in text:
        _add_script_error(text, collector)


def _add_python_error(body: str, collector: FailureCollector) -> None:
    body = "\n" + (body.partition("Traceback (most recent call last):\n")[2] or body)
    frames = parse_python_frames(body)
    error = find_error_line(body)
    if error:
        _add_traceback_failure(error, list(reversed(frames)), collector)


def _add_script_error(text: str, collector: FailureCollector) -> None:
    stack = text.find("\n    at ")
    begin = max(stack - 2000, 0)
    errors = _SCRIPT_ERROR.findall("\n" + text[begin : stack + 1])
    if errors:
        _add_traceback_failure(
            errors[-1], parse_script_frames(text[stack : stack + 4000]), collector
        )


def _add_traceback_failure(
    error: str, frames: list[tuple[str, str, str]], collector: FailureCollector
) -> None:
    kind = re.split(r"[:\s(]", error, maxsplit=1)[0]
    path, name, _ = next((frame for frame in frames if not is_foreign_path(frame[0])), ("", "", ""))
    path_prefix = f"{path}: " if path else ""
    function_suffix = f" in {name}" if name and name[0] != "<" else ""
    collector.add_test(f"{path_prefix}{kind}{function_suffix}", error)
    add_frames(frames, collector)


TRACEBACK_OUTPUT = OutputParser(
    marks=("Traceback (most recent call last)", "SyntaxError", "IndentationError", "\n    at "),
    read_verdict=read_traceback_verdict,
    collect_failures=collect_traceback_failures,
)


# Output of JavaScript's test runners: Jest, Vitest, Mocha, Playwright, TAP and `node --test`.


_TIMING = compile_lazily(r" \(\d[\d.]* ?m?s\)\s*\Z")
_BUN_TOTAL = compile_lazily(r"^ *(\d+) (pass|fail)$", re.MULTILINE)
_BUN_TIMING = compile_lazily(r" \[[\d.]+m?s\]\s*\Z")


def read_jest_verdict(text: str) -> bool | None:
    for line in text[-3000:].split("\n"):
        if line.startswith(("Tests: ", "Test Suites: ")):
            if " failed" in line:
                return False
            if line.startswith("Tests: ") and " passed" in line:
                return True
    totals = {outcome: count != "0" for count, outcome in _BUN_TOTAL.findall(text[-1000:])}
    if totals.get("fail") or "\n(fail) " in text:
        return False
    return True if totals.get("pass") and "\nRan " in text[-1000:] else None


def collect_jest_failures(text: str, collector: FailureCollector) -> None:
    file = ""
    blocks = ("\n" + text).split("\n  ● ")
    for number, block in enumerate(blocks):
        if number:
            _add_jest_failure(block, file, collector)
        begin = block.rfind("\nFAIL ")
        if begin >= 0:
            file = _TIMING.sub("", block[begin + 6 :].partition("\n")[0]).strip().rpartition(" ")[2]
    for line in text.split("\n") if not collector.errors else ():
        if line.startswith("(fail) "):
            collector.add_test(_BUN_TIMING.sub("", line[7:]))
        elif line.lstrip()[:2] == "✕ ":
            collector.add_test(_TIMING.sub("", line.strip()[2:]))
        elif line.startswith("FAIL ") and "." in line:
            collector.add_test(_TIMING.sub("", line[5:]))


def _add_jest_failure(block: str, file: str, collector: FailureCollector) -> None:
    title, _, body = block.partition("\n")
    if title.strip() in ("Console", "Deprecation Warning:"):
        return
    body = body.partition("\nFAIL ")[0].partition("\nTest Suites: ")[0]
    message = first_text_line(body)
    origin = ""
    if message.startswith("expect("):
        # The frame that Jest prints for a failed expectation is in the test.
        origin = body.partition("\n    > ")[2].partition("\n")[0].partition("|")[2]
    collector.add_test(f"{file} › {title}" if file else title, message, origin)
    add_frames(parse_script_frames(body[:8000]), collector)
    collector.add_path(file)
    collector.add_test_name(title.rpartition(" › ")[2])


JEST_OUTPUT = OutputParser(
    marks=("\n  ● ", "\nTest Suites: ", "\n(fail) ", " expect() calls"),
    read_verdict=read_jest_verdict,
    collect_failures=collect_jest_failures,
)


# Output of Vitest.

_VITEST_TOTALS = compile_lazily(r"^ *(?:Test Files|Tests|Errors) {2}([^\n]*)", re.MULTILINE)
_MARKED_FAILURE = compile_lazily(r"^ *[×✗] (.+?)(?: \d+(?:\.\d+)?m?s)?$", re.MULTILINE)


def read_vitest_verdict(text: str) -> bool | None:
    totals = _VITEST_TOTALS.findall(text[-3000:])
    if any("failed" in total or "error" in total for total in totals):
        return False
    return True if any("passed" in total for total in totals) else None


def collect_vitest_failures(text: str, collector: FailureCollector) -> None:
    for block in ("\n" + text).split("\n FAIL  ")[1:]:
        title, _, body = block.partition("\n")
        if body.startswith(" FAIL  "):
            body = body.partition("\n")[2]
        body = body[: max(body.find("\n⎯⎯⎯"), 0) or 4000]
        title = title.partition(" [ ")[0].strip()
        collector.add_test(title, first_text_line(body))
        add_frames(parse_script_frames(body), collector)
        collector.add_path(title.partition(" > ")[0].rpartition("| ")[2])
        collector.add_test_name(title.rpartition(" > ")[2])
    if not collector.errors:
        for name in _MARKED_FAILURE.findall(text):
            collector.add_test(name)


VITEST_OUTPUT = OutputParser(
    marks=("\n FAIL  ", "\n Test Files  ", "\n      Tests  "),
    read_verdict=read_vitest_verdict,
    collect_failures=collect_vitest_failures,
)


# Output of Mocha, in any of its reporters that list the failures; Cypress too.

_FAILING_TOTAL = compile_lazily(r"^ *\d+ failing$", re.MULTILINE)
_PASSING_TOTAL = compile_lazily(r"^ *[1-9]\d* passing\b", re.MULTILINE)
_MOCHA_NUMBERED_FAILURE = compile_lazily(r"\n  \d+\) ")
_MOCHA_LISTED_FAILURE = compile_lazily(r"^ +\d+\) (.+)$", re.MULTILINE)


def read_mocha_verdict(text: str) -> bool | None:
    if " failing" in text and _FAILING_TOTAL.search(text):
        return False
    return True if _PASSING_TOTAL.search(text[-4000:]) else None


def collect_mocha_failures(text: str, collector: FailureCollector) -> None:
    totals = _FAILING_TOTAL.search(text)
    for block in _MOCHA_NUMBERED_FAILURE.split(text[totals.end() :])[1:] if totals else ():
        lines = block.split("\n")
        last = next((index for index, line in enumerate(lines[:10]) if line.endswith(":")), 0)
        title = " ".join(line.strip() for line in lines[: last + 1]).rstrip(":")
        body = "\n".join(lines[last + 1 :])
        collector.add_test(title, first_text_line(body))
        add_frames(parse_script_frames(body[:8000]), collector)
        collector.add_test_name(lines[last].strip().rstrip(":"))
    if (
        not collector.errors
        and _FAILING_TOTAL.search(text) is None
        and _PASSING_TOTAL.search(text) is None
    ):
        for name in _MOCHA_LISTED_FAILURE.findall(text):
            collector.add_test(name)


MOCHA_OUTPUT = OutputParser(
    marks=(" failing\n", " passing ("),
    read_verdict=read_mocha_verdict,
    collect_failures=collect_mocha_failures,
)


# Output of Playwright's test runner.

_TEST_TITLE = r"((?:\[[^\]\n]{1,80}\] › )?)([^\s:]+):\d+:\d+ › ([^\n─]+)"
_PLAYWRIGHT_NUMBERED_FAILURE = compile_lazily(rf"^ {{2}}\d+\) {_TEST_TITLE}", re.MULTILINE)
_PLAYWRIGHT_LISTED_FAILURE = compile_lazily(rf"^ {{4}}{_TEST_TITLE}", re.MULTILINE)
_PLAYWRIGHT_FAILED_TOTAL = compile_lazily(
    r"^ {2}[1-9]\d* (?:failed|interrupted|timed out)\b", re.MULTILINE
)
_PLAYWRIGHT_PASSED_TOTAL = compile_lazily(r"^ {2}[1-9]\d* passed \(", re.MULTILINE)


def read_playwright_verdict(text: str) -> bool | None:
    tail = text[-4000:]
    if _PLAYWRIGHT_FAILED_TOTAL.search(tail):
        return False
    return True if _PLAYWRIGHT_PASSED_TOTAL.search(tail) else None


def collect_playwright_failures(text: str, collector: FailureCollector) -> None:
    for test, block in split_by_headers(_PLAYWRIGHT_NUMBERED_FAILURE, text):
        body = block.partition("\n\n    attachment #")[0]
        _add_playwright_failure(test, first_text_line(body.lstrip("─")), collector)
        add_frames(parse_script_frames(body[:4000]), collector)
    total = _PLAYWRIGHT_FAILED_TOTAL.search(text) if not collector.errors else None
    for test in _PLAYWRIGHT_LISTED_FAILURE.finditer(text, total.end()) if total else ():
        _add_playwright_failure(test, "", collector)


def _add_playwright_failure(test: re.Match[str], message: str, collector: FailureCollector) -> None:
    project, path, title = test[1], test[2], test[3].strip()
    collector.add_test(f"{project}{path} › {title}", message)
    collector.add_path(path)
    collector.add_test_name(title.rpartition(" › ")[2])


PLAYWRIGHT_OUTPUT = OutputParser(
    marks=("[chromium] › ", "[firefox] › ", "[webkit] › ", " did not run\n"),
    read_verdict=read_playwright_verdict,
    collect_failures=collect_playwright_failures,
)


# The Test Anything Protocol, and output of `node --test`.

_NOT_OK_LINE = compile_lazily(r"^ *+not ok \d*+(?: -)? ?([^\n]*+)", re.MULTILINE)
_TAP_FAILED_TOTAL = compile_lazily(r"^[#ℹ] fail (\d+)", re.MULTILINE)
_TAP_PASSED_TOTAL = compile_lazily(r"^[#ℹ] pass [1-9]", re.MULTILINE)
_ERROR_MESSAGE = compile_lazily(r"^ *(?:error|message): *(?:\|-\n *)?([^\n]+)", re.MULTILINE)
_LOCATION = compile_lazily(r"(?:location|at): ['\"]?([^\s'\"]+?):\d+")
_TAP_STACK_FRAME = compile_lazily(r"\n +([\w.<>]+) \(([^\s:()]++):\d")
_SPEC_FAILURE = compile_lazily(
    r"^(?:test at (\S+?):\d+:\d+\n)? *✖ (.+?)(?: \([\d.]+ms\))?$", re.MULTILINE
)


def read_tap_verdict(text: str) -> bool | None:
    failed = _TAP_FAILED_TOTAL.findall(text[-4000:])
    if failed:
        return (
            False
            if any(count != "0" for count in failed)
            else bool(_TAP_PASSED_TOTAL.search(text)) or None
        )
    return None


def collect_tap_failures(text: str, collector: FailureCollector) -> None:
    for test, body in split_by_headers(_NOT_OK_LINE, text):
        _add_tap_failure(test[1], body, collector)
    if not collector.errors and "✖ " in text:
        _add_listed_failures(text[max(text.find("✖ failing tests:"), 0) :], collector)


def _add_tap_failure(title: str, body: str, collector: FailureCollector) -> None:
    name, _, remark = title.partition(" # ")
    if remark[:4].upper() in ("TODO", "SKIP") or title.endswith("{"):
        return
    body = body.partition("\n# Subtest")[0][:4000]
    if "'subtestsFailed'" in body:
        return
    error = _ERROR_MESSAGE.search(body)
    collector.add_test(name, error[1].strip("\"'") if error else "")
    add_frames(
        [(path, function, "") for function, path in _TAP_STACK_FRAME.findall(body)], collector
    )
    for path in _LOCATION.findall(body):
        collector.add_path(path)
    collector.add_test_name(name)


def _add_listed_failures(text: str, collector: FailureCollector) -> None:
    for test, body in split_by_headers(_SPEC_FAILURE, text):
        path, name = test[1] or "", test[2]
        if name == "failing tests:" or name.endswith("# TODO"):
            continue
        collector.add_test(f"{path} > {name}" if path else name, first_text_line(body))
        add_frames(parse_script_frames(body[:4000]), collector)
        collector.add_path(path)
        collector.add_test_name(name)


TAP_OUTPUT = OutputParser(
    marks=("TAP version", "\nnot ok ", "# fail ", "ℹ fail ", "✖ failing tests:"),
    read_verdict=read_tap_verdict,
    collect_failures=collect_tap_failures,
)


# Output of test runners of other languages: Go, Rust, Java, Ruby, PHP and C++.


_TEST_TIMING = compile_lazily(r" \([\d.]+s\)\Z")
_LOG_LINE = compile_lazily(r"\s+(\S+\.go):\d+: ?(.*)")
_GLUED_LOG_LINE = compile_lazily(r" {4}(\S+_test\.go):\d+: (.+)")
"""After output without a line end."""
_COMPILER_ERROR = compile_lazily(r"(?:vet: )?(\S+\.go):\d+(?::\d+)?: (.+)")
_GO_STACK_FRAME = compile_lazily(r"\t(\S+\.go):\d+")
_LONGEST, _UNTIL = 200, " … "


class _GoTestEvent(msgspec.Struct):
    """One line of `go test -json`."""

    Output: str = ""


_decode_event = msgspec.json.Decoder(_GoTestEvent).decode


def read_go_verdict(text: str) -> bool | None:
    """Parse the last lines of the packages."""
    text = "\n" + _unwrap_json(text)
    if "\nFAIL\n" in text or "\nFAIL\t" in text or "\n--- FAIL: " in text:
        return False
    return True if "\nok  \t" in text or text.rstrip().endswith("\nPASS") else None


def collect_go_failures(text: str, collector: FailureCollector) -> None:
    run = _GoPackageRun()
    for line in _unwrap_json(text).split("\n"):
        run.read_line(line, collector)
    run.end_package("", collector)


class _GoPackageRun:
    """The tests of the current package."""

    def __init__(self) -> None:
        self.reset_package()

    def reset_package(self) -> None:
        self.current = self.last = ""
        self.failed: dict[str, None] = {}
        self.messages: dict[str, str] = {}
        self.paths: dict[str, None] = {}

    def read_line(self, line: str, collector: FailureCollector) -> None:
        head = line[:1]
        if head in " \t" and head:
            self.read_indented_line(line)
        elif line.startswith("FAIL\t"):
            self.end_package(line[5:], collector)
        elif line.startswith("ok  \t"):
            self.reset_package()
        elif line.startswith("=== "):
            self.current = line[10:].strip()
        elif line.startswith("--- FAIL: "):
            self.record_failure(line)
        elif line.startswith("panic: "):
            self.messages[self.current] = line.partition(" [recovered]")[0]
        elif ".go:" in line and (match := _COMPILER_ERROR.match(line)):
            collector.add_place(match[1], match[2])
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
        """Record a logged line; the first and the last are stored, since any may be the failure."""
        self.paths[match[1]] = None
        if match[2]:
            first = self.messages.get(self.current, "").partition(_UNTIL)[0]
            last = match[2][:_LONGEST]
            self.messages[self.current] = f"{first}{_UNTIL}{last}" if first else last

    def record_failure(self, line: str) -> None:
        self.current = _TEST_TIMING.sub("", line.partition("--- FAIL: ")[2])
        self.failed[self.current] = None

    def end_package(self, package: str, collector: FailureCollector) -> None:
        """Add the failed tests of a package, without tests that only their subtests made fail."""
        name = package.partition("\t")[0].partition(" ")[0]
        parents = {
            test[:index] for test in self.failed for index, char in enumerate(test) if char == "/"
        }
        for test in self.failed:
            if test not in parents:
                collector.add_test(f"{name}.{test}" if name else test, self.messages.get(test, ""))
                collector.add_test_name(test.partition("/")[0])
        if name and not self.failed and not (collector.errors and " failed]" in package):
            # It ended before any test; its errors say why it did not build.
            collector.add_test(
                package.partition("\t")[0], self.messages.get(self.current, self.last)
            )
        for path in self.paths:
            collector.add_path(path)
        self.reset_package()


def _unwrap_json(text: str) -> str:
    """Unwrap the output of `-json`."""
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


# Output of `cargo test` and cargo-nextest; rustc's errors are read as locations.

_OUTPUT_HEADER = compile_lazily(r"^---- (\S+)(?: - .*)? stdout ----\n", re.MULTILINE)
_FAILED_TEST = compile_lazily(
    r"^(?:test (\S+)(?: - [^\n]*?)? \.\.\. FAILED| +FAIL \[[^\]\n]*\] \S+ (\S+))", re.MULTILINE
)
_PANIC = compile_lazily(r"panicked at (?:'([^\n]{0,500}?)', )?([^\s:,]+):\d+:\d+:?(?:\n([^\n]+))?")
_CARGO_STACK_FRAME = compile_lazily(r"\n +\d+: ([^\n]+)\n +at ([^\s:]+):\d+")


def read_cargo_verdict(text: str) -> bool | None:
    if "test result: FAILED" in text or "error: could not compile" in text:
        return False
    return True if "test result: ok" in text else None


def collect_cargo_failures(text: str, collector: FailureCollector) -> None:
    for match in _FAILED_TEST.finditer(text):
        name = match[1] or match[2]
        collector.add_test(name)
        collector.add_test_name(name.rpartition("::")[2])
    for header, body in _output_blocks(text):
        _add_cargo_failure(header, body, collector)
    if not collector.errors and "error" in text:
        failure_collector.collect_source_place_failures(text, collector)
    if not collector.errors and (panic := _PANIC.search(text)):
        collector.add_test(f"{panic[2]}: panic", panic[1] or panic[3] or "")
        collector.add_path(panic[2])


def _output_blocks(text: str) -> list[tuple[str, str]]:
    pieces = _OUTPUT_HEADER.split(text)
    return list(zip(pieces[1::2], pieces[2::2], strict=False))


def _add_cargo_failure(name: str, body: str, collector: FailureCollector) -> None:
    body = body.partition("\n\n\nfailures:")[0]
    panic = _PANIC.search(body)
    if panic is None:
        error = re.search(r"^Error: .*", body, re.MULTILINE)
        collector.add_test(name, error[0] if error else "")
        return
    collector.add_test(name, panic[1] or panic[3] or "")
    for function, path in _CARGO_STACK_FRAME.findall(body[:8000]):
        if not is_foreign_path(path):
            collector.add_path(path.removeprefix("./"))
            collector.add_symbol(function.replace("::{{closure}}", "").rpartition("::")[2])
    collector.add_path(panic[2])
    collector.add_test_name(name.rpartition("::")[2])


CARGO_OUTPUT = OutputParser(
    marks=("test result: ", "error: could not compile", "error[E", "panicked at "),
    read_verdict=read_cargo_verdict,
    collect_failures=collect_cargo_failures,
)


# Output of Maven's Surefire, Gradle and the JUnit console, and `dotnet test`.

_SUREFIRE_FAILURE = compile_lazily(
    r"^(?:\[ERROR\] {1,4})?(\S[^\n]{0,300}?) {1,2}(?:-- )?Time elapsed: [\d.,]+ s(?:ec)? {0,2}"
    r"<<< (?:FAILURE|ERROR)![^\n]*\n",
    re.MULTILINE,
)
_JAVA_LISTED_FAILURE = compile_lazily(
    r"^\[ERROR\] {2,4}([\w.$]+\.[\w$]+)(?::\d+)?(?:->[\w.:]+)? (?:» )?([^\n]+)", re.MULTILINE
)
_GRADLE_FAILURE = compile_lazily(r"^(\S[^\n>]*(?: > [^\n>]+)+) FAILED\n", re.MULTILINE)
_JUNIT_FAILURE = compile_lazily(r"^\d+\) ([\w$\[\]]+\([\w.$]+\))\n", re.MULTILINE)
_DOTNET_FAILURE = compile_lazily(r"^ {2}Failed (\S[^\n]*?) \[[^\]\n]*\]\n", re.MULTILINE)
_CLASS_AND_TEST = compile_lazily(r"([\w$\[\]]+)\(([\w.$]+)\)\Z")
_JAVA_STACK_FRAME = compile_lazily(
    r"\n[ \t]+at (?:[\w.@]+/)?([\w.$]+)\((\w+\.(?:java|kt|scala|groovy)):\d+\)"
)
_LIBRARIES = (
    "java.", "jdk.", "sun.", "org.junit.", "org.opentest4j.", "org.apache.maven.", "org.gradle.",
)  # fmt: skip
_FAILED_COUNT = compile_lazily(r"Tests run: \d+, Failures: (\d+), Errors: (\d+)")


def read_java_verdict(text: str) -> bool | None:
    tail = "\n" + text[-6000:]
    if "BUILD FAIL" in tail or "<<< FAILURE!" in tail or "\nFailed!  - " in tail:
        return False
    counts = _FAILED_COUNT.findall(tail)
    if any(failures != "0" or errors != "0" for failures, errors in counts):
        return False
    passed = counts or "BUILD SUCCESS" in tail or "\nPassed!  - " in tail
    return True if passed else None


def collect_java_failures(text: str, collector: FailureCollector) -> None:
    for pattern in (_SUREFIRE_FAILURE, _GRADLE_FAILURE, _JUNIT_FAILURE, _DOTNET_FAILURE):
        for header, body in split_by_headers(pattern, text):
            if not header[1].startswith(("Tests run:", "> Task")):
                _add_java_failure(_test_name(header[1]), body, collector)
    if not collector.errors:
        for name, message in _JAVA_LISTED_FAILURE.findall(text):
            collector.add_test(name, message)
    if not collector.errors:
        failure_collector.collect_source_place_failures(text, collector)


def _test_name(title: str) -> str:
    match = _CLASS_AND_TEST.match(title)
    return f"{match[2]}.{match[1]}" if match else title


def _add_java_failure(name: str, body: str, collector: FailureCollector) -> None:
    body = body[:8000]
    message_text = body.partition("Error Message:\n")[2] or body
    collector.add_test(name, message_text.lstrip().partition("\n")[0])
    for function, path in _JAVA_STACK_FRAME.findall("\n" + body):
        if not function.startswith(_LIBRARIES):
            collector.add_path(path)
            collector.add_symbol(function.rpartition(".")[2])
    collector.add_test_name(re.split(r"[.>:]", name)[-1].strip().rstrip("()"))


JAVA_OUTPUT = OutputParser(
    marks=("<<< FAILURE!", "<<< ERROR!", "BUILD ", "\nTests run: ", "[ERROR] ", "Failed!  - "),
    read_verdict=read_java_verdict,
    collect_failures=collect_java_failures,
)


# Output of RSpec and Minitest.

_RSPEC_FAILURE = compile_lazily(
    r"^rspec (?:'|\")?(\./[^\s:'\"\[]+)(?::\d+|\[[\d:]+\])(?:'|\")? # ([^\n]+)", re.MULTILINE
)
_RUBY_NUMBERED_FAILURE = compile_lazily(
    r"^ {2}\d+\) (?!Failure:|Error:|Skipped:)([^\n]+)\n", re.MULTILINE
)
_MINITEST_FAILURE = compile_lazily(
    r"^(?: *\d+\) )?(?:Failure|Error):\n(\S+#[^\s\[:]+)(?: \[([^\]:]+):\d+\])?:?\n", re.MULTILINE
)
_RUBY_TOTALS = compile_lazily(
    r"^(?:(\d+) examples?, (\d+) failures?(?:, \d+ pending)?(?:, (\d+) errors?)?"
    r"|(\d+) (?:runs|tests), \d+ assertions, (\d+) failures, (\d+) errors)", re.MULTILINE,
)  # fmt: skip
_RUBY_STACK_FRAME = compile_lazily(r"# (\./[^\s:]+):\d+:in [`'](?:[\w:#]*[#.])?([^']+)'")


def read_ruby_verdict(text: str) -> bool | None:
    results = _RUBY_TOTALS.findall(text[-4000:])
    if any(count not in ("", "0") for result in results for count in (*result[1:3], *result[4:])):
        return False
    return True if any(result[0] or result[3] for result in results) else None


def collect_ruby_failures(text: str, collector: FailureCollector) -> None:
    bodies_by_name = {}
    for header, body in split_by_headers(_RUBY_NUMBERED_FAILURE, text):
        bodies_by_name[header[1].strip()] = body
    for path, name in _RSPEC_FAILURE.findall(text):
        body = bodies_by_name.pop(name.strip(), "")
        _add_example(f"{path} # {name.strip()}", body, collector)
        collector.add_path(path)
    for name, body in bodies_by_name.items():
        if "Failure/Error:" in body:
            _add_example(name, body, collector)
    for header, body in split_by_headers(_MINITEST_FAILURE, text):
        collector.add_test(header[1], first_text_line(body))
        collector.add_path(header[2] or "")
        collector.add_test_name(header[1].rpartition("#")[2])


def _add_example(name: str, body: str, collector: FailureCollector) -> None:
    source, _, message_body = body.partition("Failure/Error:")[2].partition("\n")
    collector.add_test(name, first_text_line(message_body), source)
    for path, function in _RUBY_STACK_FRAME.findall(body[:8000]):
        collector.add_path(path)
        collector.add_symbol(function.rpartition(" in ")[2])


RUBY_OUTPUT = OutputParser(
    marks=("\nrspec ./", " examples, ", " runs, ", "Failure/Error:", "\nFailure:\n", "\nError:\n"),
    read_verdict=read_ruby_verdict,
    collect_failures=collect_ruby_failures,
)


# Output of PHPUnit and Pest.

_PHP_NUMBERED_FAILURE = compile_lazily(r"^\d+\) ([\w\\]+::[^\n]+)\n", re.MULTILINE)
_PEST_FAILURE = compile_lazily(r"^ *(?:FAILED|•) +([^\n]+? > [^\n]+?)(?:  +\w+)?\n", re.MULTILINE)
_PHP_STACK_FRAME = compile_lazily(r"^(?:  at )?(/?[^\s:]+\.php):\d+", re.MULTILINE)
_PEST_TOTALS = compile_lazily(r"^ +Tests: +(.*)", re.MULTILINE)


def read_php_verdict(text: str) -> bool | None:
    tail = "\n" + text[-3000:]
    pest = _PEST_TOTALS.search(tail)
    if "\nFAILURES!" in tail or "\nERRORS!" in tail or (pest and " failed" in pest[1]):
        return False
    return True if "\nOK (" in tail or (pest and " passed" in pest[1]) else None


def collect_php_failures(text: str, collector: FailureCollector) -> None:
    for pattern in (_PHP_NUMBERED_FAILURE, _PEST_FAILURE):
        for header, body in split_by_headers(pattern, text):
            collector.add_test(header[1], first_text_line(body))
            for path in reversed(_PHP_STACK_FRAME.findall(body[:8000])):
                collector.add_path(path)
            collector.add_test_name(re.split(r"::| > ", header[1])[-1].partition(" ")[0])


PHP_OUTPUT = OutputParser(
    marks=("\nFAILURES!", "\nERRORS!", "\nOK (", "PHPUnit ", "  FAILED  "),
    read_verdict=read_php_verdict,
    collect_failures=collect_php_failures,
)


# Output of CTest and GoogleTest.

_CTEST_LISTED_FAILURE = compile_lazily(r"^[ \t]+\d+ - (\S+) \((\w[^)]*)\)", re.MULTILINE)
_FAILED_RUN = compile_lazily(r"^ *\d+/\d+ +Test +#\d+: (\S+) \.*\*\*\*(\w+)", re.MULTILINE)
_GOOGLE_FAILURE = compile_lazily(r"^\[  FAILED  \] (\S+\.\S+?)(?:,|\s|$)", re.MULTILINE)
_FAILURE = compile_lazily(r"^(\S+?):\d+: Failure\n([^\n]*)", re.MULTILINE)
_TOTAL = compile_lazily(r"\b\d{1,3}% tests passed, (\d++) tests? failed out of (\d++)")


def read_ctest_verdict(text: str) -> bool | None:
    total = _TOTAL.search(text[-4000:])
    if total:
        return None if total[2] == "0" else total[1] == "0"
    if "[  FAILED  ] " in text:
        return False
    return True if "[  PASSED  ] " in text else None


def collect_ctest_failures(text: str, collector: FailureCollector) -> None:
    begin = text.find("The following tests FAILED:")
    for name, cause in (
        _CTEST_LISTED_FAILURE.findall(text[begin:]) if begin >= 0 else _FAILED_RUN.findall(text)
    ):
        collector.add_test(name, cause)
        collector.add_test_name(name)
    failures = _FAILURE.findall(text)
    for name in _GOOGLE_FAILURE.findall(text):
        collector.add_test(name)
        collector.add_test_name(name.rpartition(".")[2])
    for path, message in failures:
        collector.add_path(path)
        collector.add_quoted_names(message)


CTEST_OUTPUT = OutputParser(
    marks=("The following tests FAILED:", "% tests passed", "[  FAILED  ] ", "***Failed"),
    read_verdict=read_ctest_verdict,
    collect_failures=collect_ctest_failures,
)
