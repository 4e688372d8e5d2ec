"""Which lines a change added and took away, by number."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from closeloop.model.change import Change, FileChange
from closeloop.model.patches import parse

Numbers = Mapping[str, frozenset[int]]
_FILE = re.compile(r"^(?=diff --git )", re.MULTILINE)
_HUNK = re.compile(r"^@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")


def altered(change: Change) -> tuple[Numbers, Numbers]:
    """By path, the lines added, as they are numbered after; and those removed, as before."""
    files = {file.path: file for file in change.files}
    added: dict[str, set[int]] = defaultdict(set)
    removed: dict[str, set[int]] = defaultdict(set)
    told = set()
    for path, section in sections(change.patch):
        file = files.get(path)
        if file and (found := list(lines_of(section))):
            told.add(file.path)
            added[file.path].update(number for sign, number, _ in found if sign == "+")
            removed[_before(file)].update(number for sign, number, _ in found if sign == "-")
    for file in change.files:
        if file.path not in told:
            # Not in the patch, as when that is too large: a hunk's whole stretch.
            for hunk in file.hunks:
                added[file.path].update(range(hunk.new_start, hunk.new_start + hunk.new_lines))
                removed[_before(file)].update(
                    range(hunk.old_start, hunk.old_start + hunk.old_lines)
                )
    return _frozen(added), _frozen(removed)


def sections(patch: str) -> Iterator[tuple[str, str]]:
    """A patch file by file: the path, and what the patch says of it."""
    return ((_path(section), section) for section in _FILE.split(patch))


def _path(section: str) -> str:
    """The path of a part of a patch, by what stands before its hunks."""
    header = section.partition("\n@@ -")[0]
    return parse(header).files[0].path if "\n" in header else ""


def _before(file: FileChange) -> str:
    return file.old_path or file.path


def lines_of(section: str) -> Iterator[tuple[str, int, str]]:
    """Sign, number and text of each line in a hunk; of a hunk's own head, the sign is `@`."""
    lines = iter(section.split("\n"))
    for line in lines:
        header = _HUNK.match(line)
        if header is None:
            continue
        old, old_count, new, new_count = (
            1 if part is None else int(part) for part in header.groups()
        )
        old_end, new_end = old + old_count, new + new_count
        yield "@", new, line
        while (old < old_end or new < new_end) and (inner := next(lines, None)) is not None:
            sign = inner[:1]
            if sign == "+":
                yield sign, new, inner
                new += 1
            elif sign == "-":
                yield sign, old, inner
                old += 1
            elif sign != "\\":
                yield " ", new, inner
                old, new = old + 1, new + 1


def _frozen(numbers: Mapping[str, set[int]]) -> Numbers:
    return {path: frozenset(found) for path, found in numbers.items() if found}
