"""Near misses: the name that was probably meant."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Set
from difflib import SequenceMatcher
from itertools import permutations
from string import ascii_letters, digits

MIN_NAME_CHARS = 4
"""Shorter names are one edit away from too many others."""
MIN_DISTANT_NAME_CHARS = 5
"""Shorter ones are a letter away from some other that is defined anywhere."""
MAX_NAME_CHARS = 100
"""Longer ones are nobody's slip, and would take their time."""
MIN_LIKENESS = 0.75
_NAME_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NAME_LETTERS = ascii_letters + digits + "_"


def find_slips(
    name: str, exists: Callable[[str], bool], shortest: int = MIN_NAME_CHARS
) -> list[str]:
    """Existing names by which this one may have been meant: one slip, other case, other order."""
    if not shortest <= len(name) <= MAX_NAME_CHARS:
        return []
    return list(dict.fromkeys(other for other in _list_variants(name) if exists(other)))


def is_other_word(one: str, other: str) -> bool:
    """Whether they differ on purpose: `Var` and `VarP`, `v1` and `v2`, `Get` and `Set`."""
    if one.startswith("_") != other.startswith("_"):
        return True
    if one.replace("_", "").lower() == other.replace("_", "").lower():
        return one.isupper() != other.isupper() or one[1:] == other[1:]
    if one[:1] != other[:1] and sorted(one) != sorted(other):
        # Nobody slips on the first letter: `echo` and `secho`, `lpush` and `rpush`.
        return True
    if len(one) == len(other):
        apart = [pair for pair in zip(one, other, strict=True) if pair[0] != pair[1]]
        letters = {letter.lower() for letter in apart[0]}
        verbs = one[1:3].lower() == "et" and letters == {"g", "s"}
        tells = verbs or len(one) < MIN_NAME_CHARS or any(letter.isdigit() for letter in letters)
        return len(apart) == 1 and tells
    short, long = sorted((one, other), key=len)
    return long.startswith(short) and (long[len(short)].isupper() or long[-1].isdigit())


def is_misspelt(name: str, other: str) -> bool:
    """Whether no letter was put in the place of another: `set_xlabel` is not `set_ylabel`."""
    return len(name) != len(other) or sorted(name.lower()) == sorted(other.lower())


def is_likely_meant(name: str, other: str) -> bool:
    """Whether a name from anywhere is so like it that it was meant."""
    return len(name) >= MIN_DISTANT_NAME_CHARS or sorted(name) == sorted(other)


def find_nearest_name(name: str, others: Set[str]) -> str | None:
    """The most alike of a few names, best one slip away; None where none is."""
    for other in find_slips(name, others.__contains__, 3):
        return other
    if len(name) > MAX_NAME_CHARS:
        return None
    best, most = None, MIN_LIKENESS
    mine = set(split_name_words(name))
    for other in others:
        if other == name or (other.startswith("_") and not name.startswith("_")):
            continue
        alike = _name_likeness(name, mine, other)
        if alike > most or (best and alike == most and other < best):
            best, most = other, alike
    return best


def _name_likeness(name: str, mine: set[str], other: str) -> float:
    theirs = set(split_name_words(other))
    if mine == theirs:
        return 1.0
    if abs(len(name) - len(other)) > max(len(name), len(other)) // 2:
        return 0.0
    letters = SequenceMatcher(None, name.lower(), other.lower(), autojunk=False).ratio()
    shared = len(mine & theirs)
    # All words but one agree: `parse_day` and `parse_date`.
    agree = shared >= max(len(mine), len(theirs)) - 1 and min(len(mine), len(theirs)) > 1
    return max(letters, 0.76 + letters / 10) if agree else letters


def _list_variants(name: str) -> Iterator[str]:
    """The likeliest first."""
    yield from _reorder_words(name)
    places = range(len(name))
    yield from (name[:at] + name[at + 1] + name[at] + name[at + 2 :] for at in places[:-1])
    yield from (name[:at] + name[at + 1 :] for at in places)
    yield from (
        name[:at] + letter + name[at:] for at in (*places, len(name)) for letter in _NAME_LETTERS
    )
    yield from (name[:at] + letter + name[at + 1 :] for at in places for letter in _NAME_LETTERS)


def _reorder_words(name: str) -> Iterator[str]:
    """The same words in another case or order."""
    words = split_name_words(name)
    if not 1 < len(words) <= 4:
        return
    start = name[: len(name) - len(name.lstrip("_"))]
    for order in permutations(words):
        snake = "_".join(order)
        pascal = "".join(word.capitalize() for word in order)
        for variant in (snake, snake.upper(), pascal, pascal[:1].lower() + pascal[1:]):
            if start + variant != name:
                yield start + variant


def split_name_words(name: str) -> list[str]:
    return [word.lower() for word in _NAME_WORD.findall(name)]
