"""What a check's output says fails, gathered within bounds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

from closeloop.process.output_normalisation import MAX_MESSAGE_CHARS, ORIGIN_MARK, message_skeleton
from closeloop.records.inspection import (
    CheckFailures,
)
from closeloop.records.record import Record

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
