"""Parses patches in git's format: the files they touch and their lines."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from closeloop.records.change import Change, FileChange, Hunk
from closeloop.records.errors import BadInput

_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
_ESCAPED_BYTES = {
    b"n": b"\n",
    b"t": b"\t",
    b"r": b"\r",
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"v": b"\v",
}


def parse_patch(patch: str, base: str | None = None) -> Change:
    """Parse a patch; BadInput if it is not a patch or is truncated."""
    if not patch.strip():
        return Change(base=base)
    return Change(base=base, files=tuple(_PatchParser(patch).parse_files()), patch=patch)


class _PatchParser:
    """A position in the lines of a patch."""

    def __init__(self, patch: str) -> None:
        self.lines = patch.removesuffix("\n").split("\n")
        self.at = 0

    def parse_files(self) -> list[FileChange]:
        files = []
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.startswith("diff --git "):
                files.append(self._parse_git_file())
            elif self._starts_plain_file():
                files.append(self._parse_body({}))
            elif line.startswith(("diff --cc ", "diff --combined ")):
                raise BadInput(
                    "A combined diff of a merge has too little information: diff against "
                    "one parent."
                )
            elif line.startswith("@@ -"):
                raise self._parse_error("a hunk belongs to no file")
            else:
                self.at += 1
        if not files:
            raise BadInput("This is not a patch: it names no file; make one with `git diff`.")
        return files

    def _parse_git_file(self) -> FileChange:
        """Parse git's header lines from `diff --git` on, then any hunks."""
        old, new, prefixed = _header_paths(self._line_at()[len("diff --git ") :])
        facts: dict[str, Any] = {"old": old, "new": new, "prefixed": prefixed}
        self.at += 1
        while self.at < len(self.lines) and not self.lines[self.at].startswith("diff --"):
            line = self._line_at()
            if self._starts_plain_file():
                return self._parse_body(facts)
            if line.startswith("@@ -"):
                raise self._parse_error("a hunk has no file names above it")
            if line.startswith("new file mode "):
                facts["status"] = "added"
            elif line.startswith("deleted file mode "):
                facts["status"] = "deleted"
            elif line.startswith("rename from "):
                facts |= {"status": "renamed", "old": _unquote_path(line[len("rename from ") :])}
            elif line.startswith(("rename to ", "copy to ")):
                facts["new"] = _unquote_path(line.split(" to ", 1)[1])
                facts.setdefault("status", "added")
            elif line.startswith("Binary files ") or line == "GIT binary patch":
                facts["binary"] = True
            self.at += 1
        return self._build_file_change(facts, ())

    def _parse_body(self, facts: dict[str, Any]) -> FileChange:
        """Parse the `---` and `+++` lines and their hunks."""
        old_path, new_path = (_parse_path_line(self._line_at(offset)[4:]) for offset in (0, 1))
        if not facts:
            facts = {
                "prefixed": all(
                    path is None or path[:2] in ("a/", "b/") for path in (old_path, new_path)
                )
            }
        prefix_length = 2 if facts["prefixed"] else 0
        if "status" not in facts:
            facts["status"] = (
                "added" if old_path is None else "deleted" if new_path is None else "changed"
            )
        if facts["status"] != "renamed":
            path = new_path if new_path is not None else old_path
            if path is None:
                raise self._parse_error("neither the old nor the new file has a name")
            facts |= {"old": None, "new": path[prefix_length:]}
        self.at += 2
        return self._build_file_change(facts, self._parse_hunks())

    def _build_file_change(
        self, facts: dict[str, Any], hunks: tuple[tuple[Hunk, int, int], ...]
    ) -> FileChange:
        path, status = facts["new"], facts.get("status", "changed")
        if not path:
            raise self._parse_error("a file has no name that can be read")
        for name in (path, facts["old"] or ""):
            if name.startswith("/") or ".." in name.split("/") or "\0" in name:
                raise self._parse_error(f"the path {name!r} points outside the repository")
        return FileChange(
            path=path,
            status=status,
            old_path=facts["old"] if status == "renamed" else None,
            added=sum(added for _, added, _ in hunks),
            removed=sum(removed for _, _, removed in hunks),
            binary=facts.get("binary", False),
            hunks=tuple(hunk for hunk, _, _ in hunks),
        )

    def _parse_hunks(self) -> tuple[tuple[Hunk, int, int], ...]:
        """Return each hunk with its numbers of added and removed lines."""
        hunks = []
        while self.at < len(self.lines) and (header := _HUNK.match(self.lines[self.at])):
            old_start, old_lines, new_start, new_lines = (
                1 if number is None else int(number) for number in header.groups()
            )
            self.at += 1
            added, removed = self._skip_hunk_lines(old_lines, new_lines)
            hunk = Hunk(
                old_start=old_start, old_lines=old_lines, new_start=new_start, new_lines=new_lines
            )
            hunks.append((hunk, added, removed))
        return tuple(hunks)

    def _skip_hunk_lines(self, old_lines: int, new_lines: int) -> tuple[int, int]:
        """Skip exactly the lines that the hunk's header announces, whatever they look like."""
        lines, index = self.lines, self.at
        added = removed = 0
        while old_lines > removed or new_lines > added:
            sign = lines[index][:1] if index < len(lines) else "end"
            if sign == "+":
                added += 1
            elif sign == "-":
                removed += 1
            elif sign in (" ", "", "\r"):
                old_lines, new_lines = old_lines - 1, new_lines - 1
            elif sign != "\\":
                break
            index += 1
        self.at = index
        if old_lines != removed or new_lines != added:
            raise self._parse_error("a hunk does not have the lines that its header promises")
        while index < len(lines) and lines[index].startswith("\\ "):
            index += 1
        self.at = index
        return added, removed

    def _starts_plain_file(self) -> bool:
        next_line = self.lines[self.at + 1] if self.at + 1 < len(self.lines) else ""
        return self.lines[self.at].startswith("--- ") and next_line.startswith("+++ ")

    def _line_at(self, offset: int = 0) -> str:
        return self.lines[self.at + offset].removesuffix("\r")

    def _parse_error(self, reason: str) -> BadInput:
        return BadInput(f"The patch cannot be read at line {self.at + 1}: {reason}.")


def _header_paths(text: str) -> tuple[str | None, str | None, bool]:
    """Old and new path of a `diff --git` line, and whether they bore a prefix such as `a/`.

    The line is ambiguous where names have spaces: then both halves must be the same name, as
    they are wherever the following lines do not name the file themselves.
    """
    if text.startswith('"') or text.endswith('"'):
        quoted = re.fullmatch(r'("(?:[^"\\]|\\.)*"|\S+) ("(?:[^"\\]|\\.)*"|\S+)', text)
        old, new = (_unquote_path(half) for half in quoted.groups()) if quoted else ("", "")
    else:
        old, new = text[: len(text) // 2], text[len(text) // 2 + 1 :]
    if old == new:
        return old, new, False
    if old[1:2] == "/" and new[1:] == old[1:]:
        return old[2:], new[2:], True
    return None, None, "a/" in text


def _parse_path_line(text: str) -> str | None:
    """Return the path of a `---` or `+++` line without a date; None for no file."""
    path = _unquote_path(text) if text.startswith('"') else text.split("\t", 1)[0]
    return None if path == "/dev/null" else path


def _unquote_path(text: str) -> str:
    if not text.startswith('"') or not text.rstrip().endswith('"') or len(text) < 2:
        return text

    def plain(escape: re.Match[bytes]) -> bytes:
        code = escape[1]
        return bytes([int(code, 8) & 255]) if len(code) == 3 else _ESCAPED_BYTES.get(code, code)

    inner = text.rstrip()[1:-1].encode("utf-8", "surrogatepass")
    return _ESCAPE.sub(plain, inner).decode("utf-8", "backslashreplace")


# Which lines a change added and removed, by number.

LineNumbers = Mapping[str, frozenset[int]]
_FILE_START = re.compile(r"^(?=diff --git )", re.MULTILINE)
_HUNK_START = re.compile(r"^@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")


def find_changed_lines(change: Change) -> tuple[LineNumbers, LineNumbers]:
    """Return added line numbers after the change and removed ones before it, by path."""
    files = {file.path: file for file in change.files}
    added_lines: dict[str, set[int]] = defaultdict(set)
    removed_lines: dict[str, set[int]] = defaultdict(set)
    paths_in_patch = set()
    for path, section in split_patch_by_file(change.patch):
        file = files.get(path)
        if file and (section_lines := list(parse_hunk_lines(section))):
            paths_in_patch.add(file.path)
            added_lines[file.path].update(
                number for sign, number, _ in section_lines if sign == "+"
            )
            removed_lines[_path_before(file)].update(
                number for sign, number, _ in section_lines if sign == "-"
            )
    for file in change.files:
        if file.path not in paths_in_patch:
            # Not in the patch (too large, for example): the whole range of a hunk.
            for hunk in file.hunks:
                added_lines[file.path].update(
                    range(hunk.new_start, hunk.new_start + hunk.new_lines)
                )
                removed_lines[_path_before(file)].update(
                    range(hunk.old_start, hunk.old_start + hunk.old_lines)
                )
    return _freeze_lines(added_lines), _freeze_lines(removed_lines)


def split_patch_by_file(patch: str) -> Iterator[tuple[str, str]]:
    """Yield the path and the patch of each file."""
    return ((_section_path(section), section) for section in _FILE_START.split(patch))


def _section_path(section: str) -> str:
    """Return the path of a part of a patch, from the lines before its hunks."""
    header = section.partition("\n@@ -")[0]
    return parse_patch(header).files[0].path if "\n" in header else ""


def _path_before(file: FileChange) -> str:
    return file.old_path or file.path


def parse_hunk_lines(section: str) -> Iterator[tuple[str, int, str]]:
    """Yield sign, number and text of each line of the hunks; a hunk's header has the sign `@`."""
    lines = iter(section.split("\n"))
    for line in lines:
        header = _HUNK_START.match(line)
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


def count_changed_lines(patch: str, paths: Collection[str]) -> Counter[tuple[str, str, str]]:
    """Count file, sign and text of each line that a patch adds or removes in these files.

    Layout is ignored. Lines without a letter or digit say nothing about the author.
    """
    return Counter(
        (path, sign, " ".join(line[1:].split()))
        for path, section in split_patch_by_file(patch)
        if path in paths
        for sign, _, line in parse_hunk_lines(section)
        if sign in "+-" and any(map(str.isalnum, line))
    )


def sum_line_counts(files: Iterable[FileChange]) -> tuple[int | None, int | None]:
    """Sum the lines added and removed; None if the content of one file is unknown."""
    all_files = [*files]
    if not all(map(has_line_counts, all_files)):
        return None, None
    return sum(file.added for file in all_files), sum(file.removed for file in all_files)


def has_line_counts(file: FileChange) -> bool:
    """Whether the number of changed lines of a file is known."""
    return bool(file.added or file.removed) or not (file.note or "").startswith("not read")


def _freeze_lines(numbers: Mapping[str, set[int]]) -> LineNumbers:
    return {path: frozenset(line_numbers) for path, line_numbers in numbers.items() if line_numbers}
