"""Near misses: the name that was probably meant."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Set
from difflib import SequenceMatcher
from itertools import permutations
from string import ascii_letters, digits

SHORTEST = 4
"""Shorter names are one edit away from too many others."""
FAR = 5
"""Shorter ones are a letter away from some other that is defined anywhere."""
LONGEST = 100
"""Longer ones are nobody's slip, and would take their time."""
ALIKE = 0.75
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_LETTERS = ascii_letters + digits + "_"


def slips(name: str, exists: Callable[[str], bool], shortest: int = SHORTEST) -> list[str]:
    """Existing names by which this one may have been meant: one slip, other case, other order."""
    if not shortest <= len(name) <= LONGEST:
        return []
    return list(dict.fromkeys(other for other in _variants(name) if exists(other)))


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
        tells = verbs or len(one) < SHORTEST or any(letter.isdigit() for letter in letters)
        return len(apart) == 1 and tells
    short, long = sorted((one, other), key=len)
    return long.startswith(short) and (long[len(short)].isupper() or long[-1].isdigit())


def is_misspelt(name: str, other: str) -> bool:
    """Whether no letter was put in the place of another: `set_xlabel` is not `set_ylabel`."""
    return len(name) != len(other) or sorted(name.lower()) == sorted(other.lower())


def is_meant(name: str, other: str) -> bool:
    """Whether a name from anywhere is so like it that it was meant."""
    return len(name) >= FAR or sorted(name) == sorted(other)


def nearest(name: str, others: Set[str]) -> str | None:
    """The most alike of a few names, best one slip away; None where none is."""
    for other in slips(name, others.__contains__, 3):
        return other
    if len(name) > LONGEST:
        return None
    best, most = None, ALIKE
    mine = set(split(name))
    for other in others:
        if other == name or (other.startswith("_") and not name.startswith("_")):
            continue
        alike = _likeness(name, mine, other)
        if alike > most or (best and alike == most and other < best):
            best, most = other, alike
    return best


def _likeness(name: str, mine: set[str], other: str) -> float:
    theirs = set(split(other))
    if mine == theirs:
        return 1.0
    if abs(len(name) - len(other)) > max(len(name), len(other)) // 2:
        return 0.0
    letters = SequenceMatcher(None, name.lower(), other.lower(), autojunk=False).ratio()
    shared = len(mine & theirs)
    # All words but one agree: `parse_day` and `parse_date`.
    agree = shared >= max(len(mine), len(theirs)) - 1 and min(len(mine), len(theirs)) > 1
    return max(letters, 0.76 + letters / 10) if agree else letters


def _variants(name: str) -> Iterator[str]:
    """The likeliest first."""
    yield from _rewritten(name)
    places = range(len(name))
    yield from (name[:at] + name[at + 1] + name[at] + name[at + 2 :] for at in places[:-1])
    yield from (name[:at] + name[at + 1 :] for at in places)
    yield from (
        name[:at] + letter + name[at:] for at in (*places, len(name)) for letter in _LETTERS
    )
    yield from (name[:at] + letter + name[at + 1 :] for at in places for letter in _LETTERS)


def _rewritten(name: str) -> Iterator[str]:
    """The same words in another case or order."""
    words = split(name)
    if not 1 < len(words) <= 4:
        return
    start = name[: len(name) - len(name.lstrip("_"))]
    for order in permutations(words):
        snake = "_".join(order)
        pascal = "".join(word.capitalize() for word in order)
        for variant in (snake, snake.upper(), pascal, pascal[:1].lower() + pascal[1:]):
            if start + variant != name:
                yield start + variant


def split(name: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(name)]
