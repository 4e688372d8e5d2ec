"""Linters, type checkers and compilers: each error has a file, a line and a message."""

from __future__ import annotations

import re

from closeloop.process.failures.found import Found

marks = (
    ": error", " error TS", " --> ", "- error:", "\nFound ", " problem", "error:", " issues:",
    "0 issues.", "━━━", "\nerror TS", "No fixes applied",
)  # fmt: skip

LONGEST_LINE = 2000

_PLACE = re.compile(
    r"((?:[A-Za-z]:)?[^\s:()\"'\[][^:()\"']{0,250}+)"
    r"(?::\d+(?::\d+)?(?::| -)|\(\d+(?:,\d+)?\):|:\[\d+,\d+\]|: line \d+, col \d+,) +(.*)"
)
_SAID = re.compile(
    r"(?i:(fatal error|error|warning|note|remark|information|info|help|hint)\b)?"
    r"(?:\[([^\]\s]*)\])?(?: (\w+\d+))?:? *(?:- )?(.*)"
)
_CODE = re.compile(r"[A-Z]{1,8}\d{2,5}\b")
_BLOCK = re.compile(r" *--> ([^\s:]+(?: [^\s:]+)*):\d+:\d+")
_STYLISH = re.compile(r"  +\d+:\d+  +(error|warning)  +(.*)")
_REFORMAT = re.compile(r"(?i:would reformat:?) (\S+)$")
_UNLINKED = re.compile(r"undefined reference to [`']\w[^'`]{0,200}'")
_BIOME = re.compile(
    r"(?: at )?([^\s:]{1,250})(?::\d+:\d+)? ((?:lint|assist|parse|format|organizeImports)\S{0,100})"
    r"[^━]{0,40}━"
)
_OXLINT = re.compile(r" +(?:╭─|,-)\[([^\]\s:]{1,250}):\d+:\d+\]")
_GLOBAL = re.compile(r"error TS\d+: .{1,300}")
_ASIDE = ("note", "remark", "information", "info", "help", "hint")
_FIXABLE = re.compile(r"\[\*\] ")
_NONE_FOUND = (
    "Success: no issues found", "All checks passed!", "0 errors, ", "rated at 10.00/10",
    " already formatted", " would be left unchanged", "Found 0 errors", "(0 errors,",
    "No fixes applied", "0 issues.", " and 0 errors",
)  # fmt: skip
_FOUND = re.compile(
    r"^(?:Found [1-9]\d* (?:errors?|diagnostics?)|[1-9]\d* errors?\b|✖ \d+ problems? \([1-9]"
    r"|\d+ files? would be reformatted|Found \d+ warnings? and [1-9]\d* errors?"
    r"|(?:\[[\w:.-]{1,40}\] )?[1-9]\d* issues:|  × Some errors were emitted)", re.MULTILINE,
)  # fmt: skip


def verdict(text: str) -> bool | None:
    tail = text[-1500:]
    if _FOUND.search(tail):
        return False
    return True if any(mark in tail for mark in _NONE_FOUND) else None


def gather(text: str, found: Found) -> None:
    """One pass: `path:line: …`, `path(line,column): …`, code frames with `-->`, ESLint's lists."""
    file = last = before = ""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if not line or len(line) > LONGEST_LINE:
            continue
        if line[0] == " ":
            may_be_drawn = "━" in line or "-[" in line or "─[" in line
            drawn = may_be_drawn and _drawn(line, before.strip(), found)
            if not drawn and _indented(line, file, last, found):
                last = ""
            before = line
            continue
        if "|" not in line[:8]:
            last = line
        if ":" not in line:
            file = line
        _upright(line, lines, number, found)


def _upright(line: str, lines: list[str], number: int, found: Found) -> None:
    if "━" in line:
        _drawn(line, "", found)
    elif ":" not in line:
        if match := _REFORMAT.match(line):
            found.place(match[1], "would reformat")
    elif match := _PLACE.match(_bare(line)):
        missing = match[2].endswith("cannot find symbol")
        symbol = _symbol(lines[number + 1 : number + 5]) if missing else ""
        _diagnosed(match[1], match[2] + symbol, found)
    elif match := _UNLINKED.search(line) or _REFORMAT.match(line) or _GLOBAL.match(line):
        found.test(match[0])
        found.names(match[0])


def _indented(line: str, file: str, header: str, found: Found) -> bool:
    """True where the line says to which place the header above belongs."""
    if file and (match := _STYLISH.match(line)):
        found.place(file, _stylish(match[2]), warning=match[1] == "warning")
    elif header and "-->" in line and (match := _BLOCK.match(line)):
        _framed(header, match[1], found)
        return True
    elif " - " in line and (match := _PLACE.match(line.strip())):
        _diagnosed(match[1], match[2], found)
    return False


def _drawn(line: str, header: str, found: Found) -> bool:
    """Biome and Oxlint draw lines around their places: whether this is one."""
    if match := _BIOME.match(line):
        found.place(match[1], match[2])
    elif header and (match := _OXLINT.match(line)):
        found.place(match[1], header[1:].strip(), warning=header[0] in "!⚠")
    return match is not None


def _bare(line: str) -> str:
    """Without what a build tool puts before a compiler's words: `[ERROR] `, `[lint:go] `."""
    return line.partition("] ")[2] if line[0] == "[" else line


def _diagnosed(path: str, rest: str, found: Found) -> None:
    match = _SAID.match(rest)
    if match is None:
        return
    severity, bracketed, code, message = match.groups()
    severity = (severity or "").lower()
    if severity in _ASIDE or not message:
        return
    if not severity and not bracketed and not _judged(path, message):
        return
    told = " ".join(filter(None, (bracketed, code, _FIXABLE.sub("", message))))
    found.place(path, told, warning=severity == "warning" or "[Warning/" in message)


def _judged(path: str, message: str) -> bool:
    """Lines without the word error: Ruff, Flake8 and Pylint begin with a code, ESLint ends so."""
    return (
        _CODE.match(message) is not None
        or (message.endswith("]") and ("[Error/" in message or "[Warning/" in message))
        or path.endswith((".go", ".java", ".kt", ".scala"))
    )  # fmt: skip


def _framed(header: str, path: str, found: Found) -> None:
    match = _SAID.match(header)
    severity = (match[1] or "").lower() if match else ""
    if severity in _ASIDE:
        return
    told = header
    if match and severity:
        told = " ".join(filter(None, (match[2], match[3], match[4])))
    found.place(path, _FIXABLE.sub("", told), warning=severity == "warning")


def _stylish(message: str) -> str:
    """The rule first, as other formats have it."""
    said, _, rule = message.rstrip().rpartition("  ")
    return f"{rule.strip()} {said.strip()}" if said else message


def _symbol(lines: list[str]) -> str:
    told = next((line.strip() for line in lines if line.lstrip().startswith("symbol:")), "")
    return f" {told}" if told else ""
