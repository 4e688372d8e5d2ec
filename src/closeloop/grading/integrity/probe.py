"""A second run of some tests under names that nobody can guess, with the expected result of each.

A probe holds the tests that decide a verdict, with assertions made wrong on purpose, and control
tests. Code under test that forces results, gives the same answer to everything or reads its tests
cannot tell them apart. One module per language builds probes; this module defines what they are.
"""

from __future__ import annotations

import functools
import importlib
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
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
    """Return another number; whole numbers stay whole, as Go also accepts them as integers."""
    if value.is_integer() and value < 1 << 24:
        return value - 1 if value else 1.0
    return value / 2


def _matched_suffix(text: str) -> str:
    match = _NUMBER_SUFFIX.search(text)
    return match[0] if match else ""


def _change_integer(digits: str, suffix: str, rng: random.Random) -> str | None:
    """Return a smaller number, which fits the same type; 0 becomes 1."""
    if len(digits) > 1 and digits[0] == "0" and digits[1].isdigit():
        return None  # octal in Go, decimal in Rust
    try:
        value = int(digits, 0)
    except ValueError:
        return None
    step = rng.randint(1, 9) * choose_number_grain(value, rng)
    return f"{max(value - step, 0) if value else 1}{suffix}"


def _change_character(text: str, rng: random.Random) -> str:
    prefix = "b" if text.startswith("b") else ""
    other_letter = rng.choice(
        [letter for letter in "abcdefghijklmnop" if f"'{letter}'" not in text]
    )
    return f"{prefix}'{other_letter}'"


def _change_string(text: str, rng: random.Random) -> str | None:
    """Change the content; a byte string keeps its length, which is part of its type in Rust."""
    quote = "`" if text.endswith("`") else '"'
    start, end = text.find(quote) + 1, text.rfind(quote)
    if end < start:
        return None
    if not text.startswith("b"):
        return f"{text[:start]}{change_text(text[start:end], rng)}{text[end:]}"
    last = re.search(r'(?<!\\)[a-z](?="#*$)', text)
    if last is None:
        return None
    other_letter = "x" if last[0] != "x" else "y"
    return f"{text[: last.start()]}{other_letter}{text[last.end() :]}"


# Another text that a person might have written. Random letters show which assertion is wrong: code
# that reads its tests finds them in no dictionary.


_WORD = re.compile(r"(?<![\\%\w{])[A-Za-z]+(?![\w}])")
_NUMBER = re.compile(r"(?<![\\%\w{])\d+(?![\w}])")
_PLACEHOLDER = re.compile(r"\{[\w.]*(?::[^{}\"]*)?\}")
COMMON_WORDS = (
    *("name", "value", "item", "other", "first", "last", "none", "test", "data", "user", "total"),
    *("error", "empty", "new", "old", "text", "key", "list", "end", "start", "one", "two", "open"),
)


def choose_number_grain(value: float, rng: random.Random) -> int:
    """Return a step to another number: for a round one, mostly a step that keeps it round.

    Code that reads a price of 850 would know 851 for wrong.
    """
    whole = abs(int(value))
    grains = [grain for grain in GRAINS if whole and whole == abs(value) and whole % grain == 0]
    return grains[-1] if grains and rng.random() < 0.8 else 1


GRAINS = (2, 5, 10, 25, 50, 100, 250, 500, 1_000, 10_000, 100_000, 1_000_000)


def change_text(text: str, rng: random.Random) -> str:
    """Return another text that looks as plausible; escapes and placeholders stay as they are.

    Not only case differs: a type may ignore it when it compares. Of several words, two mostly
    change places, or one replaces another: code may know the words that belong there.
    """
    # Placeholders become as many characters that are no words.
    plain = _PLACEHOLDER.sub(lambda placeholder: "{" * len(placeholder[0]), text)
    words, numbers = list(_WORD.finditer(plain)), list(_NUMBER.finditer(plain))
    changes, own_changes = set[str](), set[str]()
    for number in numbers:
        digit = rng.choice("123456789".replace(number[0][0], ""))
        changes.add(text[: number.start()] + digit + text[number.start() + 1 :])
    for word in words:
        own_word = rng.choice(words)[0]
        for other_word in (rng.choice(COMMON_WORDS), own_word, _change_ending(word[0])):
            if other_word.lower() != word[0].lower():
                cased = _copy_case(other_word, word[0])
                target = own_changes if other_word is own_word else changes
                target.add(text[: word.start()] + cased + text[word.end() :])
        if len(words) > 2 and text[word.start() - 1 : word.start()] == " ":
            own_changes.add(text[: word.start() - 1] + text[word.end() :])
    for first, second in pairwise(words):
        if first[0].lower() != second[0].lower():
            swapped = _copy_case(second[0], first[0]), _copy_case(first[0], second[0])
            between = text[first.end() : second.start()]
            own_changes.add(text[: first.start()] + between.join(swapped) + text[second.end() :])
    if own_changes and rng.random() < 0.8:
        changes = own_changes
    if not changes | own_changes:
        return rng.choice((*COMMON_WORDS, "a", "0", "-")) + text
    return rng.choice(sorted(changes or own_changes))


def _change_ending(word: str) -> str:
    if len(word) == 1:
        return "b" if word.lower() != "b" else "a"
    return word[:-1] if word[-1] in "sS" else f"{word}s"


def _copy_case(word: str, pattern: str) -> str:
    if pattern.isupper() and len(pattern) > 1:
        return word.upper()
    return word.capitalize() if pattern[0].isupper() else word.lower()


# Parse source code of a language and rewrite parts of it.


class SourceEdit(Record):
    """A range of source bytes and its replacement."""

    start: int
    end: int
    text: str


class Perturbation(Record):
    """A way to make a test wrong on purpose."""

    edits: tuple[SourceEdit, ...]
    how: str
    certain: bool = True
    """Whether by logic the changed test fails whenever the original passes."""


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


def insert_text(position: int, text: str) -> SourceEdit:
    return SourceEdit(start=position, end=position, text=text)


def apply_edits(source: bytes, edits: Iterable[SourceEdit], start: int = 0) -> bytes:
    """Apply edits to a source whose first byte is at `start`.

    Of overlapping edits the outer one wins: edits inside a replaced range are dropped.
    """
    parts, position = [], start
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end != edit.start, -edit.end)):
        if edit.start >= position:
            parts += [source[position - start : edit.start - start], edit.text.encode()]
            position = edit.end
    return b"".join([*parts, source[position - start :]])


def make_generator(token: str, *parts: str) -> random.Random:
    """Return a random generator that cannot be predicted without the token."""
    return random.Random(content_digest(token, *parts))  # noqa: S311 (the token is from `secrets`)


def make_name(token: str, *parts: str) -> str:
    """Return random letters that reveal neither the token nor what they name."""
    return content_digest("name", token, *parts)[:12].translate(
        str.maketrans("0123456789", "ghijklmnop")
    )


# Parse a shell line that calls `go test` or `cargo test`, to call it with other arguments.


_STATE = frozenset({"cd", "export", "source", ".", "set", "unset", "ulimit", "umask", "shopt"})
_ASSIGNMENT = re.compile(r"\w+=.*", re.DOTALL)
_REDIRECTION = re.compile(r"(\d*|&)(>>?|<)(&?[^<>]*)", re.DOTALL)


class ToolCall(Record):
    """A call of a program in a shell line."""

    setup: tuple[str, ...] = ()
    """Commands before it that change its shell, such as `cd backend`."""
    start: str
    """Variables, launchers, program and subcommand: `CGO_ENABLED=0 go test`."""
    arguments: tuple[str, ...] = ()
    """Arguments as quoted in the line, without redirections."""


def find_tool_call(command: str, program: str) -> ToolCall:
    """Return the line's first call of the program's tests; a bare call if none is found."""
    setup = list[str]()
    for words in simple_commands(command):
        index = _find_subcommand(words, program)
        if index is not None:
            return ToolCall(
                setup=tuple(setup),
                start=command[words[0].start : words[index].end],
                arguments=tuple(_list_arguments(command, words[index + 1 :])),
            )
        if words[0].text in _STATE or all(_ASSIGNMENT.fullmatch(word.text) for word in words):
            setup.append(command[words[0].start : words[-1].end])
    return ToolCall(setup=tuple(setup), start=f"{program} test")


def _find_subcommand(words: list[ShellWord], program: str) -> int | None:
    """Return the index of `test`: after the program and a toolchain such as `+nightly`."""
    for index, word in enumerate(words):
        if word.text.rpartition("/")[2] == program:
            following = index + 1
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
"""Number of rooms for code that can read its tests: each assertion is right in one of them."""
MAX_PERTURBED = 400
"""Maximum number of tests in which something is made wrong."""
TestKey = TypeVar("TestKey")
ProbeKind = Literal["copy", "perturbed", "control"]


class ProbeTest(Record):
    """One test of a probe: its random name and its expected result."""

    name: str
    """Name in the results of the probe."""
    kind: ProbeKind
    expect: Literal["pass", "fail"]
    """Expected result. Anything but `passed` is a fail; a test that does not report is neither."""
    original: str | None = None
    """Id of the original test; None for a control."""
    how: str = ""
    """For a perturbed test, what was made wrong: `42 for 41`, `assertion inverted`."""
    certain: bool = True
    """Whether by logic a perturbed test must fail if its original passes.

    If that is only likely, the test counts only if it also fails with the reference change.
    """
    optional: bool = False
    """Whether it may not report at all: an assertion in a branch."""
    proved_by: tuple[str, ...] = ()
    """Names of control tests.

    If these have their expected results at the base, this test is certain.
    """
    met_by_many: bool = False
    """Whether one value may satisfy both the original and the wrong assertion, as with a pattern.
    """
    needs_value: bool = False
    """Whether it counts only if it reported the value it compares with.

    Otherwise computing that value raised an error.
    """
    shows: bool = False
    """Whether code that reads the test can tell that something was made wrong in it.

    Then it proves only that not everything passes.
    """
    opposite: str = ""
    """Name of the same assertion in the other room, which is right there if it is wrong here."""


class ProbeRequest(Record):
    """The input from which a probe is built."""

    command: str
    """Test command of the task."""
    runner: TestRunner
    fail_to_pass: tuple[str, ...]
    """Ids of the tests that the change must make pass; they pass now, or seem to."""
    others: tuple[str, ...] = ()
    """Ids of other tests that passed, confirmed too if that is cheap."""
    sources: Mapping[str, str]
    """Texts of the test files in the clean room, by path from the root.

    Includes the files beside them that a builder may need, such as `go.mod`.
    """
    helpers: Mapping[str, str] = {}
    """Modules in the test folders, which may hold fixtures and functions that assert."""
    folder: str
    """A folder of our own in the workspace, as commands see it, with a random name.

    It is below the root, and may hold plug-ins and reporters of the probe.
    """
    root: str
    """Path of the workspace, as commands see it."""
    pipe: str
    """Named pipe for the report: writers can only append, and we hold the reading end."""
    token: str
    """Random hexadecimal digits from which all names and changed values derive."""
    room: int = 0
    """Which part of the probe to build.

    If code under test can read its tests, no room holds a test both right and made wrong: nobody
    who sees a single room can tell which it is. For compiled tests that applies to the rooms after
    the first, which holds all copies.
    """
    round: int = 0
    """Number of earlier rounds of two such rooms, with other random choices."""


class Probe(Record):
    """Files to write, a command to run, and the expected results."""

    files: Mapping[str, str]
    """Texts by path from the root of the workspace.

    New files with random names if the language allows it; otherwise new texts of existing files.
    """
    command: str
    """Command that reports to the request's pipe. Its own output goes to a file."""
    env: Mapping[str, str] = {}
    tests: tuple[ProbeTest, ...]
    exit_codes: tuple[int, ...] = ()
    """Exit codes of the command if every result is as expected; empty: any but 0."""
    rooms: int = 1
    """Number of rooms for these tests."""


Results = dict[str, Status | Literal["mixed"]]
"""Reported results by random name; `mixed` if something both passed and did not."""


def is_made_wrong(request: ProbeRequest, test: str) -> bool:
    """Return whether a test is made wrong in a room that holds it once; in the next room it is
    not."""
    coin = make_generator(request.token, "coin", test).random() < 0.5
    return coin == (request.room % ROOMS == 1)


def choose_changes(
    changes: Sequence[Perturbation], rng: random.Random, *, together: bool
) -> list[Perturbation]:
    """Choose about half of the ways; only one if not `together`, as two wrongs might make a
    right."""
    chosen_changes = [change for change in changes if together and rng.random() < 0.5]
    return chosen_changes or [rng.choice(changes)] if changes else []


def choose_perturbed(tests: Sequence[TestKey], token: str) -> frozenset[TestKey]:
    """Choose the tests in which something is made wrong, the same in every room."""
    rng = random.Random(token)  # noqa: S311 (`secrets` made the token)
    return frozenset(rng.sample(tests, min(len(tests), MAX_PERTURBED)))
