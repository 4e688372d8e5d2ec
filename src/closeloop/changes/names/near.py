"""Near misses: the name that was probably meant."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from difflib import SequenceMatcher
from itertools import permutations
from string import ascii_letters, digits

SHORTEST = 4
"""Shorter names are one edit away from too many others."""
ALIKE = 0.75
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_LETTERS = ascii_letters + digits + "_"


def slips(name: str, exists: Callable[[str], bool]) -> list[str]:
    """Existing names by which this one may have been meant: one slip, other case, other order."""
    if len(name) < SHORTEST:
        return []
    return list(dict.fromkeys(other for other in _variants(name) if exists(other)))


def nearest(name: str, others: Iterable[str]) -> str | None:
    """The most alike of a few names; None where none is."""
    best, most = None, ALIKE
    mine = set(_split(name))
    for other in others:
        if other == name:
            continue
        alike = _likeness(name, mine, other)
        if alike > most or (best and alike == most and other < best):
            best, most = other, alike
    return best


def _likeness(name: str, mine: set[str], other: str) -> float:
    theirs = set(_split(other))
    if mine == theirs:
        return 1.0
    if abs(len(name) - len(other)) > max(len(name), len(other)) // 2:
        return 0.0
    letters = SequenceMatcher(None, name.lower(), other.lower(), autojunk=False).ratio()
    shared = len(mine & theirs)
    # All words but one agree: `parse_day` and `parse_date`.
    agree = shared and shared >= max(len(mine), len(theirs)) - 1
    return max(letters, 0.76 + letters / 10) if agree else letters


def _variants(name: str) -> Iterator[str]:
    yield from _rewritten(name)
    for at in range(len(name)):
        yield name[:at] + name[at + 1 :]
        yield name[:at] + name[at + 1 : at + 2] + name[at] + name[at + 2 :]
        for letter in _LETTERS:
            yield name[:at] + letter + name[at + 1 :]
            yield name[:at] + letter + name[at:]
    yield from (name + letter for letter in _LETTERS)


def _rewritten(name: str) -> Iterator[str]:
    """The same words in another case or order."""
    words = _split(name)
    if not 1 < len(words) <= 4:
        return
    start = name[: len(name) - len(name.lstrip("_"))]
    for order in permutations(words):
        snake = "_".join(order)
        pascal = "".join(word.capitalize() for word in order)
        for variant in (snake, snake.upper(), pascal, pascal[:1].lower() + pascal[1:]):
            if start + variant != name:
                yield start + variant


def _split(name: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(name)]
