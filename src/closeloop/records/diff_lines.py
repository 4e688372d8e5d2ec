"""Which lines a change added and took away, by number."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from closeloop.records.change import Change, FileChange
from closeloop.records.patch_parsing import parse_patch

LineNumbers = Mapping[str, frozenset[int]]
_FILE_START = re.compile(r"^(?=diff --git )", re.MULTILINE)
_HUNK = re.compile(r"^@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")


def find_changed_lines(change: Change) -> tuple[LineNumbers, LineNumbers]:
    """By path, the lines added, as they are numbered after; and those removed, as before."""
    files = {file.path: file for file in change.files}
    added: dict[str, set[int]] = defaultdict(set)
    removed: dict[str, set[int]] = defaultdict(set)
    paths_in_patch = set()
    for path, section in split_patch_by_file(change.patch):
        file = files.get(path)
        if file and (section_lines := list(parse_hunk_lines(section))):
            paths_in_patch.add(file.path)
            added[file.path].update(number for sign, number, _ in section_lines if sign == "+")
            removed[_path_before(file)].update(
                number for sign, number, _ in section_lines if sign == "-"
            )
    for file in change.files:
        if file.path not in paths_in_patch:
            # Not in the patch, as when that is too large: a hunk's whole stretch.
            for hunk in file.hunks:
                added[file.path].update(range(hunk.new_start, hunk.new_start + hunk.new_lines))
                removed[_path_before(file)].update(
                    range(hunk.old_start, hunk.old_start + hunk.old_lines)
                )
    return _freeze_lines(added), _freeze_lines(removed)


def split_patch_by_file(patch: str) -> Iterator[tuple[str, str]]:
    """A patch file by file: the path, and what the patch says of it."""
    return ((_section_path(section), section) for section in _FILE_START.split(patch))


def _section_path(section: str) -> str:
    """The path of a part of a patch, by what stands before its hunks."""
    header = section.partition("\n@@ -")[0]
    return parse_patch(header).files[0].path if "\n" in header else ""


def _path_before(file: FileChange) -> str:
    return file.old_path or file.path


def parse_hunk_lines(section: str) -> Iterator[tuple[str, int, str]]:
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


def _freeze_lines(numbers: Mapping[str, set[int]]) -> LineNumbers:
    return {path: frozenset(found) for path, found in numbers.items() if found}
