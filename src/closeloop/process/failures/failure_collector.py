"""What a check's output says fails, gathered within bounds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

from closeloop.records.inspection import CheckFailures
from closeloop.records.record import Record

# What stays of a text when it is printed again: volatile parts out, or only its shape.

MAX_TEXT_CHARS = 20_000
"""Characters of a text that are compared: the last ones."""
MAX_TEST_ID_CHARS = 200
"""How far before a number its test's name may begin."""
MAX_MESSAGE_CHARS = 300
"""Characters of a message that are compared: the first ones."""
CUT_MARK = "…"
"""Ends a message that its tool cut short."""
ORIGIN_MARK = " ← "
"""Stands between a message and the line of the test that it comes from."""

# Every pattern is linear (repeats are possessive or bounded) and begins with one set of
# characters, which the engine looks for without trying the rest.
_VOLATILE_NUMBER = re.compile(
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
_NUMBERED_RESOURCE = re.compile(
    r"(\b(?:port|pid|process|goroutine|thread)[ =:]{1,2}|localhost:|\d\.\d{1,3}:"
    r"|thread '[^'\n]*+' \()\d++\b",
    re.IGNORECASE,
)
_RESOURCE_WORDS = ("port", "pid", "PID", "rocess", "goroutine", "hread", "localhost", "0.0.")
_HASH = re.compile(
    r"[a-f](?<!\w[a-f])(?=[a-f]*+\d)"
    r"(?:[a-f\d]{6,}+\b(?:-[a-f\d]{4,12}\b){0,4}|[a-f\d]{3,5}(?:-[a-f\d]{4,12}\b){1,4})"
)
_SHELL_JOB = re.compile(r"\[\d{1,6}\](?=\n|\Z)")
"""What a shell prints before all else of a command that it leaves running."""
_TEMPORARY_FOLDER = re.compile(
    r"(?:/private)?/var/folders(?:/[\w+-]++){2}/T\b"
    r"|/tmp/(?:pytest-of-[^/\s]++/pytest-\d++\b|tmp[._]?\w{6,12}+\b|cc\w{6}\b|go-build\d++\b)"
)
_BAR_CHARACTERS = "=-_*#~^.!─━⎯═█░▒▓"
_BAR_LINE = re.compile(rf"([{re.escape(_BAR_CHARACTERS)}])\1{{3,}}+")
_TERMINAL_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\][^\x07\x1b\n]*+\x07?|[@-Z\\-_])")

_VARIABLE_VALUE = re.compile(
    # Backticks quote code, which is not a value.
    r"(?<!\w)(?:'[^'\n]*+'|\"[^\"\n]*+\"|‘[^’\n]*+’)"
    r"|\b(?=[a-f]*+\d)[0-9a-f]{7,}+\b"
    r"|(?<![\w.])[-+]?(?:0x[0-9a-fA-F]++|\d[\d_]*+(?:\.\d++)?(?:e[-+]?\d++)?)"
    r"|\b(?:None|True|False|null|undefined|nan)\b"
    r"|(?:/private)?/(?:tmp|var/folders)/[^\s'\"`,;:)\]>]++"
)
_OPEN_QUOTE = re.compile(r"(?<!\w)['\"`‘][^'\"`’]*+\Z")
_VALUE_LIST = re.compile(r"#(?:, ?#)+")
_NAME_ERROR = re.compile(
    r"(?:Attribute|Name|Import|ModuleNotFound|UnboundLocal|Type|Reference|NoMethod)Error\b"
    r"|undefined |[Cc]annot find "
)
"""Messages whose quoted words are names, not values: another name is another failure."""
_QUOTED_TEXT = re.compile(r"['\"‘](?!/tmp|/var|/private)[\w.$@/-]++['\"’]\Z")


def strip_terminal_codes(text: str) -> str:
    """The text as a terminal would show it: no escapes, and of overwritten lines the last."""
    if "\x1b" in text:
        text = _TERMINAL_ESCAPE.sub("", text)
    if "\r" in text:
        lines = (line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))
        text = "\n".join(lines)
    return text


def normalise_output(text: str) -> str:
    """The text without what changes from run to run; digits inside test ids stay."""
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
    text, at = match.string, match.start()
    first = max(at - MAX_TEST_ID_CHARS, 0)
    begin = max(text.rfind(" ", first, at), text.rfind("\n", first, at), first - 1) + 1
    is_id = text.startswith("test_", begin) or text.find("::", begin, at) >= 0
    return match[0] if is_id else f"<{match.lastgroup or 'hash'}>"


@lru_cache(maxsize=4096)
def message_skeleton(message: str) -> str:
    """One message's shape: no numbers, no quoted values, nothing volatile."""
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
    shape = _VARIABLE_VALUE.sub(
        _name_or_placeholder if _NAME_ERROR.search(line, 0, 60) else _value_placeholder, line
    )
    if is_cut:
        shape = _OPEN_QUOTE.sub("", shape)
    shape = " ".join(_VALUE_LIST.sub("#", shape).split())
    return shape + CUT_MARK if is_cut else shape


def _value_placeholder(match: re.Match[str]) -> str:
    return "''" if match[0][0] in "'\"‘" else "#"


def _name_or_placeholder(match: re.Match[str]) -> str:
    return match[0] if _QUOTED_TEXT.match(match[0]) else _value_placeholder(match)


def is_same_message(one: str, other: str) -> bool:
    """Whether two messages say the same, as far as both say it: one may be cut, or unknown."""
    if one == other or not one or not other:
        return True
    first, _, origin = one.partition(ORIGIN_MARK)
    second, _, source = other.partition(ORIGIN_MARK)
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
_QUOTED_NAME = re.compile(
    r"['\"`‘]([A-Za-z_$][\w.$-]*+)(?:\(\))?['\"`’]"
    r"|\b([A-Za-z_]\w*+)\(\) (?=got|missing|takes|argument)"
    r"|\bundefined: ([\w.]++)"
    r"|\bfield or method (\w++)"
    r"|\bsymbol: +\w+ (\w++)"
)
_VALUE_MESSAGES = ("assert", "Assert", "expect", "Expect", "KeyError", "ValueError")
"""How messages begin that quote values rather than names."""
_PLAIN_TYPES = frozenset(
    ("str", "int", "float", "bool", "list", "dict", "tuple", "set", "bytes", "object", "type",
     "None", "NoneType", "function", "module", "string", "number", "boolean", "undefined", "null",
     "any", "unknown", "never", "void", "self")
)  # fmt: skip


class FailureCollector:
    """Failing tests or errors, and the files and names that the output points at."""

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
        """A failing test; `origin` is the line of the test that the message comes from."""
        name = name.strip()[:MAX_NAME_CHARS]
        known_message = self.errors.get(name)
        if known_message is None and len(self.errors) >= MAX_ERRORS:
            self._more += 1
        elif name and not known_message:
            self.errors[name] = _error_text(message, origin)
        if not message.startswith(_VALUE_MESSAGES):
            self.add_quoted_names(message)

    def add_place(self, path: str, message: str, *, warning: bool = False) -> None:
        """An error at a place in a file: lines may move, and three of a kind are three."""
        signature = f"{path}: {_mask_numbers(message)}"[:MAX_NAME_CHARS]
        into = self._warnings if warning else self.errors
        times = self._times[signature] = self._times.get(signature, 0) + 1
        if len(into) < MAX_ERRORS:
            into[signature if times == 1 else f"{signature} #{times}"] = ""
        elif not warning:
            self._more += 1
        if not warning:
            self.add_path(path)
            self.add_quoted_names(message)

    def add_path(self, path: str) -> None:
        into = self._foreign if is_foreign_path(path) else self._paths
        if path and len(into) < MAX_NAMES:
            into[path[:MAX_NAME_CHARS]] = None

    def add_symbol(self, name: str) -> None:
        if name and name[0] != "<" and len(self._symbols) < MAX_NAMES:
            self._symbols[name[:MAX_NAME_CHARS]] = None

    def add_test_name(self, name: str) -> None:
        """A failing test's own name: less telling than what fails in it."""
        if name and len(self._tests) < MAX_NAMES:
            self._tests[name[:MAX_NAME_CHARS]] = None

    def add_quoted_names(self, message: str) -> None:
        """The names that a message quotes."""
        for name in find_quoted_names(message[:MAX_MESSAGE_CHARS]):
            self.add_symbol(name)

    def build_failures(self, parser: str, *, warnings: bool = True) -> CheckFailures | None:
        """None where nothing was found. Warnings count only where there is nothing worse."""
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
    shape = message_skeleton(message[: 2 * MAX_MESSAGE_CHARS]) if message else ""
    return f"{shape}{ORIGIN_MARK}{origin.strip()[:MAX_ORIGIN_CHARS]}" if shape and origin else shape


@lru_cache(maxsize=4096)
def _mask_numbers(message: str) -> str:
    return re.sub(r"\b\d++(?:\.\d++)?\b", "#", " ".join(message[:MAX_MESSAGE_CHARS].split()))


@lru_cache(maxsize=4096)
def is_foreign_path(path: str) -> bool:
    """Not the project's own file: nobody repairs a library to get a test green."""
    return any(mark in path for mark in _FOREIGN_PATHS)


@lru_cache(maxsize=4096)
def find_quoted_names(message: str) -> tuple[str, ...]:
    """The quoted identifiers of a message, without the names of plain types."""
    quoted = (next(filter(None, match)) for match in _QUOTED_NAME.findall(message))
    return tuple(
        dict.fromkeys(name for name in quoted if len(name) > 1 and name not in _PLAIN_TYPES)
    )


def split_by_headers(pattern: re.Pattern[str], text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Each header that the pattern finds, with the text up to the next one."""
    last: re.Match[str] | None = None
    for match in pattern.finditer(text):
        if last is not None:
            yield last, text[last.end() : match.start()]
        last = match
    if last is not None:
        yield last, text[last.end() :]


def first_text_line(text: str) -> str:
    """The first line that says something."""
    return text.lstrip()[:1000].partition("\n")[0].rstrip()


class OutputParser(Record):
    """How one tool's output is recognised and read."""

    marks: tuple[str, ...]
    read_verdict: Callable[[str], bool | None]
    collect_failures: Callable[[str, FailureCollector], None]


# Frames of a stack as Python and JavaScript print them.

_PYTHON_FRAME = re.compile(r'File "([^"\n]++)", line \d++(?:, in ([^\n]++))?(?:\n {4}([^\n]++))?')
_SCRIPT_FRAME = re.compile(
    r"\n *+(?:at|❯) (?:async |new )?(?:([^\s(:]++)(?: \[[^\]\n]*+\])? )?"
    r"\(?((?:node:|file:)?[^\s():]++):\d++"
)

StackFrame = tuple[str, str, str]
"""File, function and source line, `""` where they are not told."""


def parse_python_frames(text: str) -> list[StackFrame]:
    """As they are printed: the deepest last."""
    return _PYTHON_FRAME.findall(text)


def parse_script_frames(text: str) -> list[StackFrame]:
    """As they are printed: the deepest first."""
    return [(path, name, "") for name, path in _SCRIPT_FRAME.findall(text)]


def add_frames(frames: Iterable[StackFrame], found: FailureCollector) -> None:
    """What frames tell, when the deepest comes first: files, and functions of the project."""
    for path, name, _ in frames:
        found.add_path(path.removeprefix("file://"))
        if name and not is_foreign_path(path):
            found.add_symbol(name.rpartition(".")[2])


def find_origin(frames: Iterable[StackFrame]) -> str:
    """The first line of the project's own, when the outermost frame comes first."""
    return next((source for path, _, source in frames if source and not is_foreign_path(path)), "")
