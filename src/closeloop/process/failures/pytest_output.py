"""What pytest prints: its summary, its sections in every `--tb` style, its progress."""

from __future__ import annotations

import re

from closeloop.process.failures.failure_collector import FailureCollector, is_foreign_path

marks = (
    "= test session starts", "short test summary info", "= FAILURES =", "= ERRORS =",
    " passed in ", " failed in ", " error in ", " errors in ", " warnings in ", "\nFAILED ",
    "while loading conftest '",
)  # fmt: skip

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


def read_verdict(text: str) -> bool | None:
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


def collect_failures(text: str, found: FailureCollector) -> None:
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
