"""What a check's output says fails, gathered within bounds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from closeloop.model.steps import Failures
from closeloop.process.normalise import LONGEST_MESSAGE, ORIGIN, skeleton

MOST_ERRORS = 200
MOST_NAMES = 20
LONGEST_NAME = 200
LONGEST_ORIGIN = 120

_FOREIGN = (
    "site-packages/", "dist-packages/", "lib/python", "node_modules/", "node:", "<frozen",
    "/usr/lib/", "/usr/include/", "/usr/local/go/", "/go/pkg/mod/", "/rustc/", ".cargo/registry/",
    "/rubygems/", "/gems/", "vendor/", "internal/process/", "<string>", "<stdin>", "[eval]",
)  # fmt: skip
_NAMED = re.compile(
    r"['\"`‘]([A-Za-z_$][\w.$-]*+)(?:\(\))?['\"`’]"
    r"|\b([A-Za-z_]\w*+)\(\) (?=got|missing|takes|argument)"
    r"|\bundefined: ([\w.]++)"
    r"|\bfield or method (\w++)"
    r"|\bsymbol: +\w+ (\w++)"
)
_OF_VALUES = ("assert", "Assert", "expect", "Expect", "KeyError", "ValueError")
"""How messages begin that quote values rather than names."""
_PLAIN_TYPES = frozenset(
    ("str", "int", "float", "bool", "list", "dict", "tuple", "set", "bytes", "object", "type",
     "None", "NoneType", "function", "module", "string", "number", "boolean", "undefined", "null",
     "any", "unknown", "never", "void", "self")
)  # fmt: skip


class Found:
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

    def test(self, name: str, message: str = "", origin: str = "") -> None:
        """A failing test; `origin` is the line of the test that the message comes from."""
        name = name.strip()[:LONGEST_NAME]
        told = self.errors.get(name)
        if told is None and len(self.errors) >= MOST_ERRORS:
            self._more += 1
        elif name and not told:
            self.errors[name] = _told(message, origin)
        if not message.startswith(_OF_VALUES):
            self.names(message)

    def place(self, path: str, message: str, *, warning: bool = False) -> None:
        """An error at a place in a file: lines may move, and three of a kind are three."""
        signature = f"{path}: {_steady(message)}"[:LONGEST_NAME]
        into = self._warnings if warning else self.errors
        times = self._times[signature] = self._times.get(signature, 0) + 1
        if len(into) < MOST_ERRORS:
            into[signature if times == 1 else f"{signature} #{times}"] = ""
        elif not warning:
            self._more += 1
        if not warning:
            self.path(path)
            self.names(message)

    def path(self, path: str) -> None:
        into = self._foreign if is_foreign(path) else self._paths
        if path and len(into) < MOST_NAMES:
            into[path[:LONGEST_NAME]] = None

    def symbol(self, name: str) -> None:
        if name and name[0] != "<" and len(self._symbols) < MOST_NAMES:
            self._symbols[name[:LONGEST_NAME]] = None

    def tested(self, name: str) -> None:
        """A failing test's own name: less telling than what fails in it."""
        if name and len(self._tests) < MOST_NAMES:
            self._tests[name[:LONGEST_NAME]] = None

    def names(self, message: str) -> None:
        """The names that a message quotes."""
        for name in names_in(message[:LONGEST_MESSAGE]):
            self.symbol(name)

    def told(self, parser: str, *, warnings: bool = True) -> Failures | None:
        """None where nothing was found. Warnings count only where there is nothing worse."""
        errors = self.errors or (self._warnings if warnings else {})
        if not errors:
            return None
        if self._more:
            errors = {**errors, f"and {self._more} more": ""}
        return Failures(
            errors=errors,
            parser=parser,
            paths=tuple(self._paths or self._foreign),
            symbols=tuple({**self._symbols, **self._tests})[:MOST_NAMES],
        )


def _told(message: str, origin: str) -> str:
    shape = skeleton(message[: 2 * LONGEST_MESSAGE]) if message else ""
    return f"{shape}{ORIGIN}{origin.strip()[:LONGEST_ORIGIN]}" if shape and origin else shape


@lru_cache(maxsize=4096)
def _steady(message: str) -> str:
    return re.sub(r"\b\d++(?:\.\d++)?\b", "#", " ".join(message[:LONGEST_MESSAGE].split()))


@lru_cache(maxsize=4096)
def is_foreign(path: str) -> bool:
    """Not the project's own file: nobody repairs a library to get a test green."""
    return any(mark in path for mark in _FOREIGN)


@lru_cache(maxsize=4096)
def names_in(message: str) -> tuple[str, ...]:
    """The quoted identifiers of a message, without the names of plain types."""
    found = (next(filter(None, match)) for match in _NAMED.findall(message))
    return tuple(
        dict.fromkeys(name for name in found if len(name) > 1 and name not in _PLAIN_TYPES)
    )


def parts(pattern: re.Pattern[str], text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Each header that the pattern finds, with the text up to the next one."""
    last: re.Match[str] | None = None
    for match in pattern.finditer(text):
        if last is not None:
            yield last, text[last.end() : match.start()]
        last = match
    if last is not None:
        yield last, text[last.end() :]


def first_line(text: str) -> str:
    """The first line that says something."""
    return text.lstrip()[:1000].partition("\n")[0].rstrip()
