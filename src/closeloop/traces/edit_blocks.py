"""Edits written into a reply: SEARCH/REPLACE blocks, whole files, diffs in fences."""

from __future__ import annotations

import re
from collections.abc import Iterator

from closeloop.records.record import Record

_SEARCH = re.compile(r"\A<{5,9} SEARCH>?\s*\Z")
_MIDDLE = re.compile(r"\A={5,9}\s*\Z")
_REPLACE = re.compile(r"\A>{5,9} REPLACE\s*\Z")
_FENCE = "```"


class EditBlock(Record):
    """One piece of text to be put in another's place."""

    path: str
    before: str
    after: str


def parse_edit_blocks(text: str) -> Iterator[EditBlock]:
    """Every complete block, with the file that is named above it or above the one before."""
    path = ""
    above: list[str] = []
    before: list[str] | None = None
    after: list[str] | None = None
    for line in text.split("\n"):
        if before is None:
            if _SEARCH.match(line):
                path, before = _path_above(above) or path, []
                above = []
            else:
                above = [*above[-2:], line]
        elif _REPLACE.match(line) and after is not None:
            yield EditBlock(
                path=path or "unknown", before=_join_lines(before), after=_join_lines(after)
            )
            before = after = None
        elif _MIDDLE.match(line) and after is None:
            after = []
        elif after is None:
            before.append(line)
        else:
            after.append(line)


def _join_lines(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _path_above(above: list[str]) -> str:
    """The file's name: the nearest of the lines above that is neither empty nor a fence."""
    for line in reversed(above):
        plain = line.strip().strip("`*#: ").strip()
        if line.lstrip().startswith(_FENCE):
            # Some formats name the file on the fence itself.
            if "/" in plain or "." in plain:
                return plain
            continue
        if plain:
            match = re.search(r"lines in (\S+)\Z", plain)
            return match[1] if match else plain
    return ""


def parse_fenced_changes(text: str, path: str) -> tuple[str | None, str | None]:
    """The new content of a file, and the diff for it, from the fences of a reply."""
    after: str | None = None
    diffs: list[str] = []
    name, inside, kind, above = path.rpartition("/")[2], [""], "", ""
    opened = False
    for line in text.split("\n"):
        if not line.startswith(_FENCE):
            if opened:
                inside.append(line)
            elif line.strip():
                above = line.strip().strip("`*#: ")
            continue
        if not opened:
            opened, inside, kind = True, [], line[3:].strip()
            continue
        opened = False
        if kind == "diff" and any(
            one[:4] in ("--- ", "+++ ") and name in one for one in inside[:2]
        ):
            diffs.append(_join_lines(inside))
        elif above in (path, name) or above.endswith(f"/{name}"):
            after = _join_lines(inside)
        above = ""
    return after, "".join(diffs) or None
