"""What linters, compilers, shells and JUnit's XML say, and the tail where no tool is known."""

from __future__ import annotations

import re
from html import unescape

import msgspec

from closeloop.process.failures.failure_collector import (
    MAX_NAMES,
    FailureCollector,
    OutputParser,
    find_quoted_names,
    is_foreign_path,
    normalise_output,
    split_by_headers,
)
from closeloop.records.inspection import (
    CheckFailures,
)
from closeloop.records.record import Record

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


def read_source_place_verdict(text: str) -> bool | None:
    tail = text[-1500:]
    if _FAILURE_TOTAL.search(tail):
        return False
    return True if any(mark in tail for mark in _SUCCESS_MESSAGES) else None


def collect_source_place_failures(text: str, found: FailureCollector) -> None:
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


SOURCE_PLACE_OUTPUT = OutputParser(
    marks=(
        ": error", " error TS", " --> ", "- error:", "\nFound ", " problem", "error:", " issues:",
        "0 issues.", "━━━", "\nerror TS", "No fixes applied",
    ),
    read_verdict=read_source_place_verdict,
    collect_failures=collect_source_place_failures,
)  # fmt: skip


# Linters' JSON: Ruff, ESLint and Pyright.


class _LinterMessage(Record):
    message: str = ""
    code: str | None = None
    """Ruff's."""
    filename: str = ""
    ruleId: str | None = None  # noqa: N815
    rule: str = ""
    """Pyright's."""
    file: str = ""
    severity: int | str = "error"


class _EslintFile(Record):
    """One of ESLint's."""

    filePath: str  # noqa: N815
    messages: list[_LinterMessage]


class _PyrightReport(Record):
    generalDiagnostics: list[_LinterMessage]  # noqa: N815


_decode_eslint = msgspec.json.Decoder(list[_EslintFile]).decode
_decode_ruff = msgspec.json.Decoder(list[_LinterMessage]).decode
_decode_pyright = msgspec.json.Decoder(_PyrightReport).decode


def read_linter_json_verdict(text: str) -> bool | None:
    """Said by what is in them."""
    return None


def collect_linter_json_failures(text: str, found: FailureCollector) -> None:
    begin = min((at for sign in "[{" if (at := text.find(sign)) >= 0), default=-1)
    body = text[begin : max(text.rfind("]"), text.rfind("}")) + 1] if begin >= 0 else ""
    for path, message in _parse_messages(body):
        warning = message.severity in (1, "warning", "information")
        rule = message.code or message.ruleId or message.rule
        found.add_place(path, f"{rule} {message.message}", warning=warning)


def _parse_messages(body: str) -> list[tuple[str, _LinterMessage]]:
    try:
        if '"generalDiagnostics"' in body:
            return [(one.file, one) for one in _decode_pyright(body).generalDiagnostics]
        if '"filePath"' in body:
            return [(file.filePath, one) for file in _decode_eslint(body) for one in file.messages]
        return [(one.filename, one) for one in _decode_ruff(body)]
    except (msgspec.MsgspecError, RecursionError):
        return []


LINTER_JSON_OUTPUT = OutputParser(
    marks=('"generalDiagnostics"', '"filePath"', '"end_location"'),
    read_verdict=read_linter_json_verdict,
    collect_failures=collect_linter_json_failures,
)


# JUnit's XML, read as text: it may be cut short, and it is not to be trusted.

_TEST_CASE = re.compile(r"<testcase\b([^>]{0,1000})>")
_FAILURE_ELEMENT = re.compile(
    r"\s*(?:<properties>.{0,4000}?</properties>\s*)?<(?:failure|error)\b([^>]{0,4000})", re.DOTALL
)
_SUITE_ELEMENT = re.compile(r"<testsuite\b[^>]{0,2000}")


def read_junit_xml_verdict(text: str) -> bool | None:
    suites = _SUITE_ELEMENT.findall(text)
    counts = [_attribute_value(suite, name) for suite in suites for name in ("failures", "errors")]
    if any(count not in ("", "0") for count in counts):
        return False
    return True if suites and any(counts) else None


def collect_junit_xml_failures(text: str, found: FailureCollector) -> None:
    for case, body in split_by_headers(_TEST_CASE, text):
        failed = _FAILURE_ELEMENT.match(body) if not case[1].endswith("/") else None
        if failed is not None:
            name = ".".join(
                filter(
                    None,
                    (_attribute_value(case[1], "classname"), _attribute_value(case[1], "name")),
                )
            )
            found.add_test(name, _attribute_value(failed[1], "message"))
            found.add_path(_attribute_value(case[1], "file"))
            found.add_test_name(_attribute_value(case[1], "name").partition("[")[0])


def _attribute_value(attributes: str, name: str) -> str:
    match = re.search(rf'\b{name}="([^"]*)"', attributes)
    return unescape(match[1]).partition("\n")[0] if match else ""


JUNIT_XML_OUTPUT = OutputParser(
    marks=("<testcase", "<testsuite"),
    read_verdict=read_junit_xml_verdict,
    collect_failures=collect_junit_xml_failures,
)


# What shells, make and npm say when a check did not even start, or only that it failed.

_MISSING_COMMAND = re.compile(
    r"^(?:[\w/]*sh|env): (?:line \d+: |\d+: |-c: line \d+: )?[‘'`]?([^\s:’']+)[’']?: "
    r"(?:command not found|not found|No such file or directory)$"
    r"|^(?:zsh|\(eval\)(?::\d+)?): command not found: (\S+)$"
    r'|\bCommand "(\S+)" not found$'
    r"|^\S+: No module named (\S+)$"
    r"|can't open file '([^'\n]+)'",
    re.MULTILINE,
)
_FAILURE_LINE = re.compile(
    r"^(?:(?:g?make|mingw32-make)(?:\[\d+\])?: \*\*\* .+"
    r"|npm (?:ERR!|error) (?:Missing script: .+|Lifecycle .+ failed.*|Test failed.*|command failed)"
    r"|\[[\w:.-]{1,40}\] ERROR task failed|error: script \"[^\"\n]{1,80}\" exited with code \d+"
    r"|.*ELIFECYCLE.*|.*: syntax error near .+|.*error: unrecognized arguments: .+)$",
    re.MULTILINE,
)
_NO_REASON = re.compile(
    r"ELIFECYCLE|ERROR task failed|error: script|Lifecycle .* failed|Test failed|command failed"
    r"|\*\*\* \[.*\] Error \d"
)
_MAX_LINE_CHARS = 300
_LINE_NUMBER = re.compile(r":\d+: |\bline \d+\b")


def read_launch_verdict(text: str) -> bool | None:
    return False if _MISSING_COMMAND.search(text) or _FAILURE_LINE.search(text) else None


def collect_launch_failures(text: str, found: FailureCollector) -> None:
    for *names, file in _MISSING_COMMAND.findall(text):
        name = "".join(names)
        found.add_test(f"{name or file}: not found")
        found.add_symbol(name)
        found.add_path(file)
    failure_lines = _FAILURE_LINE.findall(text) if not found.errors else ()
    words = len(text.split()) if failure_lines else 0
    for line in failure_lines:
        if _NO_REASON.search(line[:_MAX_LINE_CHARS]) and words > len(line.split()):
            # That it failed says less than the lines before it.
            continue
        found.add_test(_LINE_NUMBER.sub(" ", normalise_output(line)))


LAUNCH_OUTPUT = OutputParser(
    marks=(
        "command not found", ": not found", "sh: ", "env: ", "No module named ", "*** ", "npm ERR!",
        "npm error", "can't open file", "syntax error near", "ELIFECYCLE", "unrecognized arguments",
        " ERROR task failed", 'error: script "', '" not found',
    ),
    read_verdict=read_launch_verdict,
    collect_failures=collect_launch_failures,
)  # fmt: skip


# Where no tool is recognised: the last lines, as far as they are the same in every run.

MAX_TAIL_LINES = 8
MAX_TAIL_LINE_CHARS = 300

# Each begins with fixed letters: that makes looking for them fast.
_PLACE, _LINE = re.compile(r":(?<=\w:)\d+(?::\d+)?"), re.compile(r"line (?<=\bline )\d+")
_FILE_PATH = re.compile(
    r"(?<![\w/.-])(/?(?:[\w@.-]{1,80}/){0,20}[\w@.-]{1,80}\.(?:pyi?|[cm]?[jt]sx?|go|rs|java|kt|rb|php"
    r"|c|cc|cpp|h|hpp|cs|swift|scala|sh|toml|ya?ml|json|cfg|ini|html|css|vue|sql|md))\b"
)


def failures_from_tail(text: str) -> CheckFailures:
    """One error whose id is the text itself: it is the same failure only when it says the same."""
    lines = [line[:MAX_TAIL_LINE_CHARS] for line in text[-8000:].split("\n") if line.strip()][
        -MAX_TAIL_LINES:
    ]
    tail = _LINE.sub("", _PLACE.sub("", normalise_output("\n".join(lines))))
    words = " ".join([word for word in tail.split() if "." in word])
    paths = [path for path in _FILE_PATH.findall(words) if not is_foreign_path(path)]
    return CheckFailures(
        errors={tail or "no output": ""},
        parser="tail",
        paths=tuple(dict.fromkeys(paths))[:MAX_NAMES],
        symbols=find_quoted_names(tail)[:MAX_NAMES],
    )
