"""Clauses and the words that carry their meaning, in English as reviewers write it."""

from __future__ import annotations

import re
import unicodedata

from closeloop.reviews.lexicon import STOP

MOST_TEXT = 4000
_CLAUSE = re.compile(r"[.;:!?\n]+(?=\s|$)|,(?=\s)|\s[-–—]+\s|\b(?:but|because|so that|since)\b")
WORD = re.compile(r"\w+(?:'\w+)?")
_OPENING = re.compile(r"^[(\"'*_]+")
_CLOSING = re.compile(r"[.,;:!?…)\"'*_]+$")
_JOINED = re.compile(r"(?<=\w)[-'](?=\w)")
_SUFFIXES = ("ations", "ation", "ings", "ing", "ies", "ied", "ers", "ed", "es", "er", "s")


def plain(text: str) -> str:
    """Lower case, straight quotes, one space; no longer than is looked at."""
    text = text[:MOST_TEXT].encode("utf-8", "replace").decode()
    text = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(text.replace("’", "'").replace("`", "").split())


def same_words(text: str) -> str:
    """What is left of a text when case, spaces and the marks of sentences are not looked at.

    Other signs stay: to want `==` is not to want `!=`.
    """
    tokens = (_OPENING.sub("", _CLOSING.sub("", token)) or token for token in plain(text).split())
    return " ".join(tokens)


def signs_in(text: str) -> set[str]:
    """The words of a text with something in them that is no letter: operators, names in code."""
    return {token for token in same_words(text).split() if not _JOINED.sub("", token).isalnum()}


def content(text: str) -> set[str]:
    """The words that carry a meaning."""
    return {*words_of(plain(text))} - STOP


def clauses_of(text: str) -> list[str]:
    """Parts of a text that are true or wanted each by itself."""
    return [part.strip() for part in _CLAUSE.split(plain(text)) if part and part.strip()]


def words_of(text: str) -> list[str]:
    return WORD.findall(text)


def stem(word: str) -> str:
    """Rough, but the same for the forms of a word: tests, testing, tested."""
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            word = word.removesuffix(suffix)
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "sl":
        word = word[:-1]
    return word.removesuffix("e") if len(word) > 3 else word
