"""What pytest prints: its summary, its sections in every `--tb` style, its progress."""

from __future__ import annotations

import re

from closeloop.process.failures.found import Found, is_foreign

marks = (
    "= test session starts", "short test summary info", "= FAILURES =", "= ERRORS =",
    " passed in ", " failed in ", " error in ", " errors in ", " warnings in ", "\nFAILED ",
    "while loading conftest '",
)  # fmt: skip

_PLACE = re.compile(r"(\S+?):\d+:(?: in (\S+)| |$)")
_TELLING = frozenset(("  def ", 'File "'))
_TEST_FILE = re.compile(r"(?:^|/)(?:tests?_[^/]*|[^/]*_tests?|tests?)\.py\Z")
_VERBOSE = re.compile(r" (?:FAILED|ERROR)\b")
_TOTAL = re.compile(r"(?:^|[ =])\d+ (passed|failed|errors?|skipped|deselected|xfailed)\b")
_CONFTEST = re.compile(r"^\w*Error while loading conftest '([^'\n]+)'", re.MULTILINE)
_DOTS = re.compile(r"[.sxX]+ +\[100%\]\Z")
_CUT_DOTS = re.compile(r"[.sxXFE]+ +\[ *\d+%\]\Z")


class _Section:
    """One failure as it is shown at length."""

    __slots__ = ("error", "functions", "in_error", "origin", "paths", "wants_origin")

    def __init__(self) -> None:
        self.error = self.origin = ""
        self.paths: list[str] = []
        self.functions: list[str] = []
        self.in_error = self.wants_origin = False


def verdict(text: str) -> bool | None:
    """By the last line with totals, or by dots alone where there are none."""
    totals = None
    dots: bool | None = None
    for line in text[-4000:].split("\n"):
        if " in " in line and (counted := _TOTAL.findall(line)):
            failed = "failed" in counted or "error" in counted or "errors" in counted
            totals = False if failed or totals is False else ("passed" in counted or totals)
        elif line.endswith("%]") and _CUT_DOTS.match(line):
            dots = False if "F" in line or "E" in line else dots
            if dots is None and _DOTS.match(line):
                dots = True
    if totals is not None:
        return totals
    if _CONFTEST.search(text):
        return False
    return dots if " FAILURES =" not in text and " ERRORS =" not in text else False


def gather(text: str, found: Found) -> None:
    ids: dict[str, str] = {}
    sections: dict[str, _Section] = {}
    section: _Section | None = None
    for line in text.split("\n"):
        if not line:
            continue
        head = line[0]
        if head == " ":
            if section is not None and (section.wants_origin or line[2:8] in _TELLING):
                _indented(line, section)
        elif head in "EF" and line.startswith(("FAILED ", "ERROR")):
            _summed_up(line, ids, found)
        elif head == "_" and line[-1] == "_" and line[1:2] != " " and " " in line:
            section = _begun(line, sections)
        elif head == "=" or (head == "-" and line.startswith("-----")):
            section = None
        elif section is not None:
            _said(line, head, section)
        elif "FAILED" in line or "ERROR" in line:
            _marked(line, ids, found)
    _together(ids, sections, found)
    _unloaded(text, found)


def _unloaded(text: str, found: Found) -> None:
    """What keeps every test from being collected."""
    loaded = _CONFTEST.search(text) if not found.errors else None
    if loaded:
        said = re.search(r"^E +(\S[^\n]*)", text[loaded.end() :], re.MULTILINE)
        found.test(loaded[1], said[1] if said else "")


def _marked(line: str, ids: dict[str, str], found: Found) -> None:
    """A line of `-v`, or of the workers of xdist."""
    if line[0] == "[":
        _summed_up(line[line.rindex("] ", 0, 30) + 2 if "] " in line[:30] else 0 :], ids, found)
    elif "::" in line:
        ids.setdefault(_VERBOSE.split(line, maxsplit=1)[0].strip(), "")


def _begun(line: str, sections: dict[str, _Section]) -> _Section | None:
    title = line[line.index(" ") + 1 : line.rindex(" ")].strip()
    if title.startswith("ERROR "):
        title = title.partition(" of " if " of " in title else " collecting ")[2]
    if not title or title[:2] in ("_ ", "summary"):
        return None
    return sections.setdefault(title, _Section())


def _error(line: str, section: _Section) -> None:
    said = line[1:].strip()
    # Of chained errors the last counts; of a syntax error what follows the source.
    first = not section.in_error or section.error.startswith("File ")
    if said and (first or said.startswith(("SyntaxError", "IndentationError", "TabError"))):
        section.error = said
    section.in_error = True


def _indented(line: str, section: _Section) -> None:
    if section.wants_origin:
        section.origin, section.wants_origin = line.strip(), False
    elif line.startswith("    def "):
        section.functions.append(line[8:].partition("(")[0])
    elif line.startswith('  File "'):
        path, _, rest = line[8:].partition('"')
        section.paths.append(path)
        section.functions.append(rest.rpartition(" in ")[2])
        section.wants_origin = not section.origin and not is_foreign(path)


def _said(line: str, head: str, section: _Section) -> None:
    if head == "E" and line[1:3] == "  ":
        _error(line, section)
        return
    section.in_error = False
    if head == ">":
        section.origin = section.origin or line[1:].strip()
    elif match := _PLACE.match(line):
        section.paths.append(match[1])
        if match[2]:
            section.functions.append(match[2])
            section.wants_origin = not section.origin and not is_foreign(match[1])
    elif section.paths and not section.error and ": " in line:
        section.error = line


def _summed_up(line: str, ids: dict[str, str], found: Found) -> None:
    if line.startswith("ERROR: "):
        if not line.startswith("ERROR: usage"):
            found.test(line)
            found.symbol(line.rpartition("::")[2] if "::" in line else "")
        return
    rest = line.partition(" ")[2]
    if rest[:1] in ("", " ", "(") or ".py" not in rest:
        return
    node, _, message = rest.partition(" - ")
    if "[" in node and "]" not in node:
        # A parameter with ` - ` in it.
        whole, bracket, told = rest.partition("] - ")
        node, message = (whole + bracket[:1], told) if bracket else (rest, "")
    if " " in node.partition("[")[0].partition("::")[0]:
        return
    ids[node.strip()] = message or ids.get(node.strip(), "")


def _together(ids: dict[str, str], sections: dict[str, _Section], found: Found) -> None:
    for node, message in ids.items():
        section = sections.pop(_title(node), None)
        path, _, test = node.partition("::")
        name = test.partition("[")[0].rpartition("::")[2]
        if section is None:
            found.test(node, message)
        else:
            found.test(node, section.error or message, section.origin)
            _pointed(section, name, found)
        found.path(path)
        found.tested(name)
    for title, section in sections.items():
        if section.error or section.paths:
            test, bracket, parameters = title.partition("[")
            name = "" if title.endswith(".py") else test.rpartition(".")[2]
            path = next(filter(_TEST_FILE.search, section.paths), "")
            node = f"{path}::{test.replace('.', '::')}{bracket}{parameters}"
            found.test(node if path and name else title, section.error, section.origin)
            _pointed(section, name, found)
            found.tested(name)


def _title(node: str) -> str:
    path, _, rest = node.partition("::")
    name, bracket, parameters = rest.partition("[")
    return name.replace("::", ".") + bracket + parameters if rest else path


def _pointed(section: _Section, test: str, found: Found) -> None:
    for path in reversed(section.paths):
        found.path(path)
    for path, name in zip(reversed(section.paths), reversed(section.functions), strict=False):
        if name != test and not is_foreign(path):
            found.symbol(name)
