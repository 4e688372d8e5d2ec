"""A text as its words and its sentences."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache

from ahocorasick_rs import AhoCorasick, Implementation

MAX_TEXT_CHARS = 20_000
"""So many characters of a text are looked at: a request is shorter, a pasted log is not."""
SHORT_TEXT_CHARS = 400
# Signs that change what is said are kept: 3 < 5, -5, 50 %, 1.2 against 1.2.3.
_WORD_TOKEN = re.compile(r"\w++(?:\.\d++)*|[<>%$€£](?:(?<=[<>])=)?|!=|-(?<![\w)]-)(?=\d)")
CODE_FENCE = re.compile(r"```[^\n`]{0,40}\n(.*?)(?:```|\Z)", re.DOTALL)
_WRAPPED_LINE = re.compile(r"\n(?<=[^\n]{60}\n)(?<![.!?:;\n]\n)(?=[ \t]*[^\s\-*•>#\d|])")
_SENTENCE_BREAK = re.compile(r"(?<=[.!?;])[\s*_]+")
_SENTENCE_END = re.compile(r"[.!?;][\s*_]")
_BULLET = re.compile(r"^\s*(?:[-*•>#]+|\(?\d{1,2}[.)])\s+")
_STOP_WORD_LIST = """
the and that this these those with from for into onto are was were will would should could can may
might must shall has have had not but you your our their its his her they them then than when where
what which who how why all any each every some one also just there here such been being does did
done doing make made let please need needs want wants use used using sure only never always more
most other another out off over under about after before between because
"""
_STOP_WORDS = frozenset(_STOP_WORD_LIST.split())
CHANGE_STEMS = ("chang", "touch", "edit", "modif", "alter", "rewrit", "writ")


def normalise_words(text: str) -> str:
    """A text as its words alone, with a space on both sides, so that only whole words match."""
    return _long_words(text) if len(text) > SHORT_TEXT_CHARS else _short_words(text)


def _compute_words(text: str) -> str:
    plain = text if text.isascii() else unicodedata.normalize("NFKC", text)
    return f" {' '.join(_WORD_TOKEN.findall(plain.casefold()))} "


# Short ones are facts, which are looked for again and again; of long ones, which are few and
# large, those around several handoffs are.
_long_words, _short_words = lru_cache(64)(_compute_words), lru_cache(4096)(_compute_words)


@lru_cache(256)
def split_sentences(text: str) -> tuple[str, ...]:
    """Its sentences and list items, without blocks of code."""
    return tuple([one for line in split_paragraphs(text) for one in split_paragraph(line)])


def split_paragraphs(text: str) -> list[str]:
    """Its lines, without blocks of code; those that were only wrapped are one."""
    text = text[:MAX_TEXT_CHARS]
    if "```" in text:
        text = CODE_FENCE.sub("\n", text)
    return _WRAPPED_LINE.sub(" ", text).splitlines()


def split_paragraph(paragraph: str) -> list[str]:
    """The sentences of one of those lines."""
    plain = paragraph.strip()
    if plain and not plain[0].isalpha():
        plain = _BULLET.sub("", paragraph).strip()
    if _SENTENCE_END.search(plain):
        return list(filter(None, map(str.strip, _SENTENCE_BREAK.split(plain))))
    return [plain] if plain else []


def word_stems(words: str) -> frozenset[str]:
    """The telling words of a text, without their endings."""
    return _long_stems(words) if len(words) > SHORT_TEXT_CHARS else _short_stems(words)


def _compute_stems(words: str) -> frozenset[str]:
    all_words = set(words.split())
    if "_" in words:
        all_words.update(words.replace("_", " ").split())
    return frozenset([_stem_word(word) for word in all_words - _STOP_WORDS if len(word) > 2])


_long_stems, _short_stems = lru_cache(256)(_compute_stems), lru_cache(4096)(_compute_stems)


def mentions_any(text: str, sought: Sequence[str]) -> bool:
    """Whether one of these words stands in a text."""
    for word in sought:  # noqa: SIM110 - a loop is three times as fast as a generator
        if word in text:
            return True
    return False


@lru_cache(8192)
def _stem_word(word: str) -> str:
    if word.startswith(CHANGE_STEMS):
        return "change"
    if word[-1] not in "gsdey":
        return word
    for ending in ("ings", "ing", "ies", "ed", "es", "s", "e", "y"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


# Many phrases looked for at once: their first letters by one automaton, the rest by a pattern.

_PHRASE_STEM = re.compile(r"(?:[\w' -](?![?*+{]))+")
"""What a phrase begins with, up to where it may vary."""


def compile_phrases(*alternatives: str) -> Callable[[str], bool]:
    """Whether a text holds one of some phrases: whole words, each a pattern that begins plainly."""
    pattern = re.compile(rf"\b(?:{'|'.join(alternatives)})\b")
    stems = [_phrase_stem(phrase) for phrase in alternatives]

    @cache
    def search() -> AhoCorasick:
        return AhoCorasick(stems, implementation=Implementation.DFA)

    return lambda text: find_first_match(pattern, search(), text) is not None


def _phrase_stem(phrase: str) -> str:
    match = _PHRASE_STEM.match(phrase)
    assert match is not None, f"{phrase!r} does not begin with plain letters"
    return match[0]


def find_first_match(
    pattern: re.Pattern[str], search: AhoCorasick, text: str
) -> re.Match[str] | None:
    """What a pattern finds first, tried only where one of the words stands that it begins with."""
    places = search.find_matches_as_indexes(text, overlapping=True)
    for start in sorted([start for _, start, _ in places]):
        if match := pattern.match(text, start):
            return match
    return None


def find_matching_lines(search: AhoCorasick, lines: str) -> Iterator[int]:
    """Which of the lines hold one of the words sought, in order."""
    at = place = 0
    last = -1
    for _, start, _ in search.find_matches_as_indexes(lines):
        place, at = place + lines.count("\n", at, start), start
        if place != last:
            last = place
            yield place


def contains_any(search: AhoCorasick, text: str) -> bool:
    """Whether one of the words sought is there: where it stands takes longer to find."""
    return bool(search.find_matches_as_strings(text))


def build_automaton(words: Sequence[str]) -> AhoCorasick:
    """Finds all of the words in one pass."""
    return AhoCorasick(words, implementation=Implementation.DFA)
