"""Failures of linters, compilers, shells and JUnit XML, and the tail for unknown tools."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from html import unescape

import msgspec

from closeloop.records.change import CheckFailures
from closeloop.records.record import Record
from closeloop.text.wording import compile_lazily

# The failures in a check's output, collected within bounds.
#
# What stays the same when a text is printed again: without volatile parts, or only its shape.

MAX_TEXT_CHARS = 20_000
"""Characters at the end of a text that are compared."""
MAX_TEST_ID_CHARS = 200
"""How far before a number its test's name may begin."""
MAX_MESSAGE_CHARS = 300
"""Characters at the start of a message that are compared."""
CUT_MARK = "…"
"""Ends a message that its tool truncated."""
ORIGIN_MARK = " ← "
"""Separates a message from the line of the test that it comes from."""

# Every pattern is linear (repeats are possessive or bounded) and begins with one set of characters,
# which the engine finds without trying the rest.
_VOLATILE_NUMBER = compile_lazily(
    r"\d(?<!\w\d)(?:"
    r"(?P<time>\d{3}[-/]\d\d[-/]\d\d(?!\d)"
    r"(?:[T ]\d\d?:\d\d(?::\d\d)?(?:[.,]\d++)?(?:Z|[+-]\d\d:?\d\d)?)?"
    r"|\d?:\d\d:\d\d(?:[.,]\d++)?(?!\d)"
    r"|\d*+(?:[.,]\d++)? ?"
    r"(?:[mµun]?s|secs?|seconds?|milliseconds?|mins?|minutes?|m|h|hours?)\b)"
    r"|(?P<share>\d*+(?:\.\d++)? ?%)"
    r"|(?P<address>(?<=0)x[0-9a-fA-F]++)"
    r"|(?P<hash>(?=[a-f\d]{6})[a-f\d]++\b(?:-[a-f\d]{4,12}\b){0,4}"
    r"|(?=[\d-]{0,20}[a-f])[a-f\d]{3,5}(?:-[a-f\d]{4,12}\b){1,4})"
    r")"
)
_NUMBERED_RESOURCE = compile_lazily(
    r"(\b(?:port|pid|process|goroutine|thread|worker|seed|job)[ =:]{1,2}|localhost:|\d\.\d{1,3}:"
    r"|thread '[^'\n]*+' \()\d++\b",
    re.IGNORECASE,
)
_RESOURCE_WORDS = (
    "port", "pid", "PID", "rocess", "goroutine", "hread", "orker", "seed", "job", "localhost",
    "0.0.",
)  # fmt: skip
_HASH = compile_lazily(
    r"[a-f](?<!\w[a-f])(?=[a-f]*+\d)"
    r"(?:[a-f\d]{6,}+\b(?:-[a-f\d]{4,12}\b){0,4}|[a-f\d]{3,5}(?:-[a-f\d]{4,12}\b){1,4})"
)
_SHELL_JOB = compile_lazily(r"\[\d{1,6}\](?=\n|\Z)")
"""What a shell prints first for a background command."""
_TEMPORARY_FOLDER = compile_lazily(
    r"(?:/private)?/var/folders(?:/[\w+-]++){2}/T\b"
    r"|/tmp/(?:pytest-of-[^/\s]++/pytest-\d++\b|tmp[._]?\w{6,12}+\b|cc\w{6}\b|go-build\d++\b)"
)
_BAR_CHARACTERS = "=-_*#~^.!─━⎯═█░▒▓"
_BAR_LINE = compile_lazily(rf"([{re.escape(_BAR_CHARACTERS)}])\1{{3,}}+")
_TERMINAL_ESCAPE = compile_lazily(r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\][^\x07\x1b\n]*+\x07?|[@-Z\\-_])")

_VARIABLE_VALUE = compile_lazily(
    # Backticks quote code, which is not a value.
    r"(?<!\w)(?:'[^'\n]*+'|\"[^\"\n]*+\"|‘[^’\n]*+’)"
    r"|\b(?=[a-f]*+\d)[0-9a-f]{7,}+\b"
    r"|(?<![\w.])[-+]?(?:0x[0-9a-fA-F]++|\d[\d_]*+(?:\.\d++)?(?:e[-+]?\d++)?)"
    r"|\b(?:None|True|False|null|undefined|nan)\b"
    r"|(?:/private)?/(?:tmp|var/folders)/[^\s'\"`,;:)\]>]++"
)
_OPEN_QUOTE = compile_lazily(r"(?<!\w)['\"`‘][^'\"`’]*+\Z")
_VALUE_LIST = compile_lazily(r"#(?:, ?#)+")
_NAME_ERROR = compile_lazily(
    r"(?:Attribute|Name|Import|ModuleNotFound|UnboundLocal|Type|Reference|NoMethod)Error\b"
    r"|undefined |[Cc]annot find "
)
"""Messages whose quoted words are names, not values: another name is another failure."""
_QUOTED_TEXT = compile_lazily(r"['\"‘](?!/tmp|/var|/private)[\w.$@/-]++['\"’]\Z")


def strip_terminal_codes(text: str) -> str:
    """Return the text as a terminal shows it: no escapes, overwritten lines removed."""
    if "\x1b" in text:
        text = _TERMINAL_ESCAPE.sub("", text)
    if "\r" in text:
        lines = (line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))
        text = "\n".join(lines)
    return text


def normalise_output(text: str) -> str:
    """Return the text without volatile parts; digits inside test ids stay."""
    text = "\n".join(
        [
            " ".join(line.split())
            for line in strip_terminal_codes(text)[-MAX_TEXT_CHARS:].split("\n")
        ]
    )
    text = _HASH.sub(
        _volatile_placeholder, _VOLATILE_NUMBER.sub(_volatile_placeholder, text)
    ).replace("[ <share>", "[<share>")
    if job := _SHELL_JOB.match(text):
        text = f"[<job>]{text[job.end() :]}"
    if any(word in text for word in _RESOURCE_WORDS):
        text = _NUMBERED_RESOURCE.sub(r"\1<number>", text)
    if "/tmp/" in text or "/var/folders/" in text:  # noqa: S108
        text = _TEMPORARY_FOLDER.sub("<folder>", text)
    if any(bar * 4 in text for bar in _BAR_CHARACTERS):
        text = _BAR_LINE.sub(r"\1\1\1", text)
    return text[-MAX_TEXT_CHARS:]


def _volatile_placeholder(match: re.Match[str]) -> str:
    text, start = match.string, match.start()
    first = max(start - MAX_TEST_ID_CHARS, 0)
    begin = max(text.rfind(" ", first, start), text.rfind("\n", first, start), first - 1) + 1
    is_id = text.startswith("test_", begin) or text.find("::", begin, start) >= 0
    return match[0] if is_id else f"<{match.lastgroup or 'hash'}>"


@lru_cache(maxsize=4096)
def message_skeleton(message: str) -> str:
    """Return the shape of a message: no numbers, quoted values or volatile parts."""
    line = message.strip()[:MAX_MESSAGE_CHARS]
    if "\n" in line:
        line = line[: line.index("\n")].rstrip()
    if line.startswith("AssertionError: assert "):
        # Some styles of pytest leave the type out.
        line = line[16:]
    is_cut = line.endswith(("...", CUT_MARK))
    if is_cut:
        line = line.rstrip("." + CUT_MARK)
        line = line[: line.rindex(" ")] if " " in line else line
    skeleton = _VARIABLE_VALUE.sub(
        _name_or_placeholder if _NAME_ERROR.search(line, 0, 60) else _value_placeholder, line
    )
    if is_cut:
        skeleton = _OPEN_QUOTE.sub("", skeleton)
    skeleton = " ".join(_VALUE_LIST.sub("#", skeleton).split())
    return skeleton + CUT_MARK if is_cut else skeleton


def _value_placeholder(match: re.Match[str]) -> str:
    return "''" if match[0][0] in "'\"‘" else "#"


def _name_or_placeholder(match: re.Match[str]) -> str:
    return match[0] if _QUOTED_TEXT.match(match[0]) else _value_placeholder(match)


def is_same_message(first_message: str, second_message: str) -> bool:
    """Whether two messages agree; one may be truncated or unknown."""
    if first_message == second_message or not first_message or not second_message:
        return True
    first, _, origin = first_message.partition(ORIGIN_MARK)
    second, _, source = second_message.partition(ORIGIN_MARK)
    if origin and source and origin != source:
        return False
    if first == second:
        return True
    if first.endswith(CUT_MARK):
        return second.startswith(first[:-1])
    return second.endswith(CUT_MARK) and first.startswith(second[:-1])


MAX_ERRORS = 200
MAX_NAMES = 20
MAX_NAME_CHARS = 200
MAX_ORIGIN_CHARS = 120

_FOREIGN_PATHS = (
    "site-packages/", "dist-packages/", "lib/python", "node_modules/", "node:", "<frozen",
    "/usr/lib/", "/usr/include/", "/usr/local/go/", "/go/pkg/mod/", "/rustc/", ".cargo/registry/",
    "/rubygems/", "/gems/", "vendor/", "internal/process/", "<string>", "<stdin>", "[eval]",
)  # fmt: skip
_QUOTED_NAME = compile_lazily(
    r"['\"`‘]([A-Za-z_$][\w.$-]*+)(?:\(\))?['\"`’]"
    r"|\b([A-Za-z_]\w*+)\(\) (?=got|missing|takes|argument)"
    r"|\bundefined: ([\w.]++)"
    r"|\bfield or method (\w++)"
    r"|\bsymbol: +\w+ (\w++)"
)
_VALUE_MESSAGES = ("assert", "Assert", "expect", "Expect", "KeyError", "ValueError")
"""Beginnings of messages that quote values rather than names."""
_PLAIN_TYPES = frozenset(
    ("str", "int", "float", "bool", "list", "dict", "tuple", "set", "bytes", "object", "type",
     "None", "NoneType", "function", "module", "string", "number", "boolean", "undefined", "null",
     "any", "unknown", "never", "void", "self")
)  # fmt: skip


class FailureCollector:
    """Failing tests or errors, and the files and names that the output mentions."""

    __slots__ = (
        "_foreign", "_more", "_paths", "_symbols", "_tests", "_times", "_warnings", "errors",
    )  # fmt: skip

    def __init__(self) -> None:
        self.errors: dict[str, str] = {}
        self._warnings: dict[str, str] = {}
        self._more = 0
        self._times: dict[str, int] = {}
        self._paths: dict[str, None] = {}
        self._foreign: dict[str, None] = {}
        self._symbols: dict[str, None] = {}
        self._tests: dict[str, None] = {}

    def add_test(self, name: str, message: str = "", origin: str = "") -> None:
        """Add a failing test; `origin` is the line of the test that the message comes from."""
        name = name.strip()[:MAX_NAME_CHARS]
        known_message = self.errors.get(name)
        if known_message is None and len(self.errors) >= MAX_ERRORS:
            self._more += 1
        elif name and not known_message:
            self.errors[name] = _error_text(message, origin)
        if not message.startswith(_VALUE_MESSAGES):
            self.add_quoted_names(message)

    def add_place(self, path: str, message: str, *, warning: bool = False) -> None:
        """Add an error in a file: lines may move, and three of a kind are three."""
        signature = f"{path}: {_mask_numbers(message)}"[:MAX_NAME_CHARS]
        messages = self._warnings if warning else self.errors
        times = self._times[signature] = self._times.get(signature, 0) + 1
        if len(messages) < MAX_ERRORS:
            messages[signature if times == 1 else f"{signature} #{times}"] = ""
        elif not warning:
            self._more += 1
        if not warning:
            self.add_path(path)
            self.add_quoted_names(message)

    def add_path(self, path: str) -> None:
        paths = self._foreign if is_foreign_path(path) else self._paths
        if path and len(paths) < MAX_NAMES:
            paths[path[:MAX_NAME_CHARS]] = None

    def add_symbol(self, name: str) -> None:
        if name and name[0] != "<" and len(self._symbols) < MAX_NAMES:
            self._symbols[name[:MAX_NAME_CHARS]] = None

    def add_test_name(self, name: str) -> None:
        """Add a failing test's own name, which is less specific than what fails in it."""
        if name and len(self._tests) < MAX_NAMES:
            self._tests[name[:MAX_NAME_CHARS]] = None

    def add_quoted_names(self, message: str) -> None:
        """Add the names that a message quotes."""
        for name in find_quoted_names(message[:MAX_MESSAGE_CHARS]):
            self.add_symbol(name)

    def build_failures(self, parser: str, *, warnings: bool = True) -> CheckFailures | None:
        """Return the collected failures, else the warnings; None if there are neither."""
        errors = self.errors or (self._warnings if warnings else {})
        if not errors:
            return None
        if self._more:
            errors = {**errors, f"and {self._more} more": ""}
        return CheckFailures(
            errors=errors,
            parser=parser,
            paths=tuple(self._paths or self._foreign),
            symbols=tuple({**self._symbols, **self._tests})[:MAX_NAMES],
        )


def _error_text(message: str, origin: str) -> str:
    skeleton = message_skeleton(message[: 2 * MAX_MESSAGE_CHARS]) if message else ""
    return (
        f"{skeleton}{ORIGIN_MARK}{origin.strip()[:MAX_ORIGIN_CHARS]}"
        if skeleton and origin
        else skeleton
    )


@lru_cache(maxsize=4096)
def _mask_numbers(message: str) -> str:
    return re.sub(r"\b\d++(?:\.\d++)?\b", "#", " ".join(message[:MAX_MESSAGE_CHARS].split()))


@lru_cache(maxsize=4096)
def is_foreign_path(path: str) -> bool:
    """Whether it is not the project's own file: nobody fixes a library for a test."""
    return any(mark in path for mark in _FOREIGN_PATHS)


@lru_cache(maxsize=4096)
def find_quoted_names(message: str) -> tuple[str, ...]:
    """Return the quoted identifiers of a message, without the names of plain types."""
    quoted = (next(filter(None, match)) for match in _QUOTED_NAME.findall(message))
    return tuple(
        dict.fromkeys(name for name in quoted if len(name) > 1 and name not in _PLAIN_TYPES)
    )


def split_by_headers(pattern: re.Pattern[str], text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Yield each header that the pattern finds, with the text up to the next one."""
    last: re.Match[str] | None = None
    for match in pattern.finditer(text):
        if last is not None:
            yield last, text[last.end() : match.start()]
        last = match
    if last is not None:
        yield last, text[last.end() :]


def first_text_line(text: str) -> str:
    """Return the first line that is not empty."""
    return text.lstrip()[:1000].partition("\n")[0].rstrip()


class OutputParser(Record):
    """How one tool's output is recognised and parsed."""

    marks: tuple[str, ...]
    read_verdict: Callable[[str], bool | None]
    collect_failures: Callable[[str, FailureCollector], None]


# Stack frames as Python and JavaScript print them.

_PYTHON_FRAME = compile_lazily(
    r'File "([^"\n]++)", line \d++(?:, in ([^\n]++))?(?:\n {4}([^\n]++))?'
)
_SCRIPT_FRAME = compile_lazily(
    r"\n *+(?:at|❯) (?:async |new )?(?:([^\s(:]++)(?: \[[^\]\n]*+\])? )?"
    r"\(?((?:node:|file:)?[^\s():]++):\d++"
)

StackFrame = tuple[str, str, str]
"""File, function and source line, `""` if unknown."""


def parse_python_frames(text: str) -> list[StackFrame]:
    """Return the frames of a traceback that prints the deepest last."""
    return _PYTHON_FRAME.findall(text)


def parse_script_frames(text: str) -> list[StackFrame]:
    """Return the frames of a traceback that prints the deepest first."""
    return [(path, name, "") for name, path in _SCRIPT_FRAME.findall(text)]


def add_frames(frames: Iterable[StackFrame], collector: FailureCollector) -> None:
    """Add files and the project's functions from frames, the deepest first."""
    for path, name, _ in frames:
        collector.add_path(path.removeprefix("file://"))
        if name and not is_foreign_path(path):
            collector.add_symbol(name.rpartition(".")[2])


def find_origin(frames: Iterable[StackFrame]) -> str:
    """Return the first line of the project's own code, from the outermost frame."""
    return next((source for path, _, source in frames if source and not is_foreign_path(path)), "")


# Output of linters, compilers, shells and JUnit's XML, and the tail if no tool is known.


MAX_LINE_CHARS = 2000

_SOURCE_PLACE = compile_lazily(
    r"((?:[A-Za-z]:)?[^\s:()\"'\[][^:()\"']{0,250}+)"
    r"(?::\d+(?::\d+)?(?::| -)|\(\d+(?:,\d+)?\):|:\[\d+,\d+\]|: line \d+, col \d+,) +(.*)"
)
_DIAGNOSTIC = compile_lazily(
    r"(?i:(fatal error|error|warning|note|remark|information|info|help|hint)\b)?"
    r"(?:\[([^\]\s]*)\])?(?: (\w+\d+))?:? *(?:- )?(.*)"
)
_RULE_CODE = compile_lazily(r"[A-Z]{1,8}\d{2,5}\b")
_ARROW_PLACE = compile_lazily(r" *--> ([^\s:]+(?: [^\s:]+)*):\d+:\d+")
_ESLINT_LINE = compile_lazily(r"  +\d+:\d+  +(error|warning)  +(.*)")
_WOULD_REFORMAT = compile_lazily(r"(?i:would reformat:?) (\S+)$")
_UNDEFINED_REFERENCE = compile_lazily(r"undefined reference to [`']\w[^'`]{0,200}'")
_BIOME_PLACE = compile_lazily(
    r"(?: at )?([^\s:]{1,250})(?::\d+:\d+)? ((?:lint|assist|parse|format|organizeImports)\S{0,100})"
    r"[^━]{0,40}━"
)
_OXLINT_PLACE = compile_lazily(r" +(?:╭─|,-)\[([^\]\s:]{1,250}):\d+:\d+\]")
_GLOBAL_ERROR = compile_lazily(r"error TS\d+: .{1,300}")
_NOTE_SEVERITIES = ("note", "remark", "information", "info", "help", "hint")
_FIXABLE_MARK = compile_lazily(r"\[\*\] ")
_SUCCESS_MESSAGES = (
    "Success: no issues found", "All checks passed!", "0 errors, ", "rated at 10.00/10",
    " already formatted", " would be left unchanged", "Found 0 errors", "(0 errors,",
    "No fixes applied", "0 issues.", " and 0 errors",
)  # fmt: skip
_FAILURE_TOTAL = compile_lazily(
    r"^(?:Found [1-9]\d* (?:errors?|diagnostics?)|[1-9]\d* errors?\b|✖ \d+ problems? \([1-9]"
    r"|\d+ files? would be reformatted|Found \d+ warnings? and [1-9]\d* errors?"
    r"|(?:\[[\w:.-]{1,40}\] )?[1-9]\d* issues:|  × Some errors were emitted)", re.MULTILINE,
)  # fmt: skip


def read_source_place_verdict(text: str) -> bool | None:
    tail = text[-1500:]
    if _FAILURE_TOTAL.search(tail):
        return False
    return True if any(mark in tail for mark in _SUCCESS_MESSAGES) else None


def collect_source_place_failures(text: str, collector: FailureCollector) -> None:
    """Parse in one pass: `path:line: …`, `path(line,column): …`, code frames with `-->`, ESLint's
    lists."""
    file = last = before = ""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if not line or len(line) > MAX_LINE_CHARS:
            continue
        if line[0] == " ":
            may_be_drawn = "━" in line or "-[" in line or "─[" in line
            is_drawn = may_be_drawn and _read_drawn_place(line, before.strip(), collector)
            if not is_drawn and _read_indented_line(line, file, last, collector):
                last = ""
            before = line
            continue
        if "|" not in line[:8]:
            last = line
        if ":" not in line:
            file = line
        _read_unindented_line(line, lines, number, collector)


def _read_unindented_line(
    line: str, lines: list[str], number: int, collector: FailureCollector
) -> None:
    if "━" in line:
        _read_drawn_place(line, "", collector)
    elif ":" not in line:
        if match := _WOULD_REFORMAT.match(line):
            collector.add_place(match[1], "would reformat")
    elif match := _SOURCE_PLACE.match(_strip_build_prefix(line)):
        missing = match[2].endswith("cannot find symbol")
        symbol = _missing_symbol(lines[number + 1 : number + 5]) if missing else ""
        _add_diagnostic(match[1], match[2] + symbol, collector)
    elif (
        match := _UNDEFINED_REFERENCE.search(line)
        or _WOULD_REFORMAT.match(line)
        or _GLOBAL_ERROR.match(line)
    ):
        collector.add_test(match[0])
        collector.add_quoted_names(match[0])


def _read_indented_line(line: str, file: str, header: str, collector: FailureCollector) -> bool:
    """Return True if the line says to which place the header above belongs."""
    if file and (match := _ESLINT_LINE.match(line)):
        collector.add_place(file, _put_rule_first(match[2]), warning=match[1] == "warning")
    elif header and "-->" in line and (match := _ARROW_PLACE.match(line)):
        _add_framed_diagnostic(header, match[1], collector)
        return True
    elif " - " in line and (match := _SOURCE_PLACE.match(line.strip())):
        _add_diagnostic(match[1], match[2], collector)
    return False


def _read_drawn_place(line: str, header: str, collector: FailureCollector) -> bool:
    """Return whether it is a place that Biome or Oxlint draws lines around."""
    if match := _BIOME_PLACE.match(line):
        collector.add_place(match[1], match[2])
    elif header and (match := _OXLINT_PLACE.match(line)):
        collector.add_place(match[1], header[1:].strip(), warning=header[0] in "!⚠")
    return match is not None


def _strip_build_prefix(line: str) -> str:
    """Remove a build tool's prefix: `[ERROR] `, `[lint:go] `."""
    return line.partition("] ")[2] if line[0] == "[" else line


def _add_diagnostic(path: str, text: str, collector: FailureCollector) -> None:
    match = _DIAGNOSTIC.match(text)
    if match is None:
        return
    severity, bracketed, code, message = match.groups()
    severity = (severity or "").lower()
    if severity in _NOTE_SEVERITIES or not message:
        return
    if not severity and not bracketed and not _is_diagnostic(path, message):
        return
    diagnostic_text = " ".join(filter(None, (bracketed, code, _FIXABLE_MARK.sub("", message))))
    collector.add_place(
        path, diagnostic_text, warning=severity == "warning" or "[Warning/" in message
    )


def _is_diagnostic(path: str, message: str) -> bool:
    """Recognise lines without the word error: codes of Ruff, Flake8 and Pylint, or ESLint's
    rules."""
    return (
        _RULE_CODE.match(message) is not None
        or (message.endswith("]") and ("[Error/" in message or "[Warning/" in message))
        or path.endswith((".go", ".java", ".kt", ".scala"))
    )  # fmt: skip


def _add_framed_diagnostic(header: str, path: str, collector: FailureCollector) -> None:
    match = _DIAGNOSTIC.match(header)
    severity = (match[1] or "").lower() if match else ""
    if severity in _NOTE_SEVERITIES:
        return
    diagnostic_text = header
    if match and severity:
        diagnostic_text = " ".join(filter(None, (match[2], match[3], match[4])))
    collector.add_place(path, _FIXABLE_MARK.sub("", diagnostic_text), warning=severity == "warning")


def _put_rule_first(message: str) -> str:
    """Put the rule first, as in other formats."""
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
    """Return the verdict from the content."""
    return None


def collect_linter_json_failures(text: str, collector: FailureCollector) -> None:
    begin = min((start for bracket in "[{" if (start := text.find(bracket)) >= 0), default=-1)
    body = text[begin : max(text.rfind("]"), text.rfind("}")) + 1] if begin >= 0 else ""
    for path, message in _parse_messages(body):
        warning = message.severity in (1, "warning", "information")
        rule = message.code or message.ruleId or message.rule
        collector.add_place(path, f"{rule} {message.message}", warning=warning)


def _parse_messages(body: str) -> list[tuple[str, _LinterMessage]]:
    try:
        if '"generalDiagnostics"' in body:
            return [
                (generalDiagnostic.file, generalDiagnostic)
                for generalDiagnostic in _decode_pyright(body).generalDiagnostics
            ]
        if '"filePath"' in body:
            return [
                (file.filePath, message)
                for file in _decode_eslint(body)
                for message in file.messages
            ]
        return [(message.filename, message) for message in _decode_ruff(body)]
    except (msgspec.MsgspecError, RecursionError):
        return []


LINTER_JSON_OUTPUT = OutputParser(
    marks=('"generalDiagnostics"', '"filePath"', '"end_location"'),
    read_verdict=read_linter_json_verdict,
    collect_failures=collect_linter_json_failures,
)


# JUnit's XML, read as text: it may be truncated, and it is untrusted.

_TEST_CASE = compile_lazily(r"<testcase\b([^>]{0,1000})>")
_FAILURE_ELEMENT = compile_lazily(
    r"\s*(?:<properties>.{0,4000}?</properties>\s*)?<(?:failure|error)\b([^>]{0,4000})", re.DOTALL
)
_SUITE_ELEMENT = compile_lazily(r"<testsuite\b[^>]{0,2000}")


def read_junit_xml_verdict(text: str) -> bool | None:
    suites = _SUITE_ELEMENT.findall(text)
    counts = [_attribute_value(suite, name) for suite in suites for name in ("failures", "errors")]
    if any(count not in ("", "0") for count in counts):
        return False
    return True if suites and any(counts) else None


def collect_junit_xml_failures(text: str, collector: FailureCollector) -> None:
    for case, body in split_by_headers(_TEST_CASE, text):
        failed = _FAILURE_ELEMENT.match(body) if not case[1].endswith("/") else None
        if failed is not None:
            name = ".".join(
                filter(
                    None,
                    (_attribute_value(case[1], "classname"), _attribute_value(case[1], "name")),
                )
            )
            collector.add_test(name, _attribute_value(failed[1], "message"))
            collector.add_path(_attribute_value(case[1], "file"))
            collector.add_test_name(_attribute_value(case[1], "name").partition("[")[0])


def _attribute_value(attributes: str, name: str) -> str:
    match = re.search(rf'\b{name}="([^"]*)"', attributes)
    return unescape(match[1]).partition("\n")[0] if match else ""


JUNIT_XML_OUTPUT = OutputParser(
    marks=("<testcase", "<testsuite"),
    read_verdict=read_junit_xml_verdict,
    collect_failures=collect_junit_xml_failures,
)


# Output of shells, make and npm when a check did not start, or only that it failed.

_MISSING_COMMAND = compile_lazily(
    r"^(?:[\w/]*sh|env): (?:line \d+: |\d+: |-c: line \d+: )?[‘'`]?([^\s:’']+)[’']?: "
    r"(?:command not found|not found|No such file or directory)$"
    r"|^(?:zsh|\(eval\)(?::\d+)?): command not found: (\S+)$"
    r'|\bCommand "(\S+)" not found$'
    r"|^\S+: No module named (\S+)$"
    r"|can't open file '([^'\n]+)'",
    re.MULTILINE,
)
_FAILURE_LINE = compile_lazily(
    r"^(?:(?:g?make|mingw32-make)(?:\[\d+\])?: \*\*\* .+"
    r"|npm (?:ERR!|error) (?:Missing script: .+|Lifecycle .+ failed.*|Test failed.*|command failed)"
    r"|\[[\w:.-]{1,40}\] ERROR task failed|error: script \"[^\"\n]{1,80}\" exited with code \d+"
    r"|.*ELIFECYCLE.*|.*: syntax error near .+|.*error: unrecognized arguments: .+)$",
    re.MULTILINE,
)
_NO_REASON = compile_lazily(
    r"ELIFECYCLE|ERROR task failed|error: script|Lifecycle .* failed|Test failed|command failed"
    r"|\*\*\* \[.*\] Error \d"
)
_MAX_LINE_CHARS = 300
_LINE_NUMBER = compile_lazily(r":\d+: |\bline \d+\b")


def read_launch_verdict(text: str) -> bool | None:
    return False if _MISSING_COMMAND.search(text) or _FAILURE_LINE.search(text) else None


def collect_launch_failures(text: str, collector: FailureCollector) -> None:
    for *names, file in _MISSING_COMMAND.findall(text):
        name = "".join(names)
        collector.add_test(f"{name or file}: not found")
        collector.add_symbol(name)
        collector.add_path(file)
    failure_lines = _FAILURE_LINE.findall(text) if not collector.errors else ()
    word_count = len(text.split()) if failure_lines else 0
    for line in failure_lines:
        if _NO_REASON.search(line[:_MAX_LINE_CHARS]) and word_count > len(line.split()):
            # The failure line says less than the lines before it.
            continue
        collector.add_test(_LINE_NUMBER.sub(" ", normalise_output(line)))


LAUNCH_OUTPUT = OutputParser(
    marks=(
        "command not found", ": not found", "sh: ", "env: ", "No module named ", "*** ", "npm ERR!",
        "npm error", "can't open file", "syntax error near", "ELIFECYCLE", "unrecognized arguments",
        " ERROR task failed", 'error: script "', '" not found',
    ),
    read_verdict=read_launch_verdict,
    collect_failures=collect_launch_failures,
)  # fmt: skip


# If no tool is recognised: the last lines, as far as they are the same in every run.

MAX_TAIL_LINES = 8
MAX_TAIL_LINE_CHARS = 300

# Each begins with fixed letters, which makes the search fast.
_PLACE, _LINE = compile_lazily(r":(?<=\w:)\d+(?::\d+)?"), compile_lazily(r"line (?<=\bline )\d+")
_PYTHON_WARNING = compile_lazily(
    r"\n[^\n:]{1,400}:\d{1,7}: \w{0,40}Warning: [^\n]*+(?:\n  [^\n]*+)?"
)
"""A warning and its source line, which accompany failures and cause none."""
_FILE_PATH = compile_lazily(
    r"(?<![\w/.-])(/?(?:[\w@.-]{1,80}/){0,20}[\w@.-]{1,80}\.(?:pyi?|[cm]?[jt]sx?|go|rs|java|kt|rb|php"
    r"|c|cc|cpp|h|hpp|cs|swift|scala|sh|toml|ya?ml|json|cfg|ini|html|css|vue|sql|md))\b"
)


def failures_from_tail(text: str) -> CheckFailures:
    """Return one error whose id is the text itself, so that it is the same only if the text is."""
    printed = _PYTHON_WARNING.sub("\n", f"\n{text[-8000:]}") if "Warning: " in text else text
    lines = [line[:MAX_TAIL_LINE_CHARS] for line in printed[-8000:].split("\n") if line.strip()][
        -MAX_TAIL_LINES:
    ]
    tail = _LINE.sub("", _PLACE.sub("", normalise_output("\n".join(lines))))
    dotted_words = " ".join([word for word in tail.split() if "." in word])
    paths = [path for path in _FILE_PATH.findall(dotted_words) if not is_foreign_path(path)]
    return CheckFailures(
        errors={tail or "no output": ""},
        parser="tail",
        paths=tuple(dict.fromkeys(paths))[:MAX_NAMES],
        symbols=find_quoted_names(tail)[:MAX_NAMES],
    )
