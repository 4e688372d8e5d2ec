"""Whether two remarks want the same, or the contrary: word by word, what is wanted and what not.

An encoder finds "add tests" and "remove the tests" alike. Here every word of a remark that asks
for something gets a sign, and two remarks that give the words they share other signs are contrary.
Where that cannot be told, it is unclear, and then only a person may say that they mean the same.
"""

from __future__ import annotations

import re
from typing import Literal

from closeloop.reviews.lexicon import ANTONYMS, FLIPPED, HARMLESS, ORDERS, STOP, VERBS
from closeloop.reviews.words import WORD, clauses_of, plain, signs_in, stem, words_of

Relation = Literal["same", "opposite", "unclear"]

COVERED = 0.4
"""The share of the shorter remark's words that the other must have for both to be on one matter."""
TOLD = 0.3
"""The share of the longer remark's words by which they must be held against each other."""

_POLITE = re.compile(
    r"^(?:(?:please|kindly|nit(?:pick)?|suggestion|minor|also|and|then|so|or|hmm|ok|well|perhaps|"
    r"maybe|just|always|could (?:you|we|this)|can (?:you|we|this)|would you|you (?:should|must|"
    r"need to|could|can)|we (?:should|must|need to|could)|let'?s|i would|i'd|try to|make sure "
    r"(?:that |to )?|remember to|be sure to)\b[ ,:]*)+"
)
_WANTS = re.compile(
    r"\b(?:should|must|needs?|has to|have to|ought|never|always|don't|do not|avoid|prefer|please|"
    r"let's|no longer|not our style|belongs?|could you|can you|would you|shall|instead|rather)\b"
)
_COMPLAINS = re.compile(r"\b(?:lacks?|missing|has no|have no|there is no|there's no)\b")
_ASKS = re.compile(
    r"(?:why|(?:is|are|do|does|did|should|would|could)n't (?:it|this|that|there|we|you|these)\b)"
)
"""A question that says no means yes, or nothing."""
_NOT = re.compile(
    r"\b(?:not|never|nobody|none|neither|hardly|rarely|seldom|cannot|can't|won't|"
    r"(?:do|does|did|is|are|was|must|should|could|would)n't)\b"
)
_MODAL = re.compile(r"\b(?:must|should|may|can|could)(?: not\b|n't\b|not\b| never\b)|\bcannot\b")
_NO = re.compile(
    r"\b(?:no|without|avoid(?:ing|s)?|stop|skip(?:ping)?|ignor(?:e|es|ing)|forbid|omit|"
    r"refrain from|remov(?:e|es|ing)|delet(?:e|es|ing)|drop(?:ping)?|strip|get rid of|disable|"
    r"exclude|out of|instead of|rather than|in place of|prohibit|ban|disallow|reject|forget|hide)\b"
)
_OVER = re.compile(r"\bprefer(?:red|ring|s)?\b[^,]*?\b(over|to)\b")
_TURNED = frozenset(ANTONYMS.values())


def relation(one: str, other: str) -> Relation:
    """What two remarks are to each other, as far as a program can tell."""
    ours, theirs = signs(one), signs(other)
    shared = ours.keys() & theirs.keys()
    if not shared or len(shared) < COVERED * min(len(ours), len(theirs)):
        return "unclear"
    told = [word for word in shared if ours[word] and theirs[word]]
    against = [word for word in told if ours[word] != theirs[word]]
    enough = len(told) >= TOLD * max(len(ours), len(theirs))
    if enough and (len(against) * 2 > len(told) or any(word in _TURNED for word in against)):
        return "opposite"
    # Any other word may turn it round: to "undo adding tests" is not to add them.
    equal = not (ours.keys() ^ theirs.keys()) - HARMLESS
    sure = equal and told and not against and len(told) == len(shared)
    return "same" if sure and not _turned(one, other) else "unclear"


def _turned(one: str, other: str) -> bool:
    """Whether a small word may turn the meaning, or the order of words around it."""
    ours, theirs = words_of(plain(one)), words_of(plain(other))
    if signs_in(one) != signs_in(other) or ({*ours} ^ {*theirs}) & STOP - HARMLESS:
        return True
    if _denials(one) != _denials(other):
        return True
    if not ORDERS & {*ours, *theirs}:
        return False
    shared = {*ours} & {*theirs} - STOP
    return [word for word in ours if word in shared] != [word for word in theirs if word in shared]


def _denials(text: str) -> int:
    """How often a text says no, be it in a clause that says nothing else."""
    text = plain(text)
    return len(_NOT.findall(text)) + len(_NO.findall(text))


def signs(text: str) -> dict[str, int]:
    """By stem, 1 for what is wanted, -1 for what is not, 0 where that is not said."""
    found: dict[str, int] = {}
    for clause in clauses_of(text):
        for word, sign in _signs_of(clause):
            before = found.get(word)
            found[word] = sign if before in (None, 0) else before if sign in (0, before) else 0
    return found


def directive(clause: str) -> bool:
    """Whether a clause asks for something, where others only tell."""
    first = bare(clause).split()[:1]
    if not first or _COMPLAINS.search(clause) or _ASKS.match(clause):
        return False
    return first[0] in VERBS or bare(clause) != clause or bool(_WANTS.search(clause))


def bare(clause: str) -> str:
    """A clause without what is said for politeness."""
    return _POLITE.sub("", clause)


def _signs_of(clause: str) -> list[tuple[str, int]]:
    """ "Not" turns its whole clause round; "without" and the like what comes after them."""
    sign = -1 if len(_NOT.findall(clause)) % 2 else 1
    # In "X must not do Y" nothing is said against X.
    modal = _MODAL.search(clause)
    neutral = modal.start() if modal else 0
    turns = [found.end() for found in _NO.finditer(clause)]
    turns += [found.end() for found in _OVER.finditer(clause)]
    asks = directive(clause)
    found = []
    for match in WORD.finditer(_POLITE.sub(lambda cut: " " * len(cut[0]), clause)):
        word = match[0]
        if word in STOP or _NOT.fullmatch(word) or word in ("no", "without", "instead", "rather"):
            continue
        key = stem(word)
        turned = sum(end <= match.start() for end in turns) + (key in FLIPPED)
        says = asks and match.start() >= neutral
        value = sign * (-1) ** turned if says else 0
        found.append((ANTONYMS.get(key, key), value))
    return found
