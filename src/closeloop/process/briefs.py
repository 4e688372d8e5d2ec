"""What a brief should hold, and what the child made of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from closeloop.model.record import Record
from closeloop.model.steps import Reading, Step
from closeloop.process.handing import Handed, handed, input_of, names, output_of
from closeloop.process.needs import (
    Fact,
    Said,
    facts_of,
    holds,
    said,
    same_path,
    targets_in,
    targets_of,
)
from closeloop.process.once import once
from closeloop.process.phrases import phrases
from closeloop.process.words import mentions, sentences, stems, words_of

FIRST = 5
"""The child's first steps show what it understood."""
WHOLE = 0.6
"""With so much of the request's words in the brief, all of the work is handed on."""
LOOKED_AT = 100
_HIDDEN = re.compile(r"\W*(?:(?:redacted|encrypted|omitted)\W*)?", re.IGNORECASE)
_WORKS = re.compile(
    r"(?:^|[.:;\n]\s*|\b(?:to|and|then|please|must|should|you)\s+)(?:\*\*)?"
    r"(?:implement|writ|fix|add|creat|chang|refactor|updat|remov|renam|migrat|port|convert|replac|"
    r"build|make|repair|extend|mov)(?:e|ing|s)?\b"
)
_DEMANDED = re.compile(
    r"\b(?:must|should|shall|at (?:most|least)|no more than|limit\w*|max\w*|min|minimum|within|"
    r"exactly|set|use|default\w*|threshold|time-?outs?)\b"
)
_CONTEXT = phrases(
    r"context\w*", "background", "because", "since", "currently", "so far", "already", "existing",
    "project", "codebase", "part of", "goal", "the user", "we (?:are|have|want|need)", "you are",
    "this is", "dans (?:le|une)",
)  # fmt: skip
_SCOPE = phrases("scope", "focus", r"limit\w* (?:yourself )?to", "in the (?:files?|folder|module)")
_ONLY_THIS = phrases(
    "only", "nothing else", "no other", "do not", "don't", "just", "solely", "read-?only",
    "out of scope", "uniquement", "unique", "ne pas",
)  # fmt: skip
_HOW_TO_REPORT = phrases(
    "report", "return", "summari[sz]e", "summary", "reply", "respond", "answer with", "tell me",
    "let me know", "attempt_completion", r"rapport\w*", "output format",
)  # fmt: skip
_SUPERSEDES = phrases(
    "supersedes?", "overrides?", "takes? precedence", "regardless", "in conflict",
    "conflicts? with", "ignore (?:any|all|previous|earlier)", "instead of", "wins?", "even if",
    "remplacent",
)  # fmt: skip
PARTS = 5


class Need(Record):
    """A fact that the child needs."""

    fact: Fact
    present: bool
    clear: bool = False
    """Beyond doubt about this part of the work, so that leaving it out is a fault."""


def is_hidden(text: str) -> bool:
    """It was said, and the recording does not tell what."""
    return _HIDDEN.fullmatch(text) is not None


def planted(facts: Sequence[str], brief: str) -> tuple[str, ...]:
    """Planted facts that a brief does not hold, word for word."""
    words = words_of(brief) if facts else ""
    return tuple(fact for fact in facts if words_of(fact) not in words)


@once
def all_needs(reading: Reading) -> Sequence[Sequence[Need] | None]:
    """Of every handoff, in order."""
    return [needs(one) for one in handed(reading)]


def needs(one: Handed) -> list[Need] | None:
    """What the child needs of what was asked and learned; None where the trace does not say."""
    if one.asked is None or is_hidden(one.event.brief):
        return None
    brief, asked = said(given(one)), said(one.asked)
    whole = bool(asked.stems) and len(asked.stems & brief.stems) >= WHOLE * len(asked.stems)
    facts = facts_of(one.asked)
    if any(fact.always for fact in facts) and not makes_changes(one):
        facts = tuple(fact for fact in facts if not fact.always)
    missing: list[Fact] = []
    found: list[Need] = []
    for fact in facts:
        if holds(brief, fact):
            found.append(Need(fact=fact, present=True))
        else:
            missing.append(fact)
    kept = _kept(missing, one.after)
    for fact in missing:
        related, clear = _bears(fact, brief, one)
        if fact.always or ((whole or related) and fact.sentence not in kept):
            clear = clear or (whole and _is_definite(fact))
            found.append(Need(fact=fact, present=False, clear=clear))
    return found + [Need(fact=fact, present=holds(brief, fact)) for fact in _learned(one, brief)]


def dropped(one: Handed, needed: Iterable[Need]) -> list[tuple[Fact, Step | None]]:
    """Facts beyond doubt that the child was not told and never saw; with the step against it."""
    missing: list[tuple[Fact, Step | None]] = []
    if not any(fact.always or _is_demanded(fact) for fact in facts_of(one.asked or "")):
        return []
    for need in needed:
        if need.present:
            continue
        broken = _against(need.fact, one.work)
        if (need.clear or broken) and not _came_to_see(one.work, need.fact):
            missing.append((need.fact, broken))
    return missing


def given(one: Handed) -> str:
    """The brief, with what else the child was told before its first step."""
    told = [one.event.brief]
    if one.child and one.child.handoff is one.event:
        first = one.child.steps[0].number if one.child.steps else None
        told += [
            message.text
            for message in one.child.messages[:LOOKED_AT]
            if message.role != "agent" and (first is None or message.number < first)
        ]
    return "\n\n".join(dict.fromkeys(told))


def parts(brief: str) -> int:
    """How many of the five parts of a good brief it has."""
    plain = brief[:20_000].casefold().replace("’", "'")
    scope = _SCOPE(plain) or _names_target(brief)
    others = (_CONTEXT, _ONLY_THIS, _HOW_TO_REPORT, _SUPERSEDES)
    return scope + sum(part(plain) for part in others)


def _names_target(brief: str) -> bool:
    return any(True for sentence in sentences(brief) for _ in targets_in(sentence))


def makes_changes(one: Handed) -> bool:
    """Whether the child changes files; where it is not on record, whether it is asked to."""
    if one.child is None or not one.child.steps:
        return bool(_WORKS.search(one.event.brief[:4000].casefold()))
    return bool(one.child.changes)


def understood(one: Handed) -> bool | None:
    """Whether the child aims at the brief's targets at once; None without targets or steps."""
    sought = names(targets_of(one.event.brief)) if one.work else ()
    if not sought:
        return None
    if any(touches(step, sought) for step in one.work[:FIRST]):
        return True
    # Words alone are no aim: they count when the work then goes where they say.
    plan = _first_words(one)
    return mentions(plan, sought) and _reaches(one, sought)


def missed(one: Handed) -> tuple[str, ...]:
    """Files that the brief names and the child never came near, although it changed others."""
    changed = " ".join(dict.fromkeys(_written(one))).casefold()
    targets = targets_of(one.event.brief) if changed else ()
    files = tuple(name for name in targets if _names_code(name))
    if not files or _reaches(one, names(targets)):
        return ()
    # A brief may name a file in passing and tell in words what it is about.
    words = [word for word in stems(words_of(one.event.brief)) if len(word) > 3]
    return () if mentions(changed, words) else files


def _names_code(name: str) -> bool:
    return ("/" in name or "." in name) and not name.endswith((".md", ".rst", ".txt", ".log"))


def touches(step: Step, sought: Sequence[str]) -> bool:
    """Whether a step names one of those things, or opens a file that does."""
    return mentions(input_of(step), sought) or (
        bool(step.read) and mentions(output_of(step), sought)
    )


def _bears(fact: Fact, brief: Said, one: Handed) -> tuple[bool, bool]:
    """Whether a fact that was left out is about this part of the work; and beyond doubt."""
    around = _around(fact)
    shared = len(around & brief.stems)
    related = shared >= 2 and shared >= 0.5 * len(around)
    if fact.kind == "number":
        return related, shared >= 3 and shared >= 0.6 * len(around) and _is_demanded(fact)
    return related, _is_definite(fact) and (related or _is_near(fact, one))


# What was asked is asked of every handoff.
@lru_cache(1024)
def _around(fact: Fact) -> frozenset[str]:
    """The words that a fact stands among; of a restriction all."""
    own = () if fact.kind in ("prohibition", "constraint") else stems(words_of(fact.text))
    return stems(words_of(fact.sentence)).difference(own)


def _is_near(fact: Fact, one: Handed) -> bool:
    """What it speaks of lies beside what the brief names or the child changes."""
    folders = _folders(fact.targets)
    return bool(folders) and not folders.isdisjoint(
        _folders((*targets_of(one.event.brief), *_written(one)))
    )


@lru_cache(1024)
def _is_demanded(fact: Fact) -> bool:
    """A quantity that is asked for, not one that was observed."""
    if fact.kind != "number" or fact.text.isdigit():
        return False
    return _DEMANDED.search(fact.sentence.casefold()) is not None


def _is_definite(fact: Fact) -> bool:
    """A restriction that can be kept or broken; committing and pushing is the parent's affair."""
    if not fact.always or stems(words_of(fact.sentence)) & {"commit", "push", "merg", "branch"}:
        return False
    return fact.kind == "prohibition" or bool(fact.targets)


def _kept(missing: Sequence[Fact], after: Sequence[Step]) -> set[str]:
    """Sentences about what the parent then does itself: it kept that part of the work."""
    named = [(fact, words_of(fact.text).strip()) for fact in missing if not fact.always]
    if not named:
        return set()
    signs = [_longest(words) for _, words in named]
    texts = (input_of(step) for step in after if step.changed)
    done = " ".join(words_of(text) for text in texts if mentions(text.casefold(), signs))
    return {fact.sentence for fact, words in named if f" {words} " in done}


@lru_cache(4096)
def _longest(words: str) -> str:
    return max(words.split(), key=len, default="")


def _written(one: Handed) -> Iterator[str]:
    return (path for step in one.work if step.changed for path in step.written)


def _folders(paths: Iterable[str]) -> set[str]:
    return {path.rpartition("/")[0] for path in paths} - {"", "."}


def _learned(one: Handed, brief: Said) -> Iterator[Fact]:
    """What the parent had found out and the child went on to need."""
    if written := dict.fromkeys(_written(one)):
        known = {path for step in one.before for path in (*step.read, *step.written)}
        for path in [path for path in written if path in known][:20]:
            yield Fact(kind="path", text=path, sentence=path)
    check = next((step.check for step in reversed(one.before) if step.check), None)
    failures = check.failures if check else None
    if failures and failures.parser != "tail" and brief.stems & {"fail", "fix", "repair", "pass"}:
        tests = [key.rpartition("::")[2] for key in list(failures.errors)[:20]]
        facts = [Fact(kind="symbol", text=test, sentence=test) for test in tests if test.strip()]
        yield from [fact for fact in facts if holds(brief, fact)][:1] or facts[:1]


def _against(fact: Fact, work: Sequence[Step]) -> Step | None:
    """The child's first change of a file that it should have been told to leave alone."""
    if fact.kind != "prohibition":
        return None
    for step in work if fact.targets else ():
        if step.changed and any(
            same_path(target, path) for target in fact.targets for path in step.written
        ):
            return step
    return None


def _came_to_see(work: Sequence[Step], fact: Fact) -> bool:
    """Whether something that the child read states the fact."""
    telling = sorted(stems(words_of(fact.sentence)), key=lambda word: (len(word), word))
    digits = tuple(re.findall(r"\d+", fact.text)) if fact.kind == "number" else ()
    signs = digits or names(fact.targets) or tuple(telling[-2:])
    return any(
        mentions(text, signs) and holds(said(text), fact)
        for text in map(output_of, work[:LOOKED_AT])
    )


def _reaches(one: Handed, sought: Sequence[str]) -> bool:
    return any(
        mentions(input_of(step), sought) or mentions(output_of(step), sought) for step in one.work
    )


def _first_words(one: Handed) -> str:
    messages = one.child.messages[: 2 * FIRST] if one.child else ()
    return " ".join(message.text[:4000] for message in messages if message.role == "agent")
