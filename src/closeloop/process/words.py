"""A text as its words and its sentences."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

TEXT = 20_000
"""So many characters of a text are looked at: a request is shorter, a pasted log is not."""
SHORT = 400
# Signs that change what is said are kept: 3 < 5, -5, 50 %, 1.2 against 1.2.3.
_TOKEN = re.compile(r"\w++(?:\.\d++)*|[<>%$€£](?:(?<=[<>])=)?|!=|-(?<![\w)]-)(?=\d)")
FENCE = re.compile(r"```[^\n`]{0,40}\n(.*?)(?:```|\Z)", re.DOTALL)
_WRAPPED = re.compile(r"\n(?<=[^\n]{60}\n)(?<![.!?:;\n]\n)(?=[ \t]*[^\s\-*•>#\d|])")
_SENTENCE = re.compile(r"(?<=[.!?;])[\s*_]+")
_ENDS = re.compile(r"[.!?;][\s*_]")
_BULLET = re.compile(r"^\s*(?:[-*•>#]+|\(?\d{1,2}[.)])\s+")
_COMMON_WORDS = """
the and that this these those with from for into onto are was were will would should could can may
might must shall has have had not but you your our their its his her they them then than when where
what which who how why all any each every some one also just there here such been being does did
done doing make made let please need needs want wants use used using sure only never always more
most other another out off over under about after before between because
"""
_COMMON = frozenset(_COMMON_WORDS.split())
CHANGES = ("chang", "touch", "edit", "modif", "alter", "rewrit", "writ")


def words_of(text: str) -> str:
    """A text as its words alone, with a space on both sides, so that only whole words match."""
    return _long_words(text) if len(text) > SHORT else _short_words(text)


def _words(text: str) -> str:
    plain = text if text.isascii() else unicodedata.normalize("NFKC", text)
    return f" {' '.join(_TOKEN.findall(plain.casefold()))} "


# Short ones are facts, which are looked for again and again; of long ones, which are few and
# large, those around several handoffs are.
_long_words, _short_words = lru_cache(64)(_words), lru_cache(4096)(_words)


@lru_cache(256)
def sentences(text: str) -> tuple[str, ...]:
    """Its sentences and list items, without blocks of code."""
    return tuple([one for line in paragraphs(text) for one in sentences_in(line)])


def paragraphs(text: str) -> list[str]:
    """Its lines, without blocks of code; those that were only wrapped are one."""
    text = text[:TEXT]
    if "```" in text:
        text = FENCE.sub("\n", text)
    return _WRAPPED.sub(" ", text).splitlines()


def sentences_in(paragraph: str) -> list[str]:
    """The sentences of one of those lines."""
    plain = paragraph.strip()
    if plain and not plain[0].isalpha():
        plain = _BULLET.sub("", paragraph).strip()
    if _ENDS.search(plain):
        return list(filter(None, map(str.strip, _SENTENCE.split(plain))))
    return [plain] if plain else []


def stems(words: str) -> frozenset[str]:
    """The telling words of a text, without their endings."""
    return _long_stems(words) if len(words) > SHORT else _short_stems(words)


def _stems(words: str) -> frozenset[str]:
    every = set(words.split())
    if "_" in words:
        every.update(words.replace("_", " ").split())
    return frozenset([_stem(word) for word in every - _COMMON if len(word) > 2])


_long_stems, _short_stems = lru_cache(256)(_stems), lru_cache(4096)(_stems)


def mentions(text: str, sought: Sequence[str]) -> bool:
    """Whether one of these words stands in a text."""
    for word in sought:  # noqa: SIM110 - a loop is three times as fast as a generator
        if word in text:
            return True
    return False


@lru_cache(8192)
def _stem(word: str) -> str:
    if word.startswith(CHANGES):
        return "change"
    if word[-1] not in "gsdey":
        return word
    for ending in ("ings", "ing", "ies", "ed", "es", "s", "e", "y"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word
