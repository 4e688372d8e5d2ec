"""Results of pytest and of unittest."""

from __future__ import annotations

import re

from closeloop.runs.testing.sheet import Reading, Sheet, Status, lines_of
from closeloop.runs.testing.xml import Case, read_cases

_PYTEST: dict[str, Status] = {
    "PASSED": "passed",
    "XPASS": "passed",
    "FAILED": "failed",
    "ERROR": "error",
    "SKIPPED": "skipped",
    "XFAIL": "skipped",
}
_WORD = "|".join(_PYTEST)
_VERBOSE = re.compile(rf" ({_WORD})(?: \(.*\))?\s*(?:\[ *\d+%\])?$")
_XDIST = re.compile(rf"\[gw\d+\] \[ *\d+%\] ({_WORD}) (.+)")
_SUMMARY = re.compile(rf"({_WORD}) (\S*(?:::|\.py).*)")
_BEGUN = re.compile(r"(\S+\.py::\S.*?) *")
_TOTALS = re.compile(r"=* ?((?:\d+ [a-z ]+(?:, )?)+|no tests ran) in [\d.]+s.*")

_UNITTEST: tuple[tuple[str, Status], ...] = (
    ("unexpected success", "failed"),
    ("expected failure", "skipped"),
    ("FAIL", "failed"),
    ("ERROR", "error"),
    ("ok", "passed"),
)
_HEAD = re.compile(r" *(?P<name>[^\s()]+) \((?P<dotted>[^\s()=]+)\)(?P<rest>.*)")
_GLUED = re.compile(rb" \.\.\. (?=[^\s()]+ \([^\s()]+\)(?: \.\.\. |\n))")
_SECTION = re.compile(
    r"(?P<word>FAIL|ERROR|UNEXPECTED SUCCESS): (?P<name>[^\s()]+) \((?P<dotted>[^\s()=]+)\)"
)
_RULE = "-" * 70
_RULES = (_RULE, "=" * 70)
_LOADER = "unittest.loader._FailedTest"
_RAN = re.compile(r"Ran (\d{1,9}) tests? in ")


def read_pytest(report: bytes, output: bytes) -> Reading:
    """Node ids, rebuilt from XML that keeps file, class and name apart."""
    sheet, cases = Sheet(), read_cases(report)
    files = {case.file for case in cases.found if case.file}
    files |= set(re.findall(r"^(\S+\.py)::", "\n".join(lines_of(output)), re.MULTILINE))
    modules = {_dotted(file): file for file in files}
    for case in cases.found:
        broken_file = not case.classname and case.file is not None
        name = str(case.file) if broken_file else _node(case, modules)
        sheet.add(
            name,
            case.status,
            seconds=case.seconds,
            message=case.message,
            begun=not broken_file,
        )
    return sheet.reading(cases.complete)


def _dotted(file: str) -> str:
    return re.sub(r"\.py$", "", file.replace("/", "."))


def _node(case: Case, modules: dict[str, str]) -> str:
    """`tests.test_x.TestA` and `test_b` → `tests/test_x.py::TestA::test_b`.

    The file that pytest states is where the test is written, which for an inherited test is not
    the file it belongs to: so the longest known module that starts the class name is taken.
    """
    if not case.classname:
        return case.name
    parts = case.classname.split(".")
    for length in range(len(parts), 0, -1):
        file = modules.get(".".join(parts[:length]))
        if file is not None:
            return "::".join((file, *parts[length:], case.name))
    length = next((i for i, part in enumerate(parts) if i and part[:1].isupper()), len(parts))
    return "::".join(("/".join(parts[:length]) + ".py", *parts[length:], case.name))


def read_pytest_text(output: bytes) -> Reading:
    """What the terminal shows, for runs that could not write their report."""
    sheet, lines, totals = Sheet(), lines_of(output), ""
    for line in lines:
        if found := _XDIST.fullmatch(line):
            sheet.add(found[2].strip(), _PYTEST[found[1]])
        elif found := _SUMMARY.fullmatch(line):
            _add_summary(sheet, found[1], found[2])
        elif "::" in line and (found := _VERBOSE.search(line)):
            sheet.add(line[: found.start()], _PYTEST[found[1]])
        elif found := _TOTALS.fullmatch(line):
            totals = found[1]
    if (begun := _BEGUN.fullmatch(lines[-1])) and begun[1] not in sheet.found:
        sheet.add(begun[1], "error", message="The test run ended inside this test.")
    sheet.ran = sheet.ran or re.search(r"\d (passed|failed)", totals) is not None
    return sheet.reading(bool(totals))


def printed_passes(output: bytes) -> int | None:
    """How many passed tests the last lines of pytest count, of all its runs in one command."""
    totals = [found[1] for line in lines_of(output) if (found := _TOTALS.fullmatch(line))]
    if not totals:
        return None
    counts = re.findall(r"(\d{1,9}) x?passed\b", ", ".join(totals))
    return sum(map(int, counts))


def _add_summary(sheet: Sheet, word: str, text: str) -> None:
    """`FAILED id - message`, where the id itself may hold ` - ` in its brackets."""
    if word == "SKIPPED":
        return
    name, message = text, ""
    while name not in sheet.found and " - " in name:
        name = name.rpartition(" - ")[0]
    if name not in sheet.found:
        name = re.split(r" - (?![^\[]{0,200}\])", text, maxsplit=1)[0]
    message = text[len(name) :].removeprefix(" - ")
    if word in ("ERROR", "FAILED") or "::" in name:
        sheet.add(name, _PYTEST[word], message=message, begun="::" in name)
        sheet.explain(name, message)


def read_unittest(output: bytes) -> Reading:
    """Ids are `tests.test_x.TestA.test_b`; the results are those that `-v` shows."""
    # Older versions end a test with failing subtests without a word or a line's end.
    sheet, lines = Sheet(), lines_of(_GLUED.sub(rb" ... \n", output))
    pending: re.Match[str] | None = None
    heads, total = 0, None
    for place, line in enumerate(lines):
        if section := _SECTION.match(line):
            _add_section(sheet, section, lines[place + 1 : place + 500])
            pending = None
        elif ran := _RAN.match(line):
            total = (total or 0) + int(ran[1])
        elif head := _HEAD.fullmatch(line):
            heads += not line.startswith(" ")
            pending = None if _add_status(sheet, head, head["rest"]) else head
        elif pending is not None and _add_status(sheet, pending, line):
            pending = None
    if pending is not None and _identity(pending) not in sheet.found:
        sheet.add(_identity(pending), "error", message="The test run ended inside this test.")
    sheet.ran = sheet.ran or (not heads and bool(total))
    return sheet.reading(total is not None and (not heads or heads >= total))


def _identity(head: re.Match[str]) -> str:
    name, dotted = head["name"], head["dotted"]
    if _LOADER in dotted:
        return name
    return dotted if dotted.endswith(f".{name}") else f"{dotted}.{name}"


def _add_status(sheet: Sheet, head: re.Match[str], text: str) -> bool:
    """Whether the text ends in a result; what a test prints may stand right before it."""
    status: Status | None = None
    if re.search(r"(?:^|\.\.\. )skipped ['\"]", text):
        status = "skipped"
    else:
        status = next((status for word, status in _UNITTEST if text.endswith(word)), None)
    if status is not None:
        sheet.add(_identity(head), status, begun=_LOADER not in head["dotted"])
    return status is not None


def _add_section(sheet: Sheet, head: re.Match[str], below: list[str]) -> None:
    """`FAIL: test_b (tests.test_x.TestA.test_b)`, perhaps a docstring, a rule, a traceback."""
    start = next((i + 1 for i, line in enumerate(below) if line.startswith(_RULE)), len(below))
    end = next((i for i, line in enumerate(below) if i >= start and line[:70] in _RULES), None)
    message = "" if head["word"].startswith("UNEXPECTED") else "\n".join(below[start:end])
    name = _identity(head)
    begun = _LOADER not in head["dotted"] and not head["name"].startswith(("setUp", "tearDown"))
    sheet.add(name, "error" if head["word"] == "ERROR" else "failed", message=message, begun=begun)
    sheet.explain(name, message)
