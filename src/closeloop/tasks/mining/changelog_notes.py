"""What a change says of itself in the change log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import islice

from closeloop.tasks.mining.prompt_leaks import iter_patch_lines, split_patch_lines

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
    old_entries = [*_split_entries(split_patch_lines(patch).removed[:MAX_NOTES])]
    old_lines = [_strip_bullet(line) for line in split_patch_lines(patch).removed[:MAX_NOTES]]
    notes: dict[str, None] = {}
    for entry in _split_entries([*islice(_new_lines(patch), MAX_NOTES)]):
        is_old = get_close_matches(entry, old_entries, 1) or get_close_matches(entry, old_lines, 1)
        if entry and not _EMPTY_NOTE.fullmatch(entry) and not is_old:
            notes[entry] = None
    return "\n\n".join(notes)


def _split_entries(lines: Sequence[str]) -> Iterator[str]:
    """Entries of a list with the lines they are wrapped into, and paragraphs."""
    entry: list[str] = []
    for line in [*lines, ""]:
        if (_BULLET.match(line) or not line.strip()) and entry:
            yield "\n".join(entry)
            entry = []
        if not _EMPTY_NOTE.fullmatch(text := _strip_bullet(line)) or entry:
            entry += [text] if text else []


def _new_lines(patch: str) -> Iterator[str]:
    """Added lines, but for headings and for those in the midst of an entry that was there."""
    old = within = False
    for sign, line in iter_patch_lines(patch):
        begins = _BULLET.match(line) is not None
        # What an entry is wrapped into may read like a heading.
        wrapped = within and line[:1].isspace() and line.strip() and not begins
        heads = not begins and not wrapped and _HEADING.fullmatch(line.strip()) is not None
        within = bool(begins or wrapped)
        if sign == " ":
            old = not heads
        elif sign == "+":
            old = old and not begins and not heads
            if not old and not heads:
                yield line
            elif heads:
                yield ""


def _strip_bullet(line: str) -> str:
    return _BULLET.sub("", line).strip()
