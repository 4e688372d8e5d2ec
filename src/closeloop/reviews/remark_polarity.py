"""Whether two remarks want the same, or the contrary: word by word, what is wanted and what not.

An encoder finds "add tests" and "remove the tests" alike. Here every word of a remark that asks
for something gets a sign, and two remarks that give the words they share other signs are contrary.
Where that cannot be told, it is unclear, and then only a person may say that they mean the same.
"""

from __future__ import annotations

import re
from typing import Literal

from closeloop.reviews.lexicon import (
    ANTONYMS,
    HARMLESS_WORDS,
    NEGATIVE_ANTONYMS,
    ORDER_WORDS,
    REQUEST_VERBS,
    STOP_WORDS,
)
from closeloop.reviews.remark_words import (
    WORD,
    code_words,
    find_words,
    normalise_remark,
    split_clauses,
    stem_word,
)

RemarkRelation = Literal["same", "opposite", "unclear"]

MIN_SHARED_SHARE = 0.4
"""The share of the shorter remark's words that the other must have for both to be on one matter."""
MIN_SIGNED_SHARE = 0.3
"""The share of the longer remark's words by which they must be held against each other."""

_POLITE_WORDS = re.compile(
    r"^(?:(?:please|kindly|nit(?:pick)?|suggestion|minor|also|and|then|so|or|hmm|ok|well|perhaps|"
    r"maybe|just|always|could (?:you|we|this)|can (?:you|we|this)|would you|you (?:should|must|"
    r"need to|could|can)|we (?:should|must|need to|could)|let'?s|i would|i'd|try to|make sure "
    r"(?:that |to )?|remember to|be sure to)\b[ ,:]*)+"
)
_WISH_WORDS = re.compile(
    r"\b(?:should|must|needs?|has to|have to|ought|never|always|don't|do not|avoid|prefer|please|"
    r"let's|no longer|not our style|belongs?|could you|can you|would you|shall|instead|rather)\b"
)
_COMPLAINT_WORDS = re.compile(r"\b(?:lacks?|missing|has no|have no|there is no|there's no)\b")
_NEGATIVE_QUESTION = re.compile(
    r"(?:why|(?:is|are|do|does|did|should|would|could)n't (?:it|this|that|there|we|you|these)\b)"
)
"""A question that says no means yes, or nothing."""
_NEGATION = re.compile(
    r"\b(?:not|never|nobody|none|neither|hardly|rarely|seldom|cannot|can't|won't|"
    r"(?:do|does|did|is|are|was|must|should|could|would)n't)\b"
)
_NEGATED_MODAL = re.compile(
    r"\b(?:must|should|may|can|could)(?: not\b|n't\b|not\b| never\b)|\bcannot\b"
)
_REJECTION = re.compile(
    r"\b(?:no|without|avoid(?:ing|s)?|stop|skip(?:ping)?|ignor(?:e|es|ing)|forbid|omit|"
    r"refrain from|remov(?:e|es|ing)|delet(?:e|es|ing)|drop(?:ping)?|strip|get rid of|disable|"
    r"exclude|out of|instead of|rather than|in place of|prohibit|ban|disallow|reject|forget|hide)\b"
)
_PREFERENCE = re.compile(r"\bprefer(?:red|ring|s)?\b[^,]*?\b(over|to)\b")
_ANTONYM_TARGETS = frozenset(ANTONYMS.values())


def compare_remarks(one: str, other: str) -> RemarkRelation:
    """What two remarks are to each other, as far as a program can tell."""
    ours, theirs = word_signs(one), word_signs(other)
    shared = ours.keys() & theirs.keys()
    if not shared or len(shared) < MIN_SHARED_SHARE * min(len(ours), len(theirs)):
        return "unclear"
    signed_words = [word for word in shared if ours[word] and theirs[word]]
    against = [word for word in signed_words if ours[word] != theirs[word]]
    enough = len(signed_words) >= MIN_SIGNED_SHARE * max(len(ours), len(theirs))
    if enough and (
        len(against) * 2 > len(signed_words) or any(word in _ANTONYM_TARGETS for word in against)
    ):
        return "opposite"
    # Any other word may turn it round: to "undo adding tests" is not to add them.
    equal = not (ours.keys() ^ theirs.keys()) - HARMLESS_WORDS
    sure = equal and signed_words and not against and len(signed_words) == len(shared)
    return "same" if sure and not _may_invert(one, other) else "unclear"


def _may_invert(one: str, other: str) -> bool:
    """Whether a small word may turn the meaning, or the order of words around it."""
    ours, theirs = find_words(normalise_remark(one)), find_words(normalise_remark(other))
    if code_words(one) != code_words(other) or ({*ours} ^ {*theirs}) & STOP_WORDS - HARMLESS_WORDS:
        return True
    if _count_denials(one) != _count_denials(other):
        return True
    if not ORDER_WORDS & {*ours, *theirs}:
        return False
    shared = {*ours} & {*theirs} - STOP_WORDS
    return [word for word in ours if word in shared] != [word for word in theirs if word in shared]


def _count_denials(text: str) -> int:
    """How often a text says no, be it in a clause that says nothing else."""
    text = normalise_remark(text)
    return len(_NEGATION.findall(text)) + len(_REJECTION.findall(text))


def word_signs(text: str) -> dict[str, int]:
    """By stem, 1 for what is wanted, -1 for what is not, 0 where that is not said."""
    signs_by_stem: dict[str, int] = {}
    for clause in split_clauses(text):
        for word, sign in _clause_signs(clause):
            before = signs_by_stem.get(word)
            signs_by_stem[word] = (
                sign if before in (None, 0) else before if sign in (0, before) else 0
            )
    return signs_by_stem


def is_directive(clause: str) -> bool:
    """Whether a clause asks for something, where others only tell."""
    first = strip_politeness(clause).split()[:1]
    if not first or _COMPLAINT_WORDS.search(clause) or _NEGATIVE_QUESTION.match(clause):
        return False
    return (
        first[0] in REQUEST_VERBS
        or strip_politeness(clause) != clause
        or bool(_WISH_WORDS.search(clause))
    )


def strip_politeness(clause: str) -> str:
    """A clause without what is said for politeness."""
    return _POLITE_WORDS.sub("", clause)


def _clause_signs(clause: str) -> list[tuple[str, int]]:
    """ "Not" turns its whole clause round; "without" and the like what comes after them."""
    sign = -1 if len(_NEGATION.findall(clause)) % 2 else 1
    # In "X must not do Y" nothing is said against X.
    modal = _NEGATED_MODAL.search(clause)
    neutral = modal.start() if modal else 0
    turns = [found.end() for found in _REJECTION.finditer(clause)]
    turns += [found.end() for found in _PREFERENCE.finditer(clause)]
    asks = is_directive(clause)
    clause_signs = []
    for match in WORD.finditer(_POLITE_WORDS.sub(lambda cut: " " * len(cut[0]), clause)):
        word = match[0]
        if (
            word in STOP_WORDS
            or _NEGATION.fullmatch(word)
            or word in ("no", "without", "instead", "rather")
        ):
            continue
        key = stem_word(word)
        turned = sum(end <= match.start() for end in turns) + (key in NEGATIVE_ANTONYMS)
        says = asks and match.start() >= neutral
        value = sign * (-1) ** turned if says else 0
        clause_signs.append((ANTONYMS.get(key, key), value))
    return clause_signs
