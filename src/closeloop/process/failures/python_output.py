"""What Python's test runners print, and the tracebacks of plain scripts."""

from __future__ import annotations

import re

from closeloop.process.failures.failure_collector import (
    FailureCollector,
    OutputParser,
    add_frames,
    find_origin,
    is_foreign_path,
    parse_python_frames,
    parse_script_frames,
    split_by_headers,
)

_SOURCE_PLACE = re.compile(r"(\S+?):\d+:(?: in (\S+)| |$)")
_TELLING_STARTS = frozenset(("  def ", 'File "'))
_TEST_FILE = re.compile(r"(?:^|/)(?:tests?_[^/]*|[^/]*_tests?|tests?)\.py\Z")
_VERBOSE_STATUS = re.compile(r" (?:FAILED|ERROR)\b")
_OUTCOME_TOTAL = re.compile(r"(?:^|[ =])\d+ (passed|failed|errors?|skipped|deselected|xfailed)\b")
_CONFTEST_ERROR = re.compile(r"^\w*Error while loading conftest '([^'\n]+)'", re.MULTILINE)
_PASSING_DOTS = re.compile(r"[.sxX]+ +\[100%\]\Z")
_PROGRESS_DOTS = re.compile(r"[.sxXFE]+ +\[ *\d+%\]\Z")


class _PytestSection:
    """One failure as it is shown at length."""

    __slots__ = ("error", "functions", "in_error", "origin", "paths", "wants_origin")

    def __init__(self) -> None:
        self.error = self.origin = ""
        self.paths: list[str] = []
        self.functions: list[str] = []
        self.in_error = self.wants_origin = False


def read_pytest_verdict(text: str) -> bool | None:
    """By the last line with totals, or by dots alone where there are none."""
    totals = None
    dots: bool | None = None
    for line in text[-4000:].split("\n"):
        if " in " in line and (counted := _OUTCOME_TOTAL.findall(line)):
            failed = "failed" in counted or "error" in counted or "errors" in counted
            totals = False if failed or totals is False else ("passed" in counted or totals)
        elif line.endswith("%]") and _PROGRESS_DOTS.match(line):
            dots = False if "F" in line or "E" in line else dots
            if dots is None and _PASSING_DOTS.match(line):
                dots = True
    if totals is not None:
        return totals
    if _CONFTEST_ERROR.search(text):
        return False
    return dots if " FAILURES =" not in text and " ERRORS =" not in text else False


def collect_pytest_failures(text: str, found: FailureCollector) -> None:
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
            _read_summary_line(line, ids, found)
        elif head == "_" and line[-1] == "_" and line[1:2] != " " and " " in line:
            section = _begin_section(line, sections)
        elif head == "=" or (head == "-" and line.startswith("-----")):
            section = None
        elif section is not None:
            _read_section_line(line, head, section)
        elif "FAILED" in line or "ERROR" in line:
            _read_verbose_line(line, ids, found)
    _merge_sections(ids, sections, found)
    _add_conftest_error(text, found)


def _add_conftest_error(text: str, found: FailureCollector) -> None:
    """What keeps every test from being collected."""
    conftest = _CONFTEST_ERROR.search(text) if not found.errors else None
    if conftest:
        error_line = re.search(r"^E +(\S[^\n]*)", text[conftest.end() :], re.MULTILINE)
        found.add_test(conftest[1], error_line[1] if error_line else "")


def _read_verbose_line(line: str, ids: dict[str, str], found: FailureCollector) -> None:
    """A line of `-v`, or of the workers of xdist."""
    if line[0] == "[":
        _read_summary_line(
            line[line.rindex("] ", 0, 30) + 2 if "] " in line[:30] else 0 :], ids, found
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
    # Of chained errors the last counts; of a syntax error what follows the source.
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
        path, _, rest = line[8:].partition('"')
        section.paths.append(path)
        section.functions.append(rest.rpartition(" in ")[2])
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


def _read_summary_line(line: str, ids: dict[str, str], found: FailureCollector) -> None:
    if line.startswith("ERROR: "):
        if not line.startswith("ERROR: usage"):
            found.add_test(line)
            found.add_symbol(line.rpartition("::")[2] if "::" in line else "")
        return
    rest = line.partition(" ")[2]
    if rest[:1] in ("", " ", "(") or ".py" not in rest:
        return
    node, _, message = rest.partition(" - ")
    if "[" in node and "]" not in node:
        # A parameter with ` - ` in it.
        whole, bracket, rest_message = rest.partition("] - ")
        node, message = (whole + bracket[:1], rest_message) if bracket else (rest, "")
    if " " in node.partition("[")[0].partition("::")[0]:
        return
    ids[node.strip()] = message or ids.get(node.strip(), "")


def _merge_sections(
    ids: dict[str, str], sections: dict[str, _PytestSection], found: FailureCollector
) -> None:
    for node, message in ids.items():
        section = sections.pop(_section_title(node), None)
        path, _, test = node.partition("::")
        name = test.partition("[")[0].rpartition("::")[2]
        if section is None:
            found.add_test(node, message)
        else:
            found.add_test(node, section.error or message, section.origin)
            _add_section_names(section, name, found)
        found.add_path(path)
        found.add_test_name(name)
    for title, section in sections.items():
        if section.error or section.paths:
            test, bracket, parameters = title.partition("[")
            name = "" if title.endswith(".py") else test.rpartition(".")[2]
            path = next(filter(_TEST_FILE.search, section.paths), "")
            node = f"{path}::{test.replace('.', '::')}{bracket}{parameters}"
            found.add_test(node if path and name else title, section.error, section.origin)
            _add_section_names(section, name, found)
            found.add_test_name(name)


def _section_title(node: str) -> str:
    path, _, rest = node.partition("::")
    name, bracket, parameters = rest.partition("[")
    return name.replace("::", ".") + bracket + parameters if rest else path


def _add_section_names(section: _PytestSection, test: str, found: FailureCollector) -> None:
    for path in reversed(section.paths):
        found.add_path(path)
    for path, name in zip(reversed(section.paths), reversed(section.functions), strict=False):
        if name != test and not is_foreign_path(path):
            found.add_symbol(name)


PYTEST_OUTPUT = OutputParser(
    marks=(
        "= test session starts", "short test summary info", "= FAILURES =", "= ERRORS =",
        " passed in ", " failed in ", " error in ", " errors in ", " warnings in ", "\nFAILED ",
        "while loading conftest '",
    ),
    read_verdict=read_pytest_verdict,
    collect_failures=collect_pytest_failures,
)  # fmt: skip


# What unittest prints, and Django's test runner with it.

_FAILURE_HEADER = re.compile(r"\n(?:FAIL|ERROR): (\S++) \(([^)\n]*+)\)([^\n]*+)")
_VERBOSE_FAILURE = re.compile(
    r"\n *+(\S++) \(([^)\n]++)\)((?: \([^)\n]*+\))?)(?:\n[^\n]*?)? \.\.\. (?:FAIL|ERROR)\b"
)
_BLOCK_ENDS = ("\n======", "\n------")


def read_unittest_verdict(text: str) -> bool | None:
    """By the line under `Ran … tests`."""
    tail = text[-4000:]
    if "\nFAILED (" in tail or tail.startswith("FAILED ("):
        return False
    ran = tail.rfind("Ran ")
    if ran >= 0 and tail.find("\nOK", ran) > 0 and not tail.startswith("Ran 0 ", ran):
        return True
    return None


def collect_unittest_failures(text: str, found: FailureCollector) -> None:
    text = "\n" + text
    for header, block in split_by_headers(_FAILURE_HEADER, text):
        _add_unittest_failure(header, block, found)
    if not found.errors and ("... FAIL" in text or "... ERROR" in text):
        for verbose in _VERBOSE_FAILURE.finditer(text):
            found.add_test(_test_id(verbose))
            found.add_test_name(verbose[1])


def _add_unittest_failure(header: re.Match[str], block: str, found: FailureCollector) -> None:
    begin = block.find("\n------")
    begin = block.find("\n", begin + 1) if begin >= 0 else 0
    ends = [at for mark in _BLOCK_ENDS if (at := block.find(mark, begin + 1)) >= 0]
    body = block[begin : min(ends, default=None)]
    frames = parse_python_frames(body)
    found.add_test(_test_id(header), find_error_line(body), find_origin(frames))
    add_frames(reversed(frames), found)
    found.add_test_name(header[1])


def _test_id(match: re.Match[str]) -> str:
    name, place = match[1], match[2]
    whole = place if place.endswith("." + name) or place == name else f"{place}.{name}"
    return f"{whole} {match[3].strip()}".strip()


def find_error_line(body: str) -> str:
    """The first line after the last frame that is not indented: the error."""
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


# Errors of plain scripts: Python's tracebacks, and the stacks of Node.js.

_SCRIPT_ERROR = re.compile(r"\n((?:Uncaught )?(?:\w+\.)*\w*(?:Error|Exception)\b[^\n]*+)\n")


def read_traceback_verdict(text: str) -> bool | None:
    """A script may print an error and go on."""
    return None


def collect_traceback_failures(text: str, found: FailureCollector) -> None:
    begin = text.rfind("Traceback (most recent call last)")
    if begin < 0 and "Error" in text:
        begin = text.rfind('  File "')
    if begin >= 0:
        _add_python_error(text[begin:], found)
    elif "\n    at " in text:
        _add_script_error(text, found)


def _add_python_error(body: str, found: FailureCollector) -> None:
    body = "\n" + (body.partition("Traceback (most recent call last):\n")[2] or body)
    frames = parse_python_frames(body)
    error = find_error_line(body)
    if error:
        _add_traceback_failure(error, list(reversed(frames)), found)


def _add_script_error(text: str, found: FailureCollector) -> None:
    stack = text.find("\n    at ")
    begin = max(stack - 2000, 0)
    errors = _SCRIPT_ERROR.findall("\n" + text[begin : stack + 1])
    if errors:
        _add_traceback_failure(errors[-1], parse_script_frames(text[stack : stack + 4000]), found)


def _add_traceback_failure(
    error: str, frames: list[tuple[str, str, str]], found: FailureCollector
) -> None:
    kind = re.split(r"[:\s(]", error, maxsplit=1)[0]
    path, name, _ = next((frame for frame in frames if not is_foreign_path(frame[0])), ("", "", ""))
    place = f"{path}: " if path else ""
    inside = f" in {name}" if name and name[0] != "<" else ""
    found.add_test(f"{place}{kind}{inside}", error)
    add_frames(frames, found)


TRACEBACK_OUTPUT = OutputParser(
    marks=("Traceback (most recent call last)", "SyntaxError", "IndentationError", "\n    at "),
    read_verdict=read_traceback_verdict,
    collect_failures=collect_traceback_failures,
)
