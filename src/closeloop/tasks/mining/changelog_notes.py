"""What a change says of itself in the change log."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import islice

from closeloop.tasks.mining.patch_words import iter_patch_lines, split_patch_lines

MAX_NOTES = 100
_BULLET = re.compile(r"^\s*[-*•]\s+")
_HEADING = re.compile(
    r"\W*|\W*(?:version|release)? ?v?\d+(?:\.\d+)+\S{0,12}(?:\W.{0,40})?|\W*\d{4}-\d\d-\d\d\W*"
    r"|#.*|\w+:|\W*(?:new |other |security |breaking )?(?:features?|(?:bug ?)?fix(?:es)?|added"
    r"|changed|changes|fixed|removed|deprecat\w+|improvements|enhancements|security|support|refactoring"
    r"|unreleased)\W*",
    re.IGNORECASE,
)
_EMPTY_NOTE = re.compile(r"(?i)\W*(?:same (?:for|goes|as) .*)?")


def extract_changelog_notes(patch: str) -> str:
    """The entries that a change adds to the change log, as prose; moved and edited ones are old."""
    old_notes = [_strip_bullet(line) for line in split_patch_lines(patch).removed[:MAX_NOTES]]
    notes: list[str] = []
    for line in islice(_new_lines(patch), MAX_NOTES):
        note = _strip_bullet(line)
        if note in notes or _EMPTY_NOTE.fullmatch(note) or get_close_matches(note, old_notes, 1):
            continue
        notes += ["", note] if _BULLET.match(line) else [note]
    return "\n".join(notes).strip()


def _new_lines(patch: str) -> Iterator[str]:
    """Added lines, but for headings and for those in the midst of an entry that was there."""
    old = False
    for sign, line in iter_patch_lines(patch):
        begins = _BULLET.match(line) is not None
        heads = not begins and _HEADING.fullmatch(line.strip()) is not None
        if sign == " ":
            old = not heads
        elif sign == "+":
            old = old and not begins and not heads
            if not old and not heads:
                yield line


def _strip_bullet(line: str) -> str:
    return _BULLET.sub("", line).strip()
