"""Linters, type checkers and compilers: each error has a file, a line and a message."""

from __future__ import annotations

import re

from closeloop.process.failures.failure_collector import FailureCollector

marks = (
    ": error", " error TS", " --> ", "- error:", "\nFound ", " problem", "error:", " issues:",
    "0 issues.", "━━━", "\nerror TS", "No fixes applied",
)  # fmt: skip

MAX_LINE_CHARS = 2000

_SOURCE_PLACE = re.compile(
    r"((?:[A-Za-z]:)?[^\s:()\"'\[][^:()\"']{0,250}+)"
    r"(?::\d+(?::\d+)?(?::| -)|\(\d+(?:,\d+)?\):|:\[\d+,\d+\]|: line \d+, col \d+,) +(.*)"
)
_DIAGNOSTIC = re.compile(
    r"(?i:(fatal error|error|warning|note|remark|information|info|help|hint)\b)?"
    r"(?:\[([^\]\s]*)\])?(?: (\w+\d+))?:? *(?:- )?(.*)"
)
_RULE_CODE = re.compile(r"[A-Z]{1,8}\d{2,5}\b")
_ARROW_PLACE = re.compile(r" *--> ([^\s:]+(?: [^\s:]+)*):\d+:\d+")
_ESLINT_LINE = re.compile(r"  +\d+:\d+  +(error|warning)  +(.*)")
_WOULD_REFORMAT = re.compile(r"(?i:would reformat:?) (\S+)$")
_UNDEFINED_REFERENCE = re.compile(r"undefined reference to [`']\w[^'`]{0,200}'")
_BIOME_PLACE = re.compile(
    r"(?: at )?([^\s:]{1,250})(?::\d+:\d+)? ((?:lint|assist|parse|format|organizeImports)\S{0,100})"
    r"[^━]{0,40}━"
)
_OXLINT_PLACE = re.compile(r" +(?:╭─|,-)\[([^\]\s:]{1,250}):\d+:\d+\]")
_GLOBAL_ERROR = re.compile(r"error TS\d+: .{1,300}")
_NOTE_SEVERITIES = ("note", "remark", "information", "info", "help", "hint")
_FIXABLE_MARK = re.compile(r"\[\*\] ")
_SUCCESS_MESSAGES = (
    "Success: no issues found", "All checks passed!", "0 errors, ", "rated at 10.00/10",
    " already formatted", " would be left unchanged", "Found 0 errors", "(0 errors,",
    "No fixes applied", "0 issues.", " and 0 errors",
)  # fmt: skip
_FAILURE_TOTAL = re.compile(
    r"^(?:Found [1-9]\d* (?:errors?|diagnostics?)|[1-9]\d* errors?\b|✖ \d+ problems? \([1-9]"
    r"|\d+ files? would be reformatted|Found \d+ warnings? and [1-9]\d* errors?"
    r"|(?:\[[\w:.-]{1,40}\] )?[1-9]\d* issues:|  × Some errors were emitted)", re.MULTILINE,
)  # fmt: skip


def read_verdict(text: str) -> bool | None:
    tail = text[-1500:]
    if _FAILURE_TOTAL.search(tail):
        return False
    return True if any(mark in tail for mark in _SUCCESS_MESSAGES) else None


def collect_failures(text: str, found: FailureCollector) -> None:
    """One pass: `path:line: …`, `path(line,column): …`, code frames with `-->`, ESLint's lists."""
    file = last = before = ""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if not line or len(line) > MAX_LINE_CHARS:
            continue
        if line[0] == " ":
            may_be_drawn = "━" in line or "-[" in line or "─[" in line
            is_drawn = may_be_drawn and _read_drawn_place(line, before.strip(), found)
            if not is_drawn and _read_indented_line(line, file, last, found):
                last = ""
            before = line
            continue
        if "|" not in line[:8]:
            last = line
        if ":" not in line:
            file = line
        _read_unindented_line(line, lines, number, found)


def _read_unindented_line(
    line: str, lines: list[str], number: int, found: FailureCollector
) -> None:
    if "━" in line:
        _read_drawn_place(line, "", found)
    elif ":" not in line:
        if match := _WOULD_REFORMAT.match(line):
            found.add_place(match[1], "would reformat")
    elif match := _SOURCE_PLACE.match(_strip_build_prefix(line)):
        missing = match[2].endswith("cannot find symbol")
        symbol = _missing_symbol(lines[number + 1 : number + 5]) if missing else ""
        _add_diagnostic(match[1], match[2] + symbol, found)
    elif (
        match := _UNDEFINED_REFERENCE.search(line)
        or _WOULD_REFORMAT.match(line)
        or _GLOBAL_ERROR.match(line)
    ):
        found.add_test(match[0])
        found.add_quoted_names(match[0])


def _read_indented_line(line: str, file: str, header: str, found: FailureCollector) -> bool:
    """True where the line says to which place the header above belongs."""
    if file and (match := _ESLINT_LINE.match(line)):
        found.add_place(file, _put_rule_first(match[2]), warning=match[1] == "warning")
    elif header and "-->" in line and (match := _ARROW_PLACE.match(line)):
        _add_framed_diagnostic(header, match[1], found)
        return True
    elif " - " in line and (match := _SOURCE_PLACE.match(line.strip())):
        _add_diagnostic(match[1], match[2], found)
    return False


def _read_drawn_place(line: str, header: str, found: FailureCollector) -> bool:
    """Biome and Oxlint draw lines around their places: whether this is one."""
    if match := _BIOME_PLACE.match(line):
        found.add_place(match[1], match[2])
    elif header and (match := _OXLINT_PLACE.match(line)):
        found.add_place(match[1], header[1:].strip(), warning=header[0] in "!⚠")
    return match is not None


def _strip_build_prefix(line: str) -> str:
    """Without what a build tool puts before a compiler's words: `[ERROR] `, `[lint:go] `."""
    return line.partition("] ")[2] if line[0] == "[" else line


def _add_diagnostic(path: str, rest: str, found: FailureCollector) -> None:
    match = _DIAGNOSTIC.match(rest)
    if match is None:
        return
    severity, bracketed, code, message = match.groups()
    severity = (severity or "").lower()
    if severity in _NOTE_SEVERITIES or not message:
        return
    if not severity and not bracketed and not _is_diagnostic(path, message):
        return
    diagnostic_text = " ".join(filter(None, (bracketed, code, _FIXABLE_MARK.sub("", message))))
    found.add_place(path, diagnostic_text, warning=severity == "warning" or "[Warning/" in message)


def _is_diagnostic(path: str, message: str) -> bool:
    """Lines without the word error: Ruff, Flake8 and Pylint begin with a code, ESLint ends so."""
    return (
        _RULE_CODE.match(message) is not None
        or (message.endswith("]") and ("[Error/" in message or "[Warning/" in message))
        or path.endswith((".go", ".java", ".kt", ".scala"))
    )  # fmt: skip


def _add_framed_diagnostic(header: str, path: str, found: FailureCollector) -> None:
    match = _DIAGNOSTIC.match(header)
    severity = (match[1] or "").lower() if match else ""
    if severity in _NOTE_SEVERITIES:
        return
    diagnostic_text = header
    if match and severity:
        diagnostic_text = " ".join(filter(None, (match[2], match[3], match[4])))
    found.add_place(path, _FIXABLE_MARK.sub("", diagnostic_text), warning=severity == "warning")


def _put_rule_first(message: str) -> str:
    """The rule first, as other formats have it."""
    text, _, rule = message.rstrip().rpartition("  ")
    return f"{rule.strip()} {text.strip()}" if text else message


def _missing_symbol(lines: list[str]) -> str:
    symbol_line = next((line.strip() for line in lines if line.lstrip().startswith("symbol:")), "")
    return f" {symbol_line}" if symbol_line else ""
