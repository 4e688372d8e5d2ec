"""What the user forbids or demands, as far as a machine can check it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import chain
from typing import Literal

from ahocorasick_rs import AhoCorasick

from closeloop.process import constraint_patterns
from closeloop.process.rule_helpers import truncate_line
from closeloop.process.text_facts import parse_facts
from closeloop.process.text_words import (
    MAX_TEXT_CHARS,
    build_automaton,
    find_matching_lines,
    mentions_any,
    split_paragraph,
    split_paragraphs,
    split_sentences,
)
from closeloop.records.record import Record
from closeloop.text.client_markup import strip_client_markup

ConstraintKind = Literal[
    "leave", "keep", "only", "no edits", "no new files", "command", "dependencies", "signature",
    "tabs", "spaces", "reproduce first",
]  # fmt: skip

MAX_CONSTRAINTS = 50
"""Constraints of one lane that are kept; nobody states more, a pasted document might."""
ALL_TESTS = "the tests"
"""The object that means every file of tests."""
DOCUMENT_GLOBS = ("**/*.md", "**/*.rst")

_MAX_SENTENCE_CHARS = 800
"""So much of a sentence is read: a longer one was not written by a person."""
_HEADING_LINES = 5
"""So many lines before a list may say whether one has to keep to it."""


class UserConstraint(Record):
    """Something stated that an action can break."""

    kind: ConstraintKind
    words: str
    """As it was said, shortened."""
    objects: tuple[str, ...] = ()
    """Globs, a command's words, or a symbol's name; none means any."""
    passing: bool = False
    """It holds only until the user speaks again: plan first, do not edit yet."""
    number: int = 0
    """The event that states it."""
    until: int | None = None
    """The event from which it holds no more, where one takes it back."""


@lru_cache(maxsize=512)
def parse_constraints(text: str) -> tuple[UserConstraint, ...]:
    """Everything that a text forbids or demands, in its order."""
    text = strip_client_markup(text[:MAX_TEXT_CHARS])
    if ">" in text:
        text = constraint_patterns.PASTED_BLOCK.sub(
            "\n", constraint_patterns.QUOTED_LINE.sub("\n", "\n" + text)[1:]
        )
    text = constraint_patterns.BULLET_LIST.sub(
        lambda items: constraint_patterns.BULLET_ITEM.sub(", ", items[0]), text
    )
    constraints: dict[tuple[ConstraintKind, tuple[str, ...]], UserConstraint] = {}
    marked_sentences = (split_paragraph(line) for line in _lines_with_signs(split_paragraphs(text)))
    for sentence in _lines_with_signs(list(chain.from_iterable(marked_sentences))):
        for one in _parse_sentence(sentence[:_MAX_SENTENCE_CHARS]):
            constraints.setdefault((one.kind, one.objects), one)
    if (ordered := _parse_order(text)) is not None:
        constraints.setdefault((ordered.kind, ()), ordered)
    if any(ALL_TESTS in objects for _, objects in constraints) and any(
        constraint_patterns.WANTS_TESTS.search(line)
        for line in split_sentences(text)
        if "test" in line.lower()
    ):
        # Who is to write tests may well have to touch those that are there.
        constraints = {key: one for key, one in constraints.items() if ALL_TESTS not in key[1]}
    return tuple(constraints.values())[:MAX_CONSTRAINTS]


def _lines_with_signs(lines: Sequence[str]) -> Iterator[str]:
    return (
        lines[place] for place in find_matching_lines(_sign_automaton(), "\n".join(lines).lower())
    )


def _parse_order(text: str) -> UserConstraint | None:
    """Steps of which one is to see the failure, and a later one to change the code."""
    if "eproduc" not in text and "onfirm" not in text and "failing test" not in text:
        return None
    wanted = ""
    place, heading = 0, ""
    for item in constraint_patterns.NUMBERED_ITEM.finditer(text):
        if item[1] == "1":
            heading = " ".join(text[: item.start()].split("\n")[-_HEADING_LINES:])
            wanted, place = "", 0
        place += 1
        if int(item[1]) != place or constraint_patterns.LOOSE_STEP.search(heading):
            continue
        step = item[2][:_MAX_SENTENCE_CHARS]
        if wanted and constraint_patterns.CHANGE_STEP.match(step):
            return UserConstraint(kind="reproduce first", words=wanted, passing=True)
        if constraint_patterns.REPRODUCE_STEP.search(
            step
        ) and not constraint_patterns.LOOSE_STEP.search(step):
            wanted = wanted or truncate_line(f"{item[1]}. {step}")
    return _parse_order_in_words(text)


def _parse_order_in_words(text: str) -> UserConstraint | None:
    plain, at = text.lower(), -1
    while (at := plain.find("reproduce", at + 1)) >= 0:
        if constraint_patterns.REPRODUCE_FIRST.search(plain, max(0, at - 20), at + 120):
            break
    else:
        return None
    for sentence in split_sentences(text):
        if constraint_patterns.REPRODUCE_FIRST.search(
            sentence
        ) and not constraint_patterns.LOOSE_STEP.search(sentence):
            words = truncate_line(" ".join(sentence.split()))
            return UserConstraint(kind="reproduce first", words=words, passing=True)
    return None


def find_named_paths(text: str) -> tuple[str, ...]:
    """Files and folders that a text names, as globs."""
    names = [fact.text for fact in parse_facts(text) if fact.kind == "path" or _is_glob(fact.text)]
    names += (
        constraint_patterns.SLASHED_PATH.findall(text)
        + constraint_patterns.NAMED_FOLDER.findall(text)
        + constraint_patterns.KNOWN_FILE.findall(text)
    )
    tidy = (name.rstrip(".").removeprefix("./").rstrip("/") for name in names)
    return tuple(dict.fromkeys(name for name in tidy if name.strip("./*")))


def _is_glob(text: str) -> bool:
    return "*" in text and " " not in text and "(" not in text


def _lowercase_words(text: str) -> str:
    return " ".join(text.lower().split())


# The same prompts are given again and again.
@lru_cache(maxsize=4096)
def _parse_sentence(sentence: str) -> tuple[UserConstraint, ...]:
    constraints = []
    lowercase_sentence = _lowercase_words(sentence)
    forbids = (
        None if mentions_any(lowercase_sentence, constraint_patterns.NEGATIVE_WORDS) else False
    )
    for negative, hints, more, make in _CONSTRAINT_PARSERS:
        if (negative and forbids is False) or not mentions_any(lowercase_sentence, hints):
            continue
        if more and not mentions_any(lowercase_sentence, more):
            continue
        if negative and forbids is None:
            forbids = bool(_find_negations(sentence))
        if forbids or not negative:
            for kind, objects, passing in make(sentence):
                words = truncate_line(" ".join(sentence.split()))
                constraints.append(
                    UserConstraint(kind=kind, words=words, objects=objects, passing=passing)
                )
    return tuple(constraints)


@lru_cache(maxsize=16)
def _find_negations(sentence: str) -> tuple[int, ...]:
    """Where a prohibition begins."""
    starts = []
    match = constraint_patterns.NEGATED.search(sentence)
    while match:
        starts.append(match.start())
        match = constraint_patterns.NEGATED.search(sentence, match.start() + 1)
    return tuple(starts)


def _match_prohibition(pattern: re.Pattern[str], sentence: str) -> re.Match[str] | None:
    """What a pattern that begins with a prohibition finds first: to search for it is slow."""
    for start in _find_negations(sentence):
        if found := pattern.match(sentence, start):
            return found
    return None


ParsedConstraints = Iterable[tuple[ConstraintKind, tuple[str, ...], bool]]


def _split_clause(rest: str) -> tuple[str, str]:
    """What the verb governs, and the condition behind it."""
    cut = constraint_patterns.CLAUSE_END.search(rest)
    return (rest[: cut.start()], rest[cut.start() :]) if cut else (rest, "")


def _is_checkable(condition: str) -> bool:
    """A condition other than being asked cannot be checked."""
    return (
        constraint_patterns.CONDITION.match(condition) is None
        or constraint_patterns.UNLESS_ASKED.match(condition) is not None
    )


def _parse_no_edits(sentence: str) -> ParsedConstraints:
    match = _match_prohibition(constraint_patterns.NO_EDITS, sentence)
    if match and not find_named_paths(match["rest"]) and _is_checkable(match["rest"]):
        yield "no edits", (), True


@lru_cache(maxsize=16)
def _match_bound(sentence: str) -> re.Match[str] | None:
    beyond = mentions_any(
        sentence.lower(), constraint_patterns.EXCEPTION_WORDS
    ) and _find_negations(sentence)
    return (
        constraint_patterns.ONLY_CHANGE.search(sentence)
        if beyond or constraint_patterns.MAY_BOUND.search(sentence)
        else None
    )


def _parse_only(sentence: str) -> ParsedConstraints:
    bound = _match_bound(sentence)
    if bound:
        object_text = bound["object"] or bound["within"] or bound["except"] or ""
        clause, condition = _split_clause(object_text)
        paths = find_named_paths(clause)
        # "Only change X if …" is a condition on X, not a bound on the rest.
        if paths and not constraint_patterns.CONDITION.match(condition):
            yield "only", paths, False


def _parse_forbidden_paths(sentence: str) -> ParsedConstraints:
    if _match_bound(sentence):
        return
    for pattern, kind in (
        (constraint_patterns.CHANGE_FORBIDDEN, "leave"),
        (constraint_patterns.DELETE_FORBIDDEN, "keep"),
    ):
        match = _match_prohibition(pattern, sentence)
        if match and not constraint_patterns.SIGNATURE.search(sentence):
            yield from _parse_objects(match["object"], "leave" if kind == "leave" else "keep")


def _parse_leave_alone(sentence: str) -> ParsedConstraints:
    if _match_bound(sentence):
        return
    if alone := constraint_patterns.LEAVE_ALONE.search(sentence):
        yield from _parse_objects(alone["object"], "leave")
    elif stays := constraint_patterns.STAYS_UNCHANGED.search(sentence):
        subject = re.split("[,:]", sentence[: stays.start()])[-1]
        yield from _parse_objects(subject[-200:], "leave")


def _parse_objects(told: str, kind: ConstraintKind) -> ParsedConstraints:
    clause, condition = _split_clause(told)
    if not _is_checkable(condition):
        return
    paths = find_named_paths(clause)
    if constraint_patterns.TEST_WORDS.match(clause):
        yield kind, (ALL_TESTS,), False
    # "The behaviour of a.py" is about something in the file, not about the file.
    before = clause[: clause.find(paths[0])] if paths else ""
    if paths and not constraint_patterns.FILLER_WORD.sub("", before).strip("`'\"*_:,( "):
        yield kind, paths, False


def _parse_no_new_files(sentence: str) -> ParsedConstraints:
    match = _match_prohibition(constraint_patterns.NO_FILES, sentence)
    if (
        match
        and _is_checkable(_split_clause(match["rest"])[1])
        and not _split_clause(match["rest"])[0].strip(" .!")
    ):
        yield "no new files", DOCUMENT_GLOBS if match["what"] else (), False


def _parse_no_packages(sentence: str) -> ParsedConstraints:
    starts = {
        *_find_negations(sentence),
        *(one.start() for one in constraint_patterns.NO_START.finditer(sentence)),
    }
    attempted_matches = (
        constraint_patterns.NO_PACKAGES.match(sentence, start) for start in sorted(starts)
    )
    match = next(filter(None, attempted_matches), None)
    if (
        match
        and _is_checkable(_split_clause(match["rest"])[1])
        and (match["new"] or not match["no"])
    ):
        yield "dependencies", (), False


def _parse_forbidden_commands(sentence: str) -> ParsedConstraints:
    ran = _match_prohibition(constraint_patterns.RUN_FORBIDDEN, sentence)
    if (
        ran
        and _is_checkable(ran["rest"].strip())
        and not constraint_patterns.PURPOSE.match(ran["rest"])
    ):
        yield "command", tuple((ran["quoted"] or ran["bare"]).lower().split()), False
    git = _match_prohibition(constraint_patterns.GIT_FORBIDDEN, sentence)
    if (
        git
        and _is_checkable(_split_clause(git["rest"])[1])
        and not constraint_patterns.PARTIAL_OBJECT.match(git["rest"])
    ):
        forced = "force" in git["verb"].lower()
        verb = "push" if forced else git["verb"].lower().split()[-1]
        branch = re.match(
            r"\s+(?:directly\s+|anything\s+)?to\s+(?:the\s+)?`?([\w./-]+)", git["rest"]
        )
        more = ("--force",) if forced else ()
        if branch and branch[1] not in ("remote", "origin", "github", "any", "the"):
            more = (branch[1].rstrip("."),)
        yield "command", ("git", verb, *more), False


def _parse_preferred_tool(sentence: str) -> ParsedConstraints:
    rather = constraint_patterns.PREFERRED_TOOL.search(sentence)
    if rather and rather["good"].lower() != rather["bad"].lower():
        yield "command", (rather["bad"].lower(),), False


def _parse_style(sentence: str) -> ParsedConstraints:
    signature = constraint_patterns.SIGNATURE.search(sentence)
    if signature:
        name = signature["owner"] or signature["name"]
        yield "signature", (name,) if name and name not in ("the", "each", "any") else (), False
    indent = constraint_patterns.INDENTATION.search(sentence)
    if indent:
        good = (indent["good"] or indent["first"]).lower()
        yield ("tabs" if good == "tabs" else "spaces"), (), False


_NEGATIVE_WORDS = ("no ", "not", "n't", "n’t", "dont", "never", "avoid", "without", "refrain")
_UNCHANGED_WORDS = (
    "alone", "untouched", "unchanged", "unmodified", "intact", " as ", "off limits", "off-limits",
)  # fmt: skip
_CHANGE_WORDS = ("touch", "modif", "edit", "chang", "alter", "updat", "work", "yourself")
_STYLE_WORDS = (*_NEGATIVE_WORDS, "cant", "use ", "indent", "keep", "preserve")

HintWords = tuple[str, ...]
_CONSTRAINT_PARSERS: tuple[
    tuple[bool, HintWords, HintWords, Callable[[str], ParsedConstraints]], ...
] = (
    (True, ("file", "code", "anything", "change", "edit", "implement"), (), _parse_no_edits),
    (False, ("only", "limit", "restrict", "confine", "keep"), _CHANGE_WORDS, _parse_only),
    (True, constraint_patterns.EXCEPTION_WORDS, (), _parse_only),
    (True, constraint_patterns.CHANGE_STEMS, (), _parse_forbidden_paths),
    (
        False,
        ("leave", "keep", "off limits", "off-limits", "stay", "remain"),
        _UNCHANGED_WORDS,
        _parse_leave_alone,
    ),
    (True, ("file",), (), _parse_no_new_files),
    (
        False,
        ("dependenc", "package", "librar", "requirements"),
        _NEGATIVE_WORDS,
        _parse_no_packages,
    ),
    (
        True,
        ("run", "execut", "use", "using", "commit", "push", "rebase"),
        (),
        _parse_forbidden_commands,
    ),
    (False, tuple(constraint_patterns.PACKAGE_TOOLS.split("|")), ("use ",), _parse_preferred_tool),
    (False, ("signature", "tabs", "spaces"), _STYLE_WORDS, _parse_style),
)
"""Whether it takes a prohibition, two words that it takes, and what then reads it."""


_TELLING_WORD = {"off limits": "limits", "off-limits": "limits"} | {
    words: "not" for words in constraint_patterns.NEGATIVE_WORDS if " " in words
}
"""Of several words the most telling one: between them anything may stand for a space."""


@cache
def _sign_automaton() -> AhoCorasick:
    """Finds the words without which nothing is stated."""
    words = {
        word for negative, hints, _, _ in _CONSTRAINT_PARSERS if not negative for word in hints
    }
    words |= set(constraint_patterns.NEGATIVE_WORDS)
    words = {_TELLING_WORD.get(word, word) for word in words}
    return build_automaton(sorted(words))
