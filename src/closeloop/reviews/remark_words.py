"""Clauses and the words that carry their meaning, in English as reviewers write it."""

from __future__ import annotations

import re
import unicodedata

from closeloop.reviews.lexicon import STOP_WORDS

MAX_REMARK_CHARS = 4000
_CLAUSE_END = re.compile(r"[.;:!?\n]+(?=\s|$)|,(?=\s)|\s[-–—]+\s|\b(?:but|because|so that|since)\b")
WORD = re.compile(r"\w+(?:'\w+)?")
_OPENING_MARKS = re.compile(r"^[(\"'*_]+")
_CLOSING_MARKS = re.compile(r"[.,;:!?…)\"'*_]+$")
_INNER_MARK = re.compile(r"(?<=\w)[-'](?=\w)")
_SUFFIXES = ("ations", "ation", "ings", "ing", "ies", "ied", "ers", "ed", "es", "er", "s")


def normalise_remark(text: str) -> str:
    """Lower case, straight quotes, one space; no longer than is looked at."""
    text = text[:MAX_REMARK_CHARS].encode("utf-8", "replace").decode()
    text = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(text.replace("’", "'").replace("`", "").split())


def comparable_words(text: str) -> str:
    """What is left of a text when case, spaces and the marks of sentences are not looked at.

    Other signs stay: to want `==` is not to want `!=`.
    """
    tokens = (
        _OPENING_MARKS.sub("", _CLOSING_MARKS.sub("", token)) or token
        for token in normalise_remark(text).split()
    )
    return " ".join(tokens)


def code_words(text: str) -> set[str]:
    """The words of a text with something in them that is no letter: operators, names in code."""
    return {
        token
        for token in comparable_words(text).split()
        if not _INNER_MARK.sub("", token).isalnum()
    }


def content_words(text: str) -> set[str]:
    """The words that carry a meaning."""
    return {*find_words(normalise_remark(text))} - STOP_WORDS


def split_clauses(text: str) -> list[str]:
    """Parts of a text that are true or wanted each by itself."""
    return [
        part.strip() for part in _CLAUSE_END.split(normalise_remark(text)) if part and part.strip()
    ]


def find_words(text: str) -> list[str]:
    return WORD.findall(text)


def stem_word(word: str) -> str:
    """Rough, but the same for the forms of a word: tests, testing, tested."""
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            word = word.removesuffix(suffix)
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "sl":
        word = word[:-1]
    return word.removesuffix("e") if len(word) > 3 else word
