"""What a change says of itself in the change log."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import islice

from closeloop.tasks.mining.code import sides, signed

MOST_NOTES = 100
_BULLET = re.compile(r"^\s*[-*•]\s+")
_HEADING = re.compile(
    r"\W*|\W*(?:version|release)? ?v?\d+(?:\.\d+)+\S{0,12}(?:\W.{0,40})?|\W*\d{4}-\d\d-\d\d\W*"
    r"|#.*|\w+:|\W*(?:new |other |security |breaking )?(?:features?|(?:bug ?)?fix(?:es)?|added"
    r"|changed|changes|fixed|removed|deprecat\w+|improvements|enhancements|security|support|refactoring"
    r"|unreleased)\W*",
    re.IGNORECASE,
)
_NOTHING = re.compile(r"(?i)\W*(?:same (?:for|goes|as) .*)?")


def changelog_of(patch: str) -> str:
    """The entries that a change adds to the change log, as prose; moved and edited ones are old."""
    old = [_plain(line) for line in sides(patch).removed[:MOST_NOTES]]
    told: list[str] = []
    for line in islice(_new(patch), MOST_NOTES):
        plain = _plain(line)
        if plain in told or _NOTHING.fullmatch(plain) or get_close_matches(plain, old, 1):
            continue
        told += ["", plain] if _BULLET.match(line) else [plain]
    return "\n".join(told).strip()


def _new(patch: str) -> Iterator[str]:
    """Added lines, but for headings and for those in the midst of an entry that was there."""
    old = False
    for sign, line in signed(patch):
        begins = _BULLET.match(line) is not None
        heads = not begins and _HEADING.fullmatch(line.strip()) is not None
        if sign == " ":
            old = not heads
        elif sign == "+":
            old = old and not begins and not heads
            if not old and not heads:
                yield line


def _plain(line: str) -> str:
    return _BULLET.sub("", line).strip()
