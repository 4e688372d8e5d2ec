"""Many phrases looked for at once: their first letters by one automaton, the rest by a pattern."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache

from ahocorasick_rs import AhoCorasick, Implementation

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
