"""Edits and shell lines written as text: SEARCH/REPLACE blocks, fences, patches, words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from closeloop.records.record import Record
from closeloop.traces.untrusted_json import as_mapping

_SEARCH = re.compile(r"\A<{5,9} SEARCH>?\s*\Z")
_MIDDLE = re.compile(r"\A={5,9}\s*\Z")
_REPLACE = re.compile(r"\A>{5,9} REPLACE\s*\Z")
_FENCE = "```"
BEGIN, END = "*** Begin Patch", "*** End Patch"
_ACTION_BY_HEADER: dict[str, Literal["create", "change", "delete"]] = {
    "*** Add File: ": "create",
    "*** Update File: ": "change",
    "*** Delete File: ": "delete",
}
_ACTION_BY_CHANGE_TYPE: dict[str, Literal["create", "change", "delete"]] = {
    "add": "create",
    "delete": "delete",
}
_SHELL_BEFORE_PATCH = re.compile(r"\A\s*(?:cd [^\n&|;]+ && )?apply_patch\b[^\n]*\n?\Z")
_SHELL_AFTER_PATCH = re.compile(r"\A\s*['\"]?\w*['\")]?\s*\Z")
_PIECE = re.compile(
    r"""(?P<plain>[^ \t\r\n\\'"]+)|(?P<space>[ \t\r\n]+)|'(?P<single>[^']*)'|"""
    r""""(?P<double>[^"\\]*(?:\\.[^"\\]*)*)"|\\(?P<escaped>.)""",
    re.DOTALL,
)
_ESCAPED = re.compile(r'\\(["\\])')


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


class FilePatch(NamedTuple):
    """What a patch does to one file."""

    path: str
    action: Literal["create", "change", "delete", "move"]
    after: str | None = None
    patch: str | None = None


def files_in_patch(text: str) -> list[FilePatch]:
    """The files of a patch, in its order; none where it is not one."""
    files = []
    for head, path, body in _iter_sections(text):
        if head == "*** Add File: ":
            lines = [line[1:] for line in body if line.startswith("+")]
            files.append(FilePatch(path, "create", after="\n".join(lines) + "\n"))
            continue
        moved = bool(body) and body[0].startswith("*** Move to: ")
        section = "\n".join([head + path, *body])
        files.append(FilePatch(path, "move" if moved else _ACTION_BY_HEADER[head], patch=section))
    return files


def _iter_sections(text: str) -> Iterator[tuple[str, str, list[str]]]:
    place: tuple[str, str] | None = None
    body: list[str] = []
    for line in text.splitlines():
        if not line.startswith("*** ") or line.startswith(("*** Move to: ", "*** End of File")):
            body.append(line)
            continue
        if place is not None:
            yield *place, body
        head = next((head for head in _ACTION_BY_HEADER if line.startswith(head)), None)
        place = (head, line[len(head) :].strip()) if head else None
        body = []
    if place is not None:
        yield *place, body


def files_in_command(command: str) -> list[FilePatch]:
    """The files of a patch given as a shell line, which Codex applies without a shell."""
    start, end = command.find(BEGIN), command.rfind(END)
    if start < 0 or end < start:
        return []
    before, after = command[:start], command[end + len(END) :]
    if not _SHELL_BEFORE_PATCH.match(before.rstrip("'\"")) or not _SHELL_AFTER_PATCH.match(after):
        return []
    return files_in_patch(command[start:end])


def files_in_changes(changes: Any) -> list[FilePatch]:
    """The files of a change that was made, as Codex tells it afterwards."""
    files = []
    # Codex writes them in no order of its own.
    for path, change in sorted(as_mapping(changes).items(), key=lambda item: item[0]):
        change_fields = as_mapping(change)
        kind, content = change_fields.get("type"), change_fields.get("content")
        if kind == "add" and isinstance(content, str):
            files.append(FilePatch(str(path), "create", after=content))
            continue
        diff = change_fields.get("unified_diff")
        action = (
            "move"
            if change_fields.get("move_path")
            else _ACTION_BY_CHANGE_TYPE.get(str(kind), "change")
        )
        patch = diff if isinstance(diff, str) else None
        files.append(FilePatch(str(path), action, patch=patch))
    return files


def split_shell_words(line: str) -> list[str]:
    """ValueError where a quotation does not end."""
    split_words: list[str] = []
    pieces: list[str] = []
    place = 0
    while place < len(line):
        piece = _PIECE.match(line, place)
        if piece is None:
            raise ValueError("no closing quotation")
        place, text = piece.end(), piece[piece.lastgroup or 0]
        if piece.lastgroup != "space":
            pieces.append(_ESCAPED.sub(r"\1", text) if piece.lastgroup == "double" else text)
        elif pieces:
            split_words.append("".join(pieces))
            pieces = []
    return [*split_words, "".join(pieces)] if pieces else split_words
