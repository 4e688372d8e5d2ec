"""What the user forbids or demands, as far as a machine can check it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import chain
from typing import Literal

from ahocorasick_rs import AhoCorasick

from closeloop.model.record import Record
from closeloop.process import wordings
from closeloop.process.needs import facts_of
from closeloop.process.phrases import automaton, lines_with
from closeloop.process.telling import short
from closeloop.process.words import TEXT, mentions, paragraphs, sentences, sentences_in

Kind = Literal[
    "leave", "keep", "only", "no edits", "no new files", "command", "dependencies", "signature",
    "tabs", "spaces",
]  # fmt: skip

MOST = 50
"""Constraints of one lane that are kept; nobody states more, a pasted document might."""
TESTS = "the tests"
"""The object that means every file of tests."""
DOCUMENTS = ("**/*.md", "**/*.rst")

_SENTENCE = 800
"""So much of a sentence is read: a longer one was not written by a person."""


class Constraint(Record):
    """Something stated that an action can break."""

    kind: Kind
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
def stated(text: str) -> tuple[Constraint, ...]:
    """Everything that a text forbids or demands, in its order."""
    text = text[:TEXT]
    if ">" in text:
        text = wordings.PASTED.sub("\n", wordings.QUOTED.sub("\n", "\n" + text)[1:])
    text = wordings.LIST.sub(lambda items: wordings.ITEM.sub(", ", items[0]), text)
    made: dict[tuple[Kind, tuple[str, ...]], Constraint] = {}
    telling = (sentences_in(line) for line in _with_signs(paragraphs(text)))
    for sentence in _with_signs(list(chain.from_iterable(telling))):
        for one in _said(sentence[:_SENTENCE]):
            made.setdefault((one.kind, one.objects), one)
    if any(TESTS in objects for _, objects in made) and any(
        wordings.WANTS_TESTS.search(line) for line in sentences(text) if "test" in line.lower()
    ):
        # Who is to write tests may well have to touch those that are there.
        made = {key: one for key, one in made.items() if TESTS not in key[1]}
    return tuple(made.values())[:MOST]


def _with_signs(lines: Sequence[str]) -> Iterator[str]:
    return (lines[place] for place in lines_with(_signs(), "\n".join(lines).lower()))


def named_paths(text: str) -> tuple[str, ...]:
    """Files and folders that a text names, as globs."""
    names = [fact.text for fact in facts_of(text) if fact.kind == "path" or _is_glob(fact.text)]
    names += (
        wordings.SLASHED.findall(text)
        + wordings.FOLDER.findall(text)
        + wordings.KNOWN.findall(text)
    )
    tidy = (name.rstrip(".").removeprefix("./").rstrip("/") for name in names)
    return tuple(dict.fromkeys(name for name in tidy if name.strip("./*")))


def _is_glob(text: str) -> bool:
    return "*" in text and " " not in text and "(" not in text


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


# The same prompts are given again and again.
@lru_cache(maxsize=4096)
def _said(sentence: str) -> tuple[Constraint, ...]:
    made = []
    plain = _plain(sentence)
    forbids = None if mentions(plain, wordings.NEGATIVE) else False
    for negative, hints, more, make in _MAKERS:
        if (negative and forbids is False) or not mentions(plain, hints):
            continue
        if more and not mentions(plain, more):
            continue
        if negative and forbids is None:
            forbids = bool(_negations(sentence))
        if forbids or not negative:
            for kind, objects, passing in make(sentence):
                words = short(" ".join(sentence.split()))
                made.append(Constraint(kind=kind, words=words, objects=objects, passing=passing))
    return tuple(made)


@lru_cache(maxsize=16)
def _negations(sentence: str) -> tuple[int, ...]:
    """Where a prohibition begins."""
    starts = []
    found = wordings.NEGATED.search(sentence)
    while found:
        starts.append(found.start())
        found = wordings.NEGATED.search(sentence, found.start() + 1)
    return tuple(starts)


def _forbidden(pattern: re.Pattern[str], sentence: str) -> re.Match[str] | None:
    """What a pattern that begins with a prohibition finds first: to search for it is slow."""
    for start in _negations(sentence):
        if found := pattern.match(sentence, start):
            return found
    return None


Made = Iterable[tuple[Kind, tuple[str, ...], bool]]


def _clause(rest: str) -> tuple[str, str]:
    """What the verb governs, and the condition behind it."""
    cut = wordings.BUT.search(rest)
    return (rest[: cut.start()], rest[cut.start() :]) if cut else (rest, "")


def _holds(condition: str) -> bool:
    """A condition other than being asked cannot be checked."""
    return (
        wordings.CONDITION.match(condition) is None or wordings.ASKED.match(condition) is not None
    )


def _no_edits(sentence: str) -> Made:
    found = _forbidden(wordings.NOTHING, sentence)
    if found and not named_paths(found["rest"]) and _holds(found["rest"]):
        yield "no edits", (), True


@lru_cache(maxsize=16)
def _bounds(sentence: str) -> re.Match[str] | None:
    beyond = mentions(sentence.lower(), wordings.BEYOND) and _negations(sentence)
    return wordings.ONLY.search(sentence) if beyond or wordings.MAY_BOUND.search(sentence) else None


def _only(sentence: str) -> Made:
    found = _bounds(sentence)
    if found:
        told = found["object"] or found["within"] or found["except"] or ""
        clause, condition = _clause(told)
        paths = named_paths(clause)
        # "Only change X if …" is a condition on X, not a bound on the rest.
        if paths and not wordings.CONDITION.match(condition):
            yield "only", paths, False


def _paths(sentence: str) -> Made:
    if _bounds(sentence):
        return
    for pattern, kind in ((wordings.FORBIDDEN, "leave"), (wordings.KEPT, "keep")):
        found = _forbidden(pattern, sentence)
        if found and not wordings.SIGNATURE.search(sentence):
            yield from _objects(found["object"], "leave" if kind == "leave" else "keep")


def _alone(sentence: str) -> Made:
    if _bounds(sentence):
        return
    if alone := wordings.ALONE.search(sentence):
        yield from _objects(alone["object"], "leave")
    elif stays := wordings.STAYS.search(sentence):
        subject = re.split("[,:]", sentence[: stays.start()])[-1]
        yield from _objects(subject[-200:], "leave")


def _objects(told: str, kind: Kind) -> Made:
    clause, condition = _clause(told)
    if not _holds(condition):
        return
    paths = named_paths(clause)
    if wordings.TEST_WORDS.match(clause):
        yield kind, (TESTS,), False
    # "The behaviour of a.py" is about something in the file, not about the file.
    before = clause[: clause.find(paths[0])] if paths else ""
    if paths and not wordings.FILLER.sub("", before).strip("`'\"*_:,( "):
        yield kind, paths, False


def _files(sentence: str) -> Made:
    found = _forbidden(wordings.NO_FILES, sentence)
    if found and _holds(_clause(found["rest"])[1]) and not _clause(found["rest"])[0].strip(" .!"):
        yield "no new files", DOCUMENTS if found["what"] else (), False


def _packages(sentence: str) -> Made:
    starts = {*_negations(sentence), *(one.start() for one in wordings.NO_START.finditer(sentence))}
    tried = (wordings.NO_PACKAGES.match(sentence, start) for start in sorted(starts))
    found = next(filter(None, tried), None)
    if found and _holds(_clause(found["rest"])[1]) and (found["new"] or not found["no"]):
        yield "dependencies", (), False


def _commands(sentence: str) -> Made:
    ran = _forbidden(wordings.RUN, sentence)
    if ran and _holds(ran["rest"].strip()) and not wordings.PURPOSE.match(ran["rest"]):
        yield "command", tuple((ran["quoted"] or ran["bare"]).lower().split()), False
    git = _forbidden(wordings.GIT, sentence)
    if git and _holds(_clause(git["rest"])[1]) and not wordings.ONE_THING.match(git["rest"]):
        forced = "force" in git["verb"].lower()
        verb = "push" if forced else git["verb"].lower().split()[-1]
        branch = re.match(
            r"\s+(?:directly\s+|anything\s+)?to\s+(?:the\s+)?`?([\w./-]+)", git["rest"]
        )
        more = ("--force",) if forced else ()
        if branch and branch[1] not in ("remote", "origin", "github", "any", "the"):
            more = (branch[1].rstrip("."),)
        yield "command", ("git", verb, *more), False


def _rather(sentence: str) -> Made:
    rather = wordings.RATHER.search(sentence)
    if rather and rather["good"].lower() != rather["bad"].lower():
        yield "command", (rather["bad"].lower(),), False


def _style(sentence: str) -> Made:
    signature = wordings.SIGNATURE.search(sentence)
    if signature:
        name = signature["owner"] or signature["name"]
        yield "signature", (name,) if name and name not in ("the", "each", "any") else (), False
    indent = wordings.INDENT.search(sentence)
    if indent:
        good = (indent["good"] or indent["first"]).lower()
        yield ("tabs" if good == "tabs" else "spaces"), (), False


_NO = ("no ", "not", "n't", "n’t", "dont", "never", "avoid", "without", "refrain")
_AS_IT_IS = (
    "alone", "untouched", "unchanged", "unmodified", "intact", " as ", "off limits", "off-limits",
)  # fmt: skip
_WORK = ("touch", "modif", "edit", "chang", "alter", "updat", "work", "yourself")
_HOW = (*_NO, "cant", "use ", "indent", "keep", "preserve")

Hints = tuple[str, ...]
_MAKERS: tuple[tuple[bool, Hints, Hints, Callable[[str], Made]], ...] = (
    (True, ("file", "code", "anything", "change", "edit", "implement"), (), _no_edits),
    (False, ("only", "limit", "restrict", "confine", "keep"), _WORK, _only),
    (True, wordings.BEYOND, (), _only),
    (True, wordings.VERBS, (), _paths),
    (False, ("leave", "keep", "off limits", "off-limits", "stay", "remain"), _AS_IT_IS, _alone),
    (True, ("file",), (), _files),
    (False, ("dependenc", "package", "librar", "requirements"), _NO, _packages),
    (True, ("run", "execut", "use", "using", "commit", "push", "rebase"), (), _commands),
    (False, tuple(wordings.TOOLS.split("|")), ("use ",), _rather),
    (False, ("signature", "tabs", "spaces"), _HOW, _style),
)
"""Whether it takes a prohibition, two words that it takes, and what then reads it."""


_ONE_OF = {"off limits": "limits", "off-limits": "limits"} | {
    words: "not" for words in wordings.NEGATIVE if " " in words
}
"""Of several words the most telling one: between them anything may stand for a space."""


@cache
def _signs() -> AhoCorasick:
    """Finds the words without which nothing is stated."""
    words = {word for negative, hints, _, _ in _MAKERS if not negative for word in hints}
    words |= set(wordings.NEGATIVE)
    words = {_ONE_OF.get(word, word) for word in words}
    return automaton(sorted(words))
