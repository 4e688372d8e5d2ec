"""A second run of some tests under names that nobody can guess, and what each must come to.

A probe holds the tests that decide a verdict, with assertions made wrong on purpose, and control
tests. Code under test that forces results, answers to everything alike or reads its tests cannot
tell one from another. One module a language makes probes; this page says what they are.
"""

from __future__ import annotations

import functools
import importlib
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar

from closeloop.grading.runner_reports import Status
from closeloop.grading.suite_run import ShellWord, simple_commands
from closeloop.records.record import Record, content_digest
from closeloop.records.task import TestRunner

if TYPE_CHECKING:
    from tree_sitter import Node, Parser


# Change a literal to another of the same type, as Go and Rust write them.


_NUMBER_SUFFIX = re.compile(r"_?(?:[iu](?:8|16|32|64|128|size)|f32|f64)$")
_RADIX = re.compile(r"0[xXbBoO]")


def change_literal(text: str, rng: random.Random) -> str | None:
    """Return a literal that differs in value; None for one that is not understood."""
    if text in ("true", "false"):
        return "false" if text == "true" else "true"
    if text[0].isdigit():
        return _change_number(text, rng)
    if text.endswith("'"):
        return _change_character(text, rng)
    return _change_string(text, rng)


def _change_number(text: str, rng: random.Random) -> str | None:
    suffix = "" if _RADIX.match(text) else _matched_suffix(text)
    digits = text[: len(text) - len(suffix)].replace("_", "")
    if _RADIX.match(digits) or digits.isdigit():
        return _change_integer(digits, suffix, rng)
    try:
        value = float(digits)
    except ValueError:
        return None
    return f"{_change_float(value)!r}{suffix}"


def _change_float(value: float) -> float:
    """Whole numbers stay whole, as Go takes them for integers too."""
    if value.is_integer() and value < 1 << 24:
        return value - 1 if value else 1.0
    return value / 2


def _matched_suffix(text: str) -> str:
    match = _NUMBER_SUFFIX.search(text)
    return match[0] if match else ""


def _change_integer(digits: str, suffix: str, rng: random.Random) -> str | None:
    """A smaller number fits wherever the number did; 0 becomes 1."""
    if len(digits) > 1 and digits[0] == "0" and digits[1].isdigit():
        return None  # octal in Go, decimal in Rust
    try:
        value = int(digits, 0)
    except ValueError:
        return None
    return f"{max(value - rng.randint(1, 9), 0) if value else 1}{suffix}"


def _change_character(text: str, rng: random.Random) -> str:
    prefix = "b" if text.startswith("b") else ""
    other = rng.choice([letter for letter in "abcdefghijklmnop" if f"'{letter}'" not in text])
    return f"{prefix}'{other}'"


def _change_string(text: str, rng: random.Random) -> str | None:
    """Append letters; a byte string keeps its length, which is part of its type in Rust."""
    quote = "`" if text.endswith("`") else '"'
    end = text.rfind(quote)
    if end <= text.find(quote):
        return None
    letters = "".join(rng.choices("abcdefghijklmnop", k=6))
    if not text.startswith("b"):
        return f"{text[:end]}{letters}{text[end:]}"
    last = re.search(r'(?<!\\)[a-z](?="#*$)', text)
    if last is None:
        return None
    other = "x" if last[0] != "x" else "y"
    return f"{text[: last.start()]}{other}{text[last.end() :]}"


# Parse source code of a language and rewrite parts of it.


class SourceEdit(Record):
    """Bytes of a source to be replaced by others."""

    start: int
    end: int
    text: str


class Perturbation(Record):
    """How to make a test wrong on purpose."""

    edits: tuple[SourceEdit, ...]
    how: str
    certain: bool = True
    """By logic, the changed test fails wherever the original passes."""


def parse_source(grammar: str, source: bytes) -> Node | None:
    """Return the root of the syntax tree; None for a source with syntax errors."""
    root = load_parser(grammar).parse(source).root_node
    return None if root.has_error else root


@functools.cache
def load_parser(module: str, language: str = "language") -> Parser:
    """Return a parser for a grammar, by the package it comes in and its name there."""
    from tree_sitter import Language, Parser

    return Parser(Language(getattr(importlib.import_module(module), language)()))


def walk_nodes(node: Node, *, skip: frozenset[str] = frozenset()) -> Iterator[Node]:
    """Yield a node and all below it in source order; nothing below nodes of the types to skip."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        if current is node or current.type not in skip:
            waiting.extend(reversed(current.children))


def node_text(node: Node | None) -> str:
    """Return the source of a node; '' for None."""
    return "" if node is None else (node.text or b"").decode("utf-8", "replace")


def replace_node(node: Node, text: str) -> SourceEdit:
    return SourceEdit(start=node.start_byte, end=node.end_byte, text=text)


def insert_text(place: int, text: str) -> SourceEdit:
    return SourceEdit(start=place, end=place, text=text)


def apply_edits(source: bytes, edits: Iterable[SourceEdit], start: int = 0) -> bytes:
    """Apply edits to a source whose first byte is at `start`.

    Of edits that overlap, the outer one holds: what lies in a part that is replaced is left out.
    """
    parts, place = [], start
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end != edit.start, -edit.end)):
        if edit.start >= place:
            parts += [source[place - start : edit.start - start], edit.text.encode()]
            place = edit.end
    return b"".join([*parts, source[place - start :]])


def make_generator(token: str, *parts: str) -> random.Random:
    """Return a random generator that nobody can foresee who does not know the token."""
    return random.Random(content_digest(token, *parts))  # noqa: S311 (the token is from `secrets`)


def make_name(token: str, *parts: str) -> str:
    """Return random letters that disclose neither the token nor what they name."""
    return content_digest("name", token, *parts)[:12].translate(
        str.maketrans("0123456789", "ghijklmnop")
    )


# Take apart a shell line that calls `go test` or `cargo test`, to call it with other arguments.


_STATE = frozenset({"cd", "export", "source", ".", "set", "unset", "ulimit", "umask", "shopt"})
_ASSIGNMENT = re.compile(r"\w+=.*", re.DOTALL)
_REDIRECTION = re.compile(r"(\d*|&)(>>?|<)(&?[^<>]*)", re.DOTALL)


class ToolCall(Record):
    """A call of a program as its shell line has it."""

    setup: tuple[str, ...] = ()
    """Commands before it that change the shell it runs in, such as `cd backend`."""
    start: str
    """Variables, launchers, program and subcommand: `CGO_ENABLED=0 go test`."""
    arguments: tuple[str, ...] = ()
    """As they are quoted in the line; no redirections."""


def find_tool_call(command: str, program: str) -> ToolCall:
    """Return the line's first call of the program's tests; a bare call where none is seen."""
    setup = list[str]()
    for words in simple_commands(command):
        at = _find_subcommand(words, program)
        if at is not None:
            return ToolCall(
                setup=tuple(setup),
                start=command[words[0].start : words[at].end],
                arguments=tuple(_list_arguments(command, words[at + 1 :])),
            )
        if words[0].text in _STATE or all(_ASSIGNMENT.fullmatch(word.text) for word in words):
            setup.append(command[words[0].start : words[-1].end])
    return ToolCall(setup=tuple(setup), start=f"{program} test")


def _find_subcommand(words: list[ShellWord], program: str) -> int | None:
    """Where `test` stands: behind the program and a toolchain such as `+nightly`."""
    for at, word in enumerate(words):
        if word.text.rpartition("/")[2] == program:
            following = at + 1
            while following < len(words) and words[following].text.startswith("+"):
                following += 1
            is_test = following < len(words) and words[following].text in ("test", "t")
            return following if is_test else None
    return None


def _list_arguments(command: str, words: list[ShellWord]) -> Iterator[str]:
    target_follows = False
    for word in words:
        text = command[word.start : word.end]
        redirection = _REDIRECTION.fullmatch(text)
        if redirection is not None:
            target_follows = not redirection[3]
        elif target_follows:
            target_follows = False
        else:
            yield text


def split_option(argument: str) -> tuple[str, bool]:
    """Return an option's name without dashes, and whether its value is part of the argument."""
    name, equals, _ = argument.partition("=")
    return name.lstrip("-"), bool(equals)


ROOMS = 2
"""For languages whose code can read its tests: each assertion is right in one room of them."""
MAX_PERTURBED = 400
"""Tests of which something is made wrong, at the most."""
TestKey = TypeVar("TestKey")
ProbeKind = Literal["copy", "perturbed", "control"]


class ProbeTest(Record):
    """One test of a probe: its random name, and what must become of it."""

    name: str
    """As the results of the probe name it."""
    kind: ProbeKind
    expect: Literal["pass", "fail"]
    """Any result but `passed` is a fail; a test that does not report is neither."""
    original: str | None = None
    """The id of the test it was made from; None for a control."""
    how: str = ""
    """What was made wrong, for a perturbed one: `42 for 41`, `assertion inverted`."""
    certain: bool = True
    """By logic a perturbed test must fail wherever its original passes. Where that is only
    likely, the test counts only if it fails with the reference change too."""
    optional: bool = False
    """It may stay away: an assertion in a branch."""
    proved_by: tuple[str, ...] = ()
    """Names of control tests: if they come out at the base as they must, this test is certain."""
    met_by_many: bool = False
    """One value may satisfy an assertion both as it was and made wrong: a pattern, a matcher."""
    needs_value: bool = False
    """It shows something only if it reported what it compares with: else that raised an error."""
    opposite: str = ""
    """The name of the same assertion in the other room, right where this one is wrong."""


class ProbeRequest(Record):
    """What a probe is made from."""

    command: str
    """The test command of the task."""
    runner: TestRunner
    fail_to_pass: tuple[str, ...]
    """Ids of the tests that the change must make pass; they pass now, or seem to."""
    others: tuple[str, ...] = ()
    """Ids of more tests that passed, to be confirmed beside them where that is cheap."""
    sources: Mapping[str, str]
    """The test files' texts as they stand in the clean room, by path from the root. Also the
    files beside them that a maker may need, such as `go.mod`."""
    helpers: Mapping[str, str] = {}
    """Modules in the folders of these tests, where fixtures and functions that assert may be."""
    folder: str
    """A folder of our own in the workspace, as commands see it, under a random name. It lies
    below the root, and may hold plug-ins and reporters of the probe."""
    root: str
    """The workspace, as commands see it."""
    pipe: str
    """A named pipe to write the report to: only appending is possible, and we hold its end."""
    token: str
    """Random hexadecimal digits: the source of all names and changed values."""
    room: int = 0
    """Which part of the probe to make. Where code under test can read its tests, no room holds one
    of them both as it is and made wrong: nobody who sees a single room can tell which is which.
    For compiled tests that is so in the rooms after the first, which holds all copies."""
    round: int = 0
    """How often two such rooms were made before, with other coins."""


class Probe(Record):
    """Files to write, a command to run, and what must come of it."""

    files: Mapping[str, str]
    """By path from the root of the workspace. New files under random names, where the language
    allows it; else whole new texts of files that are there."""
    command: str
    """Reports to the request's pipe. Its own output goes to a file."""
    env: Mapping[str, str] = {}
    tests: tuple[ProbeTest, ...]
    exit_codes: tuple[int, ...] = ()
    """Of the command, when everything comes out as it must; none given: any but 0."""
    rooms: int = 1
    """How many rooms there are for these tests."""


Results = dict[str, Status | Literal["mixed"]]
"""What a probe reported, by random name; `mixed` for what passed and did not."""


def is_made_wrong(request: ProbeRequest, test: str) -> bool:
    """Whether a test is made wrong in a room that holds it once; in the next room it is not."""
    coin = make_generator(request.token, "coin", test).random() < 0.5
    return coin == (request.room % ROOMS == 1)


def choose_changes(
    ways: Sequence[Perturbation], rng: random.Random, *, together: bool
) -> list[Perturbation]:
    """About half of the ways, or one of them where two wrongs might make a right."""
    chosen = [way for way in ways if together and rng.random() < 0.5]
    return chosen or [rng.choice(ways)] if ways else []


def choose_perturbed(tests: Sequence[TestKey], token: str) -> frozenset[TestKey]:
    """The tests of which something is made wrong, the same in every room."""
    rng = random.Random(token)  # noqa: S311 (`secrets` made the token)
    return frozenset(rng.sample(tests, min(len(tests), MAX_PERTURBED)))
