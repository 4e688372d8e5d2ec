"""Two changes held against each other, file by file: which lines both changed alike."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import Literal

from closeloop.records.change import Change
from closeloop.records.record import Record
from closeloop.text.patches import parse_hunk_lines, split_patch_by_file

MAX_COMPARED_LINES = 2000
"""Changed lines of one file that are aligned; longer changes are shown one after the other."""
MAX_SHOWN_LINES = 800
MAX_LINE_CHARS = 1000

SharedBy = Literal["both", "first", "second"]


class ComparedLine(Record):
    """One changed line, and whose change has it."""

    by: SharedBy
    sign: Literal["+", "-"]
    text: str


class ComparedFile(Record):
    """One file of two changes."""

    path: str
    state: Literal["same", "differs", "only first", "only second", "not told"]
    """`not told`: a change names the file and holds no line of it."""
    both: int
    first: int
    second: int
    """Changed lines that both have, and that only one has."""
    lines: tuple[ComparedLine, ...]
    left_out: int = 0
    """Lines that are not shown."""


def compare_changes(first: Change, second: Change) -> tuple[ComparedFile, ...]:
    """Every file that either changes, those that differ first; context lines are left out."""
    sides = [
        {
            path: [(sign, line[1:]) for sign, _, line in parse_hunk_lines(section) if sign in "+-"]
            for path, section in split_patch_by_file(change.patch)
        }
        if change.patch.strip()
        else {}
        for change in (first, second)
    ]
    names = [[file.path for file in change.files] for change in (first, second)]
    files = [
        _compare_file(
            path, tuple(path in side for side in names), [side.get(path, []) for side in sides]
        )
        for path in dict.fromkeys((*names[0], *names[1]))
    ]
    return tuple(sorted(files, key=lambda file: file.state == "same"))


ChangedLines = list[tuple[str, str]]


def _compare_file(path: str, present: tuple[bool, ...], lines: list[ChangedLines]) -> ComparedFile:
    aligned = _align_lines(*lines)
    counts = {by: sum(line.by == by for line in aligned) for by in ("both", "first", "second")}
    state: Literal["same", "differs", "only first", "only second", "not told"]
    if present == (True, False):
        state = "only first"
    elif present == (False, True):
        state = "only second"
    elif not aligned:
        state = "not told"
    else:
        state = "differs" if counts["first"] or counts["second"] else "same"
    return ComparedFile(
        path=path,
        state=state,
        both=counts["both"],
        first=counts["first"],
        second=counts["second"],
        lines=tuple(aligned[:MAX_SHOWN_LINES]),
        left_out=max(0, len(aligned) - MAX_SHOWN_LINES),
    )


def _align_lines(first: ChangedLines, second: ChangedLines) -> list[ComparedLine]:
    if max(len(first), len(second)) > MAX_COMPARED_LINES and first != second:
        return [*_mark_lines(first, "first"), *_mark_lines(second, "second")]
    aligned: list[ComparedLine] = []
    matcher = SequenceMatcher(None, first, second, autojunk=False)
    for kind, start, end, other_start, other_end in matcher.get_opcodes():
        if kind == "equal":
            aligned += _mark_lines(first[start:end], "both")
        else:
            aligned += _mark_lines(first[start:end], "first")
            aligned += _mark_lines(second[other_start:other_end], "second")
    return aligned


def _mark_lines(lines: ChangedLines, by: SharedBy) -> list[ComparedLine]:
    return [
        ComparedLine(by=by, sign="+" if sign == "+" else "-", text=text[:MAX_LINE_CHARS])
        for sign, text in lines
    ]
